"""Staged results: committed as soon as the lock of their log directory is free, limited in number, dropped when stale."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from cleanerd.cleaning.commit import Committed, TimeUp, Waiting, commit_waiting
from cleanerd.cleaning.staging_limits import why_full
from cleanerd.config.model import CleanerdConfig
from cleanerd.daemon.inventory.inventory import Inventory
from cleanerd.daemon.telemetry.event_log import EventLog
from cleanerd.daemon.telemetry.metrics import Metrics
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import CommitView
from cleanerd.daemon.work.ownership import Ownership
from cleanerd.daemon.work.slices import SliceSize, Weighed
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.daemon.work.wanted import Wanted
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.errors import (
    Aborted,
    CleanerdError,
    CorruptFile,
    DirOffline,
    LockHeld,
    SourceChanged,
)
from cleanerd.policy.lifecycle import Status
from cleanerd.storage.scan import is_kafka_dir

_log = structlog.get_logger("cleanerd")


@dataclass(frozen=True, slots=True)
class Commits:
    """Commits what waits; thread-safe."""

    states: PartitionStates
    ownership: Ownership
    events: EventLog
    files: Files
    inventory: Inventory
    metrics: Metrics
    clock: Clock
    log_dirs: tuple[str, ...]  # all of the broker's
    wanted: Wanted
    pause: Callable[[float], object]

    def staged_bytes(self, log_dir: str) -> int:
        """Bytes that wait in a log directory, as the last scan found them."""
        waiting = (log for log in self.inventory.staged() if log.log_dir == log_dir)
        return sum(map(self.inventory.staged_bytes, waiting))

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

    def try_all(self, logs: Iterable[LogId], goes_on: Callable[[str], bool]) -> list[CommitView]:
        """Commit all of these whose directory no other process owns now, those first that free the most.

        The lock is held for a slice of the logs at a time; before each, `goes_on` is asked for the log directory. A broker
        that opens the lock meanwhile ends the row: it is about to start.
        """
        by_dir: dict[str, list[LogId]] = {}
        for log in logs:
            by_dir.setdefault(log.log_dir, []).append(log)
        views = []
        if by_dir:
            self.wanted.refresh()
        for log_dir, members in by_dir.items():
            views += self._try_dir(log_dir, members, goes_on)
        return views

    def _try_dir(
        self, log_dir: str, logs: Sequence[LogId], goes_on: Callable[[str], bool]
    ) -> list[CommitView]:
        held = [log for log in logs if self.states.state(log).status is Status.PAUSED]
        views = [_view(log, "held", f"the log is {self.states.state(log)}") for log in sorted(held)]
        free = sorted(set(logs).difference(held))
        owner = self.ownership.owner_of(log_dir)
        if owner is not None or not self.ownership.recover(log_dir):
            return views + _waiting(free, f"{log_dir}: the lock is held", owner)
        weighed = (Weighed.of(log, self.inventory.facts(log)) for log in free)
        rest = sorted(weighed, key=lambda one: (-one.gain_bytes, one.log))
        size = SliceSize()
        while rest and goes_on(log_dir):
            batch = size.next_slice(rest)
            try:
                done, unfinished, seconds = self._slice(log_dir, [one.log for one in batch])
            except (LockHeld, DirOffline, OSError) as error:
                pid = error.pid if isinstance(error, LockHeld) else None
                return views + _waiting([one.log for one in rest], str(error), pid)
            views += done
            size.took(batch, seconds)
            rest = [one for one in batch if one.log in unfinished] + rest[len(batch) :]
        left = [one.log for one in rest]
        return views + _waiting(left, f"{log_dir}: a broker is about to start, or the time is up")

    def _slice(
        self, log_dir: str, logs: Sequence[LogId]
    ) -> tuple[list[CommitView], Collection[LogId], float]:
        """Commit these under one hold of the lock, and leave it alone afterwards.

        Also returns those that have groups left, because time was up, and how long the lock was held, in seconds.
        Raises LockHeld, DirOffline, OSError: nothing was done.
        """
        is_kafka, taken = is_kafka_dir(self.files, log_dir), self.states.try_start_all(logs)
        views = [
            _view(log, "waiting", f"the log is {self.states.state(log)}") for log in set(logs) - set(taken)
        ]
        swapped = partial(self.metrics.swapped, log_dir)
        waiting = [Waiting(log.topic_partition, partial(self.wanted.check, log), swapped) for log in taken]
        try:
            turn = commit_waiting(
                self.files, log_dir, waiting, self.clock, is_kafka=is_kafka, log_dirs=self.log_dirs,
                acted=partial(self.metrics.recovered, log_dir),
            )  # fmt: skip
            self.metrics.phases_took({"commit": turn.seconds})
            _log.debug(
                "commit_slice",
                log_dir=log_dir,
                logs=len(taken),
                seconds=turn.seconds,
                is_wanted=turn.is_wanted,
            )
            unfinished = {log for log in taken if isinstance(turn.done[log.topic_partition], TimeUp)}
            for log in taken:
                if log in unfinished:
                    continue
                if log.topic_partition in turn.left:
                    reason = str(turn.left[log.topic_partition])
                    _log.error("recovery_failed", **log.fields(), reason=reason)
                views.append(self._told(log, turn.done[log.topic_partition]))
        finally:
            for log in taken:
                self.inventory.touch_log(log)
                self.states.done_cleaning(log)
        if turn.is_wanted and is_kafka:
            self.ownership.yield_to_broker(log_dir)
        self.pause(turn.pause_s)
        return views, unfinished, turn.seconds

    def _told(self, log: LogId, done: Committed) -> CommitView:
        """What became of a log, which is still taken."""
        if isinstance(done, LockHeld | Aborted):
            return _view(log, "waiting", str(done), done.pid if isinstance(done, LockHeld) else None)
        if isinstance(done, SourceChanged | CorruptFile):  # stale, or not wanted any more
            self.events.dropped(log, str(done))
            return _view(log, "dropped", str(done))
        if isinstance(done, CleanerdError):
            self.events.record_log("commit", "failed", log, str(done))
            return _view(log, "failed", str(done))
        if done is None:
            return self._already(log)
        self.events.committed(log, done)
        return _view(log, "committed", None)

    def _already(self, log: LogId) -> CommitView:
        """Another commit was quicker: a waiting client learns its outcome all the same."""
        last = self.events.last(log)
        if last is None or last.outcome not in ("committed", "dropped"):
            return _view(log, "nothing", None)
        return _view(log, last.outcome, last.reason)


def _waiting(logs: Iterable[LogId], reason: str, pid: int | None = None) -> list[CommitView]:
    return [_view(log, "waiting", reason, pid) for log in logs]


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
