"""Parts of logs, columns of `insight.records`, as Arrow record batches; keys, values and headers are not copied."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cleanerd.errors import SourceChanged
from cleanerd.format.codecs import Codec
from cleanerd.format.head import CODEC_MASK, CONTROL, TRANSACTIONAL
from cleanerd.kernels.tables import Table
from cleanerd.tools.insight.live import read_part
from cleanerd.tools.insight.records import BATCH, HEADERS, KEY, VALUE, Binary, Columns, HeaderLists, LogRange

from .options import COLUMN_TYPES, HEADERS_TYPE, Options

_US_PER_MS = 1000
_TIME_MAX_MS = (2**63 - 1) // _US_PER_MS
"""The latest time that Spark can hold; a record may claim any."""
_CODECS = pa.array([codec.name.lower() for codec in Codec])
_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
TYPES: Mapping[str, pa.DataType] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    HEADERS_TYPE: pa.list_(_HEADER),
}
"""Arrow types by Spark's names of types."""


def batches_of(part: LogRange | None, options: Options, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Record batches of one part, which `split` made; of None, which is what Spark makes of no parts at all, nothing.

    Raises `CorruptFile`; `SourceChanged` for records that were deleted meanwhile, unless that is allowed.
    """
    if part is None:
        return
    columns = {name for name in (KEY, VALUE, HEADERS) if name in names}
    if any(name.startswith("_") for name in names):
        columns.add(BATCH)
    found = read_part(
        part, options.isolation, columns=columns, on_corrupt=options.on_corrupt,
        with_control=options.with_control,
    )  # fmt: skip
    try:
        for some in found:
            yield record_batch(some, names, part.topic, part.partition)
    except SourceChanged:
        if options.fail_on_data_loss:
            raise


def record_batch(columns: Columns, names: Sequence[str], topic: str, partition: int) -> pa.RecordBatch:
    """The columns `names`, each of `COLUMN_TYPES`. Requires: what they need is in `columns`."""
    schema = pa.schema([pa.field(name, TYPES[COLUMN_TYPES[name]]) for name in names])
    arrays = [
        _of_batch(name, columns) if name.startswith("_") else _array(name, columns, topic, partition)
        for name in names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(name: str, columns: Columns, topic: str, partition: int) -> pa.Array:
    rows = len(columns)
    match name:
        case "key" | "value":
            found = columns.keys if name == "key" else columns.values
            assert found is not None
            return _binary(found, pa.binary())
        case "topic":
            return _repeated(topic, rows)
        case "partition":
            return pa.array(np.full(rows, partition, np.int32))
        case "offset":
            return pa.array(columns.offsets)
        case "timestamp":
            times_us = np.clip(columns.timestamps_ms, -_TIME_MAX_MS, _TIME_MAX_MS) * _US_PER_MS
            return pa.array(times_us).cast(TYPES["timestamp"])
        case "timestampType":
            return pa.array(columns.timestamp_types)
        case _:
            assert columns.headers is not None
            return _headers(columns.headers)


_OF_BATCH: Mapping[str, Callable[[Table], npt.NDArray[np.generic]]] = {
    "_batch_base_offset": lambda batches: batches["base_offset"],
    "_leader_epoch": lambda batches: batches["leader_epoch"],
    "_producer_id": lambda batches: batches["producer_id"],
    "_producer_epoch": lambda batches: batches["producer_epoch"],
    "_base_sequence": lambda batches: batches["base_sequence"],
    "_is_transactional": lambda batches: _has(batches, TRANSACTIONAL),
    "_is_control": lambda batches: _has(batches, CONTROL),
}


def _of_batch(name: str, columns: Columns) -> pa.Array:
    if name == "_log_dir":
        return _repeated(os.path.dirname(os.path.dirname(columns.path)), len(columns))
    if name == "_segment":
        return _repeated(os.path.basename(columns.path), len(columns))
    assert columns.batches is not None
    if name == "_codec":
        return _CODECS.take(pa.array(columns.batches["attributes"] & CODEC_MASK))
    return pa.array(np.ascontiguousarray(_OF_BATCH[name](columns.batches)))


def _has(batches: Table, bit: int) -> npt.NDArray[np.bool_]:
    return (batches["attributes"] & bit).astype(np.bool_)


def _repeated(text: str, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), rows)


def _binary(column: Binary, kind: pa.DataType) -> pa.Array:
    validity = _validity(~column.is_null) if column.is_null.any() else None
    return pa.Array.from_buffers(
        kind, len(column), [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    )


def _headers(headers: HeaderLists) -> pa.Array:
    """A list for each record, null for one without headers, as Spark's Kafka source has it."""
    keys, values = _binary(headers.keys, pa.string()), _binary(headers.values, pa.binary())
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER))
    has_some = np.diff(headers.offsets) > 0
    buffers = [_validity(has_some), pa.py_buffer(headers.offsets)]
    return pa.Array.from_buffers(TYPES[HEADERS_TYPE], len(has_some), buffers, children=[pairs])


def _validity(is_valid: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(is_valid, bitorder="little"))
