"""Sessions for data frames, in the context of all tests."""

from typing import Any

from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.tools.spark import session_of as session_in


def session_of(spark: LazySpark) -> Any:
    """A `SparkSession` that knows the data source."""
    return session_in(spark.context())
