"""Memory of a cleaning: bounded by the dedupe budget and a constant, however many keys there are."""

import os
from pathlib import Path

import pytest

from cleanerd.pipeline.job import Budget
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.bench.processes import Meter
from tests.pipeline.test_job import plan, run
from tests.synthetic import Shape, write_log

KEYS = 20_000_000
BUDGET_BYTES = 128 << 20
CONSTANT_BYTES = 1500 << 20
"""JVM (up to 600 MiB here), this process (250), two Python workers (350 each with what they hold) and their parent."""


@pytest.mark.bench
def test_twenty_million_distinct_keys(spark: LazySpark, tmp_path: Path) -> None:
    """One pass, through files, 128 MiB for keys; Kafka would need four passes with this buffer."""
    shape = Shape(keys=10**9 - 1, records_per_batch=200, value_bytes=10, segment_bytes=256 << 20)
    write_log(tmp_path / "many-0", KEYS, shape)
    work = plan(tmp_path, "many", chunk_bytes=64 << 20)
    with Meter(os.getpid()) as meter:
        (indexed,), (rewritten,) = run(spark, [work], Budget(BUDGET_BYTES))

    assert rewritten.error is None
    assert indexed.records_read == KEYS
    print(f"peak {meter.peak_rss_bytes / 2**20:.0f} MiB")
    assert meter.peak_rss_bytes < BUDGET_BYTES + CONSTANT_BYTES
