"""Records as columns: where value and headers of a record lie, and the bytes of many fields, one behind the other.

The walk of the records (`records.walk_records`) has checked every length, so nothing is checked here. It fills in positions
of the key only; those of values and headers cost cleaning time, which does not need them, and are found here.
"""

import numpy as np
import numpy.typing as npt

from cleanerd.kernels.native import JIT, be32, copy_bytes, njit
from cleanerd.kernels.records import read_varint
from cleanerd.kernels.tables import Bytes, Table

FIELD = np.dtype(
    [
        ("start", "i8"),  # first byte of the field, in the buffer that the batch of its record names
        ("length", "i4"),  # -1 null
        ("batch", "i4"),  # row in the batch table
    ]
)
"""A key, a value, or a key or value of a header."""


@njit(**JIT)
def _values(raw, expanded, batches, records, values, header_starts, header_counts):
    headers = np.int64(0)
    for i in range(len(records)):
        record = records[i]
        buffer = expanded if batches[record.batch].expanded else raw
        at = np.int64(record.key_start + max(record.key_length, 0))
        count = np.int64(0)
        if record.magic == 2:
            length, at = read_varint(buffer, at, record.end, 5)
            count, after = read_varint(buffer, at + max(length, 0), record.end, 5)
            header_starts[i] = after
        else:
            length = be32(buffer, at)
            at += 4
            header_starts[i] = record.end
        values[i].start = at
        values[i].length = max(length, -1)
        values[i].batch = record.batch
        header_counts[i] = count
        headers += count
    return headers


@njit(**JIT)
def _headers(raw, expanded, batches, records, header_starts, header_counts, keys, values):
    filled = np.int64(0)
    for i in range(len(records)):
        record = records[i]
        buffer = expanded if batches[record.batch].expanded else raw
        at = np.int64(header_starts[i])
        for _ in range(header_counts[i]):
            length, at = read_varint(buffer, at, record.end, 5)
            keys[filled].start = at
            keys[filled].length = length
            keys[filled].batch = record.batch
            length, at = read_varint(buffer, at + length, record.end, 5)
            values[filled].start = at
            values[filled].length = max(length, -1)
            values[filled].batch = record.batch
            at += max(length, 0)
            filled += 1


@njit(**JIT)
def _gather(raw, expanded, batches, fields, offsets, out):
    for i in range(len(fields)):
        field = fields[i]
        if field.length > 0:
            if batches[field.batch].expanded:
                copy_bytes(out, np.int64(offsets[i]), expanded, np.int64(field.start), np.int64(field.length))
            else:
                copy_bytes(out, np.int64(offsets[i]), raw, np.int64(field.start), np.int64(field.length))


def key_fields(records: Table) -> Table:
    """`FIELD` rows of the keys."""
    fields = np.empty(len(records), FIELD)
    fields["start"] = records["key_start"]
    fields["length"] = records["key_length"]
    fields["batch"] = records["batch"]
    return fields


def value_fields(
    raw: Bytes, expanded: Bytes, batches: Table, records: Table
) -> tuple[Table, npt.NDArray[np.int64], npt.NDArray[np.int32], int]:
    """`FIELD` rows of the values; of each record where its first header begins and how many it has; headers in all.

    Requires: `records` come from `walk_records` over the same buffers and batches, in any selection.
    """
    fields = np.empty(len(records), FIELD)
    starts, counts = np.empty(len(records), np.int64), np.empty(len(records), np.int32)
    headers = _values(raw, expanded, batches, records, fields, starts, counts)
    return fields, starts, counts, int(headers)


def header_fields(
    raw: Bytes,
    expanded: Bytes,
    batches: Table,
    records: Table,
    starts: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int32],
    headers: int,
) -> tuple[Table, Table]:
    """`FIELD` rows of the keys and of the values of all headers, record by record; arguments as `value_fields` returns."""
    keys, values = np.empty(headers, FIELD), np.empty(headers, FIELD)
    _headers(raw, expanded, batches, records, starts, counts, keys, values)
    return keys, values


def gather(raw: Bytes, expanded: Bytes, batches: Table, fields: Table) -> tuple[npt.NDArray[np.int32], Bytes]:
    """(offsets, data): field i is `data[offsets[i]:offsets[i + 1]]`; one offset more than fields; a null one is empty.

    Requires: less than 2 GiB in all.
    """
    ends = np.cumsum(np.maximum(fields["length"], 0), dtype=np.int64)
    offsets = np.zeros(len(fields) + 1, np.int32)
    offsets[1:] = ends
    data = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    assert len(data) < 2**31
    _gather(raw, expanded, batches, fields, offsets, data)
    return offsets, data
