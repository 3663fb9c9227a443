"""The records of a partition as a consumer sees them, as columns: numpy arrays in Arrow's layout, no Python per record.

    log = open_log("/data/kafka-logs/orders-3", isolation="read_committed")
    for columns in read_columns(log):
        columns.offsets, columns.timestamps_ms, columns.keys.offsets, columns.keys.data, ...

Three levels stand on each other, each usable by itself:

==========  ===============================================================================================================
`LogRange`  what may be read: offsets, isolation, byte ranges of segments. Travels to other processes; `split` for many
`slices`    sound batches with their records: rows of `kernels.tables.BATCH` and `RECORD`, positions in `raw` or `expanded`
`columns`   offset, timestamp, timestamp type, key, value and headers of the records that a consumer gets
==========  ===============================================================================================================

No lock is needed. Of a broker's directory nothing is read above the checkpointed high watermark, nor with
read_committed above the last stable offset. Aborted records, control records (unless asked for) and what lies below the log
start are left out.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from cleanerd.env.files import open_regular
from cleanerd.errors import BadUsage, DirOffline, LogUncleanable, SourceChanged
from cleanerd.format.head import CONTROL, LOG_APPEND_TIME
from cleanerd.format.names import (
    CLUSTER_METADATA_TOPIC,
    MAX_OFFSET,
    REPLICATION_CHECKPOINT,
    FileKind,
    TopicPartition,
    parse_partition_dir,
    segment_path,
)
from cleanerd.format.offset_index import OffsetIndex, parse_offset_index
from cleanerd.format.txn_index import Isolation
from cleanerd.kernels.judge import mark_aborted
from cleanerd.kernels.scan import first_bad_crc, scan_batches
from cleanerd.kernels.tables import AbortedTxns, Bytes, Table
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.file_bytes import read_at
from cleanerd.storage.index_files import read_offset_index, read_time_index
from cleanerd.storage.lock import probe
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import (
    Checkpoints,
    PartitionSnapshot,
    is_kafka_dir,
    read_aborted_txns,
    scan_partition,
)
from cleanerd.storage.stability import check_aborted, read_stability
from cleanerd.tools.kernels.columns import gather, header_fields, key_fields, value_fields

from .regular_files import CarefulFiles
from .walk import Bounds, ReadAt, Sound, walk_log

OnCorrupt = Literal["fail", "skip"]

KEY, VALUE, HEADERS, BATCH = "key", "value", "headers", "batch"
ALL_COLUMNS = frozenset({KEY, VALUE, HEADERS, BATCH})
"""Those that cost something; offset, timestamp and timestamp type always come along."""

_HEAD_BYTES = 1 << 20
_ONE_S_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Bytes [`start`, `end`) of a `.log`; `start` is where a batch begins. Offsets below `limit_offset`."""

    path: str
    inode: int
    base_offset: int
    limit_offset: int
    start: int
    end: int

    @property
    def is_active(self) -> bool:
        """Whether it is the last one of its log, whose indexes lag behind."""
        return self.limit_offset == MAX_OFFSET

    def sibling(self, kind: FileKind) -> str:
        """Path of another file of this segment."""
        return segment_path(os.path.dirname(self.path), self.base_offset, kind)


@dataclass(frozen=True, slots=True, eq=False)
class LogRange:
    """The records in [`start_offset`, `end_offset`) of a partition, where they lie. Pickles.

    `readable_end`: high watermark or last stable offset; no batch that reaches it is looked at.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    readable_end: int
    aborted: AbortedTxns
    ranges: tuple[SegmentRange, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""
        return sum(part.end - part.start for part in self.ranges)


@dataclass(frozen=True, slots=True, eq=False)
class Binary:
    """Byte strings: the i-th is `data[offsets[i]:offsets[i + 1]]`, null where `is_null[i]`. Arrow's `binary`."""

    offsets: npt.NDArray[np.int32]
    data: Bytes
    is_null: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.is_null)

    def item(self, row: int) -> bytes | None:
        """The string of a row, None for null."""
        if self.is_null[row]:
            return None
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class HeaderLists:
    """Headers of record i are those from `offsets[i]` to below `offsets[i + 1]`. Arrow's `list<struct<key, value>>`."""

    offsets: npt.NDArray[np.int32]
    keys: Binary
    values: Binary


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Some records of the `.log` at `path`, in offset order.

    `timestamp_types`: 0 CreateTime, 1 LogAppendTime, -1 none (magic 0). `batches`: the `kernels.tables.BATCH` row of each
    record. A column that was not asked for is None.
    """

    path: str
    offsets: npt.NDArray[np.int64]
    timestamps_ms: npt.NDArray[np.int64]
    timestamp_types: npt.NDArray[np.int32]
    keys: Binary | None
    values: Binary | None
    headers: HeaderLists | None
    batches: Table | None

    def __len__(self) -> int:
        return len(self.offsets)


def open_log(
    partition_dir: str,
    *,
    isolation: Isolation = "read_uncommitted",
    start_offset: int = 0,
    end_offset: int = MAX_OFFSET,
    start_timestamp_ms: int | None = None,
    end_timestamp_ms: int | None = None,
) -> LogRange:
    """The range that a consumer of this isolation level may read of a partition now, cut to the given bounds.

    A timestamp stands for the offset of the first record that has it or a later one, as Kafka looks it up; where none has,
    for the end. Each bound that is given holds.

    Raises: `BadUsage` for no partition directory; `CorruptFile` for checkpoints or indexes that cannot be read, or, with
    read_committed, lack an aborted transaction; `SourceChanged` while segments are exchanged, or as `check_watermark`;
    `OSError`.
    """
    files = CarefulFiles()
    log_dir, name = os.path.split(os.path.abspath(partition_dir))
    parsed = parse_partition_dir(name)
    if parsed is None:
        raise BadUsage(f"{partition_dir}: expected a partition directory, named TOPIC-PARTITION")
    tp = parsed[0]
    is_kafka = is_kafka_dir(files, log_dir)
    partition, checkpoints = PartitionDir.of(files, log_dir, tp), read_checkpoints(files, log_dir)
    snapshot = scan_partition(partition, tp, checkpoints, is_kafka=is_kafka, beside_cleaning=True)
    aborted = AbortedTxns.of(())
    if snapshot is None:
        return LogRange(tp.topic, tp.partition, start_offset, start_offset, start_offset, aborted, ())
    if is_kafka and snapshot.log_end_offset > snapshot.log_start_offset:
        check_watermark(checkpoints, log_dir, tp)
    readable_end = snapshot.high_watermark
    if isolation == "read_committed":
        stability, txns = (
            read_stability(files, snapshot, now_ms=0, expiration_ms=0),
            read_aborted_txns(files, snapshot),
        )
        check_aborted(snapshot, stability, txns)
        readable_end, aborted = stability.last_stable_offset, AbortedTxns.of(txns)
    start, end = snapshot.log_start_offset, min(end_offset, readable_end)
    log = LogRange(tp.topic, tp.partition, start, end, readable_end, aborted, _segments(snapshot))
    if end_timestamp_ms is not None:
        end = _first_offset_since(log, end_timestamp_ms)
    if start_timestamp_ms is not None:
        start = _first_offset_since(log, start_timestamp_ms)
    return _narrowed(log, max(start, start_offset), end)


def check_watermark(checkpoints: Checkpoints, log_dir: str, tp: TopicPartition) -> None:
    """Raise `SourceChanged` unless the broker of a log has checkpointed its high watermark, as it does every few seconds;
    `LogUncleanable` where no broker will.

    It never does so for the metadata log, which therefore cannot be read here.
    """
    if tp in checkpoints.high_watermark or tp.topic == CLUSTER_METADATA_TOPIC:
        return
    path = os.path.join(log_dir, REPLICATION_CHECKPOINT)
    lacks = f"{path}: has no entry for {tp}, so it is not known which records are committed"
    with suppress(DirOffline, OSError):
        if probe(log_dir) is None:
            raise LogUncleanable(f"{lacks}, and no broker runs here that would write it")
        if os.stat(path).st_mtime_ns > os.stat(os.path.join(log_dir, str(tp))).st_mtime_ns + _ONE_S_NS:
            raise LogUncleanable(
                f"{lacks}; the broker has written the file since it made the log: it may not know it"
            )
    raise SourceChanged(lacks)


def _segments(snapshot: PartitionSnapshot) -> tuple[SegmentRange, ...]:
    limits = [*(segment.base_offset for segment in snapshot.segments), MAX_OFFSET][1:]
    return tuple(
        SegmentRange(segment.path, segment.identity.inode, segment.base_offset, limit, 0, segment.size_bytes)
        for segment, limit in zip(snapshot.segments, limits, strict=True)
    )


def _narrowed(log: LogRange, start: int, end: int) -> LogRange:
    """The log from `start` to below `end`, without bytes before the batch that the index names for `start`."""
    ranges = tuple(
        replace(part, start=_first_byte(part, start))
        for part in log.ranges
        if part.limit_offset > start and part.base_offset < end
    )
    return replace(log, start_offset=start, end_offset=end, ranges=ranges)


def _first_byte(part: SegmentRange, offset: int) -> int:
    """Position at which to start reading for `offset`; 0, which only costs time, if the index leads to no sound batch."""
    position = _offset_index(part).lookup(offset) if offset > part.base_offset else 0
    if not position:
        return 0
    with _opened(part) as fd:
        found = _base_offset_at(fd, position)
    return position if found is not None and found <= offset else 0


def _base_offset_at(fd: int, position: int) -> int | None:
    """Base offset of the batch that begins there, None if none does; -1 for a legacy wrapper, which has none."""
    head = read_at(fd, position, _HEAD_BYTES)
    batches, _, _ = scan_batches(head, 0, len(head))
    if not len(batches) or first_bad_crc(head, batches[:1]) >= 0:
        return None
    return int(batches["base_offset"][0])


def _offset_index(part: SegmentRange) -> OffsetIndex:
    """The offset index, without entries if it cannot be read."""
    try:
        return read_offset_index(CarefulFiles(), part.sibling(FileKind.OFFSET_INDEX), part.base_offset)
    except OSError:
        return parse_offset_index(b"", part.base_offset)


def _first_offset_since(log: LogRange, timestamp_ms: int) -> int:
    """Offset of the first record of the view that has this timestamp or a later one; the end of the view if none has.

    By the time indexes: segments that end before are not opened, of the first other one a few batches are read.
    """
    for part in log.ranges:
        before = _last_offset_before(part, timestamp_ms)
        if before is None:
            continue
        near = replace(log, ranges=(replace(part, start=_first_byte(part, before)),))
        for found in read_slices(near, on_corrupt="skip"):
            records = found.part.records
            since = (records["timestamp"] >= timestamp_ms) & (records["offset"] >= log.start_offset)
            if since.any():
                return min(int(records["offset"][np.argmax(since)]), log.end_offset)
    return log.end_offset


def _last_offset_before(part: SegmentRange, timestamp_ms: int) -> int | None:
    """An offset up to which every record is older; None if all of a segment are, which no index of an active one shows."""
    try:
        index = read_time_index(CarefulFiles(), part.sibling(FileKind.TIME_INDEX), part.base_offset)
    except OSError:
        return part.base_offset
    if index.flaw is not None and not part.is_active:
        return part.base_offset
    slot = int(np.searchsorted(index.timestamps_ms, timestamp_ms)) - 1
    if slot == len(index.offsets) - 1 and slot >= 0 and not part.is_active:
        return None
    return int(index.offsets[slot]) if slot >= 0 else part.base_offset


def split(log: LogRange, max_bytes: int) -> list[LogRange]:
    """Split the log into parts of about `max_bytes` at most, in order, between segments and at offset index entries.

    Each part has the offsets of its ranges alone; segments that are small share one. Raises `OSError`; `SourceChanged` as
    `read_slices`.
    """
    parts: list[LogRange] = []
    for part in log.ranges:
        cuts = [*_cuts(part, max_bytes), (part.end, part.limit_offset)]
        for (start, base_offset), (end, limit_offset) in pairwise(cuts):
            first, limit = max(log.start_offset, base_offset), min(log.end_offset, limit_offset)
            if first < limit:
                cut = replace(part, start=start, end=end)
                if parts and parts[-1].size_bytes + end - start <= max_bytes:
                    last = parts[-1]
                    parts[-1] = replace(last, end_offset=limit, ranges=(*last.ranges, cut))
                else:
                    parts.append(replace(log, start_offset=first, end_offset=limit, ranges=(cut,)))
    return parts


def _cuts(part: SegmentRange, max_bytes: int) -> list[tuple[int, int]]:
    """(position, base offset) to start at in a range: batches that the index names, each checked to be one.

    Not at legacy wrappers: only a walk through them finds where their offsets begin.
    """
    cuts = [(part.start, part.base_offset)]
    positions = _offset_index(part).positions
    with _opened(part) as fd:
        while part.end - cuts[-1][0] > max_bytes:
            at = cuts[-1][0]
            first, behind = np.searchsorted(positions, [at, at + max_bytes], side="right").tolist()
            slot = max(first, behind - 1)
            if slot == len(positions) or positions[slot] >= part.end:
                break
            base_offset = _base_offset_at(fd, int(positions[slot]))
            if base_offset is None or base_offset < 0:
                break
            cuts.append((int(positions[slot]), base_offset))
    return cuts


@contextmanager
def _opened(part: SegmentRange) -> Iterator[int]:
    """The file of a range. Raises `SourceChanged` if it is gone or was exchanged."""
    try:
        with open_regular(part.path, follow_links=True) as fd:
            if os.fstat(fd).st_ino != part.inode:
                raise SourceChanged(f"{part.path}: another file has taken its place")
            yield fd
    except FileNotFoundError:
        raise SourceChanged(f"{part.path}: is gone since it was listed") from None


def read_slices(log: LogRange, *, on_corrupt: OnCorrupt = "fail", read: ReadAt = read_at) -> Iterator[Sound]:
    """Sound batches of the view with all their records, also those that no consumer gets. `read`: how bytes are read.

    Raises: `CorruptFile` for damage unless it is to be skipped; `SourceChanged` for a segment that is gone or was exchanged.
    """
    for part in log.ranges:
        with _opened(part) as fd:
            bounds = Bounds(part.base_offset, part.limit_offset, log.readable_end, part.start, part.end)
            for found in walk_log(fd, part.path, bounds, read):
                if isinstance(found, Sound):
                    if found.batches["base_offset"][0] >= log.end_offset:
                        return
                    yield found
                elif on_corrupt == "fail":
                    raise found.error(part.path)


def read_columns(
    log: LogRange,
    *,
    columns: Collection[str] = ALL_COLUMNS,
    on_corrupt: OnCorrupt = "fail",
    only: npt.NDArray[np.int64] | None = None,
    with_control: bool = False,
) -> Iterator[Columns]:
    """The records that a consumer gets, some MiB at a time. `columns`: which of `ALL_COLUMNS`; `only`: these offsets.

    `with_control`: also the markers that end transactions. Raises as `read_slices`.
    """
    for found in read_slices(log, on_corrupt=on_corrupt):
        batches = found.piece.batches
        control = (batches["attributes"] & CONTROL).astype(np.bool_) & (batches["magic"] == 2)
        hidden = np.where(control, not with_control, mark_aborted(batches, log.aborted))
        records = found.part.records
        wanted = ~hidden[records["batch"]]
        wanted &= (records["offset"] >= log.start_offset) & (records["offset"] < log.end_offset)
        if only is not None:
            wanted &= np.isin(records["offset"], only)
        if not wanted.all():
            records = records[wanted]
        if len(records):
            yield _columns(found, records, columns)


def _columns(found: Sound, records: Table, columns: Collection[str]) -> Columns:
    raw, expanded, batches = found.piece.raw, found.part.expanded, found.piece.batches
    keys = values = headers = None
    if KEY in columns:
        keys = _binary(raw, expanded, batches, key_fields(records))
    if VALUE in columns or HEADERS in columns:
        fields, starts, counts, total = value_fields(raw, expanded, batches, records)
        if VALUE in columns:
            values = _binary(raw, expanded, batches, fields)
        if HEADERS in columns:
            of_keys, of_values = header_fields(raw, expanded, batches, records, starts, counts, total)
            ends = np.zeros(len(records) + 1, np.int32)
            ends[1:] = np.cumsum(counts)
            headers = HeaderLists(
                ends,
                _binary(raw, expanded, batches, of_keys),
                _binary(raw, expanded, batches, of_values),
            )
    types = (batches["attributes"] & LOG_APPEND_TIME != 0).astype(np.int32)
    types[batches["magic"] == 0] = -1
    return Columns(
        found.piece.source.path,
        records["offset"].copy(),
        records["timestamp"].copy(),
        types[records["batch"]],
        keys,
        values,
        headers,
        batches[records["batch"]] if BATCH in columns else None,
    )


def _binary(raw: Bytes, expanded: Bytes, batches: Table, fields: Table) -> Binary:
    offsets, data = gather(raw, expanded, batches, fields)
    return Binary(offsets, data, fields["length"] < 0)
