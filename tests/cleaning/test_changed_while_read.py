"""What looks damaged because it was exchanged while it was read is a source that changed, not a corrupt log.

Logs and files are real; the exchange happens at the moment at which a file of the segment is read. A process of its own
holds `.lock` where a broker lives.
"""

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from cleanerd.format import names
from cleanerd.format.names import FileKind
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.harness.disks.hooked import HookedFiles
from tests.harness.logs.troubled import GOOD, RECORDS, Ran, clean, lock_of_another, put, segment, write_logs


def merged_segment(directory: Path) -> Path:
    """The first segment of a log with the records of "bad" in a single one, as the broker's cleaner merges them."""
    directory.mkdir()
    records = [(b"key %d" % number, b"value %d" % number * 3) for number in range(RECORDS)]
    put(directory, "bad", records, index_interval_bytes=300)
    return segment(directory / "bad-0", 0)


@pytest.mark.fault("files that change or grow while they are read")
@pytest.mark.parametrize("is_live", [True, False])
def test_a_segment_swapped_between_its_log_and_its_index(
    spark: LazySpark, tmp_path: Path, *, is_live: bool
) -> None:
    """Superseded where a live broker did it, with exit code 0; a failure that is tried again where none runs."""
    log_dir = write_logs(tmp_path / "logs", GOOD, "bad")
    old, new = segment(log_dir / "bad-0", 0), merged_segment(tmp_path / "merged")
    swapped = list[FileKind]()

    def swap(call: str, path: str) -> None:
        """When its offset index is about to be read."""
        if call == "read_to_hole" and not swapped and path == str(old.with_suffix(".index")):
            for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
                shutil.copy(new.with_suffix(kind.value), old.parent / "new")
                os.replace(old.parent / "new", old.with_suffix(kind.value))
                swapped.append(kind)

    with lock_of_another(log_dir / names.LOCK) if is_live else contextlib.nullcontext():
        ran = clean(spark, log_dir, files=HookedFiles(swap))
    assert swapped
    reason = ran.results["logs", "bad"]["reason"]
    assert "00000000000000000000.log: was planned for as" in reason
    assert (ran.code, ran.outcome("bad")) == ((0, "superseded_by_broker") if is_live else (1, "failed"))
    assert ran.outcome(GOOD) == ("staged" if is_live else "committed")


def look(spark: LazySpark, tmp_path: Path, times: int) -> Ran:
    """A checkpoint of the log is caught half written so many times; another process writes it again each time."""
    log_dir = write_logs(tmp_path / "logs", GOOD, "bad")
    epochs = log_dir / "bad-0" / names.LEADER_EPOCH_CHECKPOINT
    epochs.write_text("0\n1\n0 0\n")
    halves = list[str]()

    def write_half(call: str, path: str) -> None:
        if (call, path) == ("read", str(epochs)) and len(halves) < times:
            epochs.write_bytes(b"0\n")
            halves.append(path)

    def write_whole(call: str, path: str) -> None:
        if (call, path) == ("read", str(epochs)) and epochs.read_bytes() == b"0\n":
            twin = epochs.with_name("twin")
            twin.write_text("0\n1\n0 0\n")
            twin.replace(epochs)

    with lock_of_another(log_dir / names.LOCK):
        return clean(spark, log_dir, files=HookedFiles(write_half, write_whole))


def test_what_looks_damaged_once_is_read_again(spark: LazySpark, tmp_path: Path) -> None:
    assert look(spark, tmp_path, 1).outcome("bad") == "staged"


def test_a_file_that_changes_under_each_reading_is_no_damage(spark: LazySpark, tmp_path: Path) -> None:
    ran = look(spark, tmp_path, 2)
    assert (ran.code, ran.outcome("bad")) == (0, "superseded_by_broker")


def test_real_damage_beside_a_live_broker_is_a_failure(spark: LazySpark, tmp_path: Path) -> None:
    log_dir = write_logs(tmp_path / "logs", GOOD, "bad")
    log = segment(log_dir / "bad-0", 1)
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    with lock_of_another(log_dir / names.LOCK):
        ran = clean(spark, log_dir)
    assert str(log) in ran.reason("bad")
    assert ran.code == 1
