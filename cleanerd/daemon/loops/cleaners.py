"""Workers that take one job after the other, and what follows from what becomes of each log."""

from dataclasses import dataclass, replace

from structlog.contextvars import bind_contextvars, unbind_contextvars

from cleanerd.cleaning.result import SUPERSEDED, LogResult
from cleanerd.daemon.loops.scanner import Scanner
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.values.job import Job
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.cleanings import Cleanings, JobWatcher
from cleanerd.daemon.workers import Duty, Worker, Workers

_EXAMINED_FOR_MS = 60_000
"""An exact examination may find what the files do not show, like an open transaction: look again then."""


class Cleaners(JobWatcher):
    """As many workers as log.cleaner.threads, and the express one."""

    def __init__(self, parts: Parts, scanner: Scanner) -> None:
        self._parts = parts
        self._scanner = scanner
        self._workers_of: dict[str, Worker] = {}  # who waits for a job, by its id
        self.cleanings = Cleanings(
            engine=parts.engine, states=parts.states, jobs=parts.jobs, throttle=parts.throttle, files=parts.files,
            configuration=parts.configuration, metrics=parts.metrics, clock=parts.clock,
            ownership=parts.ownership, wanted=parts.wanted, brokers=parts.brokers,
            watcher=self,
        )  # fmt: skip
        express = replace(self.cleanings, engine=parts.express_engine, is_urgent=True)
        usual, urgent = _Usual(self, parts, self.cleanings), _Express(self, parts, express)
        self.workers = Workers(usual, urgent, parts.work_bell, parts.clock)

    def work(self, job: Job | None, cleanings: Cleanings) -> bool:
        """Do a job; whether the next one may begin at once."""
        if job is None:
            return False
        parts, worker = self._parts, self.workers.current()
        if worker is not None:
            self._workers_of[job.id] = worker
        for log in job.logs:
            parts.metrics.wasted(log.log_dir, parts.inventory.staged_bytes(log))
        bind_contextvars(**job.fields())
        try:
            cleanings.run(job)
        finally:
            self._workers_of.pop(job.id, None)
        unbind_contextvars(*job.fields())  # not after an error: the line about the dead thread names its job
        self._scanner.refresh()
        return not parts.life.stopping.is_set()

    def beat(self, job: Job) -> None:
        """The tasks of a job report: the worker that waits for them lives."""
        worker = self._workers_of.get(job.id)
        if worker is not None:
            worker.beat()

    def cleaned(self, job: Job, log: LogId, result: LogResult) -> None:
        """What became of a log; it is still in progress."""
        parts = self._parts
        parts.inventory.touch_log(log)
        if (
            job.trigger != "horizon" or result.outcome != "skipped"
        ):  # else it is one of thousands after a start
            parts.metrics.cleaned(job.id, log, result)
            parts.events.cleaned(job, log, result)
        if result.outcome == "failed":
            self._failed(log, result)
        elif result.outcome not in ("aborted", SUPERSEDED):
            parts.failures.succeeded(log)
        self._note_examined(job, log, result)

    def _failed(self, log: LogId, result: LogResult) -> None:
        parts, config = self._parts, self._parts.configuration().broker
        failure = parts.failures.failed(log, result, parts.stamp(log), config, parts.clock.now_ms())
        if failure.is_uncleanable:
            parts.events.record_log("cleaning", "uncleanable", log, failure.reason, failures=failure.failures)

    def _note_examined(self, job: Job, log: LogId, result: LogResult) -> None:
        parts, now_ms = self._parts, self._parts.clock.now_ms()
        if result.outcome == SUPERSEDED:  # as soon as the log is seen to be another one, else after a pause
            parts.due_logs.note_examined(log, now_ms + parts.configuration().broker.retry_backoff_ms)
        if result.outcome == "skipped" or (result.outcome == "unchanged" and result.reason):
            parts.due_logs.note_examined(log, now_ms + _EXAMINED_FOR_MS)
        if job.trigger in ("horizon", "request") and result.outcome == "skipped":
            parts.due_logs.note_horizon(log, result.next_horizon_ms)
        elif result.outcome in ("committed", "staged", "unchanged"):
            parts.due_logs.note_cleaned(log, parts.configuration().topic)


@dataclass(frozen=True, slots=True)
class _Usual(Duty):
    """Whatever is next."""

    cleaners: Cleaners
    parts: Parts
    cleanings: Cleanings

    def step(self) -> bool:
        return self.cleaners.work(self.parts.schedule.next(), self.cleanings)

    def pause_s(self) -> float:
        return self.parts.schedule.pause_s()


class _Express(_Usual):
    """Reserved topics that have waited too long."""

    def step(self) -> bool:
        return self.cleaners.work(self.parts.schedule.next_express(), self.cleanings)

    def pause_s(self) -> float:
        return self.parts.configuration().broker.round_pause_s
