"""What a log costs as a table in Spark: `python -m tests.bench.table_speed` (the extra `spark`).

Beside `kafka-segments` runs a source that reads one record batch of each part and hands it over until as many rows have
gone by: what Spark itself takes to carry them, the bound of every reader. In turns, into the sink `noop`; the first round,
which starts everything, does not count. In the end, what the reader takes without Spark, on one core.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from cleanerd.format.codecs import Codec
from cleanerd.tools.insight.records import open_log
from cleanerd.tools.spark import register
from cleanerd.tools.spark.options import parse_options
from cleanerd.tools.spark.reading import batches_of
from cleanerd.tools.spark.source import KafkaSegments, SegmentsReader
from tests.synthetic import Shape, write_log

COLUMNS = ("key,value,topic,partition,offset,timestamp,timestampType", "key,offset,timestamp", "offset")


class Carried(KafkaSegments):
    """The bound: the first record batch of a part over and over."""

    @classmethod
    def name(cls) -> str:
        """What `format()` takes."""
        return "carried"

    def reader(self, schema: Any) -> "CarriedReader":
        """As many rows as the log has."""
        real = super().reader(schema)
        return CarriedReader(real._options, real._columns)


class CarriedReader(SegmentsReader):
    """Reads the first batch of each part."""

    def partitions(self) -> Sequence[InputPartition]:
        """The parts, with the bytes that each has of all."""
        parts = [partition.value for partition in super().partitions()]
        sizes = [sum(one.end - one.start for one in part.ranges) for part in parts]
        return [InputPartition((part, size / sum(sizes))) for part, size in zip(parts, sizes, strict=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """As many rows as the part has: records of these logs have one size, and their offsets no gaps."""
        part, share = partition.value
        left = round((part.end_offset - part.start_offset) * share)
        batch = next(super().read(InputPartition(part)), None)
        while batch is not None and left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows


def main() -> None:
    """Prints a row for each choice of columns."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.table_speed", description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000, help="(default: %(default)s)")
    parser.add_argument("--codec", choices=[codec.name.lower() for codec in Codec], default="none")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "orders-0"
        shape = Shape(keys=options.records // 4, codec=Codec[options.codec.upper()])
        records = len(write_log(log, options.records, shape))
        os.environ["PYSPARK_PYTHON"] = sys.executable
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
        spark.dataSource.register(Carried)
        try:
            for columns in COLUMNS:
                _print_row(spark, log, columns, records, options.rounds)
        finally:
            spark.stop()


def _print_row(spark: SparkSession, log: Path, columns: str, records: int, rounds: int) -> None:
    took: dict[str, list[float]] = {"kafka-segments": [], "carried": []}
    for number in range(rounds + 1):
        for source, seconds in took.items():
            frame = spark.read.format(source).option("path", str(log)).option("columns", columns).load()
            found = _seconds(lambda frame=frame: frame.write.format("noop").mode("overwrite").save())  # type: ignore[misc]
            seconds += [found] if number else []
    parsed = parse_options({"path": str(log), "columns": columns})
    names = tuple(columns.split(","))
    alone = min(
        _seconds(
            lambda: sum(b.num_rows for b in batches_of(open_log(str(log)), parsed, names)), time.process_time
        )
        for _ in range(2)
    )
    rate = {source: records / statistics.median(seconds) / 1e6 for source, seconds in took.items()}
    print(
        f"{columns}: {rate['kafka-segments']:.2f} M records/s through Spark, {rate['carried']:.2f} at most, "
        f"ratio {rate['kafka-segments'] / rate['carried']:.2f}; without Spark {records / alone / 1e6:.1f} a core"
    )


def _seconds(run: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> float:
    began = clock()
    run()
    return clock() - began


if __name__ == "__main__":
    main()
