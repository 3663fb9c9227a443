"""Where the next batch begins after bytes that are not a batch: a plausible head, and a correct CRC."""

import numpy as np

from cleanerd.format.head import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CRC_AT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LEGACY_CRC_AT,
    LEGACY_FLAGS_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_AT,
    RECORD_COUNT_AT,
    V0_SIZE_MIN,
    V1_SIZE_MIN,
)
from cleanerd.kernels.crc import crc32c
from cleanerd.kernels.native import JIT, be16, be32, be64, njit
from cleanerd.kernels.scan import IEEE_TABLE, crc32_ieee
from cleanerd.kernels.tables import Bytes

NOT_FOUND, FOUND, OUTSIDE = 0, 1, 2
_CREDIT_PER_BYTE = 32


@njit(**JIT)
def _size_of_head(buffer, position, room, min_offset, max_offset):
    """Size of the batch whose head lies at `position`, -1 when that is no head; `room`: bytes up to the end of the log."""
    magic = buffer[position + MAGIC_AT]
    if magic > 2:
        return -1
    size = be32(buffer, position + LENGTH_AT) + LOG_OVERHEAD
    smallest = HEADER_SIZE if magic == 2 else (V1_SIZE_MIN if magic == 1 else V0_SIZE_MIN)
    if size < smallest or size > room:
        return -1
    offset = be64(buffer, position)
    if magic < 2:
        known = (
            buffer[position + LEGACY_FLAGS_AT] & 0xF0 == 0
            and buffer[position + LEGACY_FLAGS_AT] & CODEC_MASK <= 3
        )
        return size if known and min_offset <= offset < max_offset else -1
    if position + HEADER_SIZE > len(buffer):
        return size  # the caller reads on
    last_delta = be32(buffer, position + LAST_OFFSET_DELTA_AT)
    count = be32(buffer, position + RECORD_COUNT_AT)
    if last_delta < 0 or count < 0 or count > last_delta + 1:
        return -1
    attributes = be16(buffer, position + ATTRIBUTES_AT)
    if attributes < 0 or attributes > 0x7F or attributes & CODEC_MASK > 4:
        return -1
    return size if min_offset <= offset <= max_offset - last_delta - 1 else -1


@njit(**JIT)
def _crc_is_right(buffer, position, size, table):
    end = position + size
    if buffer[position + MAGIC_AT] == 2:
        return crc32c(buffer, position + ATTRIBUTES_AT, end) == np.uint32(be32(buffer, position + CRC_AT))
    return crc32_ieee(table, buffer, position + MAGIC_AT, end) == np.uint32(
        be32(buffer, position + LEGACY_CRC_AT)
    )


@njit(**JIT)
def _find_batch(buffer, start, end, room, min_offset, max_offset, credit, table):
    position = np.int64(start)
    while position < end:
        size = _size_of_head(buffer, position, room - position, min_offset, max_offset)
        if 0 <= size <= credit:
            if position + size > len(buffer):
                return position, 2, credit
            if _crc_is_right(buffer, position, size, table):
                return position, 1, credit
            credit -= size
        position += 1
        credit += _CREDIT_PER_BYTE
    return position, 0, credit


def find_batch(
    buffer: Bytes, start: int, end: int, room: int, min_offset: int, max_offset: int, credit: int
) -> tuple[int, int, int]:
    """First position in `buffer[start:end]` at which a batch with a right CRC begins.

    Its offsets are in [`min_offset`, `max_offset`), and it ends at or before `buffer[room]`, where the log ends. `credit`
    is how many bytes may be spent on CRCs that turn out wrong; every byte passed adds a few. So hostile bytes may hide a
    batch, but the search takes linear time. Requires: `HEAD_BYTES` bytes at every position before `end`.

    Returns (position, outcome, credit left): FOUND; OUTSIDE for a head whose batch ends behind `buffer`, which the caller
    has to judge; NOT_FOUND, with `end`.
    """
    position, outcome, left = _find_batch(
        buffer, start, end, room, min_offset, max_offset, credit, IEEE_TABLE
    )
    return int(position), int(outcome), int(left)
