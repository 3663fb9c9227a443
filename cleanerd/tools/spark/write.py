"""The batch writer of the data source `kafka-segments`: rows to partition directories that a broker loads."""

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from cleanerd.env.clock import SystemClock
from cleanerd.format.names import TopicPartition
from cleanerd.tools.insight.new_segment import check_stopped

from .from_arrow import by_partition, offsets_of, record_columns
from .partition_files import StagedPart, StagedPartition, commit_staged, discard_job
from .write_options import WriteOptions

_OPEN_MAX = 256
"""Segments that a task keeps open; each is a descriptor."""


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
                for tp, rows in by_partition(batch, self._options.topic):
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
        offsets = offsets_of(rows, end) if keeps else np.arange(end, end + rows.num_rows, dtype=np.int64)
        partition.append(record_columns(rows, offsets, now_ms))

    def commit(self, messages: list[Any]) -> None:
        """Name what successful tasks have staged, and delete the rest. Raises as `commit_staged`."""
        staged = [part for message in messages if message is not None for part in message.staged]
        commit_staged(self._options.path, staged)
        discard_job(self._options.path, self._job)

    def abort(self, messages: list[Any]) -> None:  # noqa: ARG002 - those of failed tasks are not in there
        """Delete all that was staged. Raises `OSError`."""
        discard_job(self._options.path, self._job)
