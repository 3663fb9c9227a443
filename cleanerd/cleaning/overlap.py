"""Overlapping jobs in one process: while one is written, the previous one is committed and the next one planned."""

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

_T = TypeVar("_T")
_Job = TypeVar("_Job")


class Ending(Generic[_T]):
    """The end of a job, in a thread of the pool: from `begin` on, or as soon as its `result` is asked for.

    It is not to be in the way of the next one, which the cores wait for.
    """

    def __init__(self, pool: ThreadPoolExecutor, end: Callable[[], _T]) -> None:
        self._pool = pool
        self._end = end
        self._future: Future[_T] | None = None

    def begin(self) -> "Future[_T]":
        """Only the first time."""
        self._future = self._future or self._pool.submit(self._end)
        return self._future

    def wait(self) -> None:
        """Until it is over, however it ended."""
        wait([self.begin()])

    def result(self) -> _T:
        """Raises what the end does."""
        return self.begin().result()


def one_ahead(
    plan: Callable[[_Job], _T], jobs: Iterable[_Job]
) -> "Generator[tuple[_Job, Future[_T]], None, None]":
    """Each job with its plan. While the caller is at one, the next one is planned."""
    with ThreadPoolExecutor(1, "cleanerd-plan") as pool:
        ready: list[tuple[_Job, Future[_T]]] = []
        for job in jobs:
            ready.append((job, pool.submit(plan, job)))
            if len(ready) > 1:
                yield ready.pop(0)
        yield from ready
