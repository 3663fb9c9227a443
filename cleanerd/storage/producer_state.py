"""The state of a log's producers, behind `.snapshot` and `.txnindex` (spec disk B6, B7, rule A.4).

From disk: the newest usable snapshot, then the batches behind it (spec disk D2.7, G).

=======================  ===================================================================================
batch                    effect on its producer
=======================  ===================================================================================
no producer id           none
control without records  none: a marker that was cleaned, the whole transaction is gone
data                     last sequence, offset, delta and time are the batch's; if transactional and no
                         transaction is open, one opens at its base offset
ABORT or COMMIT          coordinator epoch and time are the marker's; an open transaction ends, and an
                         aborted one becomes a transaction index entry. Without an open one there is no entry
any, with a new epoch    first forgets the last sequence and offset
=======================  ===================================================================================
"""

import os
from collections.abc import Iterable
from dataclasses import replace

from cleanerd.env.files import NotRegular, RealFiles
from cleanerd.format.batch import BatchHeader, decode_batch
from cleanerd.format.control import ControlType, parse_control_key, parse_end_txn_value
from cleanerd.format.errors import FormatError, corruption_in
from cleanerd.format.names import FileKind, segment_path
from cleanerd.format.producer_snapshot import ProducerEntry, parse_producer_snapshot
from cleanerd.format.record import Record
from cleanerd.format.txn_index import AbortedTxn

from .partition_dir import bases_of
from .segments import LogBatch, live_bases, log_batches


class ProducerState:
    """State of all producers just below some offset; `apply` moves it on, batch by batch."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self._entries = {entry.producer_id: entry for entry in entries}
        self._open = {
            entry.producer_id: entry.current_txn_first_offset
            for entry in self._entries.values()
            if entry.current_txn_first_offset >= 0
        }

    @property
    def entries(self) -> tuple[ProducerEntry, ...]:
        """All producers by id, as in a snapshot."""
        return tuple(self._entries[producer_id] for producer_id in sorted(self._entries))

    @property
    def first_open_offset(self) -> int | None:
        """First offset of the earliest open transaction; it bounds the last stable offset."""
        return min(self._open.values(), default=None)

    def forget_idle(self, since_ms: int) -> None:
        """Forget producers whose last batch is of `since_ms` or earlier; one with an open transaction stays (rule 4.17)."""
        self._entries = {
            producer_id: entry
            for producer_id, entry in self._entries.items()
            if producer_id in self._open or entry.timestamp_ms > since_ms
        }

    def apply(self, header: BatchHeader, batch: bytes) -> AbortedTxn | None:
        """Take in the next batch; returns the transaction that it aborts, if it does.

        Raises: `FormatError` for a damaged marker.
        """
        if header.producer_id < 0:
            return None
        if not header.is_control:
            self._apply_data(header)
            return None
        if header.record_count == 0:
            return None
        return self._apply_marker(header, decode_batch(batch)[1][0])

    def _apply_data(self, header: BatchHeader) -> None:
        entry = self._entry(header)
        if header.is_transactional:
            self._open.setdefault(header.producer_id, header.base_offset)
        self._entries[header.producer_id] = ProducerEntry(
            header.producer_id,
            header.producer_epoch,
            last_sequence=header.last_sequence,
            last_offset=header.last_offset,
            offset_delta=header.last_offset_delta,
            timestamp_ms=header.max_timestamp_ms,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_first_offset=self._open.get(header.producer_id, -1),
        )

    def _apply_marker(self, header: BatchHeader, marker: Record) -> AbortedTxn | None:
        control_type = parse_control_key(marker.key)
        if control_type not in (ControlType.ABORT, ControlType.COMMIT):
            return None
        self._entries[header.producer_id] = replace(
            self._entry(header),
            timestamp_ms=marker.timestamp_ms,
            coordinator_epoch=parse_end_txn_value(marker.value),
            current_txn_first_offset=-1,
        )
        first_offset = self._open.pop(header.producer_id, None)
        if first_offset is None or control_type is ControlType.COMMIT:
            return None
        last_stable_offset = self.first_open_offset
        if last_stable_offset is None:
            last_stable_offset = marker.offset + 1
        return AbortedTxn(header.producer_id, first_offset, marker.offset, last_stable_offset)

    def _entry(self, header: BatchHeader) -> ProducerEntry:
        """The state of this batch's producer under the epoch of this batch."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return ProducerEntry(header.producer_id, header.producer_epoch, -1, -1, 0, -1, -1, -1)
        if entry.producer_epoch == header.producer_epoch:
            return entry
        return replace(
            entry, producer_epoch=header.producer_epoch, last_sequence=-1, last_offset=-1, offset_delta=0
        )


def producers_at(directory: str, offset: int) -> ProducerState:
    """The state just below `offset`, which is the base offset of a segment. Raises: as `log_batches`."""
    start, state = _newest_snapshot(directory, offset)
    if start == offset:  # the common case, which needs no other segment
        return state
    for batch in log_batches(directory, start):
        if batch.last_offset >= offset:
            break
        _apply(state, batch)
    return state


def _apply(state: ProducerState, batch: LogBatch) -> None:
    if batch.header is not None:  # magic 0 and 1 know no producers
        with corruption_in(batch.path, batch.position):
            state.apply(batch.header, batch.data)


def last_stable_offset(directory: str) -> int:
    """First offset that a read_committed consumer cannot have yet: of an open transaction, else the log end.

    Raises: `CorruptFile`.
    """
    bases = live_bases(directory)
    if not bases:
        return 0
    state, end = producers_at(directory, bases[-1]), bases[-1]
    for batch in log_batches(directory, end):
        _apply(state, batch)
        end = batch.last_offset + 1
    return end if state.first_open_offset is None else state.first_open_offset


def snapshot_offsets(directory: str) -> list[int]:
    """Offsets of the producer snapshots, ascending."""
    return bases_of(os.listdir(directory), FileKind.PRODUCER_SNAPSHOT)


def _newest_snapshot(directory: str, limit: int) -> tuple[int, ProducerState]:
    """The newest readable one at or below `limit`; a damaged one costs a longer replay, nothing else."""
    for offset in reversed(snapshot_offsets(directory)):
        path = segment_path(directory, offset, FileKind.PRODUCER_SNAPSHOT)
        if offset <= limit:
            try:
                return offset, ProducerState(parse_producer_snapshot(RealFiles().read(path), offset))
            except (FormatError, FileNotFoundError, NotRegular):
                continue
    return 0, ProducerState()
