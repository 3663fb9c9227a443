"""The one real Spark session that everything in a process of tests shares; it starts with its first job."""

import atexit

from cleanerd.spark_runtime.lazy_spark import LazySpark

SESSION = LazySpark("local[2]")
atexit.register(SESSION.stop)
