"""Log directories as tables in Spark: the data source `kafka-segments` (extra `cleanerd[spark]`).

    cleanerd.tools.spark.register(spark)
    spark.read.format("kafka-segments").option("path", "/data/kafka-logs").option("subscribe", "orders").load()

The columns are those of Spark's own Kafka source. No broker is asked, and one that runs is not disturbed: nothing is locked
or written, and nothing above the high watermark is read. Options: `cleanerd.tools.spark.options`.
"""

from typing import Any


def register(spark: Any) -> None:
    """Make the data source known to a `pyspark.sql.SparkSession`. Raises `ImportError` without the extra."""
    from cleanerd.tools.spark.source import KafkaSegments  # noqa: PLC0415 - needs pyarrow

    spark.dataSource.register(KafkaSegments)
