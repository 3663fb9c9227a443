"""Workers that take one job after the other."""

from dataclasses import dataclass

from structlog.contextvars import bind_contextvars, unbind_contextvars

from cleanerd.daemon.loops.cleanings import Cleanings
from cleanerd.daemon.loops.scanner import Scanner
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.values.job import Job
from cleanerd.daemon.workers import Duty, Workers


class Cleaners:
    """As many workers as log.cleaner.threads, and the express one."""

    def __init__(self, parts: Parts, scanner: Scanner) -> None:
        self._parts = parts
        self._scanner = scanner
        self.cleanings = Cleanings(parts, parts.engine)
        express = Cleanings(parts, parts.express_engine, is_urgent=True)
        usual, urgent = _Usual(self, parts, self.cleanings), _Express(self, parts, express)
        self.workers = Workers(usual, urgent, parts.work_bell, parts.clock)

    def work(self, job: Job | None, pause_s: float, cleanings: Cleanings) -> float:
        """Do a job, after which the next one may begin at once; `pause_s` where there is none."""
        if job is None:
            return pause_s
        parts, job.worker = self._parts, self.workers.current()
        for log in job.logs:
            parts.metrics.wasted(log.log_dir, parts.inventory.staged_bytes(log))
        bind_contextvars(**job.fields())
        try:
            cleanings.run(job)
        finally:
            job.worker = None
        unbind_contextvars(*job.fields())  # not after an error: the line about the dead thread names its job
        self._scanner.refresh()
        return parts.configuration().broker.round_pause_s if parts.life.stopping.is_set() else 0.0


@dataclass(frozen=True, slots=True)
class _Usual(Duty):
    """Whatever is next."""

    cleaners: Cleaners
    parts: Parts
    cleanings: Cleanings

    def step(self) -> float:
        return self.cleaners.work(*self.parts.schedule.next(), self.cleanings)


class _Express(_Usual):
    """Reserved topics that have waited too long."""

    def step(self) -> float:
        pause_s = self.parts.configuration().broker.round_pause_s
        return self.cleaners.work(self.parts.schedule.next_express(), pause_s, self.cleanings)
