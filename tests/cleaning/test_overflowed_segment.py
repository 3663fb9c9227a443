"""A segment whose offsets do not fit its indexes (C072, C108 to C114): Kafka splits it, here it is named with the remedy."""

from pathlib import Path

import pytest

from cleanerd.format.batch import encode_batch
from cleanerd.format.names import FileKind, SegmentFileName
from cleanerd.format.record import Record
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.tools.client.writer import LogWriter
from tests.harness.logs.troubled import GOOD, assert_cleaned, clean, contents, write_logs

LAST_THAT_FITS = 2**31 - 1


def write(log_dir: Path, last_offset: int) -> Path:
    """Records of one key at 0 and 1, and another key at `last_offset`, in a segment at 0; an empty active one behind it."""
    with LogWriter(str(log_dir), "t", 0, segment_bytes=1 << 20) as writer:
        for offset in (0, 1):
            writer.append(encode_batch([Record(offset, 1000, b"a", b"v")], base_offset=offset))
        directory = Path(writer.directory)
    with (directory / str(SegmentFileName(0, FileKind.LOG))).open("ab") as log:
        log.write(encode_batch([Record(last_offset, 1000, b"b", b"v")], base_offset=last_offset))
    for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
        (directory / str(SegmentFileName(last_offset + 1, kind))).touch()
    return directory


@pytest.mark.trap("an offset span beyond 2^31 after a merge")
@pytest.mark.parametrize("beyond", [0, 1, 2**40])
def test_c072_an_overflowed_segment_is_not_written_again(
    tmp_path: Path, spark: LazySpark, beyond: int
) -> None:
    """A segment made of it would be one that no index can describe."""
    log_dir = write_logs(tmp_path / "logs", GOOD)
    other = tmp_path / "other"
    other.mkdir()
    directory = write(other, LAST_THAT_FITS + beyond)
    before = contents(directory)
    ran = clean(spark, other, log_dir)
    assert_cleaned(ran, log_dir / f"{GOOD}-0")
    if not beyond:
        assert ran.outcome("t", "other") == "committed"
        return
    reason = ran.reason("t", "other")
    assert str(directory / str(SegmentFileName(0, FileKind.LOG))) in reason
    assert f"expected offsets up to {LAST_THAT_FITS}, found {LAST_THAT_FITS + beyond}" in reason
    assert "start its broker once" in reason
    assert contents(directory) == before
