"""Which logs the next job has, and how long logs that are due wait for others to share one (rule 1.26).

A job costs some tenths of a second of CPU, however small its logs are. So small logs of a log directory share jobs. If none
has begun there for some time, those that are due begin at once; else they wait for others until then, but never where that
could do harm (`patience_ms`).
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

_T = TypeVar("_T")

JOB_MAX_BYTES = 256 << 20
JOB_MAX_LOGS = 256
SMALL_LOG_BYTES = 16 << 20
"""Up to this size one task cleans a log (architecture 4)."""
WAIT_MAX_MS = 60_000
"""However long log.cleaner.backoff.ms is: a muted log that has waited for five minutes is given back to the broker's cleaner
(`lease_duty.GRACE_S`)."""
AMPLE_BYTES = 1 << 30
"""With so much free space a file system can wait for what small logs free: if they have more than a full job, it begins."""


@dataclass(frozen=True, slots=True)
class Ready(Generic[_T]):
    """Work that may begin now. Work of one `kind` may share a job. `patience_ms`: how long it may wait for others."""

    work: _T
    kind: Hashable
    size_bytes: int
    patience_ms: int = 0


@dataclass(frozen=True, slots=True)
class Choice(Generic[_T]):
    """`begin`: the work of the next job, empty for none. `is_rest`: whether it leaves nothing of its kind behind.

    `waiting`: for how long other work waits at most, in ms.
    """

    begin: list[_T]
    is_rest: bool
    waiting: list[tuple[_T, int]]


def patience_ms(*, size_bytes: int, deadline_in_ms: int, is_wanted: bool, free_bytes: int) -> int:
    """How long a due log may wait for others: not at all if it is large, its disk is nearly full, or it `is_wanted` at once;
    and never past its deadline by max.compaction.lag.ms.

    `is_wanted`: somebody waits for it, or it is of a reserved topic.
    """
    if is_wanted or size_bytes > SMALL_LOG_BYTES or free_bytes < AMPLE_BYTES:
        return 0
    return max(deadline_in_ms, 0)


def choose(ready: Iterable[Ready[_T]], begun_ms: Mapping[Hashable, int], pause_ms: int) -> Choice[_T]:
    """Choose from what is ready, most urgent first.

    Of each kind a job begins once in `pause_ms`, and before that if there is more than one job holds, or one of its logs has
    no more patience; it takes all others along. What waits lets only small jobs of a less urgent kind go first: a large one
    may have the last worker for hours. `begun_ms`: how long ago a job of a kind last began that left nothing behind: so
    nothing waits for longer than `pause_ms`.
    """
    kinds: dict[Hashable, list[Ready[_T]]] = {}
    for one in ready:
        kinds.setdefault(one.kind, []).append(one)
    begin: list[_T] = []
    is_rest = False
    waiting: list[tuple[_T, int]] = []
    urgent: list[_T] = []  # the first that waits: one job has it all
    for kind, alike in kinds.items():
        jobs = in_jobs(alike, lambda one: one.size_bytes)
        job, is_more = next(jobs), next(jobs, None) is not None
        left_ms = min(pause_ms, WAIT_MAX_MS) - begun_ms.get(kind, WAIT_MAX_MS)
        left_ms = min(left_ms, *(one.patience_ms for one in alike))
        if left_ms > 0 and not is_more:
            waiting += [(one.work, left_ms) for one in alike]
            urgent = urgent or [one.work for one in alike]
        elif not begin and urgent and sum(one.size_bytes for one in job) > SMALL_LOG_BYTES:
            begin, is_rest, waiting = urgent, True, waiting[len(urgent) :]
        elif not begin:
            begin, is_rest = [one.work for one in job], not is_more
    return Choice(begin, is_rest, waiting)


def first_job(ready: Iterable[Ready[_T]]) -> list[_T]:
    """A job of the first, and of others of its kind that fit; empty if nothing is ready. Looks no further than it has to."""
    rest = iter(ready)
    first = next(rest, None)
    if first is None:
        return []
    alike = (one for one in rest if one.kind == first.kind)
    job = next(in_jobs(chain([first], alike), lambda one: one.size_bytes))
    return [one.work for one in job]


def in_jobs(logs: Iterable[_T], size_bytes: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Cut logs, most urgent first, into jobs of at most `JOB_MAX_BYTES` and `JOB_MAX_LOGS`.

    A log that is larger than that is a job of its own.
    """
    job: list[_T] = []
    size = 0
    for log in logs:
        log_bytes = size_bytes(log)
        if job and (size + log_bytes > JOB_MAX_BYTES or len(job) >= JOB_MAX_LOGS):
            yield job
            job, size = [], 0
        job.append(log)
        size += log_bytes
    if job:
        yield job
