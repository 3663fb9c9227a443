"""What a scan makes of a partition directory: ends, bounds, times (spec disk B, G; rules A.1, A.2, 1.10, 1.19)."""

import os
from pathlib import Path

import pytest

from cleanerd.env.files import FileStat, RealFiles
from cleanerd.errors import CorruptFile, SourceChanged
from cleanerd.format.batch import Record, encode_batch, encode_empty_batch, parse_header
from cleanerd.format.codecs import Codec
from cleanerd.format.names import FileKind, SegmentFileName, Suffix, TopicPartition
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import Checkpoints, PartitionSnapshot, read_aborted_txns, scan_partition
from cleanerd.storage.topic_id import LiveIdentity
from cleanerd.tools.client.producer import Producer, ProducerRecord
from cleanerd.tools.client.writer import LogWriter

FILES = RealFiles()
TP = TopicPartition("t", 0)
ROLLED = (0, 3, 6)


def name(base: int, kind: FileKind = FileKind.LOG, suffix: Suffix = Suffix.LIVE) -> str:
    return str(SegmentFileName(base, kind, suffix))


def scan(
    log_dir: Path,
    *,
    is_kafka: bool = False,
    high_watermark: int | None = None,
    log_start: int = 0,
    **options: bool,
) -> PartitionSnapshot:
    found = scan_partition(
        PartitionDir.of(FILES, str(log_dir), TP),
        TP,
        Checkpoints(
            cleaner={TP: 2},
            recovery_point={TP: 4},
            log_start={TP: log_start} if log_start else {},
            high_watermark={} if high_watermark is None else {TP: high_watermark},
        ),
        is_kafka=is_kafka,
        **options,
    )
    assert found is not None
    return found


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Offsets 0 to 7 in segments at 0, 3 and 6, timestamps 100 apart."""
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=1 << 20, index_interval_bytes=100) as writer:
        producer = Producer(writer)
        for offset in range(8):
            if offset in ROLLED[1:]:
                writer.roll()
            producer.put(b"k%d" % offset, b"v" * 60, 1000 + 100 * offset)
    return tmp_path


def active(log_dir: Path) -> Path:
    return log_dir / str(TP) / name(6)


def test_segments_ascend_and_the_last_is_active(log_dir: Path) -> None:
    found = scan(log_dir)
    assert tuple(segment.base_offset for segment in found.segments) == ROLLED
    assert (found.log_start_offset, found.log_end_offset, found.checkpoint) == (0, 8, 2)
    assert found.producer_snapshots == (3, 6, 8)
    stat = os.stat(found.segments[1].path)
    assert found.segments[1].identity == FileStat.of(stat)
    assert found.size_bytes == sum((log_dir / str(TP) / name(base)).stat().st_size for base in ROLLED)


def test_names_in_transition_and_foreign_ones_are_no_segments(log_dir: Path) -> None:
    for foreign in (
        name(9, suffix=Suffix.STAGED),
        name(9, suffix=Suffix.DELETED),
        "9.log.deleted",
        "9.index",
    ):
        (log_dir / str(TP) / foreign).write_bytes(b"x")
    assert scan(log_dir).log_end_offset == 8


def test_a_log_with_a_segment_in_the_digits_of_another_locale_is_left_alone(log_dir: Path) -> None:
    """Spec disk A6: its broker reads them; what else there is is only half of the log."""
    arabic = "".join(chr(0x660 + int(digit)) for digit in f"{8:020d}") + ".log"
    (log_dir / str(TP) / arabic).write_bytes(b"")
    with pytest.raises(CorruptFile, match="digits of another locale"):
        scan(log_dir)


@pytest.mark.parametrize(
    "short", ["9.log", "+2.log", "00000000000000000000.bak.log", "0.log.cleaned", "9.swap"]
)
def test_a_log_of_which_its_broker_would_make_another_one_is_left_alone(log_dir: Path, short: str) -> None:
    """Spec disk A6: it opens a segment at any number that it reads, and deletes each `.swap` behind a `.cleaned`."""
    path = log_dir / str(TP) / short
    path.mkdir()
    assert scan(log_dir).log_end_offset == 8  # it looks into no directory
    path.rmdir()
    path.write_bytes(b"x")
    with pytest.raises(CorruptFile, match=r"file name with an offset of 20 digits, found .* move it out"):
        scan(log_dir)


@pytest.mark.parametrize("suffix", [Suffix.CLEANED, Suffix.SWAP])
@pytest.mark.parametrize("kind", [FileKind.LOG, FileKind.TIME_INDEX])
def test_log_whose_segments_are_being_exchanged_is_not_looked_at(
    log_dir: Path, kind: FileKind, suffix: Suffix
) -> None:
    """The live names are only half of it then: sources are gone already, or their successor is not there yet."""
    (log_dir / str(TP) / name(0, kind, suffix)).touch()
    with pytest.raises(SourceChanged, match=name(0, kind, suffix)):
        scan(log_dir)


def test_who_only_reads_does_not_wait_for_a_cleaning_that_still_writes(log_dir: Path) -> None:
    """Kafka renames `.cleaned` to `.swap` before it touches a source: until then the log is whole."""
    before = scan(log_dir)
    (log_dir / str(TP) / name(0, suffix=Suffix.CLEANED)).touch()
    assert scan(log_dir, beside_cleaning=True).segments == before.segments
    (log_dir / str(TP) / name(0, FileKind.TIME_INDEX, Suffix.SWAP)).touch()
    with pytest.raises(SourceChanged, match=r"\.swap"):
        scan(log_dir, beside_cleaning=True)


@pytest.mark.parametrize("moment", ["in the middle", "over"])
def test_an_exchange_while_a_directory_is_listed_is_noticed(
    log_dir: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first listing has missed a segment that was being replaced."""
    directory, listed = log_dir / str(TP), RealFiles.list_names
    swap = name(3, FileKind.LOG, Suffix.SWAP)

    def list_names(files: RealFiles, path: str) -> list[str]:
        monkeypatch.undo()
        names = listed(files, path)
        if moment == "in the middle":
            (directory / name(3)).rename(directory / swap)
        return [*(one for one in names if one != name(3)), name(3, suffix=Suffix.CLEANED)]

    monkeypatch.setattr(RealFiles, "list_names", list_names)
    with pytest.raises(SourceChanged, match="exchanged while" if moment == "over" else swap):
        scan(log_dir, beside_cleaning=True)


def test_a_directory_without_segments_is_no_log(tmp_path: Path) -> None:
    (tmp_path / str(TP)).mkdir()
    empty = Checkpoints({}, {}, {}, {})
    assert scan_partition(PartitionDir.of(FILES, str(tmp_path), TP), TP, empty, is_kafka=False) is None


def test_1_10_largest_timestamp_is_that_of_the_time_index_else_the_mtime(log_dir: Path) -> None:
    assert [s.facts.largest_timestamp_ms for s in scan(log_dir).segments] == [1200, 1500, 1700]
    (log_dir / str(TP) / name(0, FileKind.TIME_INDEX)).unlink()
    (log_dir / str(TP) / name(3, FileKind.TIME_INDEX)).write_bytes(b"")
    for base in (0, 3):
        os.utime(log_dir / str(TP) / name(base), ns=(0, (7 + base) * 1_000_000))
    assert [s.facts.largest_timestamp_ms for s in scan(log_dir).segments] == [7, 10, 1700]


@pytest.mark.parametrize("content", [b"\xff" * 12, bytes(24), bytes(5)])
def test_1_10_a_damaged_time_index_counts_as_none(log_dir: Path, content: bytes) -> None:
    """What zeros say would have retention delete the segment at once."""
    path = log_dir / str(TP) / name(3, FileKind.TIME_INDEX)
    path.write_bytes(content)
    os.utime(log_dir / str(TP) / name(3), ns=(0, 10_000_000))
    segment = scan(log_dir).segments[1]
    assert segment.facts.largest_timestamp_ms == 10
    assert segment.time_index_flaw is not None
    assert not segment.is_age_known


def test_b5_a_timestamp_of_0_is_no_age(log_dir: Path) -> None:
    """Twelve bytes of zeros may be an entry, or what a power cut left of one."""
    (log_dir / str(TP) / name(3, FileKind.TIME_INDEX)).write_bytes(bytes(12))
    assert [segment.is_age_known for segment in scan(log_dir).segments] == [True, False, True]


def test_b5_time_index_of_the_active_segment_may_be_preallocated(log_dir: Path) -> None:
    with (log_dir / str(TP) / name(6, FileKind.TIME_INDEX)).open("ab") as file:
        file.write(bytes(12 * 50 + 5))
    assert scan(log_dir).segments[-1].facts.largest_timestamp_ms == 1700


def test_1_19_first_batch_timestamps_are_read_on_demand(log_dir: Path) -> None:
    """C033: those of the first batches."""
    assert [s.facts.first_batch_timestamp_ms for s in scan(log_dir).segments] == [None] * 3
    found = scan(log_dir, first_batch_timestamps=True)
    assert [s.facts.first_batch_timestamp_ms for s in found.segments] == [1000, 1300, 1600]


@pytest.mark.parametrize(("magic", "expected"), [(0, None), (1, 1234), (2, 1234)])
def test_1_19_first_batch_timestamp_by_magic(tmp_path: Path, magic: int, expected: int | None) -> None:
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=1 << 20) as writer:
        Producer(writer, magic=magic, codec=Codec.GZIP).send([ProducerRecord(b"k", b"v", 1234)])
    (segment,) = scan(tmp_path, first_batch_timestamps=True).segments
    assert segment.facts.first_batch_timestamp_ms == expected


@pytest.mark.parametrize("content", [b"", bytes(10), bytes(100)])
def test_1_19_without_a_batch_there_is_no_first_timestamp(log_dir: Path, content: bytes) -> None:
    """C033: an empty segment counts as never overdue."""
    active(log_dir).write_bytes(content)
    assert scan(log_dir, first_batch_timestamps=True).segments[-1].facts.first_batch_timestamp_ms is None


@pytest.mark.parametrize(
    ("checkpointed", "log_start", "expected"),
    [(5, 0, 5), (8, 0, 8), (99, 0, 8), (None, 0, 0), (None, 4, 4), (1, 4, 4), (0, 0, 0)],
)
def test_a_1_high_watermark_of_a_broker_is_what_it_checkpointed_between_log_start_and_end(
    log_dir: Path, checkpointed: int | None, log_start: int, expected: int
) -> None:
    assert (
        scan(log_dir, is_kafka=True, high_watermark=checkpointed, log_start=log_start).high_watermark
        == expected
    )


def test_without_a_broker_everything_is_committed_and_nobody_recovers(log_dir: Path) -> None:
    found = scan(log_dir, high_watermark=1)
    assert (found.high_watermark, found.recovery_point) == (8, None)
    assert scan(log_dir, is_kafka=True).recovery_point == 4


def test_bounds_of_a_log_that_has_been_created_again_since_are_not_used(log_dir: Path) -> None:
    """A live broker told them a moment ago, of the log that lay there then. A release without topic ids has the inode only,
    and once the old directory is gone a new one may get that.
    """
    directory = log_dir / str(TP)
    inode, metadata = directory.stat().st_ino, directory / "partition.metadata"

    def look(identity: LiveIdentity) -> PartitionSnapshot | None:
        told = Checkpoints({}, {TP: 8}, {}, {TP: 8}, identities={TP: identity})
        return scan_partition(PartitionDir(FILES, str(directory)), TP, told, is_kafka=True)

    assert look(LiveIdentity(inode, None)) is not None
    metadata.write_text(f"version: 0\ntopic_id: {'A' * 21}Q")
    assert look(LiveIdentity(inode, f"{'A' * 21}Q")) is not None
    for other in (LiveIdentity(inode + 1, f"{'A' * 21}Q"), LiveIdentity(inode, f"{'A' * 21}g")):
        with pytest.raises(SourceChanged, match="the topic was created again"):
            look(other)
    metadata.unlink()
    with pytest.raises(SourceChanged, match="found topic id None"):
        look(LiveIdentity(inode, f"{'A' * 21}Q"))


def test_a_2_log_start_is_the_checkpoint_or_the_first_segment(log_dir: Path) -> None:
    assert scan(log_dir, log_start=4).log_start_offset == 4
    for kind in FileKind:
        (log_dir / str(TP) / name(0, kind)).unlink(missing_ok=True)
    assert scan(log_dir).log_start_offset == 3
    assert scan(log_dir, log_start=1).log_start_offset == 3


@pytest.fixture
def aborted_dir(tmp_path: Path) -> Path:
    """Two aborted transactions, [0, 1] in the first segment and [2, 3] in the active one."""
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=1 << 20) as writer:
        for producer_id in (5, 6):
            producer = Producer(writer, producer_id=producer_id)
            producer.begin()
            producer.put(b"k", b"v")
            producer.abort()
            if producer_id == 5:
                writer.roll()
    return tmp_path


def test_4_22_aborted_transactions_of_the_whole_log(aborted_dir: Path) -> None:
    found = read_aborted_txns(FILES, scan(aborted_dir))
    assert [(txn.producer_id, txn.first_offset, txn.last_offset) for txn in found] == [(5, 0, 1), (6, 2, 3)]


def test_4_22_those_that_ended_below_the_log_start_are_left_out(aborted_dir: Path) -> None:
    assert [txn.producer_id for txn in read_aborted_txns(FILES, scan(aborted_dir, log_start=2))] == [6]


def test_half_an_entry_is_a_writer_at_work_in_the_active_segment_and_damage_in_another(
    aborted_dir: Path,
) -> None:
    active, closed = (aborted_dir / str(TP) / name(base, FileKind.TXN_INDEX) for base in (2, 0))
    active.write_bytes(active.read_bytes() + bytes(5))
    assert len(read_aborted_txns(FILES, scan(aborted_dir))) == 2
    closed.write_bytes(closed.read_bytes() + bytes(5))
    with pytest.raises(CorruptFile) as caught:
        read_aborted_txns(FILES, scan(aborted_dir))
    assert caught.value.path == str(closed)


def test_kept_empty_batch_at_the_end_counts_for_the_log_end(tmp_path: Path) -> None:
    """The last batch may have no record left (rule 4.16b); its last offset still ends the log."""
    directory = tmp_path / str(TP)
    directory.mkdir()
    data = encode_batch([Record(0, 1, b"k", b"v")], base_offset=0)
    source = encode_batch([Record(1, 5, b"k", b"v")], base_offset=1, last_offset=9)
    (directory / name(0)).write_bytes(data + encode_empty_batch(parse_header(source)))
    assert scan(tmp_path).log_end_offset == 10
