"""A digest over the content of kept records: the proof that a rewrite changed nothing but what it should."""

import numpy as np
import numpy.typing as npt
from numba import njit

from .native import JIT, crc_step1, crc_step8, le64
from .tables import Bytes, Table


@njit(**JIT)
def _digest(crc, raw, expanded, batches, records, verdicts):
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


def add_to_digest(
    digest: int, raw: Bytes, expanded: Bytes, batches: Table, records: Table, verdicts: npt.NDArray[np.uint8]
) -> int:
    """`digest` carried on over offset, timestamp, key, value and headers of every record whose verdict is KEEP (0)."""
    return int(_digest(np.uint32(digest), raw, expanded, batches, records, verdicts))
