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

    def work(self, job: Job | None, cleanings: Cleanings) -> bool:
        """Do a job; whether the next one may begin at once."""
        if job is None:
            return False
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
        return not parts.life.stopping.is_set()


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
