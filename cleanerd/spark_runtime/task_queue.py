"""Which process does which task of a job on one machine: a free one takes the next from a file.

A task of Spark keeps its core waiting for 10 ms, and costs the JVM some ms of computing, so a job has few of them: one for
each core and GiB of log. Tasks are begun in the order that they have (`place` depends on it), and a process holds no more of
them than the one that it works on.
"""

import fcntl
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from cleanerd.storage.file_bytes import read_at

_Task = TypeVar("_Task")
_Answer = TypeVar("_Answer")
Numbered = Iterator[tuple[int, _Task]]
"""Tasks or answers, each with the number of the task in its job."""

TURN_BYTES = 1 << 30
"""Of log, for one task of Spark: then those of other jobs have their turn."""
_WORTH_A_CORE_BYTES = 4 << 20  # to begin costs a core some tens of ms
_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class TaskQueue:
    """Tasks in a file: int64 the number of the next one, the position of each and the end; then the tasks, pickled."""

    path: str
    count: int

    @staticmethod
    def of(directory: str, tasks: Sequence[Any]) -> "TaskQueue":
        """A new one; nothing has been taken. Raises OSError."""
        path = os.path.join(directory, "tasks")
        numbers = np.zeros(len(tasks) + 2, np.int64)
        with open(path, "xb") as file:
            file.seek(numbers.nbytes)
            for number, task in enumerate(tasks, 1):
                numbers[number] = file.tell()
                pickle.dump(task, file, pickle.HIGHEST_PROTOCOL)
            numbers[-1] = file.tell()
            file.seek(0)
            file.write(numbers.data)
        return TaskQueue(path, len(tasks))

    def take(self, turn_bytes: float) -> Numbered[Any]:
        """The next task, again and again: until none is left, or those that were taken have `turn_bytes`. Raises OSError."""
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            while turn_bytes > 0 and (number := self._next(fd)) < self.count:
                start, end = read_at(fd, (1 + number) * _WORD_BYTES, 2 * _WORD_BYTES).view(np.int64).tolist()
                task = pickle.loads(read_at(fd, start, end - start).data)  # noqa: S301 - a file of this session's own
                turn_bytes -= task.size_bytes
                yield number, task
        finally:
            os.close(fd)

    def _next(self, fd: int) -> int:
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            (number,) = read_at(fd, 0, _WORD_BYTES).view(np.int64).tolist()
            os.pwrite(fd, np.int64(number + 1).tobytes(), 0)
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
        return int(number)


def turns(tasks: Sequence[Any], cores: int) -> list[float]:
    """For each task of Spark, after how many bytes of tasks it ends; the last of each core goes on to the end."""
    size_bytes = sum(task.size_bytes for task in tasks)
    count = spark_tasks(len(tasks), size_bytes, cores, cores)
    turn_bytes = -(-size_bytes // count)
    return [turn_bytes if number < count - cores else np.inf for number in range(count)]


def spark_tasks(tasks: int, size_bytes: int, wanted: int, cores: int) -> int:
    """`wanted`, fewer where each has too little to do, more where each would have more than its turn."""
    count = max(min(wanted, -(-size_bytes // _WORTH_A_CORE_BYTES)), -(-size_bytes // TURN_BYTES), 1)
    if count > cores:
        count = -(-count // cores) * cores  # else the last round leaves cores idle
    return max(min(tasks, count), 1)


def numbered(
    tasks: Iterable[tuple[int, _Task]], step: Callable[[Iterator[_Task]], Iterable[_Answer]]
) -> Iterator[tuple[int, _Answer]]:
    """Answer of `step` to each task, in order, with the number of the task."""
    numbers: list[int] = []

    def unnumbered() -> Iterator[_Task]:
        for number, task in tasks:
            numbers.append(number)
            yield task

    for at, answer in enumerate(step(unnumbered())):
        yield numbers[at], answer
