"""Cleaner threads: N that take the most urgent job, and one for reserved topics that have waited too long.

A thread that dies is started again after a pause that doubles, and counted; Kafka's stay dead (7.16).
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from structlog.contextvars import bind_contextvars, clear_contextvars

from cleanerd.env.clock import Clock

_RESTART_PAUSE_S = 1.0
_RESTART_PAUSE_MAX_S = 60.0
_WAIT_MAX_S = threading.TIMEOUT_MAX / 2
"""No thread can wait for as long as the largest value of a key in ms."""
_log = structlog.get_logger("cleanerd")


@dataclass(slots=True)
class Life:
    """The daemon's progress between start and stop."""

    started_s: float
    is_ready: bool = False
    stopping: threading.Event = field(default_factory=threading.Event)


class Bell:
    """Wakes threads that wait for something to do."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._rings = 0

    def ring(self) -> None:
        """Wake everybody who waits."""
        with self._condition:
            self._rings += 1
            self._condition.notify_all()

    def rings(self) -> int:
        """How often it rang. Read this before looking for work, and pass it to `wait`, so that no ring is missed."""
        return self._rings

    def wait(self, seen: int, timeout_s: float) -> bool:
        """Wait until it has rung more than `seen` times; False after `timeout_s`."""
        with self._condition:
            return self._condition.wait_for(lambda: self._rings > seen, min(timeout_s, _WAIT_MAX_S))


@dataclass(frozen=True, slots=True)
class Bells:
    """Bells that changes ring: `work` workers, for there may be something to clean; `commit` whoever commits staged results;
    `progressed` requests that wait until a log is cleaned, committed or gone.
    """

    work: Bell = field(default_factory=Bell)
    commit: Bell = field(default_factory=Bell)
    progressed: threading.Condition = field(default_factory=threading.Condition)


class Worker:
    """A thread that does its `step` again and again.

    A step returns how long to pause then (7.2), in seconds, and soon after the daemon is asked to stop.
    """

    def __init__(self, name: str, step: Callable[[], float], bell: Bell, clock: Clock) -> None:
        self.name = name
        self.is_busy = False
        self.is_dead = False  # until it is started again
        self.deaths = 0
        self.step = step
        self._bell = bell
        self._clock = clock
        self._stopping = threading.Event()
        self._revived = threading.Event()
        self._beat_s = clock.monotonic_s()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Do nothing more after the step that is under way."""
        self._stopping.set()
        self._revived.set()
        self._bell.ring()

    def revive(self) -> None:
        """Restart a dead thread at once, without its pause (7.18)."""
        if self.is_dead:
            self._revived.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; False after `timeout_s`."""
        if self._thread.is_alive():
            self._thread.join(min(timeout_s, _WAIT_MAX_S))
        return not self._thread.is_alive()

    def beat(self) -> None:
        """Show that the thread is alive; called with every report of its tasks."""
        self._beat_s = self._clock.monotonic_s()

    def silent_s(self) -> float:
        """Seconds since the thread last showed life: 0 while it waits for work, infinite if it ended by itself."""
        if self._thread.ident is not None and not self._thread.is_alive() and not self._stopping.is_set():
            return math.inf
        return self._clock.monotonic_s() - self._beat_s if self.is_busy else 0.0

    def _run(self) -> None:
        pause_s = _RESTART_PAUSE_S
        while not self._stopping.is_set():
            began_s = self._clock.monotonic_s()
            clear_contextvars()  # its work at the time of its death, which `worker_died` logs
            bind_contextvars(worker=self.name)
            try:
                self._loop()
            except Exception:  # noqa: BLE001  # the boundary of a thread: it is started again
                self.deaths += 1
                self.is_dead = True
                _log.exception("worker_died", deaths=self.deaths, restart_in_s=pause_s)
                self._revived.wait(pause_s)
                self._revived.clear()
                self.is_dead = False
                lived_s = self._clock.monotonic_s() - began_s
                is_old = lived_s > _RESTART_PAUSE_MAX_S
                pause_s = _RESTART_PAUSE_S if is_old else min(2 * pause_s, _RESTART_PAUSE_MAX_S)

    def _loop(self) -> None:
        while not self._stopping.is_set():
            seen = self._bell.rings()
            self.is_busy = True
            self.beat()
            try:
                pause_s = self.step()
            finally:
                self.is_busy = False
            self._bell.wait(seen, pause_s)


class Workers:
    """The cleaner threads: log.cleaner.threads of them, and the express one."""

    def __init__(
        self, step: Callable[[], float], express_step: Callable[[], float], bell: Bell, clock: Clock
    ) -> None:
        self._step = step
        self._bell = bell
        self._clock = clock
        self._mutex = threading.Lock()
        self._deaths_of_gone = 0
        self._workers: list[Worker] = []
        self._express = Worker("cleanerd-worker-express", express_step, bell, clock)

    def start(self, count: int) -> None:
        """Start them."""
        self._express.start()
        self.resize(count)

    def resize(self, count: int) -> None:
        """Change the number of workers (7.18). One that goes finishes its job first; dead ones start again at once."""
        with self._mutex:
            for worker in (*self._workers, self._express):
                worker.revive()
            while len(self._workers) > count:
                gone = self._workers.pop()
                gone.stop()
                self._deaths_of_gone += gone.deaths
            for number in range(len(self._workers), count):
                worker = Worker(f"cleanerd-worker-{number}", self._step, self._bell, self._clock)
                worker.start()  # if that raises, there is none
                self._workers.append(worker)

    def stop(self) -> None:
        """Stop all threads."""
        for worker in self.all():
            worker.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of all workers; False after `timeout_s`."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        ended = [worker.join(max(deadline_s - self._clock.monotonic_s(), 0)) for worker in self.all()]
        return all(ended)

    def all(self) -> list[Worker]:
        """Every worker."""
        with self._mutex:
            return [*self._workers, self._express]

    def current(self) -> Worker | None:
        """The worker whose thread this is."""
        name = threading.current_thread().name
        return next((worker for worker in self.all() if worker.name == name), None)

    @property
    def deaths(self) -> int:
        """How often one died, since the start."""
        return self._deaths_of_gone + sum(worker.deaths for worker in self.all())
