"""Staged results: committed as soon as the lock of their log directory is free, limited in number, dropped when stale."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from cleanerd.cleaning.commit import commit_staged
from cleanerd.cleaning.staging_limits import why_full
from cleanerd.config.model import CleanerdConfig
from cleanerd.daemon.inventory.inventory import Inventory
from cleanerd.daemon.telemetry.event_log import Account
from cleanerd.daemon.telemetry.metrics import Metrics
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import CommitView
from cleanerd.daemon.work.ownership import Ownership
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.env.files import Files
from cleanerd.errors import Aborted, CleanerdError, LockHeld
from cleanerd.storage.scan import is_kafka_dir
from cleanerd.storage.staged import staged_bytes


@dataclass(frozen=True, slots=True)
class Commits:
    """Commits what waits; thread-safe. `mend` finishes or takes back a commit that went wrong."""

    states: PartitionStates
    ownership: Ownership
    account: Account
    files: Files
    inventory: Inventory
    metrics: Metrics
    mend: Callable[[LogId], None]

    def staged_bytes(self, log_dir: str) -> int:
        """Bytes that wait in a log directory. Raises OSError."""
        return sum(
            staged_bytes(self.files, log.directory)
            for log in self.inventory.staged()
            if log.log_dir == log_dir
        )

    def full_dirs(self, log_dirs: Iterable[str], config: CleanerdConfig) -> dict[str, str]:
        """Log directories of live brokers in which nothing more may be staged, and why: their disks are not ours to fill."""
        full = {}
        for log_dir in log_dirs:
            if self.ownership.owner_of(log_dir) is None:
                continue
            try:
                reason = why_full(log_dir, partial(self.staged_bytes, log_dir), config)
            except OSError:
                continue  # the next scan takes it offline
            if reason is not None:
                full[log_dir] = reason
        return full

    def try_all(self, logs: Iterable[LogId]) -> list[CommitView]:
        """Commit all of these whose directory nobody owns now."""
        by_dir: dict[str, list[LogId]] = {}
        for log in logs:
            by_dir.setdefault(log.log_dir, []).append(log)
        views = []
        for log_dir, members in by_dir.items():
            views += self._try_dir(log_dir, sorted(members))
        return views

    def _try_dir(self, log_dir: str, logs: Sequence[LogId]) -> list[CommitView]:
        owner = self.ownership.owner_of(log_dir)
        if owner is None and self.ownership.mend(log_dir):
            return [self._try(log) for log in logs]
        return [_view(log, "waiting", f"{log_dir}: the lock is held", owner) for log in logs]

    def _try(self, log: LogId) -> CommitView:
        if not self.states.try_start(log):
            return _view(log, "waiting", f"the log is {self.states.state(log)}")
        try:
            return self._commit(log)
        finally:
            self.inventory.touch(log.log_dir, str(log.topic_partition))
            self.states.done_cleaning(log)

    def _commit(self, log: LogId) -> CommitView:
        try:
            with self.metrics.phase("commit"):
                round_end = commit_staged(
                    self.files,
                    log.log_dir,
                    log.topic_partition,
                    is_kafka=is_kafka_dir(self.files, log.log_dir),
                    before=lambda: self.states.begin_commit(log),
                    swapped=lambda group: self.metrics.swapped(log.log_dir, group),
                )
        except (LockHeld, Aborted) as error:
            pid = error.pid if isinstance(error, LockHeld) else None
            return _view(log, "waiting", str(error), pid)
        except CleanerdError as error:  # stale: it has been dropped
            self.account.dropped(log, str(error))
            return _view(log, "dropped", str(error))
        except OSError as error:
            self.mend(log)
            self.account.log_event("commit", "failed", log, str(error))
            return _view(log, "failed", str(error))
        if round_end is None:
            return self._already(log)
        self.account.committed(log, round_end)
        return _view(log, "committed", None)

    def _already(self, log: LogId) -> CommitView:
        """Somebody else was quicker: a client that waits hears what became of it all the same."""
        last = self.account.last(log)
        if last is None or last.outcome not in ("committed", "dropped"):
            return _view(log, "nothing", None)
        return _view(log, last.outcome, last.reason)


def _view(log: LogId, outcome: str, reason: str | None, pid: int | None = None) -> CommitView:
    tp = log.topic_partition
    return CommitView.model_validate(
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "log_dir": log.log_dir,
            "outcome": outcome,
            "reason": reason,
            "lock_owner_pid": pid,
        }
    )
