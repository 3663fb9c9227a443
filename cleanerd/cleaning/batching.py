"""Jobs one behind the other: one that fails as a whole is repeated log by log. While one is written, the previous one is
committed and the next one planned. Which logs share a job: `policy.schedule`.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from cleanerd.errors import JobFailed

_T = TypeVar("_T")
_Log = TypeVar("_Log")
_Job = TypeVar("_Job")


def one_by_one(
    clean: Callable[[Sequence[_Log]], list[_T]],
    logs: Sequence[_Log],
    failed: Callable[[_Log, JobFailed], _T],
) -> list[_T]:
    """Call `clean` for all logs as one job; if that raises JobFailed, for each log alone.

    So a log that crashes its workers ends only its own cleaning; `failed` makes its result.
    """
    try:
        return clean(logs)
    except JobFailed as error:
        if len(logs) == 1:
            return [failed(logs[0], error)]
    return [result for log in logs for result in one_by_one(clean, [log], failed)]


class Ending(Generic[_T]):
    """The end of a job, in a thread of the pool: from `begin` on, or as soon as its `result` is asked for.

    It is not to be in the way of the next one, which the cores wait for.
    """

    def __init__(self, pool: ThreadPoolExecutor, end: Callable[[], _T]) -> None:
        self._pool = pool
        self._end = end
        self._future: Future[_T] | None = None

    def begin(self) -> "Future[_T]":
        """Start the end in the pool, once; returns its future."""
        self._future = self._future or self._pool.submit(self._end)
        return self._future

    def wait(self) -> None:
        """Wait for the end, whether it succeeds or fails."""
        wait([self.begin()])

    def result(self) -> _T:
        """Wait for the end and return its result; raises its errors."""
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
