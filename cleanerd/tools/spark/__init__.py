"""Log directories as tables in Spark: the data source `kafka-segments` (extra `cleanerd[spark]`).

    cleanerd.tools.spark.register(spark)
    spark.read.format("kafka-segments").option("path", "/data/kafka-logs").option("subscribe", "orders").load()

The columns are those of Spark's own Kafka source. No broker is asked, and one that runs is not disturbed: nothing is locked
or written, and nothing above the high watermark is read. Options: `cleanerd.tools.spark.options`.
"""

from typing import Any

from py4j.java_gateway import java_import
from pyspark.sql import SparkSession

from cleanerd.tools.spark.source import KafkaSegments


def register(spark: Any) -> None:
    """Make the data source known to a `pyspark.sql.SparkSession`. Raises `ImportError` without the extra."""
    spark.dataSource.register(KafkaSegments)


_OF_DATA_FRAMES = (
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.classic.*",
    "org.apache.spark.sql.api.python.*",
)
"""Classes that PySpark uses by their short names, beside those that a session of cleanerd needs."""


def session_of(context: Any) -> Any:
    """A `SparkSession` in a context of cleanerd's, which knows the data source. Raises `ImportError` without the extra.

    PySpark takes it for the current one, which else may be one whose JVM is gone.
    """
    SparkSession._instantiatedSession = None
    for name in _OF_DATA_FRAMES:
        java_import(context._jvm, name)
    session = SparkSession(context)
    register(session)
    return session
