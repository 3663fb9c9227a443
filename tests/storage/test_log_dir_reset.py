"""Rule 1.7: a checkpoint that no cleaning can have written goes back to the log start before it can become valid."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from cleanerd.config.load import resolve
from cleanerd.config.sources import read_sources
from cleanerd.daemon.inventory.inventory import Inventory
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.store import Store
from cleanerd.daemon.values.log_id import LogId
from cleanerd.env.clock import FixedNow, SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.errors import LockHeld, SourceChanged
from cleanerd.format import names
from cleanerd.format.names import FileKind, SegmentFileName, Suffix, TopicPartition
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.checkpoints import read_checkpoints, read_offsets, update_cleaner_checkpoint
from cleanerd.storage.generation import begin_truncation
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.writer import LogWriter
from tests.harness.logs.troubled import META_PROPERTIES, clean, lock_of_another

FILES = RealFiles()
TP = TopicPartition("t", 0)
NOW_MS = SystemClock().now_ms() + 86_400_000  # later than this test, whenever it gets its turn
CASES = pytest.mark.parametrize(
    ("checkpoint", "log_start", "expected"),
    [
        (25, 0, 0),  # C027: above the log end
        (15, 20, 20),  # C021: below the log start
        (20, 0, 20),  # the log end itself is one
        (15, 10, 15),
        (None, 20, None),
    ],
)


def write(log_dir: Path, checkpoint: int | None, log_start: int = 0, records: int = 20) -> Path:
    """A log of so many records in one segment."""
    with LogWriter(str(log_dir), TP.topic, TP.partition, segment_bytes=1 << 20) as writer:
        producer = Producer(writer)
        for number in range(records - writer.log_end_offset):
            producer.put(b"key %d" % number, b"value", 1000 + number)
        directory = Path(writer.directory)
    (log_dir / "other-1").mkdir(exist_ok=True)
    (log_dir / names.LOG_START_CHECKPOINT).write_text(f"0\n2\nother 1 7\nt 0 {log_start}\n")
    (log_dir / names.CLEANER_OFFSET_CHECKPOINT).write_text("0\n1\nother 1 9\n")
    if checkpoint is not None:
        update_cleaner_checkpoint(FILES, str(log_dir), {TP: checkpoint})
    return directory


def stored(log_dir: Path) -> int | None:
    """The entry of the log; that of another stays whatever happens."""
    offsets = read_offsets(FILES, str(log_dir / names.CLEANER_OFFSET_CHECKPOINT))
    assert offsets[TopicPartition("other", 1)] == 9
    return offsets.get(TP)


def reset(log_dir: Path, *, is_kafka: bool = False) -> int | None:
    checkpoints = read_checkpoints(FILES, str(log_dir))
    return LogDir(FILES, str(log_dir), FixedNow(NOW_MS), is_kafka).reset_checkpoint(TP, checkpoints)


@pytest.mark.trap("a first dirty offset that is no longer there")
@CASES
def test_1_7_what_no_cleaning_can_have_written_becomes_the_log_start(
    tmp_path: Path, spark: LazySpark, checkpoint: int | None, log_start: int, expected: int | None
) -> None:
    """One shot resets it, too, although nothing is to be cleaned."""
    write(tmp_path, checkpoint, log_start)
    assert reset(tmp_path) == (expected if expected != checkpoint else None)
    assert stored(tmp_path) == expected
    assert reset(tmp_path) is None, "once"
    write(tmp_path, checkpoint, log_start)
    assert clean(spark, tmp_path).outcome("t", tmp_path.name) == "skipped"
    assert stored(tmp_path) == expected


@CASES
def test_1_7_the_daemon_resets_it_although_nothing_is_to_be_cleaned(
    tmp_path: Path, checkpoint: int | None, log_start: int, expected: int | None
) -> None:
    write(tmp_path, checkpoint, log_start)
    clock = FixedNow(10_000)
    configuration = resolve(read_sources(None, [], [("t", "cleanup.policy", "compact")]))
    store = Store(str(tmp_path / "store"))
    parts = Parts(lambda: configuration, (str(tmp_path),), store, FILES, clock)
    inventory, states, retention = parts.inventory, parts.states, parts.retention
    inventory.scan([str(tmp_path)])
    known = inventory.facts(LogId(str(tmp_path), TP))
    assert known is not None
    assert known.may_need_reset == (expected != checkpoint)
    assert states.try_start_all([known.log])
    retention.reset_checkpoints([known.log])
    assert stored(tmp_path) == checkpoint, "somebody works on the log"
    states.done_cleaning(known.log)
    retention.reset_checkpoints([known.log])
    assert stored(tmp_path) == expected
    assert states.try_start_all([known.log]), "given back"
    inventory.scan([str(tmp_path)])
    known = inventory.facts(known.log)
    assert known is not None
    assert not known.may_need_reset


def age(path: Path, by_s: float) -> None:
    """As if it had been written so much earlier."""
    modified_ns = path.stat().st_mtime_ns - int(by_s * 1e9)
    os.utime(path, ns=(modified_ns, modified_ns))


def rolled(log_dir: Path, *parts: Sequence[tuple[bytes, bytes | None]]) -> Path:
    """Write these records, each part to a closed segment; the checkpoint stays what it was."""
    with LogWriter(str(log_dir), TP.topic, TP.partition, segment_bytes=1 << 20) as writer:
        producer = Producer(writer)
        for part in parts:
            for key, value in part:
                producer.put(key, value, 1000)
            writer.roll()
        return Path(writer.directory)


ROWS = [(b"key %d" % number, b"value") for number in range(10)]


@pytest.mark.trap("a first dirty offset that is no longer there")
@pytest.mark.parametrize(("newer", "expected"), [(0, 0), (10, 10), (20, None), (None, None)])
def test_2_11_a_checkpoint_goes_back_to_what_was_written_later(
    tmp_path: Path, spark: LazySpark, newer: int | None, expected: int | None
) -> None:
    """Alone, by the command, and by the daemon, to the base of a segment (2.14)."""
    copies = [tmp_path / name for name in ("alone", "command", "daemon")]
    for log_dir in copies:
        log_dir.mkdir()
        directory = rolled(log_dir, ROWS, ROWS, ROWS)
        write(log_dir, 20, records=0)
        for log in directory.glob("*.log"):
            age(log, 5 if newer is not None and int(log.stem) >= newer else 90)
        age(log_dir / names.CLEANER_OFFSET_CHECKPOINT, 30)
    assert reset(copies[0]) == expected
    assert stored(copies[0]) == (20 if expected is None else expected)
    assert reset(copies[0]) is None, "once"
    result = clean(spark, copies[1]).results["command", "t"]
    assert result["first_dirty_offset"] == (20 if expected is None else expected)
    clock = FixedNow(NOW_MS)
    inventory = Inventory(FILES, clock)
    inventory.scan([str(copies[2])])
    known = inventory.facts(LogId(str(copies[2]), TP))
    assert known is not None
    assert known.may_need_reset == (expected is not None)
    assert known.offsets.checkpoint == (20 if expected is None else expected)


@pytest.mark.parametrize("option", ["--dry-run", "--topic-set=t:cleanup.policy=delete"])
def test_a_dry_run_and_a_log_that_is_not_compacted_write_nothing(
    tmp_path: Path, spark: LazySpark, option: str
) -> None:
    """Kafka looks at the candidates of a compaction."""
    write(tmp_path, 25)
    clean(spark, tmp_path, options=[option])
    assert stored(tmp_path) == 25


def test_the_directory_of_a_live_broker_is_left_to_it(tmp_path: Path) -> None:
    write(tmp_path, 25)
    (tmp_path / names.META_PROPERTIES).write_text(META_PROPERTIES)
    with lock_of_another(tmp_path / names.LOCK), pytest.raises(LockHeld):
        reset(tmp_path, is_kafka=True)
    assert stored(tmp_path) == 25


def test_nothing_is_written_when_the_log_has_changed_since(tmp_path: Path) -> None:
    """Another checkpoint, a truncation under way, segments under exchange."""
    directory = write(tmp_path, 25)
    before = read_checkpoints(FILES, str(tmp_path))
    update_cleaner_checkpoint(FILES, str(tmp_path), {TP: 26})
    assert LogDir.at(FILES, str(tmp_path), FixedNow(NOW_MS)).reset_checkpoint(TP, before) is None
    log = directory / str(SegmentFileName(0, FileKind.LOG))
    swap = directory / str(SegmentFileName(0, FileKind.TIME_INDEX, Suffix.SWAP))
    swap.touch()
    with pytest.raises(SourceChanged):
        reset(tmp_path)
    swap.unlink()
    begin_truncation(PartitionDir(FILES, str(directory)), "token", like=str(log))
    with pytest.raises(SourceChanged):
        reset(tmp_path)
    assert stored(tmp_path) == 26
