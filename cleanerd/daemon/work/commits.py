"""Results of cleanings: committed as soon as the lock of their log directory is free, or its broker can be asked to swap
them; limited in number, dropped when stale.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import structlog

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.broker_agent.swap import Swapped
from cleanerd.cleaning import steps
from cleanerd.cleaning.commit.committer import Committer
from cleanerd.cleaning.commit.host import Commit, CommitHost, Committed, Done, TimeUp, Turn
from cleanerd.cleaning.knowledge import Knowledge
from cleanerd.cleaning.wanted import check_expired, check_wanted
from cleanerd.config.load import Configuration
from cleanerd.daemon.inventory.inventory import Inventory
from cleanerd.daemon.inventory.listed_log import ListedLog
from cleanerd.daemon.telemetry.event_log import EventLog, log_step
from cleanerd.daemon.telemetry.metrics import Metrics
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import CommitView
from cleanerd.daemon.work.brokers_cleaner import BrokersCleaner
from cleanerd.daemon.work.ownership import Ownership
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.errors import (
    Aborted,
    CleanerdError,
    CorruptFile,
    LockHeld,
    PolicyChanged,
    SourceChanged,
    each_log,
    ours,
)
from cleanerd.format.names import TopicPartition
from cleanerd.policy.lifecycle import Status
from cleanerd.policy.tombstones import Stay
from cleanerd.storage.log_dir import LogDir, Owner
from cleanerd.storage.replicas import FollowedReplicas
from cleanerd.storage.staged import StagedGroup

UNREAD = "the configuration was rejected, or cannot be read now"
"""Nothing is committed or deleted meanwhile: it may have to stay."""

_log = structlog.get_logger("cleanerd")


@dataclass(frozen=True, slots=True)
class Commits:
    """Commits what waits; thread-safe. `refresh` takes in the cluster's changes since the last look, False: `UNREAD`."""

    states: PartitionStates
    ownership: Ownership
    events: EventLog
    inventory: Inventory
    metrics: Metrics
    brokers: LiveBrokers
    brokers_cleaner: BrokersCleaner
    configuration: Callable[[], Configuration]
    refresh: Callable[[], bool]
    pause: Callable[[float], object]
    replicas: FollowedReplicas

    def why_tombstones_stay(self, log: LogId) -> Stay | None:
        """Why those of a log must stay, and markers, whose time has come; None: they may go."""
        with each_log(log.log_dir) as asked:
            knowledge = Knowledge(self.ownership.at(log.log_dir), self.configuration())
            return knowledge.why_tombstones_stay(log.topic_partition, self.replicas)
        return Stay(str(asked.error))

    def try_all(self, logs: Iterable[LogId], goes_on: Callable[[str], bool]) -> list[CommitView]:
        """Commit all of these whose directory may be committed in now (`may_commit`), those first that free the most.

        The lock is held for a slice of the logs at a time; before each, `goes_on` is asked for the log directory. A broker
        that opens the lock meanwhile ends the row: it is about to start.
        """
        by_dir: dict[str, list[LogId]] = {}
        for log in logs:
            by_dir.setdefault(log.log_dir, []).append(log)
        if by_dir and not self.refresh():
            return [_view(log, "held", UNREAD) for members in by_dir.values() for log in members]
        return [view for path in by_dir for view in self._try_dir(path, by_dir[path], goes_on)]

    def may_commit(self, log_dir: str) -> bool:
        """Whether a log directory is free, or its broker can be asked to swap; asks it, which may take seconds."""
        if self.ownership.owner_of(log_dir) is None:
            return not self.ownership.is_yielding(log_dir)
        return self.brokers.why_not(log_dir) is None and self.ownership.owner(log_dir) is Owner.LIVE_BROKER

    def _try_dir(self, path: str, logs: Sequence[LogId], goes_on: Callable[[str], bool]) -> list[CommitView]:
        held = {log: reason for log in sorted(logs) if (reason := self._why_held(log)) is not None}
        views = {log: _view(log, "held", reason) for log, reason in held.items()}
        free = sorted(set(logs) - held.keys())
        done: dict[TopicPartition, Done] = {}
        why: CleanerdError = LockHeld(f"{path}: a broker is about to start, or the time is up")
        pid = self.ownership.owner_of(path)
        try:
            if not (self.ownership.recover(path) if pid is None else self.may_commit(path)):
                raise LockHeld(f"{path}: the lock is held", pid)
            log_dir = self.ownership.at(path)
        except (CleanerdError, OSError) as error:
            why = ours(error, path)
        else:
            host = _WaitingHost(log_dir, self, goes_on, views)
            commits = [to_commit(log, self.inventory.facts(log)) for log in free]
            done = Committer(log_dir, host, brokers=self.brokers).commit(commits)
        for log in free:
            left = done.get(log.topic_partition)
            views.setdefault(log, _waits(log, left if isinstance(left, CleanerdError) else why))
        return list(views.values())

    def _why_held(self, log: LogId) -> str | None:
        state = self.states.state(log)
        return self.states.obstacles.barred(log) or (
            f"the log is {state}" if state.status is Status.PAUSED else None
        )

    def record(self, log: LogId, done: Done) -> CommitView:
        """Record the outcome of a log, which is still taken."""
        assert self.states.state(log).status in (Status.IN_PROGRESS, Status.ABORTED)
        if isinstance(done, LockHeld | Aborted):
            return _waits(log, done)
        if done is None:
            return self._already(log)
        if isinstance(done, Committed):
            self.metrics.settled(log, "committed")
            reason = f"cleaned up to offset {done.end_offset}"
            self.events.record("commit", "committed", reason, log, committed_by=done.by)
            return _view(log, "committed", None)
        is_stale = isinstance(done, SourceChanged | CorruptFile)  # or not wanted any more
        if is_stale:
            self.metrics.wasted(log.log_dir, self.inventory.staged_bytes(log))
        outcome = "dropped" if is_stale else "failed"
        self.metrics.settled(log, outcome)
        self.events.record("commit", outcome, str(done), log)
        return _view(log, outcome, str(done))

    def _already(self, log: LogId) -> CommitView:
        """Another commit was quicker: a waiting client learns its outcome all the same."""
        last = self.events.last(log)
        if last is None or last.outcome not in ("committed", "dropped"):
            return _view(log, "nothing", None)
        return _view(log, last.outcome, last.reason)


@dataclass
class JobHost(CommitHost):
    """The host of commits for logs that a job has in progress."""

    log_dir: LogDir
    commits: Commits
    begins: ClassVar[bool] = False
    """Whether a commit is not the end of work that has begun."""

    @property
    def path(self) -> str:
        """Path of the log directory."""
        return self.log_dir.path

    def goes_on(self) -> bool:
        """False once a broker is about to start there."""
        return not self.commits.ownership.is_yielding(self.path)

    def check(self, tp: TopicPartition, round_end: int) -> None:
        """Whether it is still wanted as everything is configured and held now: cleanup.policy, topic id,
        min.compaction.lag.ms, holds and moves.
        """
        commits, log = self.commits, LogId(self.path, tp)
        configuration = commits.configuration()
        knowledge = Knowledge(commits.ownership.at(self.path), configuration)  # as it is now
        unknown = knowledge.why_not_vouched(tp.topic, has_begun=not self.begins)
        if unknown is not None:
            raise Aborted(unknown)  # that proves no change: it waits on, until its broker is back
        log_dir, reason = knowledge.log_dir, knowledge.why_untouched(tp, has_begun=True)
        # it may not be there to be seen
        if reason is None and (target := commits.inventory.moving_to(log)) is not None:
            reason = f"{log.directory}: its broker moves it to {target}"
        if reason is not None:
            raise PolicyChanged(reason)
        check_wanted(log_dir, tp, configuration.topic(tp.topic), round_end)
        commits.states.begin_commit(log)

    def check_expired(self, tp: TopicPartition) -> None:
        """Whether what has expired may still go: a replica may be away since it was planned."""
        log = LogId(self.path, tp)
        check_expired(log.directory, self.commits.why_tombstones_stay(log))

    def answered(self, answer: Swapped) -> None:
        """Counts it, and notes whether that broker has a cleaner."""
        self.commits.metrics.asked_to_swap(self.path, answer)
        self.commits.brokers_cleaner.asked_to_swap(self.path, answer)

    def swapped(self, tp: TopicPartition, group: StagedGroup) -> None:
        """Counts what was swapped."""
        self.commits.metrics.swapped(self.path, group)
        log_step(self.path, steps.swapped(tp, group))

    def end(self, turn: Turn) -> None:
        """Counts what a commit that went wrong took to recover, and makes way for a broker that starts."""
        for tp, done in turn.done.items():
            if isinstance(done, Committed):
                log_step(self.path, steps.ended(tp, done.end_offset))
        for tp, recovered in turn.recovered.items():
            for action in recovered.actions:
                self.commits.metrics.recovered(self.path, action)
            if recovered.error is not None:
                log = LogId(self.path, tp)
                _log.error("recovery_failed", **log.fields(), reason=str(recovered.error))
        if turn.is_wanted and self.log_dir.is_kafka:
            self.commits.ownership.yield_to_broker(self.path)


@dataclass
class _WaitingHost(JobHost):
    """The host of commits for logs at rest, which are taken for their slice. `views`: the outcome of each log so far."""

    begins: ClassVar[bool] = True
    may_go_on: Callable[[str], bool]
    views: dict[LogId, CommitView]

    def goes_on(self) -> bool:
        """No broker is coming, and the daemon does not stop."""
        return self.may_go_on(self.path)

    def begin(self, logs: Sequence[TopicPartition]) -> Sequence[TopicPartition]:
        """Take the logs that are free, and return them."""
        wanted, states = [LogId(self.path, tp) for tp in logs], self.commits.states
        taken = states.try_start_all(wanted)
        refused = [log for log in wanted if log not in set(taken)]
        self.views.update((log, _view(log, "waiting", f"the log is {states.state(log)}")) for log in refused)
        return [log.topic_partition for log in taken]

    def end(self, turn: Turn) -> None:
        """Record what became of the logs of a slice, and give them back."""
        commits, logs = self.commits, [LogId(self.path, tp) for tp in turn.taken]
        try:
            super().end(turn)
            assert turn.done.keys() <= set(turn.taken), "only what is taken is committed"
            commits.metrics.phases_took({"commit": turn.seconds} if turn.done else {})
            _log.debug(
                "commit_slice", log_dir=self.path, logs=len(logs), seconds=turn.seconds, is_wanted=turn.is_wanted
            )  # fmt: skip
            for log in logs:
                commits.inventory.touch_log(log)
            for tp, done in turn.done.items():
                if not isinstance(done, TimeUp):
                    log = LogId(self.path, tp)
                    self.views[log] = commits.record(log, done)
        finally:
            for log in logs:
                commits.states.done_cleaning(log)

    def pause(self, seconds: float) -> None:
        """Wait, at most until the daemon stops."""
        self.commits.pause(seconds)


def to_commit(log: LogId, known: ListedLog | None) -> Commit:
    """Logs with a staged result, from the last scan. An unreadable one has no gain: its commit reports the error."""
    staged = known.contents.staged if known is not None else None
    if staged is None:
        return Commit(log.topic_partition)
    return Commit.of(
        log.topic_partition,
        freed_bytes=staged.freed_bytes,
        segments=staged.replaced_segments,
        replaced_bytes=staged.replaced_bytes,
    )


def _waits(log: LogId, why: CleanerdError) -> CommitView:
    return _view(log, "waiting", str(why), why.pid if isinstance(why, LockHeld) else None)


def _view(log: LogId, outcome: str, reason: str | None, pid: int | None = None) -> CommitView:
    return CommitView.model_validate(
        {**log.fields(), "outcome": outcome, "reason": reason, "lock_owner_pid": pid}
    )
