"""Sessions for data frames, in the context of all tests."""

from typing import Any

from cleanerd.pipeline.lazy_spark import LazySpark


def session_of(spark: LazySpark) -> Any:
    """A `SparkSession` that knows the data source.

    PySpark takes it for the current one, which else may be that of a test whose JVM is gone.
    """
    from pyspark.sql import SparkSession

    import cleanerd.spark

    SparkSession._instantiatedSession = None
    session = SparkSession(spark.context())
    cleanerd.spark.register(session)
    return session
