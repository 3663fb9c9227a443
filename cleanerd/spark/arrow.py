"""Columns of `insight.records` as Arrow record batches with the columns of Spark's Kafka source; no byte is copied."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cleanerd.insight.records import Binary, Columns, Headers

_US_PER_MS = 1000
HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(HEADER),
}
"""Name and Arrow type of each column, in their order."""


def record_batch(columns: Columns, names: Sequence[str], topic: str, partition: int) -> pa.RecordBatch:
    """The columns `names`, each of `TYPES`. Requires: what they need is in `columns`."""
    arrays = [_array(name, columns, topic, partition) for name in names]
    schema = pa.schema([pa.field(name, TYPES[name]) for name in names])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(name: str, columns: Columns, topic: str, partition: int) -> pa.Array:
    rows = len(columns)
    match name:
        case "key" | "value":
            found = columns.keys if name == "key" else columns.values
            assert found is not None
            return _binary(found, pa.binary())
        case "topic":
            return pa.repeat(pa.scalar(topic, pa.string()), rows)
        case "partition":
            return pa.array(np.full(rows, partition, np.int32))
        case "offset":
            return pa.array(columns.offsets)
        case "timestamp":
            return pa.array(columns.timestamps_ms * _US_PER_MS).cast(TYPES["timestamp"])
        case "timestampType":
            return pa.array(columns.timestamp_types)
        case _:
            assert columns.headers is not None
            return _headers(columns.headers)


def _binary(column: Binary, kind: pa.DataType) -> pa.Array:
    validity = _validity(~column.is_null) if column.is_null.any() else None
    return pa.Array.from_buffers(
        kind, len(column), [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    )


def _headers(headers: Headers) -> pa.Array:
    """A list for each record, null for one without headers, as Spark's Kafka source has it."""
    keys, values = _binary(headers.keys, pa.string()), _binary(headers.values, pa.binary())
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADER))
    has_some = np.diff(headers.offsets) > 0
    buffers = [_validity(has_some), pa.py_buffer(headers.offsets)]
    return pa.Array.from_buffers(TYPES["headers"], len(has_some), buffers, children=[pairs])


def _validity(is_valid: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(is_valid, bitorder="little"))
