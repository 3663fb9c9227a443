"""The batch reader of the data source `kafka-segments`."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cleanerd.errors import SourceChanged
from cleanerd.insight.records import HEADERS, KEY, VALUE, LogView, open_log, read_columns, split

from .arrow import record_batch
from .options import Options, parse_options

_DDL = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}


class KafkaSegments(DataSource):
    """The records of partition directories, with the columns of Spark's Kafka source."""

    @classmethod
    def name(cls) -> str:
        """What `format()` takes."""
        return "kafka-segments"

    def schema(self) -> str:
        """The columns that were asked for. Raises `BadUsage`."""
        return ", ".join(f"`{name}` {_DDL[name]}" for name in parse_options(self.options).columns)

    def reader(self, schema: Any) -> "SegmentsReader":  # noqa: ARG002 - it is the one of `schema`
        """The reader for these options. Raises `BadUsage`."""
        return SegmentsReader(parse_options(self.options))


class SegmentsReader(DataSourceReader):
    """Lists on the driver, reads in the tasks; travels between them."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Parts of the logs, each for one task. Raises `BadUsage`, `CleanerdError`, `OSError`."""
        options = self._options
        parts: list[LogView] = []
        for tp, directory in options.partition_dirs():
            start, end = options.bounds(tp)
            log = open_log(directory, isolation=options.isolation, start_offset=start, end_offset=end)
            parts += split(log, options.max_bytes)
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Record batches of one part. Raises `CorruptFile`; `SourceChanged` for a segment that went meanwhile."""
        log = partition.value
        if log is None:  # what Spark makes of no partitions at all
            return
        names = self._options.columns
        columns = {name for name in (KEY, VALUE, HEADERS) if name in names}
        try:
            for found in read_columns(log, columns=columns, on_corrupt=self._options.on_corrupt):
                yield record_batch(found, names, log.topic, log.partition)
        except SourceChanged:
            if self._options.fail_on_data_loss:
                raise
