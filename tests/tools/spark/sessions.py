"""Sessions for data frames, in the context of all tests."""

from typing import Any

from cleanerd.spark_runtime.lazy_spark import LazySpark

_OF_DATA_FRAMES = (
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.classic.*",
    "org.apache.spark.sql.api.python.*",
)
"""What PySpark knows by its short name, beside what a session of cleanerd needs."""


def session_of(spark: LazySpark) -> Any:
    """A `SparkSession` that knows the data source.

    PySpark takes it for the current one, which else may be that of a test whose JVM is gone.
    """
    from py4j.java_gateway import java_import
    from pyspark.sql import SparkSession

    import cleanerd.tools.spark

    SparkSession._instantiatedSession = None
    for name in _OF_DATA_FRAMES:
        java_import(spark.context()._jvm, name)
    session = SparkSession(spark.context())
    cleanerd.tools.spark.register(session)
    return session
