"""Columns to batches of magic 2 (spec disk C1): the way back from `columns`."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cleanerd.format.codecs import Codec
from cleanerd.format.head import HEADER_SIZE
from cleanerd.kernels.compressed import pack, pack_singly
from cleanerd.kernels.native import JIT, njit
from cleanerd.kernels.rebuild import varint_size, write_batches, write_field, write_varint
from cleanerd.kernels.tables import BATCH, JUDGED, RECORD, Action, Bytes, Table
from cleanerd.policy.grouping import MAX_RELATIVE_OFFSET

_RECORD_GROWTH = 1 + 4 + 10 + 5 + 3 * 5  # attributes, length, deltas, lengths and number of headers
_HEADER_GROWTH = 2 * 5


class Strings(NamedTuple):
    """Byte strings: the i-th is `data[starts[i]:starts[i] + lengths[i]]`, null where the length is -1."""

    data: Bytes
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


class RecordColumns(NamedTuple):
    """Records in offset order. Headers of record i are those from `header_ends[i]` to below `header_ends[i + 1]`."""

    offsets: npt.NDArray[np.int64]
    timestamps_ms: npt.NDArray[np.int64]
    keys: Strings
    values: Strings
    header_ends: npt.NDArray[np.int64]
    header_keys: Strings
    header_values: Strings


@njit(**JIT)
def _cut(sizes, offsets, batch_bytes, firsts):
    """Fill in the first record of each batch; returns how many there are."""
    count = 0
    filled = np.int64(0)
    for i in range(len(sizes)):
        is_far = count > 0 and offsets[i] - offsets[firsts[count - 1]] > MAX_RELATIVE_OFFSET
        if count == 0 or filled + sizes[i] > batch_bytes or is_far:
            firsts[count] = i
            count += 1
            filled = np.int64(0)
        filled += sizes[i]
    return count


@njit(**JIT)
def _size_of(strings, i):
    return varint_size(strings.lengths[i]) + max(strings.lengths[i], 0)


@njit(**JIT)
def _write(out, at, strings, i):
    return write_field(out, at, strings.data, strings.starts[i], strings.lengths[i])


@njit(**JIT)
def _write_records(records, first, end, out, at):
    base_offset, base_timestamp = records.offsets[first], records.timestamps_ms[first]
    for i in range(first, end):
        timestamp_delta = records.timestamps_ms[i] - base_timestamp
        offset_delta = records.offsets[i] - base_offset
        headers = range(records.header_ends[i], records.header_ends[i + 1])
        size = 1 + varint_size(timestamp_delta) + varint_size(offset_delta) + varint_size(len(headers))
        size += _size_of(records.keys, i) + _size_of(records.values, i)
        for h in headers:
            size += _size_of(records.header_keys, h) + _size_of(records.header_values, h)
        at = write_varint(out, at, size)
        out[at] = 0
        at = write_varint(out, at + 1, timestamp_delta)
        at = write_varint(out, at, offset_delta)
        at = _write(out, at, records.keys, i)
        at = _write(out, at, records.values, i)
        at = write_varint(out, at, len(headers))
        for h in headers:
            at = _write(out, at, records.header_keys, h)
            at = _write(out, at, records.header_values, h)
    return at


@njit(**JIT)
def _write_bodies(records, firsts, out, spans):
    at = np.int64(0)
    for j in range(len(firsts) - 1):
        spans[j, 0] = at
        at = _write_records(records, firsts[j], firsts[j + 1], out, at)
        spans[j, 1] = at


def encode_columns(records: RecordColumns, codec: Codec, batch_bytes: int) -> tuple[Bytes, Table]:
    """Batches of at most about `batch_bytes` before compression, end to end, and a `WRITTEN` row of each (positions from 0).

    No producer, leader epoch 0, CreateTime. Requires: at least one record, offsets that rise, header keys that are not null.
    """
    sizes = _sizes_bound(records)
    firsts = np.empty(len(sizes) + 1, np.int64)
    batches = int(_cut(sizes, records.offsets, batch_bytes - HEADER_SIZE, firsts))
    firsts[batches] = len(sizes)
    firsts = firsts[: batches + 1]
    bodies, spans = np.empty(int(sizes.sum()), np.uint8), np.empty((batches, 2), np.int64)
    _write_bodies(records, firsts, bodies, spans)
    all_of_them = np.ones(batches, np.bool_)
    codecs = np.full(batches, int(codec), np.uint8)
    if codec != Codec.NONE:
        bodies, spans = pack(bodies, codecs, all_of_them, spans) or pack_singly(
            bodies, codecs, all_of_them, spans
        )
    table, judged = _headers(records, firsts, codec)
    nothing, no_records, no_verdicts = bodies[:0], np.zeros(0, RECORD), np.zeros(0, np.uint8)
    return write_batches(
        nothing, nothing, table, 0, no_records, no_verdicts, judged, codecs, bodies, spans, all_of_them
    )


def _sizes_bound(records: RecordColumns) -> npt.NDArray[np.int64]:
    """More bytes than each record takes."""
    per_header = np.maximum(records.header_keys.lengths, 0) + np.maximum(records.header_values.lengths, 0)
    ends = np.concatenate([[0], np.cumsum(per_header + _HEADER_GROWTH)])
    of_headers = ends[records.header_ends[1:]] - ends[records.header_ends[:-1]]
    fields = np.maximum(records.keys.lengths, 0) + np.maximum(records.values.lengths, 0)
    bound: npt.NDArray[np.int64] = fields + of_headers + _RECORD_GROWTH
    return bound


def _headers(records: RecordColumns, firsts: npt.NDArray[np.int64], codec: Codec) -> tuple[Table, Table]:
    """BATCH and JUDGED rows that `write_batches` makes headers of."""
    starts, ends = firsts[:-1], firsts[1:]
    table, judged = np.zeros(len(starts), BATCH), np.zeros(len(starts), JUDGED)
    table["magic"] = 2
    table["attributes"] = int(codec)
    table["base_offset"], table["last_offset"] = records.offsets[starts], records.offsets[ends - 1]
    table["producer_id"] = table["producer_epoch"] = table["base_sequence"] = -1
    judged["action"] = int(Action.REBUILD)
    judged["horizon"] = -1
    judged["kept"] = ends - starts
    judged["base_timestamp"] = records.timestamps_ms[starts]
    judged["max_timestamp"] = np.maximum.reduceat(records.timestamps_ms, starts)
    return table, judged
