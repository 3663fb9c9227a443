"""One Spark job that does step after step (`resident_job`): on a real session, its processes and its JVM killed."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import PythonException

from cleanerd.errors import JobFailed
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.messages import STOP, NextStep
from cleanerd.spark_runtime.resident_job import Gate, ResidentJob, TaskStep
from tests.daemon.processes import wait_until

_LIMIT_S = 60


@dataclass(frozen=True)
class Task:
    """`size_bytes` as a `task_queue` asks for it."""

    number: int
    size_bytes: int = 1


def step(
    count: int,
    do: Callable[[Task], Any] = lambda task: (task.number, os.getpid()),
    begun: Callable[[], object] = lambda: None,
) -> TaskStep:
    """`do` for each of so many tasks."""

    def run(tasks: Iterator[Task], _: object, __: object) -> Iterator[Any]:
        return (do(task) for task in tasks)

    return TaskStep([Task(n) for n in range(count)], run, nullcontext, begun)


def ask(gate: Gate, done: int) -> int:
    return gate.answer(NextStep(done)).number


def stuck(tmp_path: Path) -> Callable[[Task], None]:
    """A task that is not done before its end is seen to by a test."""

    def wait(_: Task) -> None:
        (tmp_path / "begun").touch()
        threading.Event().wait(_LIMIT_S)

    return wait


def until_stuck(tmp_path: Path) -> None:
    """Until such a task has begun."""
    wait_until((tmp_path / "begun").exists, _LIMIT_S, lambda: "no task")


def let_in(pool: ThreadPoolExecutor, gate: Gate) -> int:
    """The step that a task which waits gets when step 1 is opened."""
    waiting = pool.submit(ask, gate, 0)
    gate.open(1)
    return waiting.result(_LIMIT_S)


def test_a_task_waits_at_the_gate_for_a_step_that_it_has_not_done() -> None:
    """One that comes late joins the step that is going on; one that has done it waits for the next."""
    gate = Gate()
    with ThreadPoolExecutor(4) as pool:
        assert let_in(pool, gate) == 1
        assert ask(gate, 0) == 1, "late, but nothing has come back yet"
        again = pool.submit(ask, gate, 1)
        wait_until(lambda: not gate._is_open, _LIMIT_S, lambda: "open")
        stranger = pool.submit(ask, gate, 0)
        over = pool.submit(gate.wait)
        last = pool.submit(ask, gate, 1)
        assert over.result(_LIMIT_S), "both have come back"
        assert not any(one.done() for one in (again, stranger, last))
        gate.open(2)
        assert [one.result(_LIMIT_S) for one in (again, stranger, last)] == [2, 2, 2]


def test_a_gate_that_is_closed_stops_tasks_and_ends_the_wait() -> None:
    gate = Gate()
    with ThreadPoolExecutor(3) as pool:
        assert let_in(pool, gate) == 1
        over = pool.submit(gate.wait)
        gate.close()
        assert not over.result(_LIMIT_S), "it has not been done"
        assert gate.answer(NextStep(1)) == STOP


def test_steps_share_one_job_and_its_processes(spark: LazySpark) -> None:
    """Each task is answered once; the next cleaning finds the same processes."""
    workers: set[int] = set()
    jobs: list[ResidentJob] = []
    for _ in range(3):
        job = spark.residents.take(2)
        jobs.append(job)
        for count in (1, 7, 40):
            begun: list[bool] = []
            found = job.run(step(count, begun=lambda begun=begun: begun.append(True)))
            assert found is not None
            assert sorted(number for number, _ in found) == list(range(count))
            assert all(number == own for number, (own, _) in found)
            assert begun == [True]
            workers |= {worker for _, (_, worker) in found}
        spark.residents.give_back(job)
    assert jobs == jobs[:1] * 3
    assert len(workers) <= 2


def test_one_that_waits_is_let_go_for_another_spark_job(spark: LazySpark) -> None:
    """It would hold all cores; so is one that does not have as many tasks as a cleaning can use."""
    spark.residents.end()
    small = spark.residents.take(1)
    small.run(step(2))
    spark.residents.give_back(small)
    job = spark.residents.take(2)
    assert job is not small
    assert small.ended.result(_LIMIT_S) is None
    job.run(step(2))
    spark.residents.give_back(job)
    assert spark.run(lambda context: context.parallelize([1, 2], 2).count()) == 2
    assert job.ended.result(_LIMIT_S) is None


def test_two_cleanings_at_a_time_have_jobs_of_their_own(spark: LazySpark) -> None:
    """The second one has cores when the first one is through, which is not kept then."""
    first = spark.residents.take(2)
    first.run(step(4))
    second = spark.residents.take(2)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(second.run, step(4))
        spark.residents.give_back(first)
        assert len(found.result(_LIMIT_S) or []) == 4
    spark.residents.give_back(second)
    assert first.ended.result(_LIMIT_S) is None
    assert second.is_free


def test_workers_outlive_the_job(spark: LazySpark) -> None:
    """Spark ends those that leave rows unread: what they have loaded would be lost."""
    found: list[set[int]] = []
    for _ in range(3):
        job = spark.residents.take(1)
        found.append({worker for _, (_, worker) in job.run(step(1)) or []})
        spark.residents.give_back(job)
        spark.residents.end()
        assert job.ended.done()
    alive = [psutil.pid_exists(worker) for workers in found for worker in workers]
    assert all(alive)


def test_a_task_that_raises_fails_the_step(spark: LazySpark) -> None:
    """What is wrong with a log is an answer: this is a defect of ours. `pyspark.sql`, once imported, changes its type."""

    def fail(_: Task) -> None:
        raise ValueError("a defect")

    job = spark.residents.take(2)
    with pytest.raises((JobFailed, PythonException), match="thrown from the Python worker"):
        job.run(step(2, fail))
    spark.residents.give_back(job)
    assert not job.is_free
    other = spark.residents.take(2)
    assert other is not job
    spark.residents.give_back(other)


def test_a_worker_that_is_killed_fails_the_step(spark: LazySpark) -> None:
    """By the kernel, for want of memory."""

    def die(task: Task) -> None:
        if task.number == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    job = spark.residents.take(2)
    with pytest.raises(JobFailed):
        job.run(step(8, die))
    spark.residents.give_back(job)
    assert spark.run(lambda context: context.parallelize([1, 2], 2).count()) == 2


@pytest.mark.soak
def test_a_step_is_left_undone_when_the_jvm_is_lost(spark: LazySpark, tmp_path: Path) -> None:
    """None: who asked does it as a job of its own, in the next session."""
    gateway = spark.context()._gateway
    assert gateway is not None
    job = spark.residents.take(2)

    def kill() -> None:
        until_stuck(tmp_path)
        gateway.proc.kill()

    assert job.run(step(2, stuck(tmp_path), begun=kill)) is None
    spark.residents.give_back(job)
    assert job.ended.done()
    assert not spark.is_up
    assert spark.run(lambda context: context.parallelize([1, 2], 2).count()) == 2


@pytest.mark.soak
def test_one_whose_jvm_is_lost_while_it_waits_starts_none(spark: LazySpark) -> None:
    gateway = spark.context()._gateway
    assert gateway is not None
    job = spark.residents.take(2)
    job.run(step(2))
    spark.residents.give_back(job)
    gateway.proc.kill()
    wait_until(job.ended.done, _LIMIT_S, lambda: "not noticed")
    assert not spark.is_up
    other = spark.residents.take(2)
    assert other is not job
    assert len(other.run(step(2)) or []) == 2
    spark.residents.give_back(other)


def test_an_interrupted_step_is_cancelled(spark: LazySpark, tmp_path: Path) -> None:
    """Ctrl-C while this process waits: the cores are free soon, and the job is not kept."""

    def interrupt() -> None:
        until_stuck(tmp_path)
        raise KeyboardInterrupt

    job = spark.residents.take(2)
    with pytest.raises(KeyboardInterrupt):
        job.run(step(2, stuck(tmp_path), begun=interrupt))
    spark.residents.give_back(job)
    wait_until(job.ended.done, _LIMIT_S / 2, lambda: "still at it")
    assert spark.run(lambda context: context.parallelize([1, 2], 2).count()) == 2
