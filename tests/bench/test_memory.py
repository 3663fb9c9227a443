"""Memory of a cleaning: bounded by the dedupe budget and a constant, however many keys there are."""

import threading
from collections import defaultdict
from pathlib import Path

import psutil
import pytest

from cleanerd.pipeline.job import Budget
from cleanerd.pipeline.session import SparkSession
from tests.pipeline.test_pipeline_plans import plan, run
from tests.synthetic import Shape, write_log

KEYS = 20_000_000
BUDGET_BYTES = 128 << 20
CONSTANT_BYTES = 1500 << 20
"""JVM (up to 600 MiB here), this process (250), two Python workers (350 each with what they hold) and their parent."""


class Watch:
    """Largest resident size of this process and of every descendant, sampled twenty times a second."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = defaultdict(int)
        self.peak_sum = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(0.05):
            total = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    size = process.memory_info().rss
                    name = f"{process.name()} {process.pid}"
                except psutil.Error:
                    continue
                total += size
                self.peaks[name] = max(self.peaks[name], size)
            self.peak_sum = max(self.peak_sum, total)


@pytest.mark.bench
def test_twenty_million_distinct_keys(spark: SparkSession, tmp_path: Path) -> None:
    """One pass, shuffle plan, 128 MiB for keys; Kafka would need four passes with this buffer."""
    shape = Shape(keys=10**9 - 1, records_per_batch=200, value_bytes=10, segment_bytes=256 << 20)
    write_log(tmp_path / "many-0", KEYS, shape)
    work = plan(tmp_path, "many", chunk_bytes=64 << 20)
    with Watch() as watch:
        (indexed,), (rewritten,) = run(spark, [work], Budget(BUDGET_BYTES))

    assert rewritten.error is None
    assert indexed.records_read == KEYS
    for name, peak in sorted(watch.peaks.items(), key=lambda item: -item[1]):
        print(f"{name:24s} {peak / 2**20:8.0f} MiB")
    print(f"sum {watch.peak_sum / 2**20:.0f} MiB")
    assert watch.peak_sum < BUDGET_BYTES + CONSTANT_BYTES
