"""Gives staged results to running brokers, one install after the other."""

from cleanerd.daemon.parts import Parts
from cleanerd.daemon.workers import Bell, Worker


class Installer:
    """Looks once a second, and goes on quickly with what is under way."""

    def __init__(self, parts: Parts) -> None:
        self._installs, self._clock = parts.installs, parts.clock
        self.worker = Worker("cleanerd-installer", self._step, parts.installs.pause_s, Bell(), parts.clock)

    def _step(self) -> bool:
        return self._installs.step(self.worker.beat)

    def finish(self, timeout_s: float) -> None:
        """Told to stop: bring what is under way to its end, or leave it to the next process in its journal.

        `timeout_s` is for both: the step that is under way, and those that follow.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        if self.worker.join(timeout_s):
            self._installs.close(deadline_s - self._clock.monotonic_s())
