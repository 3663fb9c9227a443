"""Gives staged results to running brokers, one install after the other."""

from cleanerd.daemon.parts import Parts
from cleanerd.daemon.workers import Bell, Worker


class Installer:
    """Looks once a second, and goes on quickly with what is under way."""

    def __init__(self, parts: Parts) -> None:
        self._installs = parts.installs
        self.worker = Worker("cleanerd-installer", self._step, parts.installs.pause_s, Bell(), parts.clock)

    def _step(self) -> bool:
        return self._installs.step(self.worker.beat)

    def finish(self, timeout_s: float) -> None:
        """Told to stop: bring what is under way to its end, or leave it to the next process in its journal."""
        if self.worker.join(timeout_s):
            self._installs.close(timeout_s)
