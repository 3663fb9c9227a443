"""`cleanerd clean` obeys the limits that the daemon obeys: I/O, size of jobs, what may wait staged beside a broker."""

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cleanerd.cleaning.batching import Ending
from cleanerd.cleaning.choose import Candidate
from cleanerd.cleaning.clean import NOBODYS, Cleaner, CleaningJob, Owned
from cleanerd.cleaning.result import LogResult
from cleanerd.format import names
from cleanerd.format.uuid_text import render_uuid
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.scan import Checkpoints
from tests.harness.disks.hooked import HookedFiles
from tests.harness.logs.metadata import SAMPLE_ID, TOPIC, batch, config, log, topic
from tests.harness.logs.troubled import assert_cleaned, clean, contents, lock_of_another, size_of, write_logs

BURST_S = 0.3


@pytest.mark.parametrize(
    ("key", "moved"),
    [
        ("log.cleaner.io.max.bytes.per.second", 2.0),  # index, rewrite; what is written is small
        ("cleanerd.io.max.read.bytes.per.second", 2.0),
        ("cleanerd.io.max.write.bytes.per.second", 0.02),
    ],
)
def test_limits_of_io_hold_for_a_one_shot_cleaning(
    key: str, moved: float, spark: LazySpark, tmp_path: Path
) -> None:
    """The log is read at least `moved` times (or written), so that it takes a second at least."""
    log_dir = write_logs(tmp_path / "logs", "good")
    clean(spark, write_logs(tmp_path / "warm", "good"))
    moved_bytes = int(moved * size_of(log_dir / "good-0") * 0.8)  # but for the active segment
    rate = moved_bytes / 1.0
    began_s = time.monotonic()
    ran = clean(spark, log_dir, options=[f"--set={key}={rate}"])
    assert time.monotonic() - began_s >= moved_bytes / rate - BURST_S
    assert_cleaned(ran, log_dir / "good-0")


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each log is a job of its own."""
    monkeypatch.setattr("cleanerd.policy.schedule.JOB_MAX_LOGS", 1)


@pytest.mark.parametrize(
    ("limit", "value", "jobs"), [("LOGS", 256, [3]), ("LOGS", 2, [2, 1]), ("BYTES", 1, [1, 1, 1])]
)
def test_logs_share_jobs_within_the_limits(
    limit: str, value: int, jobs: list[int], spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"cleanerd.policy.schedule.JOB_MAX_{limit}", value)
    found: list[int] = []
    plan = Cleaner.plan
    monkeypatch.setattr(
        Cleaner, "plan", lambda self, logs, *more: found.append(len(logs)) or plan(self, logs, *more)
    )
    log_dir = write_logs(tmp_path / "logs", "a", "b", "c")
    assert clean(spark, log_dir).code == 0
    assert found == jobs


def test_logs_of_owned_and_of_free_directories_share_a_job(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who owns a directory decides about the results of its own logs alone."""
    plans, plan = list[tuple[int, tuple[Owned, ...]]](), Cleaner.plan
    monkeypatch.setattr(
        Cleaner,
        "plan",
        lambda self, logs, *owned: plans.append((len(logs), owned)) or plan(self, logs, *owned),
    )
    owned, free = write_logs(tmp_path / "owned", "a"), write_logs(tmp_path / "free", "b")
    with lock_of_another(owned / names.LOCK):
        ran = clean(spark, owned, free)
    found = {topic: result["outcome"] for (_, topic), result in ran.results.items()}
    assert found == {"a": "staged", "b": "committed"}
    assert [(many, *map(set, of)) for many, of in plans] == [(2, {str(owned)})]


class Steps:
    """Who was planned, written and ended, whose tasks ran, in order; `(topic, is_owned)` of each plan."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, during_first: Callable[["Steps"], object]) -> None:
        self.taken: list[str] = []
        self.plans: list[tuple[str, bool]] = []
        self.changed = threading.Condition()
        plan, write, end = Cleaner.plan, Cleaner.write, Cleaner.end

        def planning(
            cleaner: Cleaner, logs: Sequence[Candidate], owned: Owned = NOBODYS, **more: Any
        ) -> CleaningJob:
            job = plan(cleaner, logs, owned, **more)
            with self.changed:
                self.plans.append((_topic(job), bool(owned)))
                self.taken.append(f"plan {_topic(job)}")
                self.changed.notify_all()
            return job

        def writing(cleaner: Cleaner, job: CleaningJob, *, before: Ending[Any]) -> CleaningJob:
            self.taken.append(f"write {_topic(job)}")
            if len(self.of("write")) == 1:
                during_first(self)
            begin = before.begin

            def told() -> object:
                self.taken.append(f"run {_topic(job)}")
                return begin()

            with monkeypatch.context() as patch:
                patch.setattr(before, "begin", told)
                return write(cleaner, job, before=before)

        def ending(cleaner: Cleaner, job: CleaningJob) -> list[LogResult]:
            self.taken += [f"end {one.snapshot.topic_partition.topic}" for one in job.candidates]
            return end(cleaner, job)

        monkeypatch.setattr(Cleaner, "plan", planning)
        monkeypatch.setattr(Cleaner, "write", writing)
        monkeypatch.setattr(Cleaner, "end", ending)

    def of(self, *kinds: str) -> list[str]:
        """Those of some kinds."""
        return [step for step in self.taken if step.startswith(kinds)]

    def wait_for_plans(self, count: int) -> None:
        """Until so many have been made."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.plans) >= count, timeout=60)


def _topic(job: CleaningJob) -> str:
    (candidate,) = job.candidates
    return candidate.snapshot.topic_partition.topic


@pytest.mark.usefixtures("one_by_one")
def test_a_job_is_committed_once_the_tasks_of_the_next_one_run(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they are prepared the cores wait for that; and while they run this process has little to do."""
    steps = Steps(monkeypatch, lambda _: None)
    log_dir = write_logs(tmp_path / "logs", "a", "b")
    ran = clean(spark, log_dir)
    assert {ran.outcome(topic) for topic in "ab"} == {"committed"}
    first, second = (topic for topic, _ in steps.plans)
    assert steps.of("write", "run", "end") == [
        f"write {first}",
        f"run {first}",
        f"write {second}",
        f"run {second}",
        f"end {first}",
        f"end {second}",
    ]


@pytest.mark.usefixtures("one_by_one")
def test_what_was_written_is_committed_when_the_next_job_is_interrupted(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However early: nothing of the next one has run."""
    write, written = Cleaner.write, []

    def writing(cleaner: Cleaner, job: CleaningJob, **more: Any) -> CleaningJob:
        if written:
            raise KeyboardInterrupt
        written.append(_topic(job))
        return write(cleaner, job, **more)

    monkeypatch.setattr(Cleaner, "write", writing)
    log_dir = write_logs(tmp_path / "logs", "a", "b")
    before = {topic: contents(log_dir / f"{topic}-0") for topic in "ab"}
    with pytest.raises(ValueError, match="Expecting value"):  # an interrupted command has no answer
        clean(spark, log_dir)
    for name in "ab":
        assert (contents(log_dir / f"{name}-0") != before[name]) == (name in written)


@pytest.mark.usefixtures("one_by_one")
def test_beside_a_live_broker_a_job_is_planned_when_its_turn_has_come(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan drops what waits staged; a limit may keep the job from staging anything in its place."""
    steps = Steps(monkeypatch, lambda _: None)
    log_dir = write_logs(tmp_path / "logs", "a", "b")
    with lock_of_another(log_dir / names.LOCK):
        ran = clean(spark, log_dir)
    first, second = (topic for topic, _ in steps.plans)
    assert steps.of("plan", "write") == [
        f"{kind} {one}" for one in (first, second) for kind in ("plan", "write")
    ]
    assert {ran.outcome(topic) for topic in "ab"} == {"staged"}


@pytest.mark.usefixtures("one_by_one")
def test_a_job_is_planned_again_for_a_broker_that_came_meanwhile(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is planned while the one before it is written. Again: with the room that is to be left to the broker, and as
    something that waits.
    """
    log_dir = write_logs(tmp_path / "logs", "a", "b")
    with ExitStack() as stack:

        def broker_comes(steps: Steps) -> None:
            steps.wait_for_plans(2)
            stack.enter_context(lock_of_another(log_dir / names.LOCK))

        steps = Steps(monkeypatch, broker_comes)
        ran = clean(spark, log_dir)
    (first, _), (second, _), *_ = steps.plans
    assert steps.plans == [(first, False), (second, False), (second, True)]
    assert {ran.outcome(topic) for topic in "ab"} == {"staged"}


def test_no_more_is_staged_beside_a_live_broker_than_it_allows(spark: LazySpark, tmp_path: Path) -> None:
    """Where nobody lives, nothing has to wait, and the limit is none."""
    limit = "cleanerd.staged.min.free.ratio=1"
    log_dir = write_logs(tmp_path / "logs", "good")
    before = contents(log_dir / "good-0")
    with lock_of_another(log_dir / names.LOCK):
        ran = clean(spark, log_dir, options=[f"--set={limit}"])
    assert (ran.code, ran.outcome("good")) == (1, "failed"), "no room is no success"
    assert "cleanerd.staged.min.free.ratio is 1.0" in str(ran.results["logs", "good"]["reason"])
    assert "cleanerd.commit.live=auto" in str(ran.results["logs", "good"]["remedy"])
    assert contents(log_dir / "good-0") == before
    assert_cleaned(clean(spark, log_dir, options=[f"--set={limit}"]), log_dir / "good-0")


@pytest.mark.parametrize(("min_free_ratio", "outcome"), [(0.0, "staged"), (1.0, "failed")])
def test_only_the_directory_of_the_live_broker_waits_for_it(
    spark: LazySpark, tmp_path: Path, min_free_ratio: float, outcome: str
) -> None:
    """Its logs begin in a job with those of a directory where nobody lives."""
    free, owned = write_logs(tmp_path / "free", "a"), write_logs(tmp_path / "owned", "b")
    with lock_of_another(owned / names.LOCK):
        ran = clean(spark, free, owned, options=[f"--set=cleanerd.staged.min.free.ratio={min_free_ratio}"])
    assert_cleaned(ran, free / "a-0")
    assert ran.outcome("b", "owned") == outcome


def test_a_directory_that_fails_has_one_result_for_each_log(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing more is done to it; the other one is cleaned."""
    good, bad = write_logs(tmp_path / "good", "a"), write_logs(tmp_path / "bad", "b")
    checkpoints = LogDir.checkpoints

    def fail(self: LogDir) -> Checkpoints:
        if self.path == str(bad):
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)
        return checkpoints(self)

    monkeypatch.setattr(LogDir, "checkpoints", fail)
    ran = clean(spark, good, bad)
    assert ran.results.keys() == {("good", "a"), ("bad", "b")}
    assert ran.outcome("b", "bad") == "failed"
    assert_cleaned(ran, good / "a-0")


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_directory_that_fails_while_it_is_listed_ends_nothing_in_the_others(
    spark: LazySpark, tmp_path: Path, fails_at: int
) -> None:
    """The disk works as long as it is asked whose it is."""
    good, bad = write_logs(tmp_path / "good", "a"), write_logs(tmp_path / "bad", "b")
    listed = list[str]()

    def fail(call: str, path: str) -> None:
        if (call, path) == ("list_names", str(bad)):
            listed.append(path)
            if len(listed) == fails_at:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    ran = clean(spark, good, bad, files=HookedFiles(fail), options=["--dry-run"])
    assert (ran.code, ran.outcome("", "bad"), ran.outcome("a", "good")) == (1, "failed", "planned")
    assert os.strerror(errno.EIO) in ran.reason("", "bad")


def node_of(log_dir: Path, number: int, *frames: bytes) -> Path:
    """Make it the directory of another node, in whose metadata log these frames are."""
    (log_dir / "meta.properties").write_text(f"version=1\ncluster.id=c\nnode.id={number}\n")
    log(log_dir / "__cluster_metadata-0", log_0=batch(0, [topic("a", SAMPLE_ID), *frames]))
    (log_dir / "a-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {render_uuid(SAMPLE_ID)}\n")
    return log_dir


@pytest.mark.parametrize("dry_run", [False, True])
def test_directories_of_several_nodes_are_cleaned_in_one_run(
    spark: LazySpark, tmp_path: Path, *, dry_run: bool
) -> None:
    """Each by what its own metadata log says; a node of which nothing is known has failed, alone."""
    first = node_of(write_logs(tmp_path / "first", "a"), 1)
    second = node_of(write_logs(tmp_path / "second", "a"), 2, config(TOPIC, "a", "cleanup.policy", "delete"))
    third = node_of(write_logs(tmp_path / "third", "a"), 3)
    damaged = third / "__cluster_metadata-0" / f"{0:020}.log"
    damaged.write_bytes(damaged.read_bytes()[:-3] + b"xyz" + batch(1, [topic("b", UUID(int=7))]))
    before = contents(second / "a-0"), contents(third / "a-0")
    options = ["--topic=a", *(["--dry-run"] if dry_run else [])]
    ran = clean(spark, first, second, third, options=options)
    assert ran.outcome("a", "second") == "skipped"
    assert "cleanup.policy" in str(ran.results["second", "a"]["reason"])
    assert str(damaged) in ran.reason("", "third")
    if dry_run:
        assert ran.outcome("a", "first") == "planned"
    else:
        assert_cleaned(ran, first / "a-0")
    assert before == (contents(second / "a-0"), contents(third / "a-0"))


def test_nothing_is_written_to_what_is_no_log_directory(spark: LazySpark, tmp_path: Path) -> None:
    """Application logs, or another engine's directory: no lock file lies there; the log directory beside is cleaned."""
    other = tmp_path / "other"
    (other / "t-0").mkdir(parents=True)
    (other / "t-0" / "0-1-v1.log").write_text("of another engine")
    (other / "server.log").write_text("started")
    before = {path: path.stat().st_mtime_ns for path in [other, *other.rglob("*")]}
    log_dir = write_logs(tmp_path / "logs", "good")
    ran = clean(spark, other, log_dir)
    assert {path: path.stat().st_mtime_ns for path in [other, *other.rglob("*")]} == before
    assert f"{other}: expected a log directory" in ran.told
    assert "found server.log, t-0\n" in ran.told
    assert ran.results.keys() == {("logs", "good")}
    assert_cleaned(ran, log_dir / "good-0")
