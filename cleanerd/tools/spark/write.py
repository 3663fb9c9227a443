"""The batch writer of the data source `kafka-segments`: rows to partition directories that a broker loads.

Arrow batches become the columns that `kernels.encode` takes, a partition at a time; keys and values are not copied.
"""

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from cleanerd.env.clock import SystemClock
from cleanerd.errors import BadUsage
from cleanerd.format.batch import NO_TIMESTAMP
from cleanerd.format.names import DirKind, TopicPartition, parse_partition_dir
from cleanerd.tools.insight.new_segment import check_stopped
from cleanerd.tools.kernels.encode import RecordColumns, Strings

from .partition_files import StagedPart, StagedPartition, commit_staged, discard_job
from .write_options import WriteOptions

_OPEN_MAX = 256
"""Segments that a task keeps open; each is a descriptor."""
_US_PER_MS = 1000
_NO_BYTES = np.frombuffer(b"", np.uint8)


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task has staged."""

    staged: tuple[StagedPart, ...]


class SegmentsWriter(DataSourceArrowWriter):
    """Made on the driver; writes in the tasks; commits on the driver. Travels between them.

    Raises `LockHeld` while a process holds the log directory, `OSError`.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._job = secrets.token_hex(8)
        os.makedirs(options.path, exist_ok=True)
        check_stopped(options.path)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage the rows of one task; nothing is left when it fails. Raises `BadUsage`, `CorruptFile`, `OSError`."""
        partitions: dict[TopicPartition, StagedPartition] = {}
        now_ms = SystemClock().now_ms()
        try:
            for batch in iterator:
                for tp, rows in _by_partition(batch, self._options.topic):
                    partition = partitions.pop(tp, None) or StagedPartition(self._options, tp, self._job)
                    partitions[tp] = partition  # the last one is that which was used last
                    if len(partitions) > _OPEN_MAX:
                        list(partitions.values())[-_OPEN_MAX - 1].close_segment()
                    self._append(partition, rows, now_ms)
            return Written(tuple(partition.finish() for partition in partitions.values()))
        except BaseException:
            for partition in partitions.values():
                partition.discard()
            raise

    def _append(self, partition: StagedPartition, rows: pa.RecordBatch, now_ms: int) -> None:
        end = partition.end_offset
        keeps = self._options.keeps_offsets
        offsets = _offsets_of(rows, end) if keeps else np.arange(end, end + rows.num_rows, dtype=np.int64)
        partition.append(_record_columns(rows, offsets, now_ms))

    def commit(self, messages: list[Any]) -> None:
        """Name what successful tasks have staged, and delete the rest. Raises as `commit_staged`."""
        staged = [part for message in messages if message is not None for part in message.staged]
        commit_staged(self._options.path, staged)
        discard_job(self._options.path, self._job)

    def abort(self, messages: list[Any]) -> None:  # noqa: ARG002 - those of failed tasks are not in there
        """Delete all that was staged. Raises `OSError`."""
        discard_job(self._options.path, self._job)


def _by_partition(
    batch: pa.RecordBatch, topic: str | None
) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """The rows of each partition, in their order. Raises `BadUsage` for a topic or partition that cannot be."""
    codes, topics = np.zeros(batch.num_rows, np.int64), [topic]
    if topic is None:
        encoded = batch.column("topic").dictionary_encode()
        if encoded.null_count:
            raise BadUsage("column topic: a row without a topic")
        codes, topics = encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist()
    partitions = np.zeros(batch.num_rows, np.int64)
    if "partition" in batch.schema.names:
        partitions = _integers(batch.column("partition"), "partition")
    order = np.lexsort((partitions, codes))
    edges = np.flatnonzero(np.diff(codes[order]) | np.diff(partitions[order])) + 1
    for rows in np.split(order, edges) if len(order) else ():
        tp = TopicPartition(str(topics[codes[rows[0]]]), int(partitions[rows[0]]))
        if parse_partition_dir(str(tp)) != (tp, DirKind.CURRENT):
            raise BadUsage(f"{tp} is no name for a partition")
        yield tp, batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))


def _record_columns(rows: pa.RecordBatch, offsets: npt.NDArray[np.int64], now_ms: int) -> RecordColumns:
    """Rows of one partition as records with these offsets; `now_ms` for those without a timestamp.

    Raises `BadUsage` for a header without a key, or a time before 1970.
    """
    names = rows.schema.names
    timestamps = np.full(rows.num_rows, now_ms, np.int64)
    if "timestamp" in names:
        found = rows.column("timestamp").cast(pa.int64()).fill_null(now_ms * _US_PER_MS)
        timestamps = found.to_numpy() // _US_PER_MS
        if (timestamps < NO_TIMESTAMP).any():
            raise BadUsage("column timestamp: a time before 1970, which no broker takes")
    ends, header_keys, header_values = _headers(
        rows.column("headers") if "headers" in names else None, rows.num_rows
    )
    nulls = pa.nulls(rows.num_rows, pa.binary())
    return RecordColumns(
        offsets=offsets,
        timestamps_ms=timestamps,
        keys=_strings(rows.column("key") if "key" in names else nulls),
        values=_strings(rows.column("value")),
        header_ends=ends,
        header_keys=header_keys,
        header_values=header_values,
    )


def _offsets_of(rows: pa.RecordBatch, least: int) -> npt.NDArray[np.int64]:
    """The column `offset`. Raises `BadUsage` unless it rises from `least` or above."""
    offsets = _integers(rows.column("offset"), "offset")
    if offsets[0] < least or (np.diff(offsets) <= 0).any():
        raise BadUsage(
            "column offset: does not rise within a partition; sort by it with sortWithinPartitions"
        )
    return offsets


def _integers(column: pa.Array, name: str) -> npt.NDArray[np.int64]:
    if column.null_count:
        raise BadUsage(f"column {name}: a row without a value")
    found: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
    return found


def _strings(column: pa.Array) -> Strings:
    array = column.cast(pa.binary())
    _, offsets, data = array.buffers()
    if offsets is None:
        nothing = np.zeros(len(array), np.int64)
        return Strings(_NO_BYTES, nothing, nothing - 1)
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    lengths = np.diff(ends)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = -1
    return Strings(_NO_BYTES if data is None else np.frombuffer(data, np.uint8), ends[:-1], lengths)


def _headers(column: pa.Array | None, rows: int) -> tuple[npt.NDArray[np.int64], Strings, Strings]:
    ends = np.zeros(rows + 1, np.int64)
    if column is None or column.null_count == rows:
        nothing = np.zeros(0, np.int64)
        return ends, Strings(_NO_BYTES, nothing, nothing), Strings(_NO_BYTES, nothing, nothing)
    counts = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    ends[1:] = np.cumsum(counts)
    keys, values = column.flatten().flatten()
    if keys.null_count:
        raise BadUsage("column headers: a header without a key")
    return ends, _strings(keys), _strings(values)
