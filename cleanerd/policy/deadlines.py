"""Whether logs are cleaned in time: earliest deadline first over all logs, with the available workers and rate.

A worker takes one log at a time and does not put it aside for another, as in the daemon (rules 1.23, 1.24). All times are
ms, rates bytes per second and worker.
"""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

_L = TypeVar("_L")

NEVER_MS = 2**63 - 1
READ_PER_BYTE, MOVED_PER_BYTE = 3, 4
"""At most, of a byte of log: it is read for the index and for the rewrite; what stays is written, and read back."""
_GRACE_MIN_MS, _GRACE_MAX_MS, _GRACE_SHARE = 60_000, 3_600_000, 100


@dataclass(frozen=True, slots=True)
class Work(Generic[_L]):
    """A log that is to be cleaned: `size_bytes` to read from `ready_ms` on, done by `deadline_ms` (`NEVER_MS`: whenever)."""

    log: _L
    size_bytes: int
    ready_ms: int
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Planned(Generic[_L]):
    """When a worker is expected to end it."""

    work: Work[_L]
    end_ms: int

    @property
    def is_late(self) -> bool:
        """Whether it misses its deadline."""
        return self.end_ms > self.work.deadline_ms


def duration_ms(size_bytes: int, bytes_per_s: float) -> int:
    """How long a worker takes for so much."""
    return math.ceil(size_bytes * 1000 / bytes_per_s)


def grace_ms(max_compaction_lag_ms: int) -> int:
    """How long after its deadline a log may wait for others: 1 % of the lag, a minute at least, an hour at most."""
    return min(max(_GRACE_MIN_MS, max_compaction_lag_ms // _GRACE_SHARE), _GRACE_MAX_MS)


def needed_bytes_per_s(works: Iterable[Work[_L]], now_ms: int) -> float:
    """The least rate, of all workers together, with which all of these are done in time; `math.inf` if one is late."""
    needed, size_bytes = 0.0, 0
    for work in sorted(works, key=lambda work: work.deadline_ms):
        if work.deadline_ms <= now_ms:
            return math.inf
        size_bytes += work.size_bytes
        needed = max(needed, size_bytes * 1000 / (work.deadline_ms - now_ms))
    return needed


def plan(
    works: Sequence[Work[_L]], *, now_ms: int, workers: int, bytes_per_s: float
) -> tuple[Planned[_L], ...]:
    """Simulate workers that take the ready log with the earliest deadline; returns the cleanings by their starts."""
    waiting = sorted(range(len(works)), key=lambda i: (works[i].ready_ms, i), reverse=True)
    free, clock_ms = [now_ms] * workers, now_ms
    ready: list[tuple[int, int, int]] = []
    planned: list[Planned[_L]] = []
    while waiting or ready:
        clock_ms = max(clock_ms, heapq.heappop(free))
        if not ready:
            clock_ms = max(clock_ms, works[waiting[-1]].ready_ms)
        while waiting and works[waiting[-1]].ready_ms <= clock_ms:
            i = waiting.pop()
            heapq.heappush(ready, (works[i].deadline_ms, works[i].ready_ms, i))
        work = works[heapq.heappop(ready)[-1]]
        end_ms = clock_ms + duration_ms(work.size_bytes, bytes_per_s)
        planned.append(Planned(work, end_ms))
        heapq.heappush(free, end_ms)
    return tuple(planned)


def ratio_reached_ms(
    clean_bytes: int, dirty_bytes: int, ratio: float, written_bytes_per_s: float, now_ms: int
) -> int:
    """When dirty over clean plus dirty bytes comes to exceed `ratio` if writing goes on; `NEVER_MS` if it does not."""
    if dirty_bytes > ratio * (clean_bytes + dirty_bytes):
        return now_ms
    if written_bytes_per_s <= 0 or ratio >= 1:
        return NEVER_MS
    missing_bytes = ratio * clean_bytes / (1 - ratio) - dirty_bytes
    after_ms = missing_bytes * 1000 / written_bytes_per_s
    return now_ms + math.floor(after_ms) + 1 if after_ms < NEVER_MS - now_ms else NEVER_MS
