"""Cleaning jobs: requested ones, running ones and their progress, the results of the last ones."""

import threading
from collections.abc import Sequence
from typing import Literal

from cleanerd.cleaning.outcomes import Superseded
from cleanerd.daemon.values.job import Job
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import JobTrigger, JobView
from cleanerd.env.clock import Clock
from cleanerd.policy.lease_duty import JobSeen

_REMEMBERED = 200
_OUTCOMES = ("failed", "aborted", Superseded.word, "staged", "committed", "unchanged")
"""The outcome of a job is the first of these that one of its logs had, else skipped."""


def rank(outcome: str) -> int:
    """The place of an outcome among those of a job, the worst of which is 0."""
    return _OUTCOMES.index(outcome) if outcome in _OUTCOMES else len(_OUTCOMES)


class Jobs:
    """All jobs; thread-safe. Requested jobs wait in a queue for a worker, others start at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._jobs: dict[str, Job] = {}
        self._queue: dict[Job, None] = {}  # the oldest first

    def request(self, logs: Sequence[LogId], *, force: bool, roll: bool = False) -> Job:
        """Queue a requested job."""
        with self._changed:
            job = self._add(Job("request", logs, force=force, roll=roll))
            self._queue[job] = None
            return job

    def requested(self) -> tuple[Job, ...]:
        """The jobs that wait for a worker, the oldest first."""
        with self._changed:
            return tuple(self._queue)

    def refuse(self, job: Job, outcome: str, reason: str) -> bool:
        """End a requested job that waits for a worker; False if it does no longer."""
        with self._changed:
            is_waiting = job in self._queue
            if is_waiting:
                self.end(job, [outcome], reason)
            return is_waiting

    def begin_requested(self, jobs: Sequence[Job]) -> Job | None:
        """Requested jobs begin as one: the first, whose ids those of the others are from now on. Without those that were
        refused meanwhile; None if none is left.
        """
        with self._changed:
            left = [one for one in jobs if one in self._queue]
            if not left:
                return None
            job, *others = left
            for one in left:
                del self._queue[one]
            job.logs += tuple(log for one in others for log in one.logs)
            self._jobs |= dict.fromkeys((one.id for one in others), job)
            return self._begin(job)

    def start(self, trigger: JobTrigger, logs: Sequence[LogId]) -> Job:
        """A job of the schedule; it begins now."""
        with self._changed:
            return self._begin(self._add(Job(trigger, logs, force=False)))

    def _begin(self, job: Job) -> Job:
        assert job.started_ms is None, "a job begins once"
        job.started_ms = self._clock.now_ms()
        self._changed.notify_all()
        return job

    def _add(self, job: Job) -> Job:
        self._jobs[job.id] = job
        now_ms = self._clock.now_ms()
        done = [
            job_id
            for job_id, old in self._jobs.items()
            if old.ended_ms is not None and not old.is_asked_for(now_ms)
        ]
        for job_id in done[: max(len(self._jobs) - _REMEMBERED, 0)]:
            del self._jobs[job_id]
        return job

    def plan(self, job: Job, log: LogId, total_bytes: int) -> None:
        """The next log that tasks report about."""
        with self._changed:
            job.planned.append(log)
            job.bytes_total += 2 * total_bytes  # indexed, then rewritten
            self._changed.notify_all()

    def planned_log(self, job: Job, number: int) -> LogId | None:
        """The log that tasks call `number`; it may become known a moment after their first report."""
        with self._changed:
            is_known = self._changed.wait_for(lambda: len(job.planned) > number, timeout=10)
            return job.planned[number] if is_known else None

    def advance(self, job: Job, phase: str, read_bytes: int, written_bytes: int, records: int) -> None:
        """A task moved so much more."""
        with self._changed:
            job.phase = phase
            job.read_bytes += read_bytes
            job.written_bytes += written_bytes
            job.records += records
            job.moved_ms = self._clock.now_ms()

    def work(self, job: Job) -> None:
        """A task did something that `advance` does not count."""
        with self._changed:
            job.moved_ms = self._clock.now_ms()

    def seen(self, log: LogId) -> JobSeen | None:
        """The job that is at work on a log, as `policy.lease_duty` looks at it."""
        with self._changed:
            job = self.of(log)
            if job is None or job.started_ms is None:
                return None
            now_ms, moved_ms = self._clock.now_ms(), job.moved_ms or job.started_ms
            took_s, still_s = (now_ms - job.started_ms) / 1000, (now_ms - moved_ms) / 1000
            return JobSeen(took_s, still_s, job.read_bytes, job.bytes_total)

    def end(self, job: Job, outcomes: Sequence[str], reason: str | None) -> None:
        """A job is done; `outcomes` of its logs."""
        with self._changed:
            assert job.ended_ms is None, "a job ends once"
            self._queue.pop(job, None)
            found = [outcome for outcome in _OUTCOMES if outcome in outcomes]
            job.outcome, job.reason = found[0] if found else "skipped", reason
            job.ended_ms = self._clock.now_ms()
            self._changed.notify_all()

    def wait(self, job_id: str, timeout_s: float) -> bool:
        """Whether the job ended in time. Raises KeyError for an unknown job."""
        with self._changed:
            job = self._jobs[job_id]
            return self._changed.wait_for(lambda: job.ended_ms is not None, timeout_s)

    def of(self, log: LogId) -> Job | None:
        """The job that waits or runs for a log."""
        with self._changed:
            return next((j for j in self._jobs.values() if j.ended_ms is None and log in j.logs), None)

    def logs(self) -> set[LogId]:
        """Logs for which a job waits or runs."""
        with self._changed:
            return {log for j in self._jobs.values() if j.ended_ms is None for log in j.logs}

    def running(self) -> list[Job]:
        """Jobs that run now."""
        with self._changed:
            running = (j for j in self._jobs.values() if j.started_ms is not None and j.ended_ms is None)
            return list(dict.fromkeys(running))

    def rates(self) -> tuple[float, float]:
        """Bytes per second that running jobs read and write, averaged since each began."""
        read = written = 0.0
        for job in self.running():
            seconds = max((self._clock.now_ms() - (job.started_ms or 0)) / 1000, 0.001)
            read += job.read_bytes / seconds
            written += job.written_bytes / seconds
        return read, written

    def view(self, job_id: str) -> JobView:
        """One job. Raises KeyError."""
        with self._changed:
            return self._view(self._jobs[job_id])

    def views(self) -> tuple[JobView, ...]:
        """All jobs that are remembered, newest last."""
        with self._changed:
            return tuple(map(self._view, dict.fromkeys(self._jobs.values())))

    def _view(self, job: Job) -> JobView:
        done, total = job.read_bytes, job.bytes_total or None
        rate = eta_s = None
        if job.started_ms is not None:
            seconds = ((job.ended_ms or self._clock.now_ms()) - job.started_ms) / 1000
            if seconds > 0 and job.records:
                rate = job.records / seconds
            if job.ended_ms is None and total and done and seconds > 0:
                eta_s = max(total - done, 0) * seconds / done
        state = _state(job)
        return JobView(
            id=job.id,
            trigger=job.trigger,
            state=state,
            logs=tuple(map(str, job.logs)),
            phase=job.phase if state == "running" else None,
            bytes_done=min(done, total) if total else done,
            bytes_total=total,
            records_per_s=rate,
            eta_s=eta_s,
            started_ms=job.started_ms,
            ended_ms=job.ended_ms,
            outcome=job.outcome,
            reason=job.reason,
        )


def _state(job: Job) -> Literal["queued", "running", "done"]:
    if job.ended_ms is not None:
        return "done"
    return "running" if job.started_ms is not None else "queued"
