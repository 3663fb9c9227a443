"""Digests over what a rewrite must not change: the proof that it did nothing but what it should."""

import numpy as np
import numpy.typing as npt
from numba import njit

from .native import JIT, crc_step1, crc_step8, le64
from .tables import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, Bytes, Table

_KEPT_ATTRIBUTES = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL


@njit(**JIT)
def _digest_records(crc, raw, expanded, batches, records, verdicts):
    for i in range(len(records)):
        if verdicts[i] != 0:
            continue
        record = records[i]
        buffer = expanded if batches[record.batch].expanded else raw
        crc = crc_step8(crc, np.uint64(record.offset))
        crc = crc_step8(crc, np.uint64(record.timestamp))
        position = record.tail_start
        while position + 8 <= record.end:
            crc = crc_step8(crc, le64(buffer, position))
            position += 8
        while position < record.end:
            crc = crc_step1(crc, buffer[position])
            position += 1
    return crc


def digest_records(
    digest: int, raw: Bytes, expanded: Bytes, batches: Table, records: Table, verdicts: npt.NDArray[np.uint8]
) -> int:
    """`digest` carried on over offset, timestamp, key, value and headers of every record whose verdict is KEEP (0)."""
    return int(_digest_records(np.uint32(digest), raw, expanded, batches, records, verdicts))


@njit(**JIT)
def _digest_batches(crc, batches, dropped, horizons):
    for i in range(len(batches)):
        if dropped[i]:
            continue
        batch = batches[i]
        crc = crc_step8(crc, np.uint64(batch.magic))
        if batch.magic < 2:
            continue
        crc = crc_step8(crc, np.uint64(batch.attributes & _KEPT_ATTRIBUTES))
        crc = crc_step8(crc, np.uint64(batch.base_offset))
        crc = crc_step8(crc, np.uint64(batch.last_offset))
        crc = crc_step8(crc, np.uint64(batch.leader_epoch))
        crc = crc_step8(crc, np.uint64(batch.producer_id))
        crc = crc_step8(crc, np.uint64(batch.producer_epoch))
        crc = crc_step8(crc, np.uint64(batch.base_sequence))
        crc = crc_step8(crc, np.uint64(horizons[i]))
    return crc


def digest_batches(
    digest: int, batches: Table, dropped: npt.NDArray[np.bool_], horizons: npt.NDArray[np.int64]
) -> int:
    """`digest` carried on over every batch that is not `dropped`: what no rewrite changes in it (rules 4.27, 4.30), and the
    delete horizon that it has afterwards (-1 none). Of magic 0 and 1 that is the magic alone.
    """
    return int(_digest_batches(np.uint32(digest), batches, dropped, horizons))
