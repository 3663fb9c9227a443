"""Truncation by the cooperating writer (rules 2.7, 2.14): the files of a writer that never wrote the rest."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cleanerd.cleaning.retain import revalidate_snapshot
from cleanerd.env.files import RealFiles
from cleanerd.errors import CorruptFile, LockHeld, LogUncleanable, SourceChanged
from cleanerd.format import names
from cleanerd.format.batch import encode_empty_batch, parse_header
from cleanerd.format.names import TopicPartition
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.generation import read_generation
from cleanerd.storage.lock import LogDirLock
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import scan_partition
from cleanerd.storage.segments import LogBatch, live_bases, log_batches
from cleanerd.tools.client.producer import Producer, ProducerRecord
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter, WriterOptions
from tests.harness.disks.counted import StoppingFiles
from tests.harness.disks.simulated import SwitchedOff
from tests.harness.logs.written import busy, check_indexes, contents, open_writer

FILES = RealFiles()
TP = TopicPartition("t", 0)
SEGMENT_BYTES = 600


def fill(log_dir: Path, start_offset: int = 0) -> tuple[list[LogBatch], list[int]]:
    """Transactions, aborted ones too, across several segments; its batches and the bases of its segments."""
    with open_writer(log_dir, segment_bytes=SEGMENT_BYTES, start_offset=start_offset) as writer:
        busy(writer, range(12))
        return list(log_batches(writer.directory, 0)), live_bases(writer.directory)


def offsets(directory: str) -> list[int]:
    return [batch.last_offset for batch in log_batches(directory, 0)]


BATCHES = 48


@pytest.mark.parametrize("number", range(BATCHES))
def test_truncated_log_is_that_of_a_writer_that_never_wrote_the_rest(tmp_path: Path, number: int) -> None:
    """At every batch boundary: every file, byte for byte, and the producers; then both go on alike."""
    batches, bases = fill(tmp_path / "cut")
    assert len(batches) == BATCHES
    offset = batches[number - 1].last_offset + 1 if number else 0
    with (
        open_writer(tmp_path / "cut", segment_bytes=SEGMENT_BYTES) as cut,
        open_writer(tmp_path / "never", segment_bytes=SEGMENT_BYTES) as never,
    ):
        for batch in batches[:number]:
            never.append(batch.data)
        if offset in bases[1:]:
            never.roll()
        cut.truncate(offset)
        assert cut.log_end_offset == never.log_end_offset == offset
        assert cut.producers == never.producers
        assert live_bases(cut.directory) == live_bases(never.directory)
        for writer in (cut, never):
            for batch in batches[number:]:
                writer.append(batch.data)
    assert contents(tmp_path / "cut") == contents(tmp_path / "never")


@pytest.mark.parametrize("offset", range(1, 20))
def test_batch_that_reaches_the_offset_goes_and_no_offset_is_used_twice(tmp_path: Path, offset: int) -> None:
    """Batches of five: what a consumer has read below the offset it will not read anew."""
    with open_writer(tmp_path, segment_bytes=300) as writer:
        for n in range(4):
            Producer(writer).send([ProducerRecord(b"k", b"v%d" % n)] * 5)
        writer.truncate(offset)
        assert writer.log_end_offset == offset
        assert offsets(writer.directory) == [last for last in (4, 9, 14, 19) if last < offset]
    with open_writer(tmp_path, segment_bytes=300) as writer:
        assert Producer(writer).put(b"k", b"new") == offset
        assert [r.offset for r in read_records(writer.directory)][-1] == offset
    check_indexes(tmp_path)


def test_gap_that_a_cleaning_left_is_not_filled(tmp_path: Path) -> None:
    """The last records below the offset were cleaned away: the log ends at the offset all the same, for ever."""
    with open_writer(tmp_path) as writer:
        for n in range(10):
            Producer(writer).put(b"k%d" % n, b"v")
        writer.roll()
        Producer(writer).put(b"k", b"v")
    path = tmp_path / "t-0" / f"{0:020d}.log"
    batches = list(log_batches(str(path.parent), 0))
    path.write_bytes(batches[0].data + encode_empty_batch(parse_header(batches[1].data)))
    for name in (".index", ".timeindex"):
        path.with_suffix(name).write_bytes(b"")
    with open_writer(tmp_path) as writer:
        writer.truncate(7)
        assert writer.log_end_offset == 7
    with open_writer(tmp_path) as writer:
        assert writer.log_end_offset == 7
        assert live_bases(writer.directory) == [0, 7]


# -- what is refused -----------------------------------------------------------------------------------------


def damage_segment(log_dir: Path, bases: list[int]) -> str:
    """A closed one, which is read before the ones behind it go."""
    path = log_dir / "t-0" / f"{bases[1]:020d}.log"
    content = path.read_bytes()
    path.write_bytes(content[:70] + bytes([content[70] ^ 1]) + content[71:])
    return str(path)


def damage_checkpoint(log_dir: Path, name: str) -> str:
    (log_dir / name).write_text("0\n1\nt zero 5\n")
    return str(log_dir / name)


REFUSALS: dict[str, tuple[type[Exception], Callable[[Path, list[int]], str], WriterOptions]] = {
    "below the first segment": (ValueError, lambda *_: "starts above 99", WriterOptions()),
    "damage below the offset": (CorruptFile, damage_segment, WriterOptions()),
    "damaged checkpoint": (
        CorruptFile, lambda log_dir, _: damage_checkpoint(log_dir, names.CLEANER_OFFSET_CHECKPOINT), WriterOptions()
    ),
    "damaged epochs": (
        CorruptFile, lambda log_dir, _: damage_checkpoint(log_dir, f"t-0/{names.LEADER_EPOCH_CHECKPOINT}"),
        WriterOptions(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSALS)
def test_what_is_refused_is_named_and_nothing_is_lost(tmp_path: Path, reason: str) -> None:
    _, bases = fill(tmp_path, start_offset=100)
    error, arrange, options = REFUSALS[reason]
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=SEGMENT_BYTES, options=options) as writer:
        told = arrange(tmp_path, bases)
        before = contents(tmp_path)
        with pytest.raises(error, match=re.escape(told)):
            writer.truncate(99 if error is ValueError else bases[2] - 1)
        assert contents(tmp_path) == before
        Producer(writer).put(b"k", b"v")


def test_lock_of_another_keeps_the_log_as_it_is(tmp_path: Path) -> None:
    fill(tmp_path)
    with open_writer(tmp_path, lock_wait_s=0) as writer:
        before = contents(tmp_path)
        with LogDirLock(str(tmp_path)), pytest.raises(LockHeld):
            writer.truncate(1)
        assert contents(tmp_path) == before
        Producer(writer).put(b"k", b"v")


def test_half_a_commit_that_cannot_be_mended_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    with open_writer(tmp_path, segment_bytes=SEGMENT_BYTES) as writer:
        (tmp_path / "t-0" / f"{0:020d}.log.swap").touch()
        before = contents(tmp_path)
        with pytest.raises(LogUncleanable, match="by hand"):
            writer.truncate(1)
        assert contents(tmp_path) == before


# -- interrupted ---------------------------------------------------------------------------------------------


def test_writer_that_failed_takes_nothing_more(tmp_path: Path) -> None:
    fill(tmp_path)
    writer = open_writer(tmp_path, segment_bytes=SEGMENT_BYTES)
    writer._files = StoppingFiles(5)
    with pytest.raises(SwitchedOff):
        writer.truncate(3)
    for use in (lambda: writer.truncate(1), lambda: Producer(writer).put(b"k", b"v"), writer.close):
        with pytest.raises(AssertionError):
            use()
    with pytest.raises(SourceChanged, match="interrupted"):
        read_generation(PartitionDir(FILES, writer.directory))


# -- the cleaner ---------------------------------------------------------------------------------------------


def test_retention_planned_before_a_truncation_takes_nothing(tmp_path: Path) -> None:
    """Neither by what the segments were, nor by a log start offset that was read before."""
    (tmp_path / names.LOG_START_CHECKPOINT).write_text("0\n1\nt 0 6\n")
    partition = PartitionDir.of(FILES, str(tmp_path), TP)
    with open_writer(tmp_path, segment_bytes=150) as writer:
        for _ in range(2):
            stale = read_checkpoints(FILES, str(tmp_path))
            for n in range(10):
                Producer(writer).put(b"k", b"%d" % n)
            before = scan_partition(partition, TP, stale, is_kafka=False)
            assert before is not None
            revalidate_snapshot(FILES, before, 1)
            writer.truncate(0)
            for n in range(10):
                Producer(writer).put(b"k", b"%d" % n)
            with pytest.raises(SourceChanged, match="was truncated or created again"):
                revalidate_snapshot(FILES, before, 1)
        (tmp_path / names.LOG_START_CHECKPOINT).write_text("0\n1\nt 0 6\n")
        stale = read_checkpoints(FILES, str(tmp_path))
        writer.truncate(0)
        for n in range(10):
            Producer(writer).put(b"k", b"%d" % n)
        after = scan_partition(partition, TP, stale, is_kafka=False)
        assert after is not None
        assert after.log_start_offset == 6
        with pytest.raises(SourceChanged, match="the log start offset was 6, is 0"):
            revalidate_snapshot(FILES, after, 1)


def test_reader_goes_on_behind_a_truncation(tmp_path: Path) -> None:
    """Of segments that go it has read what it had open; then it goes on with what took their place."""
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=150) as writer:
        for n in range(6):
            Producer(writer).put(b"k", b"old %d" % n)
        reading = read_records(writer.directory)
        seen = [next(reading) for _ in range(3)]
        writer.truncate(4)
        for n in range(4, 8):
            Producer(writer).put(b"k", b"new %d" % n)
        seen += reading
    assert [record.offset for record in seen] == list(range(8))
    assert [record.value for record in seen][4:] == [b"new %d" % n for n in range(4, 8)]
