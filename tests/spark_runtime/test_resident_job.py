"""One Spark job that does step after step (`resident_job`): on a real session, its processes and its JVM killed."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import PythonException

from cleanerd.errors import JobFailed
from cleanerd.spark_runtime import resident_job
from cleanerd.spark_runtime.block_store import block_file
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.resident_job import Answers, ResidentJob, Steps, TaskStep, Work, _Pickles
from cleanerd.spark_runtime.shared_value import SentValue
from tests.harness.daemon.processes import wait_until
from tests.harness.spark.sessions import count, jvm_of, session

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

    def each(tasks: Iterator[Task], _: object, __: object) -> Iterator[Any]:
        return (do(task) for task in tasks)

    return TaskStep([Task(n) for n in range(count)], each, nullcontext, begun)


def plainly(step: TaskStep, directory: str, value: Any) -> Work:
    return Work(step.do, SentValue(value), partial(block_file, directory))


def run(job: ResidentJob, step: TaskStep) -> Answers | None:
    return job.run(step, plainly)


class Process:
    """The other end of a connection to `steps`."""

    def __init__(self, steps: Steps) -> None:
        self.connection, theirs = socket.socketpair()
        self.driver = _Pickles(self.connection)
        self.thread = threading.Thread(target=self._lead, args=(steps, theirs))
        self.thread.start()

    @staticmethod
    def _lead(steps: Steps, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            steps.lead(connection)

    def take(self) -> Any:
        """A task, with its number; None when none is left."""
        self.driver.send(None)
        return self.driver.receive()

    def hang_up(self) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def steps(*, repeated: bool) -> Iterator[tuple[Steps, Callable[[], Process], ThreadPoolExecutor]]:
    """Steps, what connects a process, and a pool for one who waits for answers."""
    hands_out, processes = Steps(repeated=repeated), list[Process]()

    def process() -> Process:
        processes.append(Process(hands_out))
        return processes[-1]

    with ThreadPoolExecutor(1) as pool:
        try:
            yield hands_out, process, pool
        finally:
            hands_out.close()
            for one in processes:
                one.hang_up()
                one.thread.join(_LIMIT_S)


def stuck(tmp_path: Path) -> Callable[[Task], None]:
    """A task that is not done before its end is seen to by a test."""

    def wait(_: Task) -> None:
        (tmp_path / "begun").touch()
        threading.Event().wait(_LIMIT_S)

    return wait


def until_stuck(tmp_path: Path) -> None:
    wait_until((tmp_path / "begun").exists, _LIMIT_S, lambda: "no task")


def test_a_process_waits_for_a_step_that_has_a_task_for_it() -> None:
    """One that comes late joins the step that is going on; one that has done it waits for the next."""
    with steps(repeated=False) as (hands_out, process, pool):
        early = process()
        found = pool.submit(hands_out.do, b"first", ["a", "b"], lambda: None)
        assert early.driver.receive() == b"first"
        assert early.take() == (0, "a")
        late = process()
        assert late.driver.receive() == b"first"
        assert late.take() == (1, "b")
        assert early.take() is None
        early.driver.send([(0, "A")])
        assert late.take() is None
        assert not found.done()
        late.driver.send([(1, "B")])
        assert sorted(found.result(_LIMIT_S) or []) == [(0, "A"), (1, "B")]
        late.hang_up()  # between two steps that is no loss
        again = pool.submit(hands_out.do, b"second", ["c"], lambda: None)
        assert early.driver.receive() == b"second"
        assert early.take() == (0, "c")
        early.driver.send([(0, "C")])
        assert again.result(_LIMIT_S) == [(0, "C")]


def test_steps_that_are_closed_let_processes_go() -> None:
    with steps(repeated=False) as (hands_out, process, pool):
        waiting, busy = process(), process()
        found = pool.submit(hands_out.do, b"step", ["a", "b"], lambda: None)
        assert busy.driver.receive() == waiting.driver.receive() == b"step"
        assert busy.take() == (0, "a")
        hands_out.close()
        assert found.result(_LIMIT_S) is None, "it has not been done"
        assert waiting.take() is None, "nothing is begun any more"
        waiting.driver.send([])
        assert waiting.driver.receive() is None, "no other step"


def test_a_task_that_ends_its_process_again_and_again_is_given_up() -> None:
    """It would end those of all executors; a job of its own shows why."""
    with steps(repeated=True) as (hands_out, process, pool):
        found = pool.submit(hands_out.do, b"step", ["a", "b"], lambda: None)
        for _ in range(4):
            assert not found.done()
            lost = process()
            lost.driver.receive()
            assert lost.take() == (0, "a")
            lost.hang_up()
            lost.thread.join(_LIMIT_S)
        assert found.result(_LIMIT_S) is None


def test_where_no_task_is_repeated_a_lost_process_is_the_end() -> None:
    """Another one would write where the first one has written."""
    with steps(repeated=False) as (hands_out, process, pool):
        found = pool.submit(hands_out.do, b"step", ["a", "b"], lambda: None)
        lost, other = process(), process()
        assert lost.driver.receive() == other.driver.receive() == b"step"
        assert lost.take() == (0, "a")
        lost.hang_up()
        assert found.result(_LIMIT_S) is None
        assert other.take() is None


def test_steps_share_one_job_and_its_processes(spark: LazySpark) -> None:
    """Each task is answered once; the next cleaning finds the same processes."""
    workers: set[int] = set()
    jobs: list[ResidentJob] = []
    for _ in range(3):
        job = spark.residents.take(2)
        jobs.append(job)
        for tasks in (1, 7, 40):
            begun: list[bool] = []
            found = run(job, step(tasks, begun=lambda begun=begun: begun.append(True)))
            assert found is not None
            assert sorted(number for number, _ in found) == list(range(tasks))
            assert all(number == own for number, (own, _) in found)
            assert begun == [True]
            workers |= {worker for _, (_, worker) in found}
        spark.residents.give_back(job)
    assert jobs == jobs[:1] * 3
    assert len(workers) <= 2


@pytest.mark.soak
def test_one_that_waits_is_let_go_for_another_spark_job(spark: LazySpark) -> None:
    """It would hold all cores; so is one that does not have as many tasks as a cleaning can use."""
    spark.residents.end()
    small = spark.residents.take(1)
    run(small, step(2))
    spark.residents.give_back(small)
    job = spark.residents.take(2)
    assert job is not small
    assert small.ended.result(_LIMIT_S) is None
    run(job, step(2))
    spark.residents.give_back(job)
    assert count(spark) == 2
    assert job.ended.result(_LIMIT_S) is None


def test_two_cleanings_at_a_time_have_jobs_of_their_own(spark: LazySpark) -> None:
    """The second one has cores when the first one is through, which is not kept then."""
    first = spark.residents.take(2)
    run(first, step(4))
    second = spark.residents.take(2)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(run, second, step(4))
        spark.residents.give_back(first)
        assert len(found.result(_LIMIT_S) or []) == 4
    spark.residents.give_back(second)
    assert first.ended.result(_LIMIT_S) is None
    assert second.is_free


@pytest.mark.soak
def test_workers_outlive_the_job(spark: LazySpark) -> None:
    """Spark ends those that leave rows unread: what they have loaded would be lost."""
    found: list[set[int]] = []
    for _ in range(3):
        job = spark.residents.take(1)
        found.append({worker for _, (_, worker) in run(job, step(1)) or []})
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
    with pytest.raises((JobFailed, PythonException), match="ValueError: a defect"):
        run(job, step(2, fail))
    spark.residents.give_back(job)
    assert not job.is_free
    other = spark.residents.take(2)
    assert other is not job
    spark.residents.give_back(other)


@pytest.mark.soak
def test_a_worker_that_is_killed_fails_the_step(spark: LazySpark) -> None:
    """By the kernel, for want of memory."""

    def die(task: Task) -> None:
        if task.number == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    job = spark.residents.take(2)
    with pytest.raises(JobFailed):
        run(job, step(8, die))
    spark.residents.give_back(job)
    assert count(spark) == 2


@pytest.mark.soak
def test_on_a_cluster_others_do_what_a_killed_worker_had_taken(spark: LazySpark, tmp_path: Path) -> None:
    def die(task: Task) -> int:
        if task.number == 3 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return task.number

    spark.stop()
    with session("local[2,4]") as own:
        job = own.residents.take(2)
        assert sorted(run(job, step(8, die)) or []) == [(n, n) for n in range(8)]
        assert (tmp_path / "died").exists()
        assert len(run(job, step(8)) or []) == 8, "it goes on"
        own.residents.give_back(job)


@pytest.mark.soak
def test_on_a_cluster_one_that_waits_is_let_go_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cores are for others, and executors that have nothing to do may be given back."""
    monkeypatch.setattr(resident_job, "_IDLE_S", 0.01)
    with session("local[1,2]") as own:
        job = own.residents.take(1)
        assert len(run(job, step(2)) or []) == 2
        own.residents.give_back(job)
        assert job.ended.result(_LIMIT_S) is None


@pytest.mark.soak
def test_too_much_for_all_processes_is_left_to_a_broadcast(
    spark: LazySpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_job, "_SENT_BYTES_MAX", 100)
    job = spark.residents.take(1)
    assert run(job, step(2)) is None
    assert job.is_free
    spark.residents.give_back(job)


@pytest.mark.soak
def test_a_step_is_left_undone_when_the_jvm_is_lost(spark: LazySpark, tmp_path: Path) -> None:
    """None: who asked does it as a job of its own, in the next session."""
    jvm = jvm_of(spark)
    job = spark.residents.take(2)

    def kill() -> None:
        until_stuck(tmp_path)
        jvm.kill()

    assert run(job, step(2, stuck(tmp_path), begun=kill)) is None
    spark.residents.give_back(job)
    assert job.ended.done()
    assert not spark.is_up
    assert count(spark) == 2


@pytest.mark.soak
def test_one_whose_jvm_is_lost_while_it_waits_starts_none(spark: LazySpark) -> None:
    jvm = jvm_of(spark)
    job = spark.residents.take(2)
    run(job, step(2))
    spark.residents.give_back(job)
    jvm.kill()
    wait_until(job.ended.done, _LIMIT_S, lambda: "not noticed")
    assert not spark.is_up
    other = spark.residents.take(2)
    assert other is not job
    assert len(run(other, step(2)) or []) == 2
    spark.residents.give_back(other)


def test_an_interrupted_step_is_cancelled(spark: LazySpark, tmp_path: Path) -> None:
    """Ctrl-C while this process waits: the cores are free soon, and the job is not kept."""

    def interrupt() -> None:
        until_stuck(tmp_path)
        raise KeyboardInterrupt

    job = spark.residents.take(2)
    with pytest.raises(KeyboardInterrupt):
        run(job, step(2, stuck(tmp_path), begun=interrupt))
    spark.residents.give_back(job)
    wait_until(job.ended.done, _LIMIT_S / 2, lambda: "still at it")
    assert count(spark) == 2
