"""Walk the records of batches into `RECORD` rows (spec disk C1, C3), whatever their format."""

import numpy as np

from cleanerd.format.head import (
    CODEC_MASK,
    CONTROL,
    LEGACY_FLAGS_AT,
    LEGACY_TIMESTAMP_AT,
    LENGTH_AT,
    LENGTH_MIN,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_AT,
    V0_KEY_AT,
    V0_SIZE_MIN,
    V1_KEY_AT,
)

from .native import INLINE, JIT, be32, be64, njit, u8
from .tables import RECORD, Bytes, ReadStatus, Table

_OK, _BAD_RECORD, _BAD_COUNT, _BAD_OFFSET, _BAD_CONTROL = (
    int(ReadStatus.OK),
    int(ReadStatus.BAD_RECORD),
    int(ReadStatus.BAD_COUNT),
    int(ReadStatus.BAD_OFFSET),
    int(ReadStatus.BAD_CONTROL),
)
RECORD_BYTES_MIN = 7
"""Length, attributes, two deltas, two lengths, number of headers: a byte each (spec disk C1)."""
_MAX_VARINT = 5
_MAX_VARLONG = 10


@njit(**JIT)
def _read_long_varint(buffer, position, end, max_bytes):
    """`read_varint` for any length."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    for i in range(max_bytes):
        if position + i >= end:
            return np.int64(0), np.int64(-1)
        byte = np.uint64(buffer[position + i])
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            half = np.int64(raw >> np.uint64(1))
            sign = np.int64(raw & np.uint64(1))
            return half ^ -sign, np.int64(position + i + 1)
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@njit(**INLINE)
def read_varint(buffer, position, end, max_bytes):
    """(value, next position) of a zig-zag varint; next position -1 when it is not one."""
    if position + 2 <= end:  # most are one or two bytes
        first = np.int64(u8(buffer, np.int64(position)))
        if first < 0x80:
            return (first >> 1) ^ -(first & 1), np.int64(position + 1)
        second = np.int64(u8(buffer, np.int64(position + 1)))
        if second < 0x80:
            raw = (first & 0x7F) | (second << 7)
            return (raw >> 1) ^ -(raw & 1), np.int64(position + 2)
    return _read_long_varint(buffer, position, end, max_bytes)


@njit(**JIT)
def _skip_headers(buffer, position, end):
    """First byte after the headers at `position`, or -1."""
    count, at = read_varint(buffer, position, end, _MAX_VARINT)
    if at < 0 or count < 0:
        return np.int64(-1)
    for _ in range(count):
        for is_value in range(2):  # a key is never null
            length, at = read_varint(buffer, at, end, _MAX_VARINT)
            if at < 0 or (length < 0 and not is_value) or at + max(length, 0) > end:
                return np.int64(-1)
            at += max(length, 0)
    return at


@njit(**INLINE)
def _walk_v2_record(buffer, position, limit, batch, row):
    """Fill `row` from the record at `position`; return its end, or -1."""
    length, at = read_varint(buffer, position, limit, _MAX_VARINT)
    if at < 0 or length < 0 or at + length > limit:
        return np.int64(-1)
    end = at + length
    timestamp_delta, at = read_varint(buffer, at + 1, end, _MAX_VARLONG)
    if at < 0:
        return np.int64(-1)
    offset_delta, at = read_varint(buffer, at, end, _MAX_VARINT)
    if at < 0:
        return np.int64(-1)
    row.tail_start = at
    key_length, at = read_varint(buffer, at, end, _MAX_VARINT)
    if at < 0 or at + max(key_length, 0) > end:
        return np.int64(-1)
    row.key_length = max(key_length, -1)  # any negative one stands for null, as for the JVM
    row.key_start = at
    value_length, at = read_varint(buffer, at + max(key_length, 0), end, _MAX_VARINT)
    if at < 0 or at + max(value_length, 0) > end:
        return np.int64(-1)
    at += max(value_length, 0)
    has_no_headers = at == end - 1 and u8(buffer, at) == 0
    if not has_no_headers and _skip_headers(buffer, at, end) != end:
        return np.int64(-1)
    row.value_is_null = value_length < 0
    row.offset = batch.base_offset + offset_delta
    if batch.attributes & LOG_APPEND_TIME:
        row.timestamp = batch.max_timestamp
    else:
        row.timestamp = batch.base_timestamp + timestamp_delta
    row.end = end
    row.magic = 2
    return end


@njit(**JIT)
def _walk_v2(buffer, batch, index, records, filled):
    position, limit = np.int64(batch.payload_start), np.int64(batch.payload_end)
    previous = batch.base_offset - 1
    for _ in range(batch.count):
        row = records[filled]
        row.batch = index
        end = _walk_v2_record(buffer, position, limit, batch, row)
        if end < 0:
            return filled, _BAD_RECORD, position
        if row.offset <= previous or row.offset > batch.last_offset:
            return filled, _BAD_OFFSET, position
        if batch.attributes & CONTROL and row.key_length < 4:
            return filled, _BAD_CONTROL, position
        previous = row.offset
        filled += 1
        position = end
    if position != limit and batch.count > 0:  # the JVM ignores the payload of a batch without records
        return filled, _BAD_COUNT, position
    return filled, _OK, position


@njit(**JIT)
def _is_cut_off(buffer, position, limit):
    """Whether no whole message begins here. The JVM takes a wrapper to end there."""
    if limit - position < LOG_OVERHEAD:
        return True
    size = be32(buffer, position + LENGTH_AT)
    return size >= LENGTH_MIN and position + LOG_OVERHEAD + size > limit


@njit(**JIT)
def _walk_message(buffer, position, limit, batch, row):
    """Fill `row` from the legacy entry (offset, size, message) at `position`; return its end, or -1."""
    if limit - position < V0_SIZE_MIN:
        return np.int64(-1)
    size = be32(buffer, position + LENGTH_AT)
    end = position + LOG_OVERHEAD + size
    magic = buffer[position + MAGIC_AT]
    nested = buffer[position + LEGACY_FLAGS_AT] & CODEC_MASK != 0
    if size < LENGTH_MIN or end > limit or magic > 1 or nested:
        return np.int64(-1)
    at = position + (V1_KEY_AT if magic == 1 else V0_KEY_AT)
    if end - at < 8:
        return np.int64(-1)
    key_length = be32(buffer, at)
    value_at = at + 4 + max(key_length, 0)
    if key_length < -1 or end - value_at < 4:
        return np.int64(-1)
    row.key_length = key_length
    row.key_start = at + 4
    value_length = be32(buffer, value_at)
    if value_length < -1 or value_at + 4 + max(value_length, 0) != end:
        return np.int64(-1)
    row.value_is_null = value_length < 0
    row.offset = be64(buffer, position)
    row.timestamp = -1
    if batch.attributes & LOG_APPEND_TIME:
        row.timestamp = batch.max_timestamp
    elif magic == 1:
        row.timestamp = be64(buffer, position + LEGACY_TIMESTAMP_AT)
    row.tail_start = at
    row.end = end
    row.magic = magic
    return end


@njit(**JIT)
def _walk_legacy(buffer, batch, index, previous, records, filled):
    """Messages of one entry, or of one expanded wrapper with its relative offsets made absolute (spec disk C3).

    The header of a wrapper names its last offset only, so that none of its messages goes back behind `previous`, the
    last offset of the batch before, shows here and not in the scan.
    """
    position = batch.payload_start
    first = filled
    while position < batch.payload_end:
        if batch.expanded and _is_cut_off(buffer, np.int64(position), np.int64(batch.payload_end)):
            break
        if filled >= len(records):
            return filled, _BAD_COUNT, position
        row = records[filled]
        row.batch = index
        end = _walk_message(buffer, position, batch.payload_end, batch, row)
        if end < 0:
            return filled, _BAD_RECORD, position
        filled += 1
        position = end
    if filled == first:
        return filled, _BAD_COUNT, position
    if batch.expanded and batch.magic == 1:  # with a wrapper offset of 0 the only message is at 0 as well
        shift = batch.last_offset - records[filled - 1].offset
        if shift < 0:
            return filled, _BAD_OFFSET, batch.payload_start
        for i in range(first, filled):
            records[i].offset += shift
    for i in range(first, filled):
        if records[i].offset <= previous or records[i].offset > batch.last_offset:
            return filled, _BAD_OFFSET, batch.payload_start
        previous = records[i].offset
    batch.base_offset = records[first].offset
    batch.count = filled - first
    return filled, _OK, position


@njit(**JIT)
def _walk(raw, expanded, batches, begin, end, previous, records):
    filled = 0
    for i in range(begin, end):
        batch = batches[i]
        if i > 0:
            previous = batches[i - 1].last_offset
        buffer = expanded if batch.expanded else raw
        if batch.magic == 2:
            filled, status, position = _walk_v2(buffer, batch, i, records, filled)
        else:
            filled, status, position = _walk_legacy(buffer, batch, i, previous, records, filled)
        if status != _OK:
            return filled, status, i, position
    return filled, _OK, end, np.int64(-1)


@njit(**JIT)
def _count_messages(buffer, start, end):
    position = np.int64(start)
    count = 0
    while end - position >= LOG_OVERHEAD:
        size = be32(buffer, position + LENGTH_AT)
        if size < LENGTH_MIN:
            return count
        position += LOG_OVERHEAD + size
        count += 1
    return count


@njit(**JIT)
def _count_records(expanded, batches, begin, end):
    rows = np.int64(0)
    for i in range(begin, end):
        batch = batches[i]
        payload = batch.payload_end - batch.payload_start
        if batch.magic == 2 and not 0 <= batch.count <= payload // RECORD_BYTES_MIN:
            return rows, i
        if batch.count >= 0:
            rows += batch.count
        else:
            rows += _count_messages(expanded, batch.payload_start, batch.payload_end)
    return rows, -1


def count_records(expanded: Bytes, batches: Table, begin: int, end: int) -> tuple[int, int]:
    """(records in `batches[begin:end]`, row of a batch whose header names a number that cannot be, -1 none).

    For an expanded legacy wrapper the number is an upper bound.
    """
    rows, impossible = _count_records(expanded, batches, begin, end)
    return int(rows), int(impossible)


def walk_records(
    raw: Bytes, expanded: Bytes, batches: Table, begin: int, end: int, rows: int, previous_offset: int
) -> tuple[Table, ReadStatus, int, int]:
    """Records of `batches[begin:end]`; `rows` is what `count_records` returned.

    `previous_offset` is the last offset before `batches[0]`. Requires: `scan.first_bad_order` found nothing.

    Returns (record rows, status, batch row at which it stopped, byte position in that batch's buffer). Legacy wrappers
    get their `base_offset` and `count` here. Batch rows of the records count from the start of `batches`.
    """
    records = np.empty(rows, RECORD)
    filled, status, batch, position = _walk(raw, expanded, batches, begin, end, previous_offset, records)
    return records[:filled], ReadStatus(status), int(batch), int(position)
