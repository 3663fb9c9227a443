"""What the kernels mean, in plain Python: one cleaning round over the batches of a log, told by the rules.

Written from sections 3 and 4 and appendix A of the behaviour spec on top of `cleanerd.format`, not from the kernels, so
that the agreement which the tests demand (equal bytes, equal counts) proves something. Slow, and meant to be read.

Where cleanerd means something else than Kafka:

===  =====  ==================================================================================================
(A)  4.31   a legacy batch of which nothing is kept, but which has to stay, is copied; Kafka gives up on the log
(B)  4.29   when now + delete.retention.ms overflows, no batch is rebuilt only to get no horizon
(C)  10.1   aborted transactions that ended below the first dirty offset say nothing about the dirty section
(D)  3.14   the map is never full: the round always ends at the first uncleanable offset
(E)  4.26   a wrong CRC is an error wherever it is met (`decode_batch`); Kafka copies such a batch
(F)  0.6    a negative delete horizon, which no writer produces, counts as none; for Kafka it is long past
(G)  4.20   a marker without a producer id, which no writer produces, ends nothing and stays
(H)  4.30   an empty batch that stays is copied: what the rule writes for an empty header is the same header
(I)  4.36   what Kafka refuses to rebuild (negative timestamps, an idempotent batch without a sequence) is rebuilt
(J)  4.20   (the kernels only) an aborted transaction ends where its index entry says, also when the marker is not there;
            for Kafka, and here, it then swallows all data of its producer up to the next ABORT
===  =====  ==================================================================================================
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from cleanerd.format.batch import (
    BatchHeader,
    Record,
    decode_batch,
    encode_batch,
    encode_empty_batch,
    iterate_batches,
)
from cleanerd.format.control import ControlType, parse_control_key
from cleanerd.format.errors import FormatError
from cleanerd.format.legacy import LegacyEntry, decode_entry
from cleanerd.format.txn_index import AbortedTxn
from cleanerd.policy.verdicts import RecordVerdict
from cleanerd.policy.winner import may_supersede, supersedes

_ABSENT = -1


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of any magic as it lies on disk, with its records. Exactly one of `header`, `entry` is set."""

    data: bytes
    magic: int
    last_offset: int
    records: tuple[Record, ...]
    header: BatchHeader | None = None  # magic 2
    entry: LegacyEntry | None = None  # magic 0 and 1

    @property
    def base_offset(self) -> int:
        source = self.header or self.entry
        assert source is not None
        return source.base_offset

    @property
    def is_control(self) -> bool:
        return self.header is not None and self.header.is_control

    @property
    def is_transactional(self) -> bool:
        return self.header is not None and self.header.is_transactional

    @property
    def producer_id(self) -> int:
        """-1 none."""
        return _ABSENT if self.header is None else self.header.producer_id

    @property
    def delete_horizon_ms(self) -> int | None:
        """Rule 0.6, and (F)."""
        horizon = None if self.header is None else self.header.delete_horizon_ms
        return None if horizon is None or horizon < 0 else horizon


def read_batches(data: bytes) -> Iterator[Batch]:
    """The batches of a segment. Raises FormatError for anything that is not whole and right."""
    end = 0
    for position, size_bytes, magic in iterate_batches(data):
        end = position + size_bytes
        piece = data[position:end]
        if magic == 2:
            header, records = decode_batch(piece)
            yield Batch(piece, magic, header.last_offset, tuple(records), header=header)
        else:
            entry = decode_entry(piece)
            yield Batch(piece, magic, entry.last_offset, entry.records, entry=entry)
    if end != len(data):
        raise FormatError(end, "a whole batch", f"{len(data) - end} bytes")


@dataclass(frozen=True, slots=True)
class LastBatch:
    """What is remembered of an active producer (rule 4.17). No last data offset: only a marker is known."""

    epoch: int
    last_data_offset: int | None


@dataclass(frozen=True, slots=True)
class Facts:
    """What the round depends on besides the bytes. Times in ms."""

    now_ms: int
    new_horizon_ms: int | None  # now + delete.retention.ms; None when that overflows
    first_dirty_offset: int
    round_end: int  # first uncleanable offset
    producers: Mapping[int, LastBatch]  # the active ones of the whole log, by id
    aborted: Sequence[AbortedTxn]


@dataclass(frozen=True, slots=True)
class Segment:
    data: bytes
    retain_legacy_deletes: bool  # rule 4.11


@dataclass(slots=True)
class Cleaned:
    """The result of a round; segments in the order given."""

    segments: list[bytes] = field(default_factory=list)
    counts: Counter[RecordVerdict] = field(default_factory=Counter)
    batches_kept: int = 0
    discardable_markers: list[int] = field(default_factory=list)  # offsets
    kept_aborted: list[AbortedTxn] = field(default_factory=list)  # for the new transaction indexes


def clean(segments: Sequence[Segment], facts: Facts) -> Cleaned:
    """One round over all segments below the round end (rule 4.4)."""
    parsed = [(segment, list(read_batches(segment.data))) for segment in segments]
    newest = newest_offsets([batch for _, batches in parsed for batch in batches], facts)
    tracker = TransactionTracker(facts.aborted)
    result = Cleaned(kept_aborted=tracker.output_index)
    for segment, batches in parsed:
        written = []
        for batch in batches:
            discardable = tracker.is_discardable(batch)
            if discardable and batch.is_control and batch.records:
                result.discardable_markers.append(batch.last_offset)
            data, verdicts = clean_batch(
                batch,
                newest,
                facts,
                discardable=discardable,
                retain_legacy_deletes=segment.retain_legacy_deletes,
            )
            written.append(data)
            result.counts.update(verdicts)
        result.segments.append(b"".join(written))
        result.batches_kept += sum(1 for data in written if data)
    return result


def newest_offsets(batches: Iterable[Batch], facts: Facts) -> dict[bytes, int]:
    """Key -> newest offset over the dirty section (rules 3.9, 3.12, and (C), (D))."""
    newest: dict[bytes, int] = {}
    tracker = TransactionTracker(txn for txn in facts.aborted if txn.last_offset >= facts.first_dirty_offset)
    for batch in batches:
        assert batch.last_offset < facts.round_end, "the caller hands over the segments below the round end"
        if not may_supersede(batch.last_offset, facts.first_dirty_offset):
            continue
        is_aborted = tracker.is_discardable(batch)
        if batch.is_control or is_aborted:
            continue
        for record in batch.records:
            if record.key is not None and may_supersede(record.offset, facts.first_dirty_offset):
                newest[record.key] = record.offset
    return newest


@dataclass(slots=True)
class _OngoingAbort:
    txn: AbortedTxn
    observed: bool = False


class TransactionTracker:
    """Tells, batch by batch in offset order, what a transaction no longer needs (rule 4.20).

    `output_index` collects the aborted transactions of which data was met before their marker.
    """

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self.output_index: list[AbortedTxn] = []
        self._heap = [(txn.first_offset, number, txn) for number, txn in enumerate(aborted)]
        heapq.heapify(self._heap)
        self._ongoing_aborted: dict[int, _OngoingAbort] = {}
        self._ongoing_committed: set[int] = set()

    def is_discardable(self, batch: Batch) -> bool:
        """For data: part of an aborted transaction. For a control batch: its transaction has no data left."""
        while self._heap and self._heap[0][0] <= batch.last_offset:
            _, _, txn = heapq.heappop(self._heap)
            self._ongoing_aborted.setdefault(txn.producer_id, _OngoingAbort(txn))
        if batch.producer_id < 0 and batch.records:
            return False  # (G)
        if batch.is_control:
            return self._is_empty_marker(batch)
        return batch.is_transactional and self._is_aborted_data(batch.producer_id)

    def _is_aborted_data(self, producer_id: int) -> bool:
        ongoing = self._ongoing_aborted.get(producer_id)
        if ongoing is None:
            self._ongoing_committed.add(producer_id)
            return False
        ongoing.observed = True
        return True

    def _is_empty_marker(self, batch: Batch) -> bool:
        if not batch.records:
            return True
        kind = parse_control_key(batch.records[0].key)
        if kind == ControlType.ABORT:
            ended = self._ongoing_aborted.pop(batch.producer_id, None)
            if ended is None or not ended.observed:
                return True
            self.output_index.append(ended.txn)
            return False
        if kind == ControlType.COMMIT:
            had_data = batch.producer_id in self._ongoing_committed
            self._ongoing_committed.discard(batch.producer_id)
            return not had_data
        return False


class Mode(Enum):
    """What happens to a batch of which no record is kept (rule 4.16)."""

    KEEP_EVEN_IF_EMPTY = "keep"
    DELETE = "delete"
    DELETE_IF_EMPTY = "delete if empty"


def clean_batch(
    batch: Batch, newest: Mapping[bytes, int], facts: Facts, *, discardable: bool, retain_legacy_deletes: bool
) -> tuple[bytes, list[RecordVerdict]]:
    """(bytes to write, verdict of every record) of one batch (rules 4.15-4.33)."""
    drop_records = _drops_all_records(batch, facts, discardable=discardable)
    mode = _mode(batch, facts, drop_records=drop_records)
    if drop_records:
        why = RecordVerdict.CONTROL if batch.is_control else RecordVerdict.ABORTED
        verdicts = [why for _ in batch.records]
    else:
        verdicts = [
            _record_verdict(record, batch, newest, facts, retain_legacy_deletes=retain_legacy_deletes)
            for record in batch.records
        ]
    kept = [
        record
        for record, verdict in zip(batch.records, verdicts, strict=True)
        if verdict is RecordVerdict.KEEP
    ]
    if kept:
        return _write_kept(batch, kept, facts, is_empty_marker=discardable and batch.is_control), verdicts
    if mode is not Mode.KEEP_EVEN_IF_EMPTY:
        return b"", verdicts
    if batch.header is None:
        return batch.data, [RecordVerdict.KEEP for _ in batch.records]  # (A)
    if not batch.records:
        return batch.data, verdicts  # (H)
    return encode_empty_batch(batch.header), verdicts


def _drops_all_records(batch: Batch, facts: Facts, *, discardable: bool) -> bool:
    """`dropRecords` of rule 4.15."""
    if not batch.is_control:
        return discardable
    horizon = batch.delete_horizon_ms
    return discardable and horizon is not None and horizon <= facts.now_ms


def _mode(batch: Batch, facts: Facts, *, drop_records: bool) -> Mode:
    if batch.producer_id > _ABSENT and _is_last_of_producer(batch, facts.producers):
        return Mode.KEEP_EVEN_IF_EMPTY
    if batch.last_offset + 1 == facts.round_end:
        return Mode.KEEP_EVEN_IF_EMPTY
    return Mode.DELETE if drop_records else Mode.DELETE_IF_EMPTY


def _is_last_of_producer(batch: Batch, producers: Mapping[int, LastBatch]) -> bool:
    """Rule 4.17."""
    assert batch.header is not None
    last = producers.get(batch.producer_id)
    if last is None:
        return False
    if last.last_data_offset is not None:
        return batch.last_offset == last.last_data_offset
    return batch.is_control and batch.header.producer_epoch == last.epoch


def _record_verdict(
    record: Record, batch: Batch, newest: Mapping[bytes, int], facts: Facts, *, retain_legacy_deletes: bool
) -> RecordVerdict:
    """Rules 4.18, 4.19."""
    if batch.is_control:
        return RecordVerdict.KEEP
    if record.key is None:
        return RecordVerdict.NO_KEY
    if supersedes(newest.get(record.key, _ABSENT), record.offset):
        return RecordVerdict.SUPERSEDED
    if record.value is not None:
        return RecordVerdict.KEEP
    horizon = batch.delete_horizon_ms
    is_protected = (
        horizon is None or facts.now_ms < horizon if batch.header is not None else retain_legacy_deletes
    )
    return RecordVerdict.KEEP if is_protected else RecordVerdict.TOMBSTONE


def _write_kept(batch: Batch, kept: Sequence[Record], facts: Facts, *, is_empty_marker: bool) -> bytes:
    """A copy where nothing changes, else the batch rebuilt around the kept records (rules 4.25-4.29, 4.33)."""
    needs_horizon = (
        batch.delete_horizon_ms is None
        and facts.new_horizon_ms is not None  # (B)
        and (is_empty_marker or any(record.value is None for record in kept))
    )
    horizon = facts.new_horizon_ms if needs_horizon else batch.delete_horizon_ms
    if batch.entry is not None:
        return _convert(batch.entry, kept, horizon)
    assert batch.header is not None
    if len(kept) == len(batch.records) and not needs_horizon:
        return batch.data
    return _rebuild(batch.header, kept, horizon)


def _rebuild(source: BatchHeader, kept: Sequence[Record], horizon_ms: int | None) -> bytes:
    """Rule 4.27."""
    return encode_batch(
        kept,
        base_offset=source.base_offset,
        last_offset=source.last_offset,
        codec=source.codec,
        leader_epoch=source.leader_epoch,
        producer_id=source.producer_id,
        producer_epoch=source.producer_epoch,
        base_sequence=source.base_sequence,
        log_append_time=source.is_log_append_time,
        transactional=source.is_transactional,
        control=source.is_control,
        delete_horizon_ms=horizon_ms,
        max_timestamp_ms=source.max_timestamp_ms if source.is_log_append_time else None,
    )


def _convert(source: LegacyEntry, kept: Sequence[Record], horizon_ms: int | None) -> bytes:
    """Rule 4.33."""
    return encode_batch(
        kept,
        base_offset=kept[0].offset,
        last_offset=kept[-1].offset,
        codec=source.codec,
        leader_epoch=_ABSENT,
        log_append_time=source.log_append_time,
        delete_horizon_ms=horizon_ms,
        max_timestamp_ms=source.timestamp_ms if source.log_append_time else None,
    )


@dataclass(slots=True)
class ReplayedProducer:
    """State of one producer after a replay (rules A.3, A.4)."""

    epoch: int
    last_data_offset: int | None = None
    timestamp_ms: int = _ABSENT
    txn_first_offset: int | None = None  # of the open transaction


@dataclass(slots=True)
class Replay:
    """State of all producers; `first_unstable_offset` of the transactions that ended at or after the high watermark."""

    producers: dict[int, ReplayedProducer] = field(default_factory=dict)
    first_unstable_offset: int | None = None
    aborts: list[tuple[int, int]] = field(
        default_factory=list
    )  # (producer id, marker) below the high watermark


def replay(state: Replay, data: bytes, *, from_offset: int, high_watermark: int) -> None:
    """Carry `state` on over the batches that end at or after `from_offset`."""
    for batch in read_batches(data):
        if batch.header is not None and batch.producer_id > _ABSENT and batch.last_offset >= from_offset:
            _replay_batch(state, batch, batch.header, high_watermark)


def _replay_batch(state: Replay, batch: Batch, header: BatchHeader, high_watermark: int) -> None:
    if batch.is_control and not _ends_transaction(batch):
        return
    producer = state.producers.setdefault(batch.producer_id, ReplayedProducer(header.producer_epoch))
    if producer.epoch != header.producer_epoch:  # a new epoch: the last data offset is forgotten
        producer.epoch = header.producer_epoch
        producer.last_data_offset = None
    producer.timestamp_ms = header.max_timestamp_ms
    if batch.is_control:
        first = producer.txn_first_offset
        if first is not None and batch.last_offset >= high_watermark:
            known = state.first_unstable_offset
            state.first_unstable_offset = first if known is None else min(known, first)
        elif first is not None and parse_control_key(batch.records[0].key) is ControlType.ABORT:
            state.aborts.append((batch.producer_id, batch.last_offset))
        producer.txn_first_offset = None
        return
    producer.last_data_offset = batch.last_offset
    if batch.is_transactional and producer.txn_first_offset is None:
        producer.txn_first_offset = header.base_offset


def _ends_transaction(batch: Batch) -> bool:
    """An empty control batch contributes nothing, and other control records are not a transaction's."""
    if not batch.records:
        return False
    return parse_control_key(batch.records[0].key) in (ControlType.ABORT, ControlType.COMMIT)
