"""Which process does which task of a job on one machine: a free one takes the next from a file.

A task of Spark keeps its core waiting for 10 ms, and costs the JVM some ms of computing, so a job has few of them: one for
each core and GiB of log. Tasks are begun in the order that they have (`place` depends on it), and a process holds no more of
them than the one that it works on.
"""

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import RawIOBase
from typing import Any, TypeVar

import numpy as np

from cleanerd.errors import naming
from cleanerd.storage.file_bytes import read_at

_Task = TypeVar("_Task")
_Answer = TypeVar("_Answer")
Numbered = Iterator[tuple[int, _Task]]
"""Tasks or answers, each with the number of the task in its job."""

TURN_BYTES = 1 << 30
"""Of log, for one task of Spark: then those of other jobs have their turn."""
_WORTH_A_CORE_BYTES = 4 << 20  # to begin costs a core some tens of ms
_WORD_BYTES = 8
_TAKEN = ".taken"


@dataclass(frozen=True, slots=True)
class TaskQueue:
    """Tasks in a file: int64 the position of each and the end; then the tasks, pickled.

    Beside it a file with a byte for each task that was taken. Who appends one learns its place, which is the number of the
    task; the kernel makes that one step, also where a file system knows no locks.
    """

    path: str
    count: int

    @staticmethod
    def of(directory: str, tasks: Sequence[Any]) -> "TaskQueue":
        """A new one; nothing has been taken. Raises OSError."""
        path = os.path.join(directory, "tasks")
        numbers = np.zeros(len(tasks) + 1, np.int64)
        with open(path, "xb") as file:
            file.seek(numbers.nbytes)
            for number, task in enumerate(tasks):
                numbers[number] = file.tell()
                pickle.dump(task, file, pickle.HIGHEST_PROTOCOL)
            numbers[-1] = file.tell()
            file.seek(0)
            file.write(numbers.data)
        open(f"{path}{_TAKEN}", "xb").close()
        return TaskQueue(path, len(tasks))

    def take(self, turn_bytes: float) -> Numbered[Any]:
        """The next task, again and again: until none is left, or those that were taken have `turn_bytes`. Raises OSError."""
        with open(self.path, "rb") as file, open(f"{self.path}{_TAKEN}", "ab", 0) as taken:
            fd = file.fileno()
            while turn_bytes > 0 and (number := self._next(taken)) < self.count:
                start, end = read_at(fd, number * _WORD_BYTES, 2 * _WORD_BYTES).view(np.int64).tolist()
                task = pickle.loads(read_at(fd, start, end - start).data)  # noqa: S301 - a file of this session's own
                turn_bytes -= task.size_bytes
                yield number, task

    def _next(self, taken: RawIOBase) -> int:
        with naming(f"{self.path}{_TAKEN}"):
            taken.write(b".")
        return taken.tell() - 1


def turns(tasks: Sequence[Any], cores: int) -> list[float]:
    """Bytes of work after which each Spark task ends; the last task of each core goes on to the end."""
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
