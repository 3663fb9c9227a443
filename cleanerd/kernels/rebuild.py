"""Write judged batches: copies, empty headers and rebuilt batches (rules 4.24-4.33)."""

import numpy as np
import numpy.typing as npt
from numba import njit

from .native import JIT, copy_bytes, crc32c, store_be16, store_be32, store_be64
from .scan import IEEE_TABLE, crc32_ieee
from .tables import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    WRITTEN,
    Action,
    Bytes,
    Table,
)

_DROP, _COPY, _EMPTY, _REBUILD = int(Action.DROP), int(Action.COPY), int(Action.EMPTY), int(Action.REBUILD)
_HEADER = 61
_KEPT_ATTRIBUTES = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
_GROWTH_PER_RECORD = 40
"""More than a length, a timestamp delta and an offset delta, or a message header, can add."""


@njit(**JIT)
def _zigzag(value):
    return (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> 63)


@njit(**JIT)
def _varint_size(value):
    raw = _zigzag(value)
    size = 1
    while raw >= np.uint64(0x80):
        raw >>= np.uint64(7)
        size += 1
    return size


@njit(**JIT)
def _write_varint(out, at, value):
    raw = _zigzag(value)
    while raw >= np.uint64(0x80):
        out[at] = np.uint8((raw & np.uint64(0x7F)) | np.uint64(0x80))
        raw >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(raw)
    return at + 1


@njit(**JIT)
def _write_v2_record(out, at, buffer, record, batch, base_timestamp):
    timestamp_delta = record.timestamp - base_timestamp
    offset_delta = record.offset - batch.base_offset
    tail = record.end - record.tail_start
    at = _write_varint(out, at, 1 + _varint_size(timestamp_delta) + _varint_size(offset_delta) + tail)
    out[at] = 0
    at = _write_varint(out, at + 1, timestamp_delta)
    at = _write_varint(out, at, offset_delta)
    copy_bytes(out, np.int64(at), buffer, record.tail_start, tail)
    return at + tail


@njit(**JIT)
def _write_message(out, at, buffer, record, batch, relative_offset, table):
    """A legacy message with the wrapper's magic and timestamp type (rule 4.33)."""
    tail = record.end - record.tail_start
    head = 22 if batch.magic == 1 else 14
    store_be64(out, np.int64(at), np.int64(relative_offset))
    store_be32(out, np.int64(at + 8), np.int32(head - 8 + tail))
    out[at + 16] = batch.magic
    out[at + 17] = batch.attributes & LOG_APPEND_TIME if batch.magic == 1 else 0
    if batch.magic == 1:
        store_be64(out, np.int64(at + 18), np.int64(record.timestamp))
    body = at + 12 + head - 8
    copy_bytes(out, np.int64(body), buffer, record.tail_start, tail)
    store_be32(out, np.int64(at + 12), np.int32(crc32_ieee(table, out, at + 16, body + tail)))
    return body + tail


@njit(**JIT)
def _bodies_bound(records, verdicts):
    bound = np.int64(0)
    for r in range(len(records)):
        if verdicts[r] == 0:
            bound += records[r].end - records[r].tail_start + _GROWTH_PER_RECORD
    return bound


@njit(**JIT)
def _assembled_bound(batches, begin, judged, spans):
    bound = np.int64(0)
    for j in range(len(judged)):
        bound += _HEADER
        if judged[j].action == _REBUILD:
            bound += spans[j, 1] - spans[j, 0]
        elif judged[j].action == _COPY:
            bound += batches[begin + j].size
    return bound


@njit(**JIT)
def _write_bodies(raw, expanded, batches, begin, records, verdicts, judged, table, out, spans):
    at = np.int64(0)
    for j in range(len(judged)):
        row = judged[j]
        spans[j, 0] = at
        if row.action == _REBUILD:
            batch = batches[begin + j]
            buffer = expanded if batch.expanded else raw
            first_relative = row.first_kept if batch.magic == 1 else np.int64(0)
            for r in range(row.first_record, row.end_record):
                if verdicts[r] != 0:
                    continue
                if batch.magic == 2:
                    at = _write_v2_record(out, at, buffer, records[r], batch, row.base_timestamp)
                else:
                    relative = records[r].offset - first_relative
                    at = _write_message(out, at, buffer, records[r], batch, relative, table)
        spans[j, 1] = at
    return at


@njit(**JIT)
def _write_header(out, at, batch, size, attributes, base_timestamp, max_timestamp, count):
    store_be64(out, at, batch.base_offset)
    store_be32(out, at + 8, np.int32(size - 12))
    store_be32(out, at + 12, batch.leader_epoch)
    out[at + 16] = 2
    store_be16(out, at + 21, np.int16(attributes))
    store_be32(out, at + 23, np.int32(batch.last_offset - batch.base_offset))
    store_be64(out, at + 27, base_timestamp)
    store_be64(out, at + 35, max_timestamp)
    store_be64(out, at + 43, batch.producer_id)
    store_be16(out, at + 51, np.int16(batch.producer_epoch))
    store_be32(out, at + 53, batch.base_sequence)
    store_be32(out, at + 57, np.int32(count))
    store_be32(out, at + 17, np.int32(crc32c(out, at + 21, at + size)))


@njit(**JIT)
def _assemble(raw, bodies, packed, batches, begin, judged, spans, is_packed, out, written):
    at = np.int64(0)
    count = 0
    for j in range(len(judged)):
        row = judged[j]
        if row.action == _DROP:
            continue
        batch = batches[begin + j]
        size = np.int64(batch.size)
        last_offset = batch.last_offset
        max_timestamp = batch.max_timestamp
        if row.action == _COPY:
            copy_bytes(out, at, raw, batch.position, size)
        elif row.action == _EMPTY:
            size = np.int64(_HEADER)
            attributes = batch.attributes & _KEPT_ATTRIBUTES
            _write_header(out, at, batch, size, attributes, np.int64(-1), max_timestamp, 0)
        else:
            body = packed if is_packed[j] else bodies
            body_size = spans[j, 1] - spans[j, 0]
            max_timestamp = row.max_timestamp
            if batch.magic == 2:
                size = _HEADER + body_size
                copy_bytes(out, at + _HEADER, body, spans[j, 0], body_size)
                attributes = batch.attributes & (_KEPT_ATTRIBUTES | CODEC_MASK)
                if row.horizon >= 0:
                    attributes |= DELETE_HORIZON
                _write_header(out, at, batch, size, attributes, row.base_timestamp, max_timestamp, row.kept)
            else:
                size = body_size
                last_offset = row.last_kept
                copy_bytes(out, at, body, spans[j, 0], body_size)
        entry = written[count]
        entry.position = at
        entry.last_offset = last_offset
        entry.max_timestamp = max_timestamp
        entry.size = size
        count += 1
        at += size
    return at, count


def write_bodies(
    raw: Bytes,
    expanded: Bytes,
    batches: Table,
    begin: int,
    records: Table,
    verdicts: npt.NDArray[np.uint8],
    judged: Table,
) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Kept records of every REBUILD batch, re-encoded and not compressed.

    `judged` belongs to `batches[begin:]`. Returns (buffer, spans): spans[j] = (start, end) of batch j in the buffer.
    """
    out = np.empty(_bodies_bound(records, verdicts), np.uint8)
    spans = np.zeros((len(judged), 2), np.int64)
    _write_bodies(raw, expanded, batches, begin, records, verdicts, judged, IEEE_TABLE, out, spans)
    return out, spans


def assemble(
    raw: Bytes,
    bodies: Bytes,
    packed: Bytes,
    batches: Table,
    begin: int,
    judged: Table,
    spans: npt.NDArray[np.int64],
    is_packed: npt.NDArray[np.bool_],
) -> tuple[Bytes, Table]:
    """The bytes of all batches that stay, in order, and a `WRITTEN` row for each (positions from 0).

    The body of REBUILD batch j is `packed[spans[j]]` where `is_packed[j]` (compressed, or a whole legacy wrapper), else
    `bodies[spans[j]]`.
    """
    out = np.empty(_assembled_bound(batches, begin, judged, spans), np.uint8)
    written = np.zeros(len(judged), WRITTEN)
    size, count = _assemble(raw, bodies, packed, batches, begin, judged, spans, is_packed, out, written)
    return out[:size], written[:count]
