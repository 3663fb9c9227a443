"""Staged results: committed as soon as the lock of their log directory is free, limited in number, dropped when stale."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cleanerd.cleaning.commit import commit_staged
from cleanerd.daemon.account import Account
from cleanerd.daemon.model import LogId
from cleanerd.daemon.operations import CommitView
from cleanerd.daemon.ownership import Ownership
from cleanerd.daemon.states import PartitionStates
from cleanerd.env.files import Files
from cleanerd.errors import Aborted, CleanerdError, LockHeld
from cleanerd.storage.scan import is_kafka_dir


@dataclass(frozen=True, slots=True)
class Commits:
    """Commits what waits; thread-safe. `mend` finishes or takes back a commit that went wrong."""

    states: PartitionStates
    ownership: Ownership
    account: Account
    files: Files
    touch: Callable[[LogId], None]
    mend: Callable[[LogId], None]

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
            self.touch(log)
            self.states.done_cleaning(log)

    def _commit(self, log: LogId) -> CommitView:
        try:
            round_end = commit_staged(
                self.files,
                log.log_dir,
                log.topic_partition,
                is_kafka=is_kafka_dir(self.files, log.log_dir),
                before=lambda: self.states.begin_commit(log),
            )
        except (LockHeld, Aborted) as error:
            pid = error.pid if isinstance(error, LockHeld) else None
            return _view(log, "waiting", str(error), pid)
        except CleanerdError as error:  # stale: it has been dropped
            self.account.log_event("commit", "dropped", log, str(error))
            return _view(log, "dropped", str(error))
        except OSError as error:
            self.mend(log)
            self.account.log_event("commit", "failed", log, str(error))
            return _view(log, "failed", str(error))
        if round_end is None:
            return _view(log, "nothing", None)
        self.account.log_event("commit", "committed", log, f"cleaned up to offset {round_end}")
        return _view(log, "committed", None)


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
