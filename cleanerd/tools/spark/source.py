"""The data source `kafka-segments`: a batch reader."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cleanerd.errors import BadUsage, SourceChanged
from cleanerd.format.names import MAX_OFFSET
from cleanerd.tools.insight.live import open_parts
from cleanerd.tools.insight.records import LogRange

from .arrow import batches_of
from .options import COLUMN_TYPES, Options, parse_options


class KafkaSegments(DataSource):
    """The records of partition directories, with the columns of Spark's Kafka source."""

    @classmethod
    def name(cls) -> str:
        """The name to pass to `format()`."""
        return "kafka-segments"

    def schema(self) -> str:
        """The columns that were asked for. Raises `BadUsage`."""
        return ", ".join(f"`{name}` {COLUMN_TYPES[name]}" for name in parse_options(self.options).columns)

    def reader(self, schema: Any) -> "SegmentsReader":
        """The reader for these options. Raises `BadUsage`."""
        return SegmentsReader(parse_options(self.options), _columns(schema))


def _columns(schema: Any) -> tuple[str, ...]:
    """Names of the columns of a `StructType`: that of `KafkaSegments.schema`, or one that the user gave."""
    for found in schema.fields:
        kind = found.dataType.simpleString()
        if COLUMN_TYPES.get(found.name) != kind:
            raise BadUsage(f"no column {found.name} of type {kind}; there are {COLUMN_TYPES}")
    return tuple(schema.names)


class SegmentsReader(DataSourceReader):
    """Lists on the driver, reads in the tasks; travels between them."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Parts of the logs, each for one task. Raises `BadUsage`, `CleanerdError`, `OSError`."""
        options = self._options
        parts: list[LogRange] = []
        for tp, directory in options.partition_dirs():
            start, end = options.bounds(tp)
            log, its_parts = open_parts(
                directory,
                options.max_bytes,
                isolation=options.isolation,
                start_offset=start,
                end_offset=end,
                start_timestamp_ms=options.starting.timestamp_of(tp),
                end_timestamp_ms=options.ending.timestamp_of(tp),
            )
            if log.readable_end < end < MAX_OFFSET and options.fail_on_data_loss:
                raise SourceChanged(
                    f"{directory}: can be read up to offset {log.readable_end}, not up to {end}"
                )
            parts += its_parts
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Record batches of one part. Raises `CorruptFile`; `SourceChanged` for records that were deleted meanwhile."""
        return batches_of(partition.value, self._options, self._columns)
