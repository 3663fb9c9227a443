"""Work on many files in several processes. A file that kills its reader fails its own task alone."""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol, TypeVar

from cleanerd.env.cores import usable_cores


class _Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


_Task = TypeVar("_Task", bound=_Sized)
_Answer = TypeVar("_Answer")

ReadProgress = Callable[[int, int], None]
"""Called with (bytes of the files that are done, bytes of all)."""

INLINE_BYTES = 64 << 20
"""Up to here the processes would take longer to start than one needs for the work."""


def readers(tasks: Sequence[_Sized], processes: int | None = None) -> int:
    """How many processes read at once what `answers` is asked; `processes`: as there."""
    is_little = sum(task.size_bytes for task in tasks) <= INLINE_BYTES
    return 1 if is_little else max(1, min(processes or usable_cores(), len(tasks)))


def answers(
    function: Callable[[_Task], _Answer],
    tasks: Sequence[_Task],
    killed: Callable[[_Task], _Answer],
    processes: int | None = None,
    read: ReadProgress | None = None,
) -> dict[_Task, _Answer]:
    """Yield the result of `function` for each task, the largest first; little work is done in this process.

    `function` belongs to a module, which can be imported. `killed` answers for a task whose process died, also alone.
    `processes`: as many as there are cores by default. Raises what `function` raises.
    """
    tasks = sorted(tasks, key=lambda task: -task.size_bytes)
    total_bytes, done_bytes = sum(task.size_bytes for task in tasks), 0
    processes = readers(tasks, processes)
    ended: Iterator[tuple[_Task, _Answer]]
    if processes == 1:
        ended = ((task, function(task)) for task in tasks)
    else:
        ended = _in_processes(function, tasks, killed, processes)
    found = {}
    for task, answer in ended:
        found[task] = answer
        done_bytes += task.size_bytes
        if read is not None:
            read(done_bytes, total_bytes)
    return found


def _in_processes(
    function: Callable[[_Task], _Answer],
    tasks: Sequence[_Task],
    killed: Callable[[_Task], _Answer],
    processes: int,
) -> Iterator[tuple[_Task, _Answer]]:
    """The answers, in the order in which tasks end."""
    started = _started(function, processes)
    if started is None:
        yield from ((task, function(task)) for task in tasks)
        return
    lost: list[_Task] = []
    with started as pool:
        running: dict[Future[_Answer], _Task] = {}
        for task in tasks:
            try:
                running[pool.submit(function, task)] = task
            except BrokenProcessPool:
                lost.append(task)
        for future in as_completed(running):
            try:
                yield running[future], future.result()
            except BrokenProcessPool:
                lost.append(running[future])
    for task in lost:  # a process was killed, and the pool with it; the other tasks are not affected
        try:
            with _pool(function, 1) as pool:
                yield task, pool.submit(function, task).result()
        except BrokenProcessPool:
            yield task, killed(task)


def _started(function: Callable[[_Task], _Answer], processes: int) -> Executor | None:
    """A pool that works; None without shared memory, a directory for its sockets, or leave for more processes."""
    with contextlib.suppress(OSError, ImportError, EOFError, BrokenProcessPool):
        pool = _pool(function, processes)
        try:
            pool.submit(int).result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return pool
    return None


def _pool(function: Callable[[_Task], _Answer], processes: int) -> Executor:
    """Forked from a process that has loaded the kernels, never from this one with its threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__])
    pool = ProcessPoolExecutor(processes, mp_context=context)
    # All start with the first task. CPython 3.11 else starts one with a task that comes while it ends the others, because
    # one was killed, and waits for its end for ever.
    pool._safe_to_dynamically_spawn_children = False  # type: ignore[attr-defined]
    return pool
