"""Workers that take one job after the other."""

from structlog.contextvars import bind_contextvars, unbind_contextvars

from cleanerd.daemon.loops.cleanings import Cleanings
from cleanerd.daemon.loops.scanner import Scanner
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.values.job import Job
from cleanerd.daemon.workers import Workers


class Cleaners:
    """As many workers as log.cleaner.threads, and the express one."""

    def __init__(self, parts: Parts, scanner: Scanner) -> None:
        self._parts = parts
        self._scanner = scanner
        self.cleanings = Cleanings(parts, parts.engine)
        self._express_cleanings = Cleanings(parts, parts.express_engine, is_urgent=True)
        self.workers = Workers(self._step, self._express_step, parts.work_bell, parts.clock)

    def _step(self) -> float:
        return self.work(*self._parts.schedule.next(), self.cleanings)

    def _express_step(self) -> float:
        pause_s = self._parts.configuration().broker.round_pause_s
        return self.work(self._parts.schedule.next_express(), pause_s, self._express_cleanings)

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
