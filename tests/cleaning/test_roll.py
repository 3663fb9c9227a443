"""Closing the active segment so that it can be cleaned (1.9): nothing of the log changes, however it ends."""

import os
from pathlib import Path

import pytest

from cleanerd.cleaning.roll import roll_log
from cleanerd.env.clock import FixedNow
from cleanerd.env.files import Files, RealFiles
from cleanerd.errors import CorruptFile, LockHeld, LogUncleanable
from cleanerd.format import names
from cleanerd.format.names import FileKind
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.log_dir import LogDir
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter
from tests.harness.disks.hooked import HookedFiles
from tests.harness.logs.retained import NOW_MS, TP, bases, offsets, segment_path, stop_broker, write_log
from tests.harness.logs.troubled import clean, lock_of_another, newest, put


def roll(log_dir: Path, files: Files | None = None) -> None:
    roll_log(LogDir.at(files or RealFiles(), str(log_dir), FixedNow(NOW_MS)), TP)


def contents(log_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (log_dir / str(TP)).iterdir()}


@pytest.mark.parametrize("is_kafka", [True, False])
def test_an_empty_segment_begins_at_the_log_end(tmp_path: Path, is_kafka: bool) -> None:
    write_log(tmp_path)
    if is_kafka:
        stop_broker(tmp_path, 15)
    before = contents(tmp_path)
    roll(tmp_path)
    after = contents(tmp_path)
    assert bases(tmp_path) == [0, 5, 10, 15]
    assert {name: after[name] for name in before} == before, "what was there is as it was"
    new = {
        segment_path(tmp_path, 15, k).name for k in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
    }
    assert {name: after[name] for name in after.keys() - before.keys()} == dict.fromkeys(new, b"")
    roll(tmp_path)
    assert contents(tmp_path) == after, "an empty one is not closed"


def test_the_writer_of_a_rolled_log_goes_on(tmp_path: Path) -> None:
    write_log(tmp_path)
    roll(tmp_path)
    with LogWriter(str(tmp_path), TP.topic, TP.partition, segment_bytes=1 << 20) as writer:
        Producer(writer).put(b"more", b"x", NOW_MS)
    assert offsets(tmp_path) == list(range(16))
    assert bases(tmp_path) == [0, 5, 10, 15]


@pytest.mark.parametrize(
    ("end", "is_clean"), [(15, False), (14, True)], ids=["killed", "less was flushed than there is"]
)
def test_what_a_broker_has_still_to_recover_stays_open(tmp_path: Path, end: int, is_clean: bool) -> None:
    write_log(tmp_path)
    stop_broker(tmp_path, end, is_clean=is_clean)
    before = contents(tmp_path)
    with pytest.raises(LogUncleanable, match="its broker was killed, or did not close it"):
        roll(tmp_path)
    assert contents(tmp_path) == before


def test_nor_the_segment_of_a_live_broker_or_writer(tmp_path: Path) -> None:
    write_log(tmp_path)
    with LogWriter(str(tmp_path), TP.topic, TP.partition, segment_bytes=1 << 20) as writer:
        with pytest.raises(LockHeld, match="another process has it open"):
            roll(tmp_path)
        Producer(writer).put(b"more", b"x", NOW_MS)
    stop_broker(tmp_path, 16)
    with lock_of_another(tmp_path / names.LOCK), pytest.raises(LockHeld):
        roll(tmp_path)
    assert bases(tmp_path) == [0, 5, 10]
    assert offsets(tmp_path) == list(range(16))


@pytest.mark.parametrize("is_kafka", [True, False])
def test_nor_one_that_ends_in_a_torn_batch(tmp_path: Path, is_kafka: bool) -> None:
    write_log(tmp_path)
    log = segment_path(tmp_path, 10)
    os.truncate(log, log.stat().st_size - 1)
    if is_kafka:
        stop_broker(tmp_path, 14)
    with pytest.raises(CorruptFile, match="expected a whole batch"):
        roll(tmp_path)
    assert bases(tmp_path) == [0, 5, 10]


def test_nor_one_whose_writer_was_killed_before_the_time_index_was_complete(tmp_path: Path) -> None:
    """A minimum lag, or retention, would go by a time that is too early."""
    write_log(tmp_path)
    segment_path(tmp_path, 10, FileKind.TIME_INDEX).write_bytes(bytes(12))
    with pytest.raises(LogUncleanable, match=r"timeindex: is not complete"):
        roll(tmp_path)
    assert bases(tmp_path) == [0, 5, 10]


def test_what_is_closed_is_on_disk_before_its_follower_can_be_seen(tmp_path: Path) -> None:
    synced = set[str]()

    def sync(call: str, path: str) -> None:
        if call == "fsync":
            synced.add(os.path.basename(path))
        if call == "rename":
            assert {
                segment_path(tmp_path, 10, k).name for k in (FileKind.LOG, FileKind.OFFSET_INDEX)
            } <= synced

    write_log(tmp_path)
    stop_broker(tmp_path, 15)
    roll(tmp_path, HookedFiles(sync))
    assert bases(tmp_path) == [0, 5, 10, 15]


def test_clean_roll_cleans_what_lies_in_the_active_segment(tmp_path: Path, spark: LazySpark) -> None:
    """Without it there is nothing to clean, and the reason says what would help."""
    put(tmp_path / "logs", "t", [(b"k%d" % (number % 3), b"%d" % number) for number in range(100)])
    directory = tmp_path / "logs" / str(TP)
    truth, size_bytes = newest(directory), (directory / f"{0:020d}.log").stat().st_size
    without = clean(spark, tmp_path / "logs").results["logs", "t"]
    assert without["outcome"] == "skipped"
    assert f"the active segment, with {size_bytes} bytes, begins there; --roll closes it" in without["reason"]
    ran = clean(spark, tmp_path / "logs", options=["--roll"])
    assert (ran.code, ran.outcome("t")) == (0, "committed")
    assert newest(directory) == truth
    assert len(list(read_records(str(directory)))) == 3


def test_a_log_that_cannot_be_rolled_has_failed_and_is_not_cleaned(tmp_path: Path, spark: LazySpark) -> None:
    write_log(tmp_path / "logs")
    stop_broker(tmp_path / "logs", 15, is_clean=False)
    ran = clean(spark, tmp_path / "logs", options=["--roll", "--topic=t"])
    assert ran.code == 1
    assert "its broker was killed" in ran.reason("t")
    assert bases(tmp_path / "logs") == [0, 5, 10]
