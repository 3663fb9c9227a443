"""A partition directory as a frozen snapshot: its files, and the start and end of its log.

Only names, sizes, times, index tails and the batch headers at the end of the log are read. A live writer may append and
roll meanwhile: offsets are read before the listing, so the snapshot never claims more than is on disk.

Kernels are imported by the first who walks many batches: a process that only wants to know what lies there stays small.
"""

import errno
import os
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cleanerd.env.files import Files, FileStat, NotRegular, open_regular, regular_file
from cleanerd.env.pace import Pace, unpaced
from cleanerd.errors import CorruptFile, SourceChanged
from cleanerd.format import names
from cleanerd.format.batch import BatchHeader, checksum, iterate_batches, parse_header
from cleanerd.format.errors import FormatError
from cleanerd.format.head import HEADER, HEADER_SIZE, peek_batch
from cleanerd.format.names import FileKind, SegmentFileName, Suffix, TopicPartition, segment_path
from cleanerd.format.txn_index import AbortedTxn
from cleanerd.policy.cleanable import LogFacts, SegmentFacts

from .file_bytes import read_at
from .generation import read_generation
from .index_files import max_timestamp_ms, read_offset_index, read_time_index, read_txn_index
from .partition_dir import PartitionDir
from .staged import StagedGroup, live_logs
from .topic_id import LiveIdentity, topic_stamp

if TYPE_CHECKING:
    from cleanerd.kernels.tables import Bytes, Table

_READ_BYTES = 4 << 20
_SHORT_TAIL_BYTES = 1 << 20  # up to here plain Python is quicker than loading the compiled loops
_INDEX_KINDS = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)


@dataclass(frozen=True, slots=True)
class SegmentOnDisk:
    """One segment: the identity of its `.log` at the time of the scan, and the facts for policy."""

    path: str  # of the `.log`
    identity: FileStat
    kinds: frozenset[FileKind]  # which files it has
    facts: SegmentFacts
    suffix: Suffix = Suffix.LIVE  # of their names
    time_index_flaw: FormatError | None = None  # that of an active segment is no damage

    @property
    def is_age_known(self) -> bool:
        """Whether the time index holds the largest timestamp. One that was allocated in advance holds 0."""
        return self.time_index_flaw is None and self.facts.largest_timestamp_ms != 0

    @property
    def base_offset(self) -> int:
        """Offset in the name."""
        return self.facts.base_offset

    @property
    def size_bytes(self) -> int:
        """Size of the `.log`."""
        return self.facts.size_bytes

    def sibling(self, kind: FileKind) -> str:
        """Path of another file of this segment."""
        return segment_path(os.path.dirname(self.path), self.base_offset, kind, self.suffix)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The four offset checkpoints of a log directory (spec disk A7), or, of a live broker's logs, what it goes by
    (`broker_agent.live_logs`). `cleaner_written_ms`: when the first was written. `last_stable`, `identities`: of a live
    broker's logs only.
    """

    cleaner: Mapping[TopicPartition, int]
    recovery_point: Mapping[TopicPartition, int]
    log_start: Mapping[TopicPartition, int]
    high_watermark: Mapping[TopicPartition, int]
    cleaner_written_ms: int | None = field(default=None, kw_only=True)
    last_stable: Mapping[TopicPartition, int] = field(default_factory=dict, kw_only=True)
    identities: Mapping[TopicPartition, LiveIdentity] = field(default_factory=dict, kw_only=True)

    def changed(self, other: "Checkpoints") -> set[TopicPartition]:
        """Logs whose offsets differ from those in `other`."""
        pairs = (
            (self.cleaner, other.cleaner),
            (self.recovery_point, other.recovery_point),
            (self.log_start, other.log_start),
            (self.high_watermark, other.high_watermark),
            (self.last_stable, other.last_stable),
        )
        return {tp for mine, theirs in pairs if mine is not theirs for tp, _ in mine.items() ^ theirs.items()}

    def unlisted(self, topic_partition: TopicPartition) -> tuple[str, ...]:
        """Names of the files in which a broker has an entry for every log of its, and that have none for this one."""
        needed = {
            names.REPLICATION_CHECKPOINT: self.high_watermark,
            names.RECOVERY_POINT_CHECKPOINT: self.recovery_point,
        }
        return tuple(name for name, offsets in needed.items() if topic_partition not in offsets)


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """A log at one moment. Segments ascend; the last one is active. Offsets are absolute."""

    topic_partition: TopicPartition
    log_dir: str
    directory: str
    is_kafka: bool  # the log dir has meta.properties: a broker owns it and will recover it
    segments: tuple[SegmentOnDisk, ...]
    producer_snapshots: tuple[int, ...]
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    recovery_point: int | None
    checkpoint: int | None
    checkpoint_written_ms: int | None = None  # None: it will be, when what is staged is committed
    generation: str = ""  # read before anything else: what is truncated since has another one
    topic_stamp: str = ""  # likewise: of a topic that is created again since
    unlisted: tuple[str, ...] = ()  # `Checkpoints.unlisted`; none where no broker would write an entry
    is_reported: bool = False  # its bounds are those of a live broker, which swaps what is staged
    was_unflushed: bool = False  # when its broker died: `storage.unflushed`, rule 3

    @property
    def size_bytes(self) -> int:
        """Bytes of all `.log` files."""
        return sum(segment.size_bytes for segment in self.segments)

    def starting_at(self, offset: int) -> "PartitionSnapshot":
        """The log once it starts there, and the segments that lie below have gone; the active one stays."""
        gone = bisect_right([segment.base_offset for segment in self.segments[1:]], offset)
        return replace(
            self, segments=self.segments[gone:], log_start_offset=max(self.log_start_offset, offset)
        )

    def facts(self, last_stable_offset: int) -> LogFacts:
        """The facts that policy needs."""
        return LogFacts(
            segments=tuple(segment.facts for segment in self.segments),
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            last_stable_offset=last_stable_offset,
            recovery_point=self.recovery_point,
            checkpoint=self.checkpoint,
            checkpoint_written_ms=self.checkpoint_written_ms,
        )


def scan_partition(
    partition: PartitionDir,
    topic_partition: TopicPartition,
    checkpoints: Checkpoints,
    *,
    is_kafka: bool,
    first_batch_timestamps: bool = False,
    pace: Pace = unpaced,
    staged: Sequence[StagedGroup] = (),
    beside_cleaning: bool = False,
) -> PartitionSnapshot | None:
    """Snapshot one partition directory, whatever its name; None without a segment.

    Raises CorruptFile, OSError; SourceChanged while segments are being exchanged: half of a log may hide behind such names;
    and when it is no longer the log whose bounds a live broker reported.
    `first_batch_timestamps` costs a read per segment and is only needed with max.compaction.lag.ms. With the `staged` groups
    of a cleaning the log is what their commit would make of it. `beside_cleaning`: for who only reads, another cleaning may
    be under way that has not begun to exchange segments (`.cleaned`, without `.swap`): until then the log is whole.
    """
    generation, stamp = read_generation(partition), topic_stamp(partition)
    parsed = _names_at_rest(partition, beside_cleaning=beside_cleaning)
    kinds = live_kinds(parsed)
    new = {group.base_offset: group for group in staged}
    gone = {source.base_offset for group in staged for source in group.sources[1:]}
    bases = _bases(kinds, FileKind.LOG, gone)
    if not bases:
        return None
    segments = tuple(
        _segment(
            partition, base, frozenset(new[base].sizes if base in new else kinds[base]),
            is_active=base == bases[-1], first_batch_timestamp=first_batch_timestamps,
            suffix=Suffix.STAGED if base in new else Suffix.LIVE,
        )
        for base in bases
    )  # fmt: skip
    if any(name.suffix is Suffix.CLEANED for name in parsed):
        _check_listed(partition, bases)
    end = log_end_offset(partition.files, segments[-1], pace)
    start = max(checkpoints.log_start.get(topic_partition, 0), bases[0])
    is_moved = bool(staged) and staged[-1].moves_checkpoint
    if (live_identity := checkpoints.identities.get(topic_partition)) is not None:
        live_identity.check(partition)  # at the end: what lay there all the time is what lies there now
    return PartitionSnapshot(
        topic_partition=topic_partition,
        log_dir=os.path.dirname(partition.path),
        directory=partition.path,
        is_kafka=is_kafka,
        segments=segments,
        producer_snapshots=tuple(_bases(kinds, FileKind.PRODUCER_SNAPSHOT, gone)),
        log_start_offset=start,
        log_end_offset=end,
        high_watermark=high_watermark(checkpoints, topic_partition, start, end) if is_kafka else end,
        recovery_point=checkpoints.recovery_point.get(topic_partition, 0) if is_kafka else None,
        checkpoint=staged[-1].round_end if is_moved else checkpoints.cleaner.get(topic_partition),
        checkpoint_written_ms=None if is_moved else checkpoints.cleaner_written_ms,
        generation=generation,
        topic_stamp=stamp,
        unlisted=checkpoints.unlisted(topic_partition) if is_kafka else (),
        is_reported=live_identity is not None,
    )


def _names_at_rest(partition: PartitionDir, *, beside_cleaning: bool) -> list[SegmentFileName]:
    """The names in a directory. Raises SourceChanged as `scan_partition`."""
    parsed = partition.names()
    refused = {Suffix.SWAP} if beside_cleaning else {Suffix.CLEANED, Suffix.SWAP}
    for name in parsed:
        if name.suffix in refused:
            raise SourceChanged(f"{partition.path}/{name}: another cleaning is under way, or was interrupted")
    return parsed


def _check_listed(partition: PartitionDir, bases: list[int]) -> None:
    """Raise SourceChanged if segments were exchanged since, or while, they were listed beside a cleaning."""
    again = live_kinds(_names_at_rest(partition, beside_cleaning=True))
    if _bases(again, FileKind.LOG, ())[: len(bases)] != bases:
        raise SourceChanged(f"{partition.path}: its segments were exchanged while they were listed")


def high_watermark(checkpoints: Checkpoints, topic_partition: TopicPartition, start: int, end: int) -> int:
    """The high watermark of a broker's log: the checkpointed one, at most the log end (rules A.1, 6.11)."""
    return min(max(checkpoints.high_watermark.get(topic_partition, 0), start), end)


def live_kinds(parsed: Iterable[SegmentFileName]) -> dict[int, set[FileKind]]:
    """Base offset -> which live files there are, whatever the number of names in one pass over them."""
    kinds: dict[int, set[FileKind]] = {}
    for name in parsed:
        if name.suffix is Suffix.LIVE:
            kinds.setdefault(name.base_offset, set()).add(name.kind)
    return kinds


def _bases(kinds: Mapping[int, set[FileKind]], kind: FileKind, gone: Collection[int]) -> list[int]:
    """Base offsets that have a file of this kind, ascending."""
    return sorted(base for base, found in kinds.items() if kind in found and base not in gone)


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Start and end of a log, and its generation, which is read before both."""

    start: int
    end: int
    generation: str


def read_bounds(
    files: Files, log_dir: str, topic_partition: TopicPartition, checkpoints: Checkpoints
) -> LogBounds | None:
    """The bounds that `scan_partition` finds, without a look at any segment but the active one; None without segments.

    Raises SourceChanged while segments are being exchanged, OSError.
    """
    partition = PartitionDir.of(files, log_dir, topic_partition)
    generation = read_generation(partition)
    bases = live_logs(partition)
    if not bases:
        return None
    path = partition.path_of(SegmentFileName(bases[-1], FileKind.LOG))
    found = stat_log(files, path)
    kinds = frozenset({FileKind.LOG, FileKind.OFFSET_INDEX})
    active = SegmentOnDisk(path, found, kinds, SegmentFacts(bases[-1], found.size_bytes, 0, 0, -1, None))
    start = max(checkpoints.log_start.get(topic_partition, 0), bases[0])
    return LogBounds(start, log_end_offset(files, active), generation)


def _segment(
    partition: PartitionDir,
    base: int,
    kinds: frozenset[FileKind],
    *,
    is_active: bool,
    first_batch_timestamp: bool,
    suffix: Suffix,
) -> SegmentOnDisk:
    path = partition.path_of(SegmentFileName(base, FileKind.LOG, suffix))
    found = stat_log(partition.files, path)
    index_bytes = {
        kind: partition.stat(SegmentFileName(base, kind, suffix)).size_bytes
        for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
        if kind in kinds
    }
    largest = flaw = None
    if FileKind.TIME_INDEX in kinds:
        name = SegmentFileName(base, FileKind.TIME_INDEX, suffix)
        index = read_time_index(partition.files, partition.path_of(name), base)
        flaw = index.flaw
        largest = index.largest_timestamp_ms if flaw is None or is_active else None
    facts = SegmentFacts(
        base_offset=base,
        size_bytes=found.size_bytes,
        offset_index_bytes=index_bytes.get(FileKind.OFFSET_INDEX, 0),
        time_index_bytes=index_bytes.get(FileKind.TIME_INDEX, 0),
        largest_timestamp_ms=found.mtime_ms if largest is None else largest,
        first_batch_timestamp_ms=first_batch_timestamp_ms(path) if first_batch_timestamp else None,
        modified_ms=found.mtime_ms,
    )
    return SegmentOnDisk(path, found, kinds, facts, suffix, flaw)


def stat_log(files: Files, path: str) -> FileStat:
    """Identity and size of a `.log`. Raises NotRegular for anything that is no `.log` (spec disk B1); OSError."""
    found = files.stat(path)
    if not found.is_regular:
        raise NotRegular(errno.EINVAL, "expected a regular file, found another kind", path)
    if found.size_bytes > names.SEGMENT_MAX_BYTES:
        raise NotRegular(
            errno.EFBIG, f"expected at most {names.SEGMENT_MAX_BYTES} bytes, found {found.size_bytes}", path
        )
    return found


def first_batch_timestamp_ms(path: str) -> int | None:
    """Rule 1.19: max timestamp of the first batch; None when there is no batch or no timestamp."""
    with regular_file(path) as file:
        data = file.read(HEADER_SIZE)
    try:
        magic = peek_batch(data).magic
    except FormatError:
        return None
    timestamp = max_timestamp_ms(data, magic)
    return timestamp if timestamp > 0 else None


def log_end_offset(files: Files, active: SegmentOnDisk, pace: Pace = unpaced) -> int:
    """Next offset after the last whole batch of the active segment (spec disk G); a torn tail does not count.

    Starts from the last batch that the offset index names, as Kafka does, if there is a sound one.
    """
    return log_end(files, active, pace)[0]


def log_end(files: Files, active: SegmentOnDisk, pace: Pace = unpaced) -> tuple[int, int]:
    """As `log_end_offset`, and the byte at which the last batch ends, which is the end of the log."""
    start = _last_indexed_batch(files, active)
    found = _end_of_short_tail(active, start)
    if found is not None:
        return found
    end = active.base_offset
    for _, batches in _batches_from(active, start, pace):
        last = batches[-1]
        end = _checked_end(active, start + int(last["position"]), int(last["last_offset"])) + 1
        start += int(last["position"]) + int(last["size"])
    return end, start


def quick_log_end_offset(files: Files, active: SegmentOnDisk) -> int | None:
    """The log end offset without the compiled loops, which this process may not have loaded; None where that would take
    too long.
    """
    found = _end_of_short_tail(active, _last_indexed_batch(files, active))
    return None if found is None else found[0]


def _end_of_short_tail(segment: SegmentOnDisk, start: int) -> tuple[int, int] | None:
    """Walk the headers from `start` on in plain Python; None when there are too many of them for that."""
    with regular_file(segment.path) as file:
        file.seek(start)
        data = file.read(min(segment.size_bytes - start, _SHORT_TAIL_BYTES))
    is_whole = start + len(data) >= segment.size_bytes
    last = None
    try:
        for position, size_bytes, magic in iterate_batches(data):
            last = position, size_bytes, magic
    except FormatError:  # no batch: what is preallocated, or damage; a log ends there as at a torn one
        is_whole = True
    if not is_whole:
        return None
    if last is None:
        return segment.base_offset, start
    position, size_bytes, magic = last
    found = _last_offset(data, position, magic)
    return _checked_end(segment, start + position, found) + 1, start + position + size_bytes


def _checked_end(segment: SegmentOnDisk, position: int, last_offset: int) -> int:
    """The last offset of a batch, if a log can have it; its CRC is not checked here."""
    if not segment.base_offset <= last_offset < names.MAX_OFFSET:
        expected = f"a last offset in [{segment.base_offset}, {names.MAX_OFFSET})"
        raise CorruptFile(segment.path, position, expected, last_offset)
    return last_offset


def _last_offset(data: bytes, position: int, magic: int) -> int:
    """The last offset of a whole batch; for a legacy one that is its offset field."""
    if magic < 2:
        return int.from_bytes(data[position : position + 8], "big", signed=True)
    base_offset, _, _, _, _, _, last_offset_delta, *_ = HEADER.unpack_from(data, position)
    return int(base_offset + last_offset_delta)


def _last_indexed_batch(files: Files, segment: SegmentOnDisk) -> int:
    """Position of the last batch with an index entry; 0 if there is none, or no sound batch where it points."""
    if segment.size_bytes <= _SHORT_TAIL_BYTES or FileKind.OFFSET_INDEX not in segment.kinds:
        return 0
    index = read_offset_index(files, segment.sibling(FileKind.OFFSET_INDEX), segment.base_offset)
    if not index.positions.size:
        return 0
    position = int(index.positions[-1])
    return 0 if sound_batch(segment, position, int(index.offsets[-1])) is None else position


def sound_batch(
    segment: SegmentOnDisk, position: int, indexed_offset: int, max_bytes: int = names.SEGMENT_MAX_BYTES
) -> BatchHeader | None:
    """The header of the batch of magic 2 at `position`, if there is one that an index entry can mean and its CRC is right.

    Nothing else keeps the index honest (spec disk B2). None also for a batch of more than `max_bytes`. Raises OSError.
    """
    with regular_file(segment.path) as file:
        file.seek(position)
        try:
            header = parse_header(file.read(HEADER_SIZE))
        except FormatError:
            return None
        if not segment.base_offset <= header.base_offset <= indexed_offset:
            return None
        if header.size_bytes > min(segment.size_bytes - position, max_bytes):
            return None
        file.seek(position)
        return header if checksum(file.read(header.size_bytes)) == header.crc else None


def tail_batches(
    files: Files, segment: SegmentOnDisk, from_offset: int, pace: Pace
) -> "Iterator[tuple[Bytes, Table]]":
    """Bytes and BATCH rows of a segment from (an index entry before) `from_offset` on, a few MiB at a time.

    Stops silently at the first batch that is not whole: that is where a log ends.
    """
    position = 0
    if segment.size_bytes > _READ_BYTES and FileKind.OFFSET_INDEX in segment.kinds:
        position = _index_position(files, segment, from_offset)
    return _batches_from(segment, position, pace)


def _batches_from(segment: SegmentOnDisk, position: int, pace: Pace) -> "Iterator[tuple[Bytes, Table]]":
    from cleanerd.kernels import scan, tables  # noqa: PLC0415 - 80 MiB, see the head of this module

    size = _READ_BYTES
    with open_regular(segment.path) as fd:
        while position < segment.size_bytes:
            wanted = min(size, segment.size_bytes - position)
            raw = read_at(fd, position, wanted)
            pace(len(raw))
            batches, stop, status = scan.scan_batches(raw, 0, len(raw))
            if len(batches):
                yield raw, batches
                position, size = position + stop, _READ_BYTES
            elif (
                status is tables.ReadStatus.TORN
                and position + size < segment.size_bytes
                and len(raw) == wanted
            ):
                size = peek_batch(raw.data).size_bytes  # a batch larger than the buffer
                if position + size <= segment.size_bytes:
                    continue
            if status not in (tables.ReadStatus.OK, tables.ReadStatus.TORN) or not len(batches):
                return


def _index_position(files: Files, segment: SegmentOnDisk, from_offset: int) -> int:
    """Position at which to start; 0 if the index does not lead to a sound batch at or below `from_offset`."""
    index = read_offset_index(files, segment.sibling(FileKind.OFFSET_INDEX), segment.base_offset)
    position = index.lookup(from_offset)
    return 0 if not position or sound_batch(segment, position, from_offset) is None else position


def read_aborted_txns(files: Files, snapshot: PartitionSnapshot) -> tuple[AbortedTxn, ...]:
    """Aborted transactions of the whole log (rule 4.22), ascending by marker. Raises CorruptFile."""
    found: list[AbortedTxn] = []
    for segment in snapshot.segments:
        if FileKind.TXN_INDEX in segment.kinds:
            path, is_active = segment.sibling(FileKind.TXN_INDEX), segment is snapshot.segments[-1]
            found += read_txn_index(files, path, segment.base_offset, is_written=is_active)
    return tuple(txn for txn in found if txn.last_offset >= snapshot.log_start_offset)


def is_kafka_dir(files: Files, log_dir: str) -> bool:
    """Whether a broker owns this log directory (architecture 2)."""
    return files.exists(os.path.join(log_dir, names.META_PROPERTIES))
