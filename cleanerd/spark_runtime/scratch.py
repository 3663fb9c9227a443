"""Scratch files of a session: Spark deletes them with it, whatever happens."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator

from pyspark import SparkContext

from .pyspark_privates import scratch_root


@contextlib.contextmanager
def scratch_directory(spark: SparkContext, *, is_one_machine: bool) -> Iterator[str | None]:
    """For the files of one job; None where tasks have no directory in common."""
    if not is_one_machine:
        yield None
        return
    directory = tempfile.mkdtemp(dir=scratch_root(spark))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
