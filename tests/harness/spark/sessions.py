"""The one real Spark session that all tests of a process share, sessions of a test's own, and what is asked of any."""

import atexit
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from cleanerd.spark_runtime.lazy_spark import LazySpark

SESSION = LazySpark("local[2]")
"""It starts with its first job."""
atexit.register(SESSION.stop)


@contextmanager
def session(
    master: str = "local[1]", settings: Mapping[str, str] | None = None, **more: bool
) -> Iterator[LazySpark]:
    """One that is stopped at the end. The shared one has to be stopped before: a process has one context at a time."""
    own = LazySpark(master, settings, **more)
    try:
        yield own
    finally:
        own.stop()


def count(spark: LazySpark) -> int:
    """What a small job answers: two."""
    return spark.run(lambda context: context.parallelize([1, 2], 2).count())


def jvm_of(spark: LazySpark) -> "subprocess.Popen[bytes]":
    """The process of its JVM, started if need be."""
    gateway = spark.context()._gateway
    assert gateway is not None
    process: subprocess.Popen[bytes] = gateway.proc
    return process
