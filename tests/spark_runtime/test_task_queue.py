"""Each task of a job is done once, in order, by a process that is free, and others have their turn (architecture 4)."""

import multiprocessing
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cleanerd.spark_runtime import task_queue
from cleanerd.spark_runtime.task_queue import TaskQueue, numbered

TASKS = 2000
ENDLESS = float("inf")
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Sized:
    """A task that tells its number and how much log it stands for."""

    number: int
    size_bytes: int = 10
    weight: bytes = b""


def sized(count: int, size_bytes: int = 10) -> list[Sized]:
    return [Sized(number, size_bytes, bytes(number % 7)) for number in range(count)]


def take_all(queue: TaskQueue, connection: object) -> None:
    connection.send(list(queue.take(ENDLESS)))  # type: ignore[attr-defined]


def test_processes_share_the_tasks(tmp_path: Path) -> None:
    """None is left out, none is taken twice, and each process has its own in order."""
    queue = TaskQueue.of(str(tmp_path), sized(TASKS))
    pipes = [FORK.Pipe(duplex=False) for _ in range(4)]
    processes = [FORK.Process(target=take_all, args=(queue, sending)) for _, sending in pipes]
    for process in processes:
        process.start()
    taken = [receiving.recv() for receiving, _ in pipes]
    for process in processes:
        process.join()
    for own in taken:
        assert [number for number, _ in own] == sorted(number for number, _ in own)
        assert all(number == task.number for number, task in own)
    assert sorted(number for own in taken for number, _ in own) == list(range(TASKS))


def test_a_turn_ends_with_the_task_that_fills_it(tmp_path: Path) -> None:
    """So as many turns as have been counted on get through all tasks."""
    queue = TaskQueue.of(str(tmp_path), sized(10, size_bytes=10))
    assert [number for number, _ in queue.take(25)] == [0, 1, 2]
    assert [number for number, _ in queue.take(1)] == [3]
    assert list(queue.take(0)) == []
    assert [number for number, _ in queue.take(ENDLESS)] == [4, 5, 6, 7, 8, 9]
    assert list(queue.take(ENDLESS)) == []


def test_a_task_is_taken_when_it_is_asked_for(tmp_path: Path) -> None:
    """Not before: what one process has not begun is there for the others."""
    queue = TaskQueue.of(str(tmp_path), sized(3))
    slow = queue.take(ENDLESS)
    assert next(slow)[0] == 0
    assert [number for number, _ in queue.take(ENDLESS)] == [1, 2]
    assert list(slow) == []


def test_a_directory_that_is_full_is_named(tmp_path: Path) -> None:
    """Else the reason would blame the log that is cleaned."""
    queue = TaskQueue.of(str(tmp_path), sized(1))
    taken = tmp_path / "tasks.taken"
    taken.unlink()
    taken.symlink_to("/dev/full")
    with pytest.raises(OSError, match=re.escape(f"No space left on device: '{taken}'")):
        list(queue.take(ENDLESS))


def test_answers_carry_the_numbers_of_their_tasks() -> None:
    """Also those of a step that has taken several tasks before it answers the first."""

    def in_pairs(tasks: Iterator[str]) -> Iterable[str]:
        for task in tasks:
            yield from (f"{task}!", *(f"{other}!" for other in [next(tasks, None)] if other is not None))

    found = list(numbered([(3, "a"), (5, "b"), (6, "c")], in_pairs))
    assert found == [(3, "a!"), (5, "b!"), (6, "c!")]


@pytest.mark.parametrize(
    ("tasks", "size_bytes", "wanted", "expected"),
    [
        (100, 1 << 20, 2, 1),  # not worth a second core
        (100, 9 << 20, 2, 2),
        (1, 9 << 20, 2, 1),
        (100, task_queue.TURN_BYTES * 2, 2, 2),
        (100, task_queue.TURN_BYTES * 2 + 1, 2, 4),
        (3, task_queue.TURN_BYTES * 100, 2, 3),
    ],
)  # fmt: skip
def test_as_few_tasks_of_spark_as_give_others_their_turn(
    tasks: int, size_bytes: int, wanted: int, expected: int
) -> None:
    """A multiple of the cores, where there is more than one turn for each."""
    assert task_queue.spark_tasks(tasks, size_bytes, wanted, 2) == expected
