"""A log that has no room beside its old segments as a whole is committed group by group, as Kafka swaps groups."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cleanerd.cleaning.clean import Cleaner, CleaningJob
from cleanerd.env.space import space_of
from cleanerd.format import names
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.harness.disks.mounts import mounted
from tests.harness.logs.troubled import (
    assert_settled,
    clean,
    contents,
    lock_of_another,
    newest,
    put,
    stop_broker,
)

SEGMENT_BYTES = 1_000_000
OPTIONS = (f"--topic-set=t:segment.bytes={SEGMENT_BYTES}", "--set=cleanerd.staged.min.free.ratio=0")
RECORDS = 12_000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A log directory on a file system with room for few segments beside those of its one log."""
    with tight(tmp_path / "small") as log_dir:
        yield log_dir


@contextmanager
def tight(log_dir: Path, topics: str = "t", size: str = "14m") -> Iterator[Path]:
    """Logs of twelve segments together, half of whose records are superseded, that nearly fill their file system."""
    log_dir.mkdir()
    with mounted(log_dir, "-t", "tmpfs", "-o", f"size={size}", "none"):
        ends = {}
        for topic in topics:
            keys = (b"hot" if number % 2 else b"key %d" % number for number in range(RECORDS // len(topics)))
            records = ((key, os.urandom(900)) for key in keys)
            ends[topic] = put(log_dir, topic, records, segment_bytes=SEGMENT_BYTES)
        stop_broker(log_dir, ends)
        yield log_dir


def test_what_does_not_fit_at_once_is_committed_group_by_group(
    spark: LazySpark, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint moves when all is done; a dry run tells what the whole takes."""
    rounds: list[int | None] = []
    write = Cleaner.write

    def counting(self: Cleaner, *args: object, **more: object) -> object:
        path = small / names.CLEANER_OFFSET_CHECKPOINT
        rounds.append(len(path.read_text().splitlines()) if path.exists() else None)
        return write(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Cleaner, "write", counting)
    free, before = space_of(str(small)).free_bytes, newest(small / "t-0")
    plan = clean(spark, small, options=[*OPTIONS, "--dry-run"]).results["small", "t"]
    assert free < plan["peak_extra_bytes"]
    ran = clean(spark, small, options=OPTIONS)
    result = ran.results["small", "t"]
    assert (ran.code, result["outcome"]) == (0, "committed")
    assert rounds == [None] * len(rounds), "the checkpoint stays until everything is committed"
    assert len(rounds) > 1
    assert newest(small / "t-0") == before
    assert_settled(small / "t-0")
    assert f"t 0 {result['end_offset']}" in (small / names.CLEANER_OFFSET_CHECKPOINT).read_text()
    assert result["removed"] == plan["removed"]
    assert (result["records_read"], result["records_kept"]) == (plan["records_read"], plan["records_kept"])
    assert (result["bytes_before"], result["bytes_after"]) == (plan["bytes_before"], plan["bytes_after"])


def test_a_dry_run_refuses_what_a_run_would_where_not_even_a_group_fits(
    spark: LazySpark, small: Path
) -> None:
    filler = small / "filler"
    filler.write_bytes(bytes(space_of(str(small)).free_bytes - SEGMENT_BYTES // 2))
    plan, ran = (clean(spark, small, options=[*OPTIONS, *more]) for more in (["--dry-run"], []))
    assert (plan.code, ran.code) == (1, 1)
    assert plan.reason("t", "small") == ran.reason("t", "small")
    assert "for its first group alone" in plan.reason("t", "small")
    filler.unlink()
    assert clean(spark, small, options=[*OPTIONS, "--dry-run"]).code == 0


def test_a_log_waits_for_the_room_that_the_commit_before_it_frees(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job is written while the one before it is staged and committed; what it has no room for is not cut by that."""
    asked, written = threading.Event(), list[int]()
    end, write = Cleaner.end, Cleaner.write

    def ending(self: Cleaner, of: CleaningJob) -> object:
        assert asked.wait(60), "the second log had room"
        return end(self, of)

    def counting(self: Cleaner, job: CleaningJob, **more: Any) -> CleaningJob:
        written.append(len(job.candidates))
        return write(self, job, **more)

    def waiting(futures: list[Future[Any]]) -> object:
        asked.set()
        return wait(futures)

    monkeypatch.setattr("cleanerd.policy.schedule.JOB_MAX_LOGS", 1)
    monkeypatch.setattr(Cleaner, "end", ending)
    monkeypatch.setattr(Cleaner, "write", counting)
    monkeypatch.setattr("cleanerd.cleaning.batching.wait", waiting)
    with tight(tmp_path / "small", "tu", "17m") as log_dir:
        options = [*OPTIONS, OPTIONS[0].replace("=t:", "=u:")]
        ran = clean(spark, log_dir, options=options)
        assert {ran.outcome(topic, "small") for topic in "tu"} == {"committed"}
        assert written == [1, 1], "neither needed a second round"


def test_beside_a_live_broker_a_log_that_does_not_fit_is_left_alone(spark: LazySpark, small: Path) -> None:
    """Nothing could be committed, so that no group would make room for the next."""
    before = contents(small / "t-0")
    with lock_of_another(small / names.LOCK):
        ran = clean(spark, small, options=OPTIONS)
    assert "are free on the file system of" in ran.reason("t", "small")
    assert contents(small / "t-0") == before
