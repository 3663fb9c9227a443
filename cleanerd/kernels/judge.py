"""Which records and batches stay: the verdicts of `policy.verdicts`, over arrays (rules 4.15-4.30)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cleanerd.format.head import CONTROL, TRANSACTIONAL
from cleanerd.policy.verdicts import RecordVerdict

from .horizons import delete_horizon
from .native import JIT, njit
from .tables import JUDGED, AbortedTxns, Action, Producers, Table

_KEEP, _SUPERSEDED, _TOMBSTONE, _ABORTED, _CONTROL, _NO_KEY = (
    int(RecordVerdict.KEEP),
    int(RecordVerdict.SUPERSEDED),
    int(RecordVerdict.TOMBSTONE),
    int(RecordVerdict.ABORTED),
    int(RecordVerdict.CONTROL),
    int(RecordVerdict.NO_KEY),
)
_DROP, _COPY, _EMPTY, _REBUILD = int(Action.DROP), int(Action.COPY), int(Action.EMPTY), int(Action.REBUILD)


@dataclass(frozen=True, slots=True)
class Context:
    """All that the verdicts of a log depend on besides its bytes. Times in ms."""

    now_ms: int
    new_horizon_ms: int  # now + delete.retention.ms; -1 when that overflows (rule 4.29)
    round_end: int  # first uncleanable offset (rule 4.16 b)
    producers: Producers
    discardable_markers: npt.NDArray[np.int64]  # sorted offsets of markers whose transaction is empty


@njit(**JIT)
def _find_aborted(ids, firsts, lasts, batch):
    """Whether a transactional data batch lies in an aborted transaction (rule 4.20)."""
    low = 0
    high = len(ids)
    while low < high:
        middle = (low + high) >> 1
        if ids[middle] < batch.producer_id or (
            ids[middle] == batch.producer_id and firsts[middle] <= batch.last_offset
        ):
            low = middle + 1
        else:
            high = middle
    return low > 0 and ids[low - 1] == batch.producer_id and batch.last_offset < lasts[low - 1]


@njit(**JIT)
def _mark_aborted(batches, ids, firsts, lasts, out):
    for i in range(len(batches)):
        batch = batches[i]
        data = batch.attributes & TRANSACTIONAL and not batch.attributes & CONTROL
        out[i] = batch.magic == 2 and data and _find_aborted(ids, firsts, lasts, batch)


def mark_aborted(batches: Table, aborted: AbortedTxns) -> npt.NDArray[np.bool_]:
    """True for every data batch of an aborted transaction."""
    out = np.zeros(len(batches), np.bool_)
    if len(aborted.producer_ids):
        _mark_aborted(batches, aborted.producer_ids, aborted.first_offsets, aborted.last_offsets, out)
    return out


@njit(**JIT)
def _keep_even_if_empty(batch, round_end, ids, epochs, last_data_offsets):
    """Rule 4.16 a and b."""
    if batch.last_offset + 1 == round_end:
        return True
    if batch.producer_id < 0:
        return False
    at = np.searchsorted(ids, batch.producer_id)
    if at >= len(ids) or ids[at] != batch.producer_id:
        return False
    if last_data_offsets[at] >= 0:
        return batch.last_offset == last_data_offsets[at]
    return batch.attributes & CONTROL != 0 and batch.producer_epoch == epochs[at]


@njit(**JIT)
def _is_in(sorted_offsets, offset):
    at = np.searchsorted(sorted_offsets, offset)
    return at < len(sorted_offsets) and sorted_offsets[at] == offset


@njit(**JIT)
def _record_verdict(record, batch, control, superseded, now_ms, horizon, retain_legacy_deletes):
    """Rules 4.18, 4.19 for a batch whose records are not dropped together."""
    if control:
        return _KEEP
    if record.key_length < 0:
        return _NO_KEY
    if superseded:
        return _SUPERSEDED
    if record.value_is_null:
        if batch.magic == 2:  # noqa: SIM108
            protected = horizon < 0 or now_ms < horizon
        else:
            protected = retain_legacy_deletes
        if not protected:
            return _TOMBSTONE
    return _KEEP


@njit(**JIT)
def _judge_records(
    batch, records, first, end, superseded, all_dropped, now_ms, horizon, legacy_deletes, verdicts, row
):
    """Verdict of every record of a batch; fills kept, first/last kept, timestamps; returns whether a tombstone is kept."""
    tombstone_kept = False
    control = batch.attributes & CONTROL != 0
    row.first_kept = -1
    row.last_kept = -1
    row.kept = 0
    row.base_timestamp = -1
    row.max_timestamp = -1
    for r in range(first, end):
        record = records[r]
        verdict = all_dropped
        if all_dropped == _KEEP:
            verdict = _record_verdict(record, batch, control, superseded[r], now_ms, horizon, legacy_deletes)
        verdicts[r] = verdict
        if verdict != _KEEP:
            continue
        tombstone_kept |= record.value_is_null != 0
        if row.kept == 0:
            row.first_kept = record.offset
            row.base_timestamp = record.timestamp
            row.max_timestamp = record.timestamp
        row.kept += 1
        row.last_kept = record.offset
        row.max_timestamp = max(row.max_timestamp, record.timestamp)
    return tombstone_kept


@njit(**JIT)
def _judge_batch(
    batch, records, first, end, superseded, aborted, now_ms, new_horizon, round_end,
    ids, epochs, last_data_offsets, markers, legacy_deletes, verdicts, row,
):  # fmt: skip
    control = batch.attributes & CONTROL != 0
    horizon = delete_horizon(batch)
    row.first_record = first
    row.end_record = end
    row.horizon = horizon
    discardable = _is_in(markers, batch.last_offset) if control else aborted
    all_dropped = _KEEP
    if control:
        if discardable and 0 <= horizon <= now_ms:
            all_dropped = _CONTROL
    elif discardable:
        all_dropped = _ABORTED
    tombstone_kept = _judge_records(
        batch, records, first, end, superseded, all_dropped, now_ms, horizon, legacy_deletes, verdicts, row
    )
    if row.kept == 0:
        if not _keep_even_if_empty(batch, round_end, ids, epochs, last_data_offsets):
            return _DROP
        if batch.magic < 2:  # no empty header exists there: Kafka gives up (4.31), we keep the batch
            verdicts[first:end] = _KEEP
            return _COPY
        return _COPY if batch.count == 0 else _EMPTY
    need_horizon = horizon < 0 and new_horizon >= 0 and (tombstone_kept or (control and discardable))
    if need_horizon:
        row.horizon = new_horizon
    if row.horizon >= 0:
        row.base_timestamp = row.horizon
    if batch.magic == 2 and row.kept == end - first and not need_horizon:
        return _COPY
    return _REBUILD


@njit(**JIT)
def _judge(
    batches, begin, stop, records, superseded, aborted, now_ms, new_horizon, round_end,
    ids, epochs, last_data_offsets, markers, legacy_deletes, verdicts, judged, removed,
):  # fmt: skip
    first = 0
    changed = 0
    for i in range(begin, stop):
        end = first
        while end < len(records) and records[end].batch == i:
            end += 1
        row = judged[i - begin]
        row.action = _judge_batch(
            batches[i], records, first, end, superseded, aborted[i], now_ms, new_horizon, round_end,
            ids, epochs, last_data_offsets, markers, legacy_deletes, verdicts, row,
        )  # fmt: skip
        if row.action != _COPY:
            changed += 1
        for r in range(first, end):
            removed[verdicts[r]] += 1
        first = end
    return changed


@njit(**JIT)
def _all_stay(batches, begin, end, records, aborted):
    for i in range(begin, end):
        batch = batches[i]
        if batch.magic != 2 or batch.attributes & CONTROL or batch.count == 0 or aborted[i]:
            return False
    for i in range(len(records)):  # noqa: SIM110 - a kernel
        if records[i].key_length < 0 or records[i].value_is_null:
            return False
    return True


def all_stay(batches: Table, begin: int, end: int, records: Table, aborted: npt.NDArray[np.bool_]) -> bool:
    """Whether `judge` changes only batches with a superseded record: costs a fifth of it."""
    return bool(_all_stay(batches, begin, end, records, aborted))


def judge(
    batches: Table,
    begin: int,
    end: int,
    records: Table,
    superseded: npt.NDArray[np.bool_],
    aborted: npt.NDArray[np.bool_],
    context: Context,
    retain_legacy_deletes: bool,
    removed: npt.NDArray[np.int64],
) -> tuple[Table, npt.NDArray[np.uint8], int]:
    """Judge `batches[begin:end]`, whose records are exactly `records`.

    `superseded` has one entry per record, `aborted` one per row of `batches`. `removed` (int64, one cell per
    `RecordVerdict`) is added to. Returns (JUDGED rows, verdict per record, how many batches do not stay as they are).
    """
    judged = np.zeros(end - begin, JUDGED)
    verdicts = np.zeros(len(records), np.uint8)
    changed = _judge(
        batches, begin, end, records, superseded, aborted, context.now_ms, context.new_horizon_ms, context.round_end,
        context.producers.ids, context.producers.epochs, context.producers.last_data_offsets,
        context.discardable_markers, retain_legacy_deletes, verdicts, judged, removed,
    )  # fmt: skip
    return judged, verdicts, int(changed)
