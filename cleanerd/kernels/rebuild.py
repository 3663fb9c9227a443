"""Write judged batches: copies, empty headers and rebuilt batches (rules 4.24-4.33)."""

import numpy as np
import numpy.typing as npt

from cleanerd.format.head import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    CONTROL,
    CRC_AT,
    DELETE_HORIZON,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    TRANSACTIONAL,
)

from .crc import crc32c, crc32c_of_three
from .native import INLINE, JIT, copy_bytes, njit, store_be16, store_be32, store_be64
from .tables import WRITTEN, Action, Bytes, Table

_DROP, _COPY, _EMPTY, _REBUILD = int(Action.DROP), int(Action.COPY), int(Action.EMPTY), int(Action.REBUILD)
_KEPT_ATTRIBUTES = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
_GROWTH_PER_RECORD = 40
"""More than a length, a timestamp delta and an offset delta, and varints for the lengths of key and value, can add."""


@njit(**JIT)
def _zigzag(value):
    return (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> 63)


@njit(**JIT)
def varint_size(value):
    """Bytes of a zig-zag varint."""
    raw = _zigzag(value)
    size = 1
    while raw >= np.uint64(0x80):
        raw >>= np.uint64(7)
        size += 1
    return size


@njit(**JIT)
def write_varint(out, at, value):
    """Write a zig-zag varint; returns where it ends."""
    raw = _zigzag(value)
    while raw >= np.uint64(0x80):
        out[at] = np.uint8((raw & np.uint64(0x7F)) | np.uint64(0x80))
        raw >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(raw)
    return at + 1


@njit(**JIT)
def _tail_size(record, value_length):
    """Bytes from the key length to the end of a record as magic 2 has them."""
    if record.magic == 2:
        return record.end - record.tail_start
    key_length = np.int64(record.key_length)
    key_bytes = varint_size(key_length) + max(key_length, 0)
    return key_bytes + varint_size(value_length) + max(value_length, 0) + 1


@njit(**JIT)
def write_field(out, at, buffer, start, length):
    """A key or value with its length, -1 for null, as magic 2 has it; returns where it ends."""
    at = write_varint(out, at, length)
    if length > 0:
        copy_bytes(out, np.int64(at), buffer, np.int64(start), np.int64(length))
        at += length
    return at


@njit(**JIT)
def _write_record(out, at, buffer, record, base_offset, base_timestamp):
    """A record of any magic in magic 2."""
    timestamp_delta = record.timestamp - base_timestamp
    offset_delta = record.offset - base_offset
    value_start = record.key_start + max(record.key_length, 0) + 4  # of magic 0 and 1
    value_length = np.int64(-1) if record.value_is_null else record.end - value_start
    tail = _tail_size(record, value_length)
    at = write_varint(out, at, 1 + varint_size(timestamp_delta) + varint_size(offset_delta) + tail)
    out[at] = 0
    at = write_varint(out, at + 1, timestamp_delta)
    at = write_varint(out, at, offset_delta)
    if record.magic == 2:
        copy_bytes(out, np.int64(at), buffer, record.tail_start, tail)
        return at + tail
    at = write_field(out, at, buffer, record.key_start, np.int64(record.key_length))
    at = write_field(out, at, buffer, value_start, value_length)
    out[at] = 0  # headers
    return at + 1


@njit(**INLINE)
def _kept_bound(records, verdicts, row):
    """More bytes than the kept records of a batch take."""
    bound = np.int64(0)
    for r in range(row.first_record, row.end_record):
        if verdicts[r] == 0:
            bound += records[r].end - records[r].tail_start + _GROWTH_PER_RECORD
    return bound


@njit(**JIT)
def _bodies_bound(records, verdicts, judged, wanted):
    bound = np.int64(0)
    for j in range(len(judged)):
        if wanted[j]:
            bound += _kept_bound(records, verdicts, judged[j])
    return bound


@njit(**JIT)
def _batches_bound(batches, begin, records, verdicts, judged, spans, has_body):
    bound = np.int64(0)
    for j in range(len(judged)):
        bound += HEADER_SIZE
        if judged[j].action == _COPY:
            bound += batches[begin + j].size
        elif judged[j].action == _REBUILD and has_body[j]:
            bound += spans[j, 1] - spans[j, 0]
        elif judged[j].action == _REBUILD:
            bound += _kept_bound(records, verdicts, judged[j])
    return bound


@njit(**INLINE)
def _write_kept(raw, expanded, batch, records, verdicts, row, out, at):
    """The kept records of a batch; returns where they end."""
    buffer = expanded if batch.expanded else raw
    base_offset = batch.base_offset if batch.magic == 2 else row.first_kept
    for r in range(row.first_record, row.end_record):
        if verdicts[r] == 0:
            at = _write_record(out, at, buffer, records[r], base_offset, row.base_timestamp)
    return at


@njit(**JIT)
def _write_bodies(raw, expanded, batches, begin, records, verdicts, judged, wanted, out, spans):
    at = np.int64(0)
    for j in range(len(judged)):
        spans[j, 0] = at
        if wanted[j]:
            at = _write_kept(raw, expanded, batches[begin + j], records, verdicts, judged[j], out, at)
        spans[j, 1] = at


@njit(**JIT)
def _write_header(
    out, at, batch, size, attributes, base_offset, last_offset, base_timestamp, max_timestamp, count
):
    store_be64(out, at, base_offset)
    store_be32(out, at + LENGTH_AT, np.int32(size - LOG_OVERHEAD))
    store_be32(out, at + LEADER_EPOCH_AT, batch.leader_epoch)
    out[at + MAGIC_AT] = 2
    store_be16(out, at + ATTRIBUTES_AT, np.int16(attributes))
    store_be32(out, at + LAST_OFFSET_DELTA_AT, np.int32(last_offset - base_offset))
    store_be64(out, at + BASE_TIMESTAMP_AT, base_timestamp)
    store_be64(out, at + MAX_TIMESTAMP_AT, max_timestamp)
    store_be64(out, at + PRODUCER_ID_AT, batch.producer_id)
    store_be16(out, at + PRODUCER_EPOCH_AT, np.int16(batch.producer_epoch))
    store_be32(out, at + BASE_SEQUENCE_AT, batch.base_sequence)
    store_be32(out, at + RECORD_COUNT_AT, np.int32(count))


@njit(**INLINE)
def _store_crcs(out, written, count, without):
    """Give the last `without` of `count` batches, three at most, their CRC."""
    if without == 3:
        a, b, c = written[count - 3], written[count - 2], written[count - 1]
        crcs = crc32c_of_three(
            out, a.position + ATTRIBUTES_AT, a.position + a.size, b.position + ATTRIBUTES_AT, b.position + b.size,
            c.position + ATTRIBUTES_AT, c.position + c.size,
        )  # fmt: skip
        store_be32(out, a.position + CRC_AT, np.int32(crcs[0]))
        store_be32(out, b.position + CRC_AT, np.int32(crcs[1]))
        store_be32(out, c.position + CRC_AT, np.int32(crcs[2]))
        return
    for i in range(count - without, count):
        row = written[i]
        crc = crc32c(out, row.position + ATTRIBUTES_AT, row.position + row.size)
        store_be32(out, row.position + CRC_AT, np.int32(crc))


@njit(**JIT)
def _write_batches(
    raw, expanded, batches, begin, records, verdicts, judged, codecs, bodies, spans, has_body, out, written
):
    at = np.int64(0)
    count = 0
    without_crc = 0  # so many of the last ones
    for j in range(len(judged)):
        row = judged[j]
        if row.action == _DROP:
            continue
        batch = batches[begin + j]
        size = np.int64(batch.size)
        base_offset = batch.base_offset
        last_offset = batch.last_offset
        max_timestamp = batch.max_timestamp
        if row.action == _COPY:
            _store_crcs(out, written, count, without_crc)
            without_crc = 0
            copy_bytes(out, at, raw, batch.position, size)
        elif row.action == _EMPTY:
            size = np.int64(HEADER_SIZE)
            attributes = batch.attributes & _KEPT_ATTRIBUTES
            _write_header(
                out, at, batch, size, attributes, base_offset, last_offset, np.int64(-1), max_timestamp, 0
            )
        else:
            max_timestamp = row.max_timestamp
            if has_body[j]:
                size = HEADER_SIZE + spans[j, 1] - spans[j, 0]
                copy_bytes(out, at + HEADER_SIZE, bodies, spans[j, 0], size - HEADER_SIZE)
            else:
                size = _write_kept(raw, expanded, batch, records, verdicts, row, out, at + HEADER_SIZE) - at
            attributes = (batch.attributes & _KEPT_ATTRIBUTES) | codecs[j]
            if row.horizon >= 0:
                attributes |= DELETE_HORIZON
            if batch.magic < 2:
                base_offset = row.first_kept
                last_offset = row.last_kept
            _write_header(
                out, at, batch, size, attributes, base_offset, last_offset,
                row.base_timestamp, max_timestamp, row.kept,
            )  # fmt: skip
        entry = written[count]
        entry.position = at
        entry.last_offset = last_offset
        entry.max_timestamp = max_timestamp
        entry.size = size
        count += 1
        at += size
        if row.action != _COPY:
            without_crc += 1
            if without_crc == 3:
                _store_crcs(out, written, count, without_crc)
                without_crc = 0
    _store_crcs(out, written, count, without_crc)
    return at, count


def write_bodies(
    raw: Bytes,
    expanded: Bytes,
    batches: Table,
    begin: int,
    records: Table,
    verdicts: npt.NDArray[np.uint8],
    judged: Table,
    wanted: npt.NDArray[np.bool_],
) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Kept records of the `wanted` batches, re-encoded and not compressed.

    `judged` belongs to `batches[begin:]`, and so does `wanted`. Returns (buffer, spans): spans[j] = (start, end) of batch j
    in the buffer.
    """
    out = np.empty(_bodies_bound(records, verdicts, judged, wanted), np.uint8)
    spans = np.zeros((len(judged), 2), np.int64)
    _write_bodies(raw, expanded, batches, begin, records, verdicts, judged, wanted, out, spans)
    return out, spans


def write_batches(
    raw: Bytes,
    expanded: Bytes,
    batches: Table,
    begin: int,
    records: Table,
    verdicts: npt.NDArray[np.uint8],
    judged: Table,
    codecs: npt.NDArray[np.uint8],
    bodies: Bytes,
    spans: npt.NDArray[np.int64],
    has_body: npt.NDArray[np.bool_],
) -> tuple[Bytes, Table]:
    """The bytes of all batches that stay, in order, and a `WRITTEN` row for each (positions from 0).

    The body of REBUILD batch j is `bodies[spans[j]]`, compressed with `codecs[j]`, where `has_body[j]`; else it is made of
    its kept records.
    """
    bound = _batches_bound(batches, begin, records, verdicts, judged, spans, has_body)
    out = np.empty(bound, np.uint8)
    written = np.zeros(len(judged), WRITTEN)
    size, count = _write_batches(
        raw,
        expanded,
        batches,
        begin,
        records,
        verdicts,
        judged,
        codecs,
        bodies,
        spans,
        has_body,
        out,
        written,
    )
    return out[:size], written[:count]
