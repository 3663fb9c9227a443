"""What must hold of a log, judged from outside: from what was acknowledged to its writer, and the bytes that lie there.

What a cleaning may have taken from a log, and nothing else
    a record whose key has a newer committed record below the bound          superseded
    a tombstone that is the newest of its key there, past its delete horizon (`Horizons`), nothing older of its key left
    data of aborted transactions, records without a key
    a marker of which no data is left, past its delete horizon
    everything below the log start; with cleanup.policy=delete what is too old, or behind retention.bytes
Without cleanup.policy=compact nothing goes but from the beginning, and nothing that is younger than min.compaction.lag.ms.
The bound is the lowest of active segment and first open transaction, where a broker will come back also of what it has
written down as replicated and on its disk: from there on every byte is as it was written. Below it offsets rise and no
record is another one. The newest data batch of each active producer is there, if need be empty. What a reader with
isolation.level=read_committed gets contains nothing that was aborted. What once was gone for good stays so.
"""

import functools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cleanerd.format.batch import BatchHeader, Record, checksum, decode_batch, iterate_batches, parse_header
from cleanerd.format.control import ControlType, parse_control_key
from cleanerd.policy.staging import WAIT_MS
from cleanerd.tools.client.reader import read_records
from tests.simulation.disk import content_of
from tests.simulation.rules import Rules, Violation, Window

TRANSITIONAL = (".swap", ".cleaned")


@dataclass(frozen=True)
class Batch:
    """A batch of magic 2, as it was appended or as it lies there."""

    header: BatchHeader
    raw: bytes
    records: tuple[Record, ...]

    @classmethod
    def of(cls, raw: bytes) -> "Batch":
        """Decode a batch. Raises Violation."""
        return _decoded(raw)

    @classmethod
    def decoded(cls, raw: bytes) -> "Batch":
        """The same, not remembered."""
        header, records = decode_batch(raw)
        if checksum(raw) != header.crc:
            raise Violation(f"the checksum of the batch at {header.base_offset} is wrong")
        return cls(header, raw, tuple(records))

    @property
    def first(self) -> int:
        return self.header.base_offset

    @property
    def last(self) -> int:
        return self.header.last_offset

    @property
    def aborts(self) -> bool | None:
        """For a marker whether it aborts, else None."""
        if not self.header.is_control or not self.records:
            return None
        return parse_control_key(self.records[0].key or b"") is ControlType.ABORT


@functools.lru_cache(4096)
def _decoded(raw: bytes) -> Batch:
    return Batch.decoded(raw)


@dataclass
class Horizons:
    """When tombstones and markers of a log may go at the earliest (rules 4.15, 4.19, 4.25-4.28).

    A cleaning writes the horizon into the batch, clock plus `delete.retention.ms`, later by `WAIT_MS` where its result is to
    wait for a broker's stop; a later one, from then on, takes the record. One that was seen (`seen`: first offset of a batch
    -> ms) stays what it is until the batch is gone or empty. One that is new, or was never seen, is one that the window
    allows.
    """

    window: Window
    seen: dict[int, int] = field(default_factory=dict)

    def see(self, batch: BatchHeader) -> None:
        if batch.record_count == 0:
            return  # 4.30: an empty header has none
        first, found = batch.base_offset, batch.delete_horizon_ms
        known = self.seen.get(first)
        if known is not None and found != known:
            raise Violation(f"the delete horizon of the batch at {first} was {known}, is {found}")
        if known is None and found is not None:
            least, most = self.window.horizons_ms()
            if not (least <= found <= most or least <= found - WAIT_MS <= most):
                raise Violation(
                    f"the delete horizon of the batch at {first} is {found}, must be {least} to {most}"
                )
            self.seen[first] = found

    def check_gone(self, first_offset: int, what: str) -> None:
        """A record of a batch is gone that goes when its horizon is over. Raises Violation."""
        earliest_ms = self.seen.get(first_offset, self.window.horizons_ms()[0])
        if self.window.now_ms[1] < earliest_ms:
            raise Violation(f"{what} went {earliest_ms - self.window.now_ms[1]} ms before its delete horizon")

    def truncate(self, offset: int) -> None:
        """The log ends there now."""
        self.seen = {first: ms for first, ms in self.seen.items() if first < offset}


PRODUCER_EXPIRATION_MS = 86_400_000
TAIL = 20
"""The newest batches are always remembered: a truncation may begin there."""


@dataclass
class Model:
    """What was acknowledged to the writer of one log: every batch in order."""

    sent: list[Batch] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)  # records that have gone for good
    start: int = 0
    bound: int = 0  # the highest that the bound ever was
    unacknowledged: Batch | None = None  # its writer died in the append
    unsynced: int | None = None  # first offset of one of those that was found later: a power cut may take it
    dropped: set[int] = field(default_factory=set)  # batches that were gone when a later one was truncated
    unsettled: set[int] = field(default_factory=set)  # inodes of segments that a failed retention has taken
    limit: int | None = None  # up to which its broker has written down that it is replicated and on its disk
    window: Window = field(default_factory=Window)

    def __post_init__(self) -> None:
        self.horizons = Horizons(self.window)

    def append(self, raw: bytes) -> None:
        batch = Batch.of(raw)
        self.unsynced = None  # what was before is on stable storage with it
        self.sent.append(batch)

    def truncate(self, offset: int) -> None:
        self.sent = [batch for batch in self.sent if batch.last < offset]
        self.gone = {one for one in self.gone if one < offset}
        self.bound, self.start = min(self.bound, offset), min(self.start, offset)
        self.horizons.truncate(offset)

    def reopened(self, end: int) -> None:
        """A writer has found the end of the log, and with it whether the unacknowledged batch is there."""
        batch, self.unacknowledged = self.unacknowledged, None
        if batch is not None and batch.last + 1 == end and self.end <= batch.first:
            self.append(batch.raw)
            self.unsynced = batch.first
        elif self.unsynced is not None and end <= self.unsynced:
            self.truncate(self.unsynced)
            self.unsynced = None

    def brought_back(self, offsets: set[int]) -> None:
        """A power cut has undone what was not reported as done."""
        self.gone -= offsets

    def forget(self) -> None:
        """Let go of batches that are gone for good and decide nothing any more: a long life has many.

        The newest of a producer stays, and a marker while data of its transaction does.
        """
        _, open_first, ended = self.transactions()
        newest = {b.header.producer_id: b for b in self.sent if not b.header.is_control}

        def is_over(batch: Batch) -> bool:
            is_open = open_first is not None and batch.last >= open_first
            is_newest = newest.get(batch.header.producer_id) is batch
            return (
                self._is_gone(batch)
                and not is_open
                and not is_newest
                and all(map(is_over, ended.get(batch.first, ())))
            )

        self.sent = [batch for batch in self.sent[:-TAIL] if not is_over(batch)] + self.sent[-TAIL:]
        _decoded.cache_clear()

    @property
    def end(self) -> int:
        return self.sent[-1].last + 1 if self.sent else 0

    def transactions(self) -> tuple[set[int], int | None, dict[int, list[Batch]]]:
        """(offsets of aborted records, first offset of an open transaction, marker -> the data of its transaction)."""
        data: dict[int, list[Batch]] = {}
        aborted: set[int] = set()
        ended: dict[int, list[Batch]] = {}
        for batch in self.sent:
            producer = batch.header.producer_id
            if batch.aborts is not None:
                ended[batch.first] = data.pop(producer, [])
                if batch.aborts:
                    aborted |= {r.offset for one in ended[batch.first] for r in one.records}
            elif batch.header.is_transactional:
                data.setdefault(producer, []).append(batch)
        open_first = [b.first for batches in data.values() for b in batches if not self._is_gone(b)]
        return aborted, min(open_first, default=None), ended

    def _is_gone(self, batch: Batch) -> bool:
        """Taken as aborted perhaps, before its marker was truncated: it opens no transaction again."""
        return all(record.offset in self.gone for record in batch.records)


@dataclass(frozen=True)
class Lying:
    """The live segments of a directory."""

    bases: tuple[int, ...]
    batches: tuple[Batch, ...]

    @property
    def offsets(self) -> set[int]:
        return {record.offset for batch in self.batches for record in batch.records}


def in_transition(directory: str) -> bool:
    """Whether a swap is under way, or was interrupted."""
    return any(TRANSITIONAL[0] in name or TRANSITIONAL[1] in name for name in os.listdir(directory))


def read(directory: str) -> Lying:
    """What lies there. Raises Violation for damage, also where a segment reaches into the next."""
    names = sorted(name for name in os.listdir(directory) if name.endswith(".log"))
    bases = [int(name.partition(".")[0]) for name in names]
    batches: list[Batch] = []
    end = 0
    for name, base, limit in zip(names, bases, [*bases[1:], 1 << 62], strict=True):
        data, whole = content_of(os.path.join(directory, name)), 0
        for position, size, _ in iterate_batches(data):
            header = parse_header(data, position)
            if not max(end, base) <= header.base_offset <= header.last_offset < limit:
                raise Violation(f"{name}: offsets {header.base_offset} to {header.last_offset} after {end}")
            batches.append(Batch.of(data[position : position + size]))
            end, whole = header.last_offset + 1, position + size
        if whole != len(data):
            raise Violation(f"{name}: {len(data) - whole} bytes behind its last batch")
    return Lying(tuple(bases), tuple(batches))


def offsets_of(path: str) -> set[int]:
    """Of the records of a segment that is whole."""
    data = content_of(path)
    batches = [Batch.of(data[at : at + size]) for at, size, _ in iterate_batches(data)]
    return {record.offset for batch in batches for record in batch.records}


def check(model: Model, directory: str, *, reads: bool = True) -> Lying:
    """Judge a log that is not in transition; what is gone now is gone for good. Raises Violation.

    `reads`: as its readers see it, too.
    """
    found = read(directory)
    gone = list(_judged(model, found))
    back = found.offsets & model.gone
    if back:
        raise Violation(f"records {sorted(back)} came back")
    model.gone.update(gone)
    if reads:
        _check_readers(model, directory)
    return found


def _judged(model: Model, found: Lying) -> Iterator[int]:
    """Offsets of what is gone, and may be. Raises Violation."""
    aborted, open_first, ended = model.transactions()
    active = found.bases[-1] if found.bases else 0
    bounds = (active, open_first, model.limit)
    model.bound = max(min(bound for bound in bounds if bound is not None), model.bound)
    lying = {record.offset: record for batch in found.batches for record in batch.records}
    _check_what_lies(model, found, lying)
    newest = {
        r.key: r
        for b in model.sent
        if not b.header.is_control and b.last < model.bound
        for r in b.records
        if r.key is not None and r.offset not in aborted
    }
    for batch in model.sent:
        for record in batch.records:
            if record.offset in lying:
                continue
            yield record.offset
            if record.offset in model.gone or _is_old(model, batch, record, found):
                continue
            _check_compacted(model, record)
            if batch.header.is_control:
                left = [r.offset for one in ended[batch.first] for r in one.records if r.offset in lying]
                if left:
                    raise Violation(f"the marker at {batch.first} is gone, of its data {left} is there")
                model.horizons.check_gone(batch.first, f"the marker at {batch.first}")
            elif record.key is not None and record.offset not in aborted and newest[record.key] is record:
                _check_tombstone(model, batch, record, lying.values(), aborted)
    _check_producers(model, found)


def _check_what_lies(model: Model, found: Lying, lying: dict[int, Record]) -> None:
    """It is what was written, and from the bound on it is all."""
    by_first = {batch.first: batch for batch in found.batches}
    sent = {r.offset: r for b in model.sent for r in b.records}
    for offset, record in lying.items():
        if sent.get(offset) != record:
            raise Violation(f"at {offset} lies {record}, written was {sent.get(offset)}")
    for batch in found.batches:
        model.horizons.see(batch.header)
    for batch in model.sent:
        last = batch.records[-1]
        if batch.last < model.bound or last.offset in model.gone or _is_old(model, batch, last, found):
            continue
        if batch.first not in by_first:
            raise Violation(f"the batch {batch.first} to {batch.last} is gone, the bound is {model.bound}")
        if by_first[batch.first].raw != batch.raw:
            raise Violation(f"the batch at {batch.first} was changed, the bound is {model.bound}")


def _check_compacted(model: Model, record: Record) -> None:
    """A record is gone from where only compaction takes some."""
    now_ms = model.window.now_ms[1]

    def allows(rules: Rules) -> bool:
        lag_ms = rules.compaction_lag_ms
        was_cleanable = record.timestamp_ms <= model.window.cleanable_ms  # it may be clean: no matter the lag
        return rules.compacts and (lag_ms == 0 or now_ms - record.timestamp_ms >= lag_ms or was_cleanable)

    if not model.window.any(allows):
        raise Violation(f"{record} is gone, though it is too young or nothing compacts its log")


def _is_old(model: Model, batch: Batch, record: Record, found: Lying) -> bool:
    """Whether a record may be gone because of the log start, or of retention.

    What its size allows goes first (rule 6.1), then perhaps aged segments behind it, which may leave less than the limit.
    """
    if record.offset < model.start:
        return True
    first, now_ms = found.bases[0] if found.bases else 0, model.window.now_ms[1]
    if record.offset >= first:
        return False
    behind_bytes = sum(len(one.raw) for one in model.sent if one.first > batch.last)  # less, once cleaned

    def allows(rules: Rules) -> bool:
        is_aged = rules.retention_ms >= 0 and now_ms - batch.header.max_timestamp_ms > rules.retention_ms
        return rules.deletes and (is_aged or 0 <= rules.retention_bytes <= behind_bytes)

    return model.window.any(allows)


def _check_tombstone(
    model: Model, batch: Batch, record: Record, lying: Iterable[Record], aborted: set[int]
) -> None:
    """The newest record of a key is gone."""
    if record.value is not None:
        raise Violation(f"{record} is lost")
    model.horizons.check_gone(batch.first, f"tombstone {record}")
    older = [r.offset for r in lying if r.key == record.key and r.offset < record.offset]
    if older := [offset for offset in older if offset not in aborted]:
        raise Violation(f"tombstone {record} is gone, values at {older} are there")


def _check_producers(model: Model, found: Lying) -> None:
    """Rule 4.17: the last data batch of each active producer, if need be without records."""
    last: dict[int, Batch] = {}
    seen_ms: dict[int, int] = {}  # a marker has a time as well, an earlier one where the clock was set back
    for batch in model.sent:
        seen_ms[batch.header.producer_id] = batch.header.max_timestamp_ms
        if batch.header.producer_id >= 0 and not batch.header.is_control:
            last[batch.header.producer_id] = batch
    there = {batch.last: batch.header for batch in found.batches}
    first = found.bases[0] if found.bases else 0
    for producer, batch in last.items():
        header = there.get(batch.last)
        is_active = model.window.latest_ms - seen_ms[producer] < PRODUCER_EXPIRATION_MS
        if not is_active or batch.last < max(model.start, first) or batch.first in model.dropped:
            continue
        known = header and (header.producer_id, header.producer_epoch, header.last_sequence)
        if known != (producer, batch.header.producer_epoch, batch.header.last_sequence):
            raise Violation(f"the last batch of producer {producer}, which ends at {batch.last}, is {known}")


def _check_readers(model: Model, directory: str) -> None:
    aborted, open_first, _ = model.transactions()
    # Below the log start aborted data has no entry (rule 4.22), and no consumer gets any of it.
    for record in read_records(directory, isolation="read_committed", start_offset=model.start):
        if record.offset in aborted:
            raise Violation(f"a reader of committed records gets {record}, which was aborted")
        if open_first is not None and record.offset >= open_first:
            raise Violation(f"a reader of committed records gets {record} of an open transaction")
