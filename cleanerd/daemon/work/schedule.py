"""The order of jobs: first requested ones, then logs that are due; small logs of a log directory share a job."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

from cleanerd.cleaning.batching import in_jobs
from cleanerd.daemon.inventory.urgency import Due, DueReason
from cleanerd.daemon.values.job import Job
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import JobTrigger
from cleanerd.daemon.work.condition import Conditions
from cleanerd.daemon.work.jobs import Jobs

_TRIGGERS: dict[DueReason, JobTrigger] = {
    DueReason.MAX_LAG: "max lag",
    DueReason.RATIO: "schedule",
    DueReason.HORIZON: "horizon",
}


class Next(NamedTuple):
    """A job. Without one, `pause_s`: how long there will be none if nothing happens, log.cleaner.backoff.ms at most."""

    job: Job | None
    pause_s: float = 0.0


@dataclass
class Schedule:
    """Hands out jobs whose logs are in progress from that moment on."""

    conditions: Conditions
    jobs: Jobs

    def next(self) -> Next:
        """The most urgent job that may start."""
        job = self._requested()
        if job is not None:
            return Next(job)
        is_free = self._is_free()
        look = self.conditions.due_logs.look(is_free)
        job = self._due(look.due)
        if job is not None:
            return Next(job)
        backoff_ms, next_ms = self.conditions.configuration().broker.backoff_ms, look.next_ms(is_free)
        if next_ms is not None:
            backoff_ms = min(backoff_ms, max(next_ms - self.conditions.clock.now_ms(), 10))
        return Next(None, backoff_ms / 1000)

    def next_express(self) -> Job | None:
        """The most urgent job of reserved topics that have been due for too long; they come first among those due."""
        due = self.conditions.due_logs.look(self._is_free(), reserved_only=True).due
        return self._due([one for one in due[:1] if one.late_s is not None])

    def _requested(self) -> Job | None:
        """The oldest request that may begin; those before it, whose logs cannot be had now, wait behind all others."""
        begun, left = None, list[Job]()
        while begun is None and (job := self.jobs.next_requested()) is not None:
            barred = next(filter(None, map(self.conditions.states.obstacles.barred, job.logs)), None)
            if barred is not None:  # since it was requested
                self.jobs.end(job, ["failed"], barred)
                continue
            # a broker; it was not when the job was requested
            is_coming = self.conditions.ownership.is_yielding(job.logs[0].log_dir)
            taken = [] if is_coming else self.conditions.states.try_start_all(job.logs)
            if len(taken) == len(job.logs):
                begun = self.jobs.join(job, partial(self._taken_with, job))
            else:
                for log in taken:
                    self.conditions.states.done_cleaning(log)
                left.append(job)
        for job in left:
            self.jobs.postpone(job)
        return begun

    def _taken_with(self, job: Job, queued: Sequence[Job]) -> list[Job]:
        """Requests, of one log each, that fit beside one that begins: alike, and their logs are to be had."""
        kind = (job.logs[0].log_dir, job.force, job.roll)
        alike = (one for one in queued if (one.logs[0].log_dir, one.force, one.roll) == kind)
        together = next(in_jobs(chain([job], alike), lambda one: self._size_bytes(one.logs[0])))
        return [one for one in together[1:] if self.conditions.states.try_start_all(one.logs)]

    def _size_bytes(self, log: LogId) -> int:
        known = self.conditions.inventory.facts(log)
        return 0 if known is None else known.contents.size_bytes

    def _due(self, due: list[Due]) -> Job | None:
        """Start a job of the first due log, and of others that fit: same log directory, and same kind of reason."""
        if not due:
            return None
        kind = (due[0].log.log_dir, due[0].reason is DueReason.HORIZON)
        alike = (one for one in due if (one.log.log_dir, one.reason is DueReason.HORIZON) == kind)
        group = next(in_jobs(alike, lambda one: one.range.size_bytes))
        taken = set(self.conditions.states.try_start_all([one.log for one in group]))
        logs = [one.log for one in group if one.log in taken]
        return self.jobs.start(_TRIGGERS[group[0].reason], logs) if logs else None

    def _is_free(self) -> Callable[[LogId], bool]:
        """A predicate for one look at many logs: may this log be cleaned now? It looks once at each log directory."""
        obstacle = self.conditions.obstacle_of()
        return lambda log: self.conditions.states.is_free(log) and obstacle(log) is None
