"""Commits staged results as soon as their log directory is free, or its broker can be asked to swap them."""

from dataclasses import dataclass

from cleanerd.daemon.loops.scanner import Scanner
from cleanerd.daemon.work.commits import Commits
from cleanerd.daemon.work.jobs import Jobs
from cleanerd.daemon.workers import Life


@dataclass(frozen=True, slots=True)
class CommitRounds:
    """Tries whenever a lock or a staged result has changed, and every cleanerd.staged.commit.interval.ms."""

    commits: Commits
    jobs: Jobs
    scanner: Scanner
    life: Life

    def step(self) -> float:
        """One round."""
        commits = self.commits
        staged = commits.inventory.staged()
        log_dirs = sorted({log.log_dir for log in staged})
        commits.ownership.observe(log_dirs)
        ready = set(filter(commits.may_commit, log_dirs))
        under_way = self.jobs.logs()
        waiting = [log for log in staged if log.log_dir in ready and log not in under_way]
        if waiting:
            commits.try_all(waiting, self._goes_on)
            self.scanner.refresh()
        is_waiting = bool(commits.inventory.staged())
        config = commits.configuration().broker
        return (config.staged_commit_interval_ms if is_waiting else config.scan_interval_ms) / 1000

    def _goes_on(self, log_dir: str) -> bool:
        return not (self.life.stopping.is_set() or self.commits.ownership.is_yielding(log_dir))
