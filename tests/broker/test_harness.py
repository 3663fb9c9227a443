"""The harness itself: what it writes is what it says, and its oracles see what is wrong."""

from pathlib import Path

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.storage.metadata_log import find_metadata
from tests.broker.conftest import Origin
from tests.broker.kafka import KafkaBroker
from tests.broker.logdump import dump_partition
from tests.broker.model import committed
from tests.broker.releases import current_release
from tests.broker.tools import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    dump_log_segments,
    log_start_offset,
    read_all,
    segment_files,
)

pytestmark = pytest.mark.broker


def test_a8_the_metadata_log_tells_the_release(origin: Origin) -> None:
    found = find_metadata(RealFiles(), [str(origin.log_dir)], str(origin.log_dir))
    release = current_release().version.rsplit(".", 1)[0]
    assert found is not None
    assert found.release == (release if release >= "4.0" else None)


def test_consumers_see_what_the_dump_and_the_model_say(origin: Origin, log_dir: Path, tmp_path: Path) -> None:
    """Both isolation levels, from the log start; and the broker has nothing to complain about."""
    logs = {plan.topic: dump_partition(log_dir / plan.directory) for plan in origin.plans}
    starts = {topic: log_start_offset(log_dir, log) for topic, log in logs.items()}
    with KafkaBroker(tmp_path / "broker", [log_dir]) as broker:
        uncommitted = read_all(broker, list(logs), READ_UNCOMMITTED)
        of_committed = read_all(broker, list(logs), READ_COMMITTED)
        assert broker.troubles() == []
    for topic, log in logs.items():
        expected = [record for record in log.records if record.offset >= starts[topic]]
        assert expected == uncommitted[topic], topic
        assert committed(log, expected) == of_committed[topic], topic


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
