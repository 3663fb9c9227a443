"""The harness itself: what it writes is what it says, and its oracles see what is wrong."""

from pathlib import Path

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.storage.metadata_log import find_metadata
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.origin import Origin
from tests.harness.broker.releases import current_release
from tests.harness.broker.tools import (
    dump_log_segments,
    segment_files,
)

pytestmark = pytest.mark.broker


def test_a8_the_metadata_log_tells_the_release(origin: Origin) -> None:
    found = find_metadata(RealFiles(), [str(origin.log_dir)], str(origin.log_dir))
    release = current_release().version.rsplit(".", 1)[0]
    assert found is not None
    assert found.release == (release if release >= "4.0" else None)


def test_troubles_show_a_rebuilt_index(origin: Origin, log_dir: Path, tmp_path: Path) -> None:
    """An index that is gone is rebuilt at start, and the broker says so (spec disk B8)."""
    next((log_dir / origin.plans[0].directory).glob("*.index")).unlink()
    with KafkaBroker(tmp_path / "broker", [log_dir]) as broker:
        assert broker.troubles() != []


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_dump_log_segments_finds_a_flipped_byte(
    origin: Origin, log_dir: Path, tmp_path: Path, suffix: str
) -> None:
    """The last byte of a batch, of an index position, of a time index offset."""
    files = segment_files(log_dir / origin.plans[1].directory)
    spoilt = next(path for path in files if path.suffix == suffix and path.stat().st_size > 0)
    data = bytearray(spoilt.read_bytes())
    data[-1] ^= 1
    spoilt.write_bytes(data)
    assert dump_log_segments(tmp_path, [spoilt]) != []
