"""Digests over what a rewrite must not change: the proof that it did nothing but what it should."""

import numpy as np
import numpy.typing as npt
from numba import njit

from .horizons import delete_horizon
from .native import INLINE, JIT, crc_step8, last_bytes, le64
from .tables import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, Action, Bytes, Table

_DROP, _EMPTY = int(Action.DROP), int(Action.EMPTY)
_KEPT_ATTRIBUTES = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL


@njit(**INLINE)
def _digest_record(buffer, record):
    """Begins anew for every record: the processor then works at several of them at a time."""
    crc = crc_step8(np.uint32(0xFFFFFFFF), np.uint64(record.offset))
    crc = crc_step8(crc, np.uint64(record.timestamp))
    start = record.tail_start
    length = record.end - start
    for at in range(start, start + (length & ~7), 8):
        crc = crc_step8(crc, le64(buffer, np.int64(at)))
    return crc_step8(crc, last_bytes(buffer, start, length))


@njit(**JIT)
def _digest_records(crc, raw, expanded, batches, records, verdicts):
    for i in range(len(records)):
        if verdicts[i] != 0:
            continue
        buffer = expanded if batches[records[i].batch].expanded else raw
        crc = crc_step8(crc, np.uint64(_digest_record(buffer, records[i])))
    return crc


def digest_records(
    digest: int, raw: Bytes, expanded: Bytes, batches: Table, records: Table, verdicts: npt.NDArray[np.uint8]
) -> int:
    """`digest` carried on over offset, timestamp, key, value and headers of every record whose verdict is KEEP (0)."""
    return int(_digest_records(np.uint32(digest), raw, expanded, batches, records, verdicts))


@njit(**JIT)
def _digest_batch(crc, batch, horizon):
    crc = crc_step8(crc, np.uint64(batch.magic))
    if batch.magic < 2:
        return crc
    crc = crc_step8(crc, np.uint64(batch.attributes & _KEPT_ATTRIBUTES))
    crc = crc_step8(crc, np.uint64(batch.base_offset))
    crc = crc_step8(crc, np.uint64(batch.last_offset))
    crc = crc_step8(crc, np.uint64(batch.leader_epoch))
    crc = crc_step8(crc, np.uint64(batch.producer_id))
    crc = crc_step8(crc, np.uint64(batch.producer_epoch))
    crc = crc_step8(crc, np.uint64(batch.base_sequence))
    return crc_step8(crc, np.uint64(horizon))


@njit(**JIT)
def _digest_judged(crc, batches, begin, judged):
    for j in range(len(judged)):
        row = judged[j]
        if row.action != _DROP:
            crc = _digest_batch(
                crc, batches[begin + j], np.int64(-1) if row.action == _EMPTY else row.horizon
            )
    return crc


@njit(**JIT)
def _digest_batches(crc, batches):
    for i in range(len(batches)):
        crc = _digest_batch(crc, batches[i], delete_horizon(batches[i]))
    return crc


def digest_judged(digest: int, batches: Table, begin: int, judged: Table) -> int:
    """What `digest_batches` will make of the batches that stay; `judged` belongs to `batches[begin:]`."""
    return int(_digest_judged(np.uint32(digest), batches, begin, judged))


def digest_batches(digest: int, batches: Table) -> int:
    """`digest` carried on over every batch: what no rewrite changes in it (rules 4.27, 4.30), and its delete horizon.

    Of magic 0 and 1 that is the magic alone.
    """
    return int(_digest_batches(np.uint32(digest), batches))
