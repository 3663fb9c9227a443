"""Commits staged results as soon as their log directory is free, or its broker can be asked to swap them."""

from cleanerd.daemon.loops.scanner import Scanner
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.workers import Worker


class Committer:
    """Tries whenever a lock or a staged result has changed, and every cleanerd.staged.commit.interval.ms."""

    def __init__(self, parts: Parts, scanner: Scanner) -> None:
        self._parts = parts
        self._scanner = scanner
        self.worker = Worker("cleanerd-committer", self.step, parts.commit_bell, parts.clock)

    def step(self) -> float:
        """One round."""
        parts = self._parts
        staged = parts.inventory.staged()
        ready = set(filter(parts.commits.may_commit, sorted({log.log_dir for log in staged})))
        staged = [log for log in staged if log.log_dir in ready]
        under_way = parts.jobs.logs()
        waiting = [log for log in staged if log not in under_way]
        if waiting:
            parts.commits.try_all(waiting, self._goes_on)
            self._scanner.refresh()
        is_waiting = bool(parts.inventory.staged())
        config = parts.configuration().broker
        return (config.staged_commit_interval_ms if is_waiting else config.scan_interval_ms) / 1000

    def _goes_on(self, log_dir: str) -> bool:
        return not (self._parts.life.stopping.is_set() or self._parts.ownership.is_yielding(log_dir))
