"""The stream reader of the data source `kafka-segments`.

A position is `{"topic": {"0": 23}}`, the next offset of each partition, as in Spark's Kafka source; Spark keeps it in the
checkpoint of the query. Of a broker's log a batch ends at the high watermark that the broker wrote down last (each
`replica.high.watermark.checkpoint.interval.ms`, 5 s by default), with `isolation=committed` at the last stable offset.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from cleanerd.errors import SourceChanged
from cleanerd.format.names import TopicPartition
from cleanerd.tools.insight.live import open_settled, readable_offsets
from cleanerd.tools.insight.records import LogRange, split

from .arrow import batches_of
from .options import EARLIEST, LATEST, Options

_Offsets = dict[TopicPartition, int]
_Position = dict[str, dict[str, int]]


class SegmentsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver, reads in the tasks."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._target: _Offsets | None = None

    def initialOffset(self) -> _Position:  # noqa: N802 - Spark's names, here and below
        """Where a new query starts. Raises `BadUsage`, `CleanerdError`, `OSError`."""
        return _position({tp: self._first(tp, path) for tp, path in self._options.partition_dirs()})

    def _first(self, tp: TopicPartition, directory: str) -> int:
        since = self._options.starting.timestamp_of(tp)
        if since is not None:
            return open_settled(
                directory, isolation=self._options.isolation, start_timestamp_ms=since
            ).start_offset
        wanted = self._options.starting.offset_of(tp)
        if wanted >= 0:
            return wanted
        first, end, _ = readable_offsets(directory, self._options.isolation)
        return {EARLIEST: first, LATEST: end}[wanted]

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What comes later belongs to the next run. Raises as `initialOffset`."""
        self._target = self._ends({})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The value of `maxOffsetsPerTrigger`."""
        limit = self._options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: Mapping[str, Mapping[str, int]], limit: ReadLimit) -> _Position:  # noqa: N802
        """Where the batch that begins at `start` ends. Raises as `initialOffset`; `SourceChanged` for lost records."""
        begin = _offsets(start)
        ends = self._ends(begin) if self._target is None else self._target
        ends = begin | {tp: max(end, begin.get(tp, 0)) for tp, end in ends.items()}
        if isinstance(limit, ReadMaxRows):
            ends = self._limited(begin, ends, limit.max_rows)
        return _position(ends)

    def reportLatestOffset(self) -> _Position:  # noqa: N802
        """For the progress of the query."""
        return _position(self._ends({}))

    def _ends(self, known: _Offsets) -> _Offsets:
        """What can be read now. Raises `SourceChanged` where less is there than is `known`."""
        dirs = dict(self._options.partition_dirs())
        gone = sorted(known.keys() - dirs.keys())
        if gone and self._options.fail_on_data_loss:
            raise SourceChanged(f"{', '.join(map(str, gone))}: gone since the last batch")
        ends: _Offsets = {}
        for tp, directory in dirs.items():
            _, ends[tp], log_end = readable_offsets(directory, self._options.isolation)
            if log_end < known.get(tp, 0) and self._options.fail_on_data_loss:
                found = (
                    f"ends at {log_end}, and was read up to {known[tp]}: it was truncated or created again"
                )
                raise SourceChanged(f"{directory}: {found}")
        return ends

    def _limited(self, begin: _Offsets, ends: _Offsets, limit: int) -> _Offsets:
        """At most about `limit` offsets: of each partition in proportion to what it has, but at least one."""
        first = {tp: begin.get(tp, 0) for tp in ends}
        total = sum(end - first[tp] for tp, end in ends.items())
        if total <= limit:
            return ends
        return {
            tp: min(end, first[tp] + max((end - first[tp]) * limit // total, 1)) for tp, end in ends.items()
        }

    def partitions(
        self, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]
    ) -> Sequence[InputPartition]:
        """Parts of one batch. Raises as `latestOffset`."""
        begin, parts = _offsets(start), list[LogRange]()
        dirs = dict(self._options.partition_dirs())
        for tp, stop in _offsets(end).items():
            first = begin.get(tp, 0)
            if first < stop:
                parts += self._parts(tp, dirs.get(tp), first, stop)
        return [InputPartition(part) for part in parts]

    def _parts(self, tp: TopicPartition, directory: str | None, first: int, stop: int) -> list[LogRange]:
        lost = f"{tp}: offsets {first} to {stop} are not all there"
        if directory is None:
            if self._options.fail_on_data_loss:
                raise SourceChanged(lost)
            return []
        log = open_settled(directory, isolation=self._options.isolation, start_offset=first, end_offset=stop)
        is_new = first == 0  # a log that appears starts where it starts
        if self._options.fail_on_data_loss and (
            log.end_offset < stop or (log.start_offset > first and not is_new)
        ):
            raise SourceChanged(f"{lost}, but {log.start_offset} to {log.end_offset}")
        return split(log, self._options.max_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Record batches of one part. Raises as `arrow.batches_of`."""
        return batches_of(partition.value, self._options, self._columns)


def _position(offsets: _Offsets) -> _Position:
    found: _Position = {}
    for tp, offset in sorted(offsets.items()):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return found


def _offsets(position: Mapping[str, Mapping[str, Any]]) -> _Offsets:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, offsets in position.items()
        for partition, offset in offsets.items()
    }
