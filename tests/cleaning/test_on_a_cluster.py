"""`cleanerd clean` where Spark may be anywhere leaves the same bytes as on one machine."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from cleanerd.cleaning.result import LogResult, Progress
from cleanerd.format.names import FileKind, TopicPartition
from cleanerd.pipeline import small_log
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.resident_job import ResidentJob
from tests.harness.logs.troubled import assert_cleaned, clean, leave_to_nobody, segment, size_of, write_logs


@pytest.fixture(scope="module")
def cluster(spark: LazySpark) -> Iterator[LazySpark]:
    """A session that takes its tasks for those of other machines."""
    spark.stop()
    session = LazySpark("local[2,2]")
    yield session
    session.stop()


class Seen(Progress):
    """Logs that were planned and finished, in order."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str, str]] = []

    def planned(self, tp: TopicPartition, log_dir: str, total_bytes: int) -> None:
        assert total_bytes
        self.taken.append(("planned", str(tp), log_dir))

    def finished(self, result: LogResult) -> None:
        self.taken.append(("finished", str(result.topic_partition), result.log_dir))


@pytest.mark.soak
@pytest.mark.parametrize("is_small", [False, True])
def test_logs_of_several_directories_are_tasks_of_the_same_jobs(
    cluster: LazySpark, tmp_path: Path, is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three restored volumes, which have the same partitions: one progress, one report, one exit code."""
    monkeypatch.setattr(small_log, "SMALL_LOG_BYTES", 1 << 20 if is_small else 0)
    log_dirs = [write_logs(tmp_path / f"broker{node}", "a", "b") for node in range(3)]
    for log_dir in log_dirs:
        leave_to_nobody(log_dir)  # of one broker they would be two copies of a partition
    damaged = segment(log_dirs[1] / "a-0", 1)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    shared, seen, run = [], [Seen()], ResidentJob.run
    monkeypatch.setattr(ResidentJob, "run", lambda job, *step: shared.append(job) or run(job, *step))
    monkeypatch.setattr("cleanerd.cli.clean.progress_on", lambda _: nullcontext(seen.pop()))
    progress = seen[0]
    ran = clean(cluster, *log_dirs)
    assert ran.code == 1
    assert ran.results.keys() == {(log_dir.name, topic) for log_dir in log_dirs for topic in "ab"}
    assert "CRC" in ran.reason("a", "broker1")
    for log_dir, topic in ran.results.keys() - {("broker1", "a")}:
        assert_cleaned(ran, tmp_path / log_dir / f"{topic}-0")
    logs = {(f"{topic}-0", str(log_dir)) for log_dir in log_dirs for topic in "ab"}
    assert {(tp, log_dir) for what, tp, log_dir in progress.taken[:6] if what == "planned"} == logs
    assert {(tp, log_dir) for what, tp, log_dir in progress.taken[6:] if what == "finished"} == logs
    assert len(shared) == (1 if is_small else 3)  # index, resolve, rewrite
    assert len(set(shared)) == 1, "the steps share a job of Spark"


@pytest.mark.soak
def test_a_log_is_left_with_the_same_bytes(
    cluster: LazySpark, spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one task, and by tasks that exchange fingerprints through files of their hosts.

    The last of this file: it ends the session.
    """
    limits = {"one task": 1 << 20, "many": 0}
    directories = {
        (where, how): write_logs(tmp_path / f"{where} {how}", "a")
        for where in ("there", "here")
        for how in limits
    }
    for (where, how), log_dir in directories.items():
        if where == "here":
            cluster.stop()
        monkeypatch.setattr(small_log, "SMALL_LOG_BYTES", limits[how])
        assert_cleaned(clean(cluster if where == "there" else spark, log_dir), log_dir / "a-0")
    for how in limits:
        here, there = (directories[where, how] / "a-0" for where in ("here", "there"))
        assert size_of(here) == size_of(there)
        for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
            assert segment(here, 0, kind).read_bytes() == segment(there, 0, kind).read_bytes()
