"""The next job: the oldest request that may begin, else logs that are due.

The rule is `policy.schedule`; here its facts are gathered, and its choice is carried out.
"""

import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cleanerd.daemon.inventory.due_logs import Look
from cleanerd.daemon.inventory.urgency import Due, DueReason
from cleanerd.daemon.values.job import Job
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import JobTrigger
from cleanerd.daemon.work.condition import Conditions
from cleanerd.daemon.work.jobs import Jobs
from cleanerd.env.space import space_of
from cleanerd.policy.schedule import Choice, Ready, choose, first_job, patience_ms

_TRIGGERS: dict[DueReason, JobTrigger] = {
    DueReason.MAX_LAG: "max lag",
    DueReason.RATIO: "schedule",
    DueReason.HORIZON: "horizon",
}


_AGAIN_S = 0.01
"""Shortest pause before another look."""


class Next(NamedTuple):
    """A job. Without one, `pause_s`: how long there will be none if nothing happens, log.cleaner.backoff.ms at most."""

    job: Job | None
    pause_s: float = 0.0


@dataclass
class Schedule:
    """Hands out jobs whose logs are in progress from that moment on; thread-safe.

    Workers choose one after the other. A choice looks at all disks, and one may hang: nobody else waits for it.
    """

    conditions: Conditions
    jobs: Jobs
    _choosing: threading.Lock = field(default_factory=threading.Lock)
    # When a job of a kind last began that left nothing behind; only read and written by who chooses.
    _begun_s: dict[Hashable, float] = field(default_factory=dict)
    _wanted: set[LogId] = field(default_factory=set)
    _until_ms: Mapping[LogId, int] = field(default_factory=dict)  # replaced as a whole

    def next(self) -> Next:
        """The most urgent job that may start."""
        with self._choosing:
            job = self._requested()
            if job is not None:
                return Next(job)
            is_free = self._is_free()
            look = self.conditions.due_logs.look(is_free)
            choice = self._choose(look.due)
            job = self._begin(choice.begin)
            if job is None and choice.begin:  # somebody else has taken it all: there may be more
                return Next(None, _AGAIN_S)
            if job is None:
                return Next(None, self._pause_s(look, choice, is_free))
            if choice.is_rest:
                self._begun_s[_kind(choice.begin[0])] = self.conditions.clock.monotonic_s()
            return Next(job)

    def next_express(self) -> Job | None:
        """The most urgent job of reserved topics that have been due for too long; they come first among those due."""
        due = self.conditions.due_logs.look(self._is_free(), reserved_only=True).due
        return self._begin([one for one in due[:1] if one.late_s is not None])

    def hurry(self, logs: Collection[LogId]) -> bool:
        """The next cleaning of these logs waits for no others: somebody waits for it.

        Whether a worker has to be woken: it may have chosen to wait a moment ago. So who waits for a log asks again.
        """
        self._wanted.update(filter(self.conditions.states.is_free, logs))  # else its cleaning has begun
        return any(self._chosen_until_ms(log) is not None for log in logs)

    def waits_until_ms(self, log: LogId) -> int | None:
        """Until when a due log waits for others to share a job, as was decided last; None if it does not, or no longer."""
        is_asked_for = log in self._wanted or self.jobs.of(log) is not None
        return None if is_asked_for else self._chosen_until_ms(log)

    def _chosen_until_ms(self, log: LogId) -> int | None:
        until_ms = self._until_ms.get(log, 0)
        is_left = until_ms > self.conditions.clock.now_ms() and self.conditions.states.is_free(log)
        return until_ms if is_left else None

    def _requested(self) -> Job | None:
        """The oldest request that may begin, with those like it; they wait behind no other. Ends those of barred logs."""
        for job in self.jobs.requested():
            barred = next(filter(None, map(self.conditions.states.obstacles.barred, job.logs)), None)
            if barred is not None:  # since it was requested
                self.jobs.refuse(job, "failed", barred)
        taken = [job for job in first_job(self._requests()) if self._take(job)]
        self._wanted.difference_update(log for job in taken for log in job.logs)
        begun = self.jobs.begin_requested(taken)
        for job in taken:
            if job.ended_ms is not None:  # aborted meanwhile
                self._give_back(job.logs)
        return begun

    def _requests(self) -> Iterator[Ready[Job]]:
        """Requests whose logs are to be had, the oldest first."""
        states, is_yielding = self.conditions.states, self.conditions.ownership.is_yielding
        for job in self.jobs.requested():
            log_dir = job.logs[0].log_dir
            # A broker may be coming there; it was not when the job was requested.
            if all(map(states.is_free, job.logs)) and not is_yielding(log_dir):
                size_bytes = sum(map(self._size_bytes, job.logs))
                yield Ready(job, (log_dir, job.force, job.roll), size_bytes)

    def _take(self, job: Job) -> bool:
        """Take all logs of a request, or none."""
        taken = self.conditions.states.try_start_all(job.logs)
        if len(taken) == len(job.logs):
            return True
        self._give_back(taken)
        return False

    def _give_back(self, logs: Iterable[LogId]) -> None:
        for log in logs:
            self.conditions.states.done_cleaning(log)

    def _size_bytes(self, log: LogId) -> int:
        known = self.conditions.inventory.facts(log)
        return 0 if known is None else known.contents.size_bytes

    def _choose(self, due: list[Due]) -> Choice[Due]:
        now_ms, now_s = self.conditions.clock.now_ms(), self.conditions.clock.monotonic_s()
        log_dirs = dict.fromkeys(one.log.log_dir for one in due)
        free_bytes = {log_dir: _free_bytes(log_dir) for log_dir in log_dirs}
        ready = [self._ready(one, free_bytes[one.log.log_dir]) for one in due]
        begun_ms = {kind: round(1000 * (now_s - begun_s)) for kind, begun_s in self._begun_s.items()}
        choice = choose(ready, begun_ms, self.conditions.configuration().broker.backoff_ms)
        self._until_ms = {one.log: now_ms + left_ms for one, left_ms in choice.waiting}
        return choice

    def _ready(self, due: Due, free_bytes: int) -> Ready[Due]:
        """A log that is due, and for how long it may wait."""
        topic, broker = due.log.topic_partition.topic, self.conditions.configuration().broker
        may_wait_ms = patience_ms(
            size_bytes=due.range.size_bytes,
            deadline_in_ms=due.deadline_ms - self.conditions.clock.now_ms(),
            is_wanted=due.log in self._wanted or topic in broker.reserved_topics,
            free_bytes=free_bytes,
        )
        return Ready(due, _kind(due), due.range.size_bytes, may_wait_ms)

    def _begin(self, due: list[Due]) -> Job | None:
        """Start a job of logs that are due, without those that somebody else has taken meanwhile."""
        taken = self.conditions.states.try_start_all([one.log for one in due])
        if not taken:
            return None
        self._wanted.difference_update(taken)
        return self.jobs.start(_TRIGGERS[due[0].reason], taken)

    def _pause_s(self, look: Look, choice: Choice[Due], is_free: Callable[[LogId], bool]) -> float:
        next_ms = look.next_ms(is_free)
        left_ms = [left_ms for _, left_ms in choice.waiting]
        if next_ms is not None:
            left_ms.append(next_ms - self.conditions.clock.now_ms())
        backoff_ms = self.conditions.configuration().broker.backoff_ms
        return min(backoff_ms / 1000, max(min(left_ms, default=backoff_ms) / 1000, _AGAIN_S))

    def _is_free(self) -> Callable[[LogId], bool]:
        """A predicate for one look at many logs: may this log be cleaned now? It looks once at each log directory."""
        obstacle = self.conditions.obstacle_of()
        return lambda log: self.conditions.states.is_free(log) and obstacle(log) is None


def _kind(due: Due) -> Hashable:
    """Logs that share a job have the same log directory, and the same kind of reason."""
    return due.log.log_dir, due.reason is DueReason.HORIZON


def _free_bytes(log_dir: str) -> int:
    """Free space of a log directory; 0 if nobody can tell."""
    try:
        return space_of(log_dir).free_bytes
    except OSError:
        return 0
