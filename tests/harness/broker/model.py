"""What must be left of a log after compaction: the rules once more, in the plainest words.

It works on a dump of the original directory and knows nothing of cleanerd's own policy, kernels or pipeline.
"""

from collections.abc import Iterable

from cleanerd.format.control import ControlType, parse_control_key
from cleanerd.format.record import Record
from tests.harness.broker.logdump import Batch, LogDump


def first_uncleanable_offset(log: LogDump) -> int:
    """End of the cleanable range: the active segment or the first open transaction, down to a segment's base.

    Rules 1.9 and 1.13 without lag, where everything is replicated.
    """
    bound = min([log.bases[-1], *open_transactions(log).values()])
    return max(base for base in log.bases if base <= max(bound, log.bases[0]))


def survivors(
    log: LogDump, *, first_dirty_offset: int, now_ms: int, end_offset: int | None = None
) -> list[Record]:
    """Users' records that are left after one pass over the log (rules 3.12, 4.15, 4.19).

    The pass ends at `end_offset`, by default where `first_uncleanable_offset` says.
    """
    if end_offset is None:
        end_offset = first_uncleanable_offset(log)
    aborted = aborted_offsets(log)
    newest = {
        record.key: record.offset
        for record in log.records
        if first_dirty_offset <= record.offset < end_offset and record.offset not in aborted
    }
    return [
        record
        for batch in log.batches
        if not batch.control
        for record in batch.records
        if record.offset >= end_offset
        or (
            record.offset not in aborted
            and record.key is not None
            and record.offset >= newest.get(record.key, -1)
            and not (record.value is None and _is_past(batch.delete_horizon_ms, now_ms))
        )
    ]


def committed(log: LogDump, records: Iterable[Record]) -> list[Record]:
    """Those records that a read_committed consumer sees."""
    aborted = aborted_offsets(log)
    last_stable_offset = min([log.end_offset, *open_transactions(log).values()])
    return [
        record for record in records if record.offset not in aborted and record.offset < last_stable_offset
    ]


def aborted_offsets(log: LogDump) -> set[int]:
    """Offsets of the records that belong to aborted transactions."""
    pending: dict[int, list[int]] = {}
    aborted: set[int] = set()
    for batch in log.batches:
        if batch.control:
            ended = pending.pop(batch.producer_id, [])
            if _is_abort(batch):
                aborted.update(ended)
        elif batch.transactional:
            offsets = (record.offset for record in batch.records)
            pending.setdefault(batch.producer_id, []).extend(offsets)
    return aborted


def open_transactions(log: LogDump) -> dict[int, int]:
    """First offset of the transaction that each producer has open at the end of the log."""
    opened: dict[int, int] = {}
    for batch in log.batches:
        if batch.control:
            opened.pop(batch.producer_id, None)
        elif batch.transactional:
            opened.setdefault(batch.producer_id, batch.base_offset)
    return opened


def _is_abort(marker: Batch) -> bool:
    return bool(marker.records) and parse_control_key(marker.records[0].key) is ControlType.ABORT


def _is_past(horizon_ms: int | None, now_ms: int) -> bool:
    return horizon_ms is not None and horizon_ms <= now_ms
