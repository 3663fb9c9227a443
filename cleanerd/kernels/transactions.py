"""Transactions and producers from batch headers: events, empty transactions, producer state (4.17, 4.20, A.3, A.4)."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cleanerd.format.head import CODEC_MASK, CONTROL, TRANSACTIONAL

from .horizons import delete_horizon
from .judge import Context
from .native import JIT, be16, njit
from .records import read_varint
from .tables import EVENT, Bytes, EventKind, Table

_DATA, _ABORTED_DATA, _ABORT, _COMMIT, _OTHER = (
    int(EventKind.DATA),
    int(EventKind.ABORTED_DATA),
    int(EventKind.ABORT),
    int(EventKind.COMMIT),
    int(EventKind.OTHER),
)
_NONE = -1


@njit(**JIT)
def _control_kind(buffer, batch):
    """Kind of a control batch with a record, from its key (spec disk C2).

    Control batches are never compressed: one that is counts as OTHER, which always stays.
    """
    end = batch.payload_end
    if batch.attributes & CODEC_MASK:
        return _OTHER
    _, at = read_varint(buffer, batch.payload_start, end, 5)
    if at < 0:
        return _OTHER
    _, at = read_varint(buffer, at + 1, end, 10)
    if at < 0:
        return _OTHER
    _, at = read_varint(buffer, at, end, 5)
    if at < 0:
        return _OTHER
    key_length, at = read_varint(buffer, at, end, 5)
    if at < 0 or key_length < 4 or at + 4 > end or be16(buffer, at) < 0:
        return _OTHER
    kind = be16(buffer, at + 2)
    if kind == 0:
        return _ABORT
    return _COMMIT if kind == 1 else _OTHER


@njit(**JIT)
def _place(ids, producer_id):
    """Cell of a producer id in an open table of ids (empty: -1)."""
    at = np.int64((np.uint64(producer_id) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(33)) % len(ids)
    while ids[at] != producer_id and ids[at] != _NONE:
        at += 1
        if at == len(ids):
            at = np.int64(0)
    return at


@njit(**JIT)
def _collect(buffer, batches, aborted, now_ms, new_horizon, ids, seen, out):
    count = 0
    for i in range(len(batches)):
        batch = batches[i]
        control = batch.attributes & CONTROL != 0
        if batch.magic < 2 or batch.producer_id < 0 or not (control or batch.attributes & TRANSACTIONAL):
            continue
        if control and batch.count == 0:
            continue  # always discardable: the judge sees it by itself
        cell = _place(ids, batch.producer_id)
        ids[cell] = batch.producer_id
        kind = _control_kind(buffer, batch) if control else (_ABORTED_DATA if aborted[i] else _DATA)
        bit = np.uint8(1 << kind) if not control else np.uint8(0)
        if seen[cell] & bit:
            continue
        seen[cell] = np.uint8(0) if control else seen[cell] | bit
        event = out[count]
        event.offset = batch.last_offset
        event.producer_id = batch.producer_id
        event.kind = kind
        horizon = delete_horizon(batch)
        expired = 0 <= horizon <= now_ms
        event.changes = 2 if expired else np.uint8(horizon < 0 and new_horizon >= 0)
        count += 1
    return count


def collect_events(buffer: Bytes, batches: Table, aborted: npt.NDArray[np.bool_], context: Context) -> Table:
    """`EVENT` rows of a chunk, repeats left out: of the data batches of a producer only the first since a marker.

    `changes` of a marker: what becomes of it if its transaction turns out to be empty: 0 stays, 1 gets a delete
    horizon, 2 is removed.
    """
    transactional = int(np.count_nonzero(batches["attributes"] & (CONTROL | TRANSACTIONAL)))
    out = np.zeros(transactional, EVENT)
    if not transactional:
        return out
    ids = np.full(2 * transactional + 1, _NONE, np.int64)
    seen = np.zeros(len(ids), np.uint8)
    count = _collect(buffer, batches, aborted, context.now_ms, context.new_horizon_ms, ids, seen, out)
    return out[:count]


@njit(**JIT)
def _track(events, dense, committed, observed, out):
    for i in range(len(events)):
        kind = events[i].kind
        producer = dense[i]
        if kind == _DATA:
            committed[producer] = True
        elif kind == _ABORTED_DATA:
            observed[producer] = True
        elif kind == _ABORT:
            out[i] = not observed[producer]
            observed[producer] = False
        elif kind == _COMMIT:
            out[i] = not committed[producer]
            committed[producer] = False


def empty_transactions(events: Table) -> npt.NDArray[np.bool_]:
    """Mark the markers whose transaction has no batch left (4.20), among the events of a whole log in offset order."""
    out = np.zeros(len(events), np.bool_)
    if len(events):
        ids, dense = np.unique(events["producer_id"], return_inverse=True)
        committed, observed = np.zeros(len(ids), np.bool_), np.zeros(len(ids), np.bool_)
        _track(events, dense.astype(np.int64), committed, observed, out)
    return out


@njit(**JIT)
def _find_unlisted(events, dense, committed, from_offset):
    for i in range(len(events)):
        kind = events[i].kind
        if kind == _ABORT and committed[dense[i]] and events[i].offset >= from_offset:
            return i
        if kind == _DATA:
            committed[dense[i]] = True
        elif kind in (_ABORT, _COMMIT):
            committed[dense[i]] = False
    return _NONE


def unlisted_abort(events: Table, from_offset: int) -> int | None:
    """Offset of the first ABORT marker from `from_offset` on whose data was taken for committed; None without.

    The transaction index that should hold them was lost (spec disk B6). `events` of a whole log, in order.
    """
    ids, dense = np.unique(events["producer_id"], return_inverse=True)
    committed = np.zeros(len(ids), np.bool_)
    found = int(_find_unlisted(events, dense.astype(np.int64), committed, from_offset))
    return None if found == _NONE else int(events["offset"][found])


PRODUCER = np.dtype(
    [
        ("producer_id", "i8"),
        ("last_data_offset", "i8"),  # -1: only a marker is known
        ("timestamp", "i8"),
        ("txn_first_offset", "i8"),  # of the open transaction, -1 none
        ("epoch", "i8"),
    ]
)


ABORT_SEEN = np.dtype([("producer_id", "i8"), ("marker_offset", "i8")])


@dataclass(frozen=True, slots=True)
class ReplayState:
    """`producers`: PRODUCER rows sorted by id. `first_unstable_offset`: see `replay`; -1 none.

    `aborts`: ABORT_SEEN rows of the transactions that were aborted below the high watermark, in offset order.
    """

    producers: Table
    first_unstable_offset: int
    aborts: Table = field(default_factory=lambda: np.zeros(0, ABORT_SEEN))


@njit(**JIT)
def _replay(buffer, batches, from_offset, high_watermark, ids, state, first_unstable, aborts):
    aborted = 0
    for i in range(len(batches)):
        batch = batches[i]
        if batch.magic < 2 or batch.producer_id < 0 or batch.last_offset < from_offset:
            continue
        control = batch.attributes & CONTROL != 0
        kind = _OTHER
        if control:
            if batch.count == 0:
                continue
            kind = _control_kind(buffer, batch)
            if kind == _OTHER:
                continue
        cell = _place(ids, batch.producer_id)
        row = state[cell]
        if ids[cell] == _NONE:
            ids[cell] = batch.producer_id
            row.producer_id = batch.producer_id
            row.last_data_offset = -1
            row.txn_first_offset = -1
            row.epoch = batch.producer_epoch
        if row.epoch != batch.producer_epoch:
            row.epoch = batch.producer_epoch
            row.last_data_offset = -1
        row.timestamp = batch.max_timestamp
        if control:
            if row.txn_first_offset >= 0 and batch.last_offset >= high_watermark:
                first = row.txn_first_offset
                first_unstable = first if first_unstable < 0 else min(first_unstable, first)
            elif row.txn_first_offset >= 0 and kind == _ABORT:
                aborts[aborted].producer_id = batch.producer_id
                aborts[aborted].marker_offset = batch.last_offset
                aborted += 1
            row.txn_first_offset = -1
            continue
        row.last_data_offset = batch.last_offset
        if batch.attributes & TRANSACTIONAL and row.txn_first_offset < 0:
            row.txn_first_offset = batch.base_offset
    return first_unstable, aborted


def replay(
    state: ReplayState, buffer: Bytes, batches: Table, from_offset: int, high_watermark: int
) -> ReplayState:
    """Producer state after `batches` (those ending at or after `from_offset`), as the broker's replay gives it (A.3, A.4).

    `first_unstable_offset` collects the first offset of every transaction that ended at or after the high watermark;
    the ones still open are in `producers`. `aborts` are those that the transaction indexes must hold.
    """
    room = np.count_nonzero(batches["producer_id"] >= 0) + len(state.producers)
    ids = np.full(2 * int(room) + 1, _NONE, np.int64)
    cells = np.zeros(len(ids), PRODUCER)
    for row in state.producers:
        cell = _place(ids, row["producer_id"])
        ids[cell] = row["producer_id"]
        cells[cell] = row
    aborts = np.zeros(int(np.count_nonzero(batches["attributes"] & CONTROL)), ABORT_SEEN)
    unstable, count = _replay(
        buffer, batches, from_offset, high_watermark, ids, cells, state.first_unstable_offset, aborts
    )
    used = cells[ids != _NONE]
    seen = np.concatenate([state.aborts, aborts[:count]])
    return ReplayState(used[np.argsort(used["producer_id"])], int(unstable), seen)
