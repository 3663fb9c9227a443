"""The parts of a digest as tasks of Spark, and its buckets merged by others."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from cleanerd.env.cores import usable_cores
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.resident_job import TaskStep

from .digest_rows import DigestTask, MergedBucket, Terms, merge, read_parts


def run_on_spark(tasks: Sequence[DigestTask], terms: Terms) -> tuple[list[Any], list[MergedBucket]]:
    """The answers of all parts, and the merged buckets, in a session of its own on this machine."""
    spark = LazySpark(f"local[{usable_cores()}]")
    try:
        return spark.executor().exchange(TaskStep(tasks, read_parts, lambda: nullcontext(terms)), merge)
    finally:
        spark.stop()
