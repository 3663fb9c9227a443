"""Cost follows records and bytes that are there, never the offsets between them nor what a header claims."""

import gc
import os
import shutil
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from cleanerd.format.batch import Record, encode_batch
from cleanerd.format.producer_snapshot import render_producer_snapshot
from cleanerd.kernels.fingerprint import MAX_BUCKETS
from cleanerd.pipeline.job import Budget
from cleanerd.pipeline.values import IndexedLog, LogWork
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.harness.daemon.processes import wait_until
from tests.pipeline.test_job import AMPLE, offsets_in, plan, run

RECORDS, KEYS, SEGMENTS = 1366, 300, 21
JOBS = int(os.environ.get("CLEANERD_TEST_JOBS", "3000"))
SPREAD_MAX = 2**31 - 1  # offsets of a segment
SMALL_BUDGET = Budget(int((2 << 20) * 0.9))  # log.cleaner.dedupe.buffer.size=2097152


def write_spread(directory: Path, records: int, step: int, segments: int = SEGMENTS) -> list[int]:
    """A record at every `step`th offset, one a batch; returns the offsets of the newest record of each key.

    Segments begin where the step wants them, however large it is; within them offsets span no more than an index can tell.
    """
    directory.mkdir()
    newest: dict[int, int] = {}
    for numbers in np.array_split(np.arange(records), segments):
        batches, first = [], int(numbers[0])
        for number in numbers.tolist():
            offset, key = (
                first * step + (number - first) * min(step, SPREAD_MAX // len(numbers)),
                number % KEYS,
            )
            newest[key] = offset
            batches.append(encode_batch([Record(offset, 1000, b"%d" % key, b"v" * 300)], base_offset=offset))
        (directory / f"{int(numbers[0]) * step:020}.log").write_bytes(b"".join(batches))
    active = directory / f"{records * step:020}.log"
    active.touch()
    active.with_suffix(".snapshot").write_bytes(render_producer_snapshot([]))
    return sorted(newest.values())


def measure(session: LazySpark, work: LogWork, budget: Budget) -> tuple[IndexedLog, int]:
    """A log after the pipeline, and the largest size of what the driver held meanwhile, in bytes."""
    tracemalloc.start()
    try:
        (indexed,), _ = run(session, [work], budget, write=False)
        return indexed, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("budget", [SMALL_BUDGET, AMPLE], ids=["2 MiB", "1 GiB"])
@pytest.mark.parametrize("step", [11_000_000, 2**62 // RECORDS], ids=["15e9", "2^62"])
def test_the_same_records_spread_over_more_offsets_cost_the_same(
    spark: LazySpark, tmp_path: Path, step: int, budget: Budget
) -> None:
    """Buckets, rows, objects and bytes: what a compacted topic that is years old looks like."""
    dense, _ = measure(spark, plan_spread(tmp_path / "dense-0", 1), budget)
    dense, dense_bytes = measure(spark, plan_spread(tmp_path / "dense-0", 1), budget)
    spread, spread_bytes = measure(spark, plan_spread(tmp_path / "spread-0", step), budget)
    for log in (dense, spread):
        assert log.error is None
        assert log.work.records_max == log.work.dirty_records_max == log.records_read == RECORDS
        assert log.buckets == 1
        assert len(log.work.chunks) == SEGMENTS
        assert sum(len(verdicts.buckets) for verdicts in log.verdicts) == SEGMENTS
    assert spread_bytes < 1.2 * dense_bytes


def plan_spread(directory: Path, step: int) -> LogWork:
    shutil.rmtree(directory, ignore_errors=True)
    write_spread(directory, RECORDS, step)
    return plan(directory.parent, directory.name.removesuffix("-0"))


def test_a_bucket_without_records_costs_nothing(spark: LazySpark, tmp_path: Path) -> None:
    """More buckets than records, and twenty chunks that know of hardly any: no object stands for the rest."""
    expected = write_spread(tmp_path / "many-0", RECORDS, 5)
    work = plan(tmp_path, "many")
    claim = replace(work.chunks[0], records_max=1 << 22, dirty_records_max=1 << 22)
    many = replace(work, chunks=(claim, *work.chunks[1:]))
    (indexed,), (rewritten,) = run(spark, [many], Budget(300))
    assert indexed.buckets == MAX_BUCKETS
    assert sum(len(verdicts.buckets) for verdicts in indexed.verdicts) <= RECORDS
    assert rewritten.error is None
    assert offsets_in(rewritten).tolist() == expected


def holdings() -> tuple[int, int, int]:
    """(threads, descriptors, sockets) of this process."""
    me = psutil.Process()
    return threading.active_count(), me.num_fds(), len(me.net_connections("all"))


def run_jobs(session: LazySpark, work: LogWork, jobs: int) -> None:
    """That many jobs, and the end of the resident one."""
    for _ in range(jobs):
        (indexed,), _ = run(session, [work], AMPLE, write=False)
        assert indexed.error is None
    session.residents.end()
    gc.collect()


def assert_holds_no_more_than(before: tuple[int, int, int]) -> None:
    """Soon: a thread that has ended lets go of what it held. Less is right, too: what other tests had left open."""
    wait_until(
        lambda: (np.subtract(holdings(), before) <= 0).all(), 20, lambda: f"{holdings()}, {before} before"
    )


def test_jobs_leave_nothing_behind(spark: LazySpark, tmp_path: Path) -> None:
    """Threads, descriptors and sockets after 3 and after 30 jobs."""
    write_spread(tmp_path / "small-0", 8, 1, segments=1)
    work = plan(tmp_path, "small")
    run_jobs(spark, work, 3)
    threading.Event().wait(0.5)
    own = holdings()
    run_jobs(spark, work, 27)
    assert_holds_no_more_than(own)


def held_by_family(session: LazySpark) -> np.ndarray:
    """Rows of this process, the JVM, and all its Python workers together: threads, descriptors, MiB.

    Of the workers it is the memory of the largest: on a busy machine there may be one more of them. Of the JVM it is what is
    left in use after a collection: resident pages follow how much of its heap it has ever touched.
    """
    jvm = session.context()._jvm
    jvm.System.gc()
    memory = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    used = memory.getHeapMemoryUsage().getUsed() + memory.getNonHeapMemoryUsage().getUsed()
    me = psutil.Process()
    held = {"": np.zeros(3, np.int64), "java": np.zeros(3, np.int64), "workers": np.zeros(3, np.int64)}
    for one in (me, *me.children(recursive=True)):
        kind = "" if one == me else "java" if one.name() == "java" else "workers"
        held[kind][:2] += (one.num_threads(), one.num_fds())
        held[kind][2] = max(held[kind][2], one.memory_info().rss >> 20)
    held["java"][2] = used >> 20
    return np.array(list(held.values()))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_thousands_of_jobs_leave_nothing_behind(spark: LazySpark, tmp_path: Path) -> None:
    """What the limits of a unit, on tasks, descriptors and memory, would end some day; in any of the processes."""
    write_spread(tmp_path / "small-0", 8, 1, segments=1)
    work = plan(tmp_path, "small")
    run_jobs(spark, work, 3)
    threading.Event().wait(0.5)
    own = holdings()
    run_jobs(spark, work, JOBS // 3 - 3)
    assert_holds_no_more_than(own)
    # By now the JVM has compiled what it will, and remembers as many jobs as it ever does.
    before = held_by_family(spark)
    run_jobs(spark, work, JOBS - JOBS // 3)
    assert_holds_no_more_than(own)
    after = held_by_family(spark)
    print(f"{JOBS} jobs: {own}; {before.tolist()} after a third, then {after.tolist()}")
    # The JVM ends idle threads after a minute: how many there are follows the pace of the jobs.
    assert (after - before <= (100, 16, 64)).all(), (before, after)
