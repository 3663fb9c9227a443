"""Several processes: every task has its answer, and one that kills its reader takes no other along."""

import errno
import os
import signal
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest

from cleanerd.tools.insight import processes
from cleanerd.tools.insight.processes import answers

MUCH_BYTES = processes.INLINE_BYTES + 1


class Task(NamedTuple):
    number: int
    size_bytes: int = MUCH_BYTES


def double(task: Task) -> int:
    """-1 kills the process that works on it."""
    if task.number == -1:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * task.number


def of_negative(task: Task) -> int:
    assert task.number == -1
    return 1000


@pytest.mark.parametrize(("size_bytes", "count"), [(0, 2), (MUCH_BYTES, 1), (MUCH_BYTES, 2)])
def test_each_task_has_its_answer(size_bytes: int, count: int) -> None:
    tasks = [Task(number, size_bytes) for number in (3, 1, 2)]
    assert answers(double, tasks, of_negative, count) == {task: 2 * task.number for task in tasks}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("_", range(3))
def test_a_killed_process_costs_its_own_task_only(_: int) -> None:
    """Whenever it is killed: also while tasks are still being handed over."""
    tasks = [Task(number) for number in range(-1, 20)]
    found = answers(double, tasks, of_negative, 2)
    assert found == {task: 1000 if task.number == -1 else 2 * task.number for task in tasks}


class Failing(ProcessPoolExecutor):
    """Whose first process cannot be started."""

    error: Exception

    def submit(self, *_: object) -> Future[Any]:  # type: ignore[override]
        raise self.error


@pytest.mark.parametrize("is_made", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("no directory for the sockets of processes"),
        ImportError("this platform lacks a functioning sem_open"),
        OSError(errno.EROFS, "no shared memory"),
        BlockingIOError(errno.EAGAIN, "no more processes"),
        EOFError("the server that forks has ended"),
        BrokenProcessPool("a process has ended"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_where_no_processes_can_be_had_the_work_is_done_here(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_made: bool
) -> None:
    """A read-only container, a small /dev/shm, a limit on processes: what only reads needs none of it."""
    pool = Failing(1)
    pool.error = error
    monkeypatch.setattr(processes, "_pool", Mock(return_value=pool) if is_made else Mock(side_effect=error))
    tasks = [Task(number) for number in (3, 1, 2)]
    assert answers(double, tasks, of_negative, 2) == {task: 2 * task.number for task in tasks}


def test_what_the_function_raises_is_passed_on() -> None:
    with pytest.raises(TypeError):
        answers(double, [Task(1), Task(None)], of_negative, 2)  # type: ignore[arg-type]
