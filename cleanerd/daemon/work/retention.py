"""Retention passes of the daemon, and the deletion of records on request (rules 1.28-1.32, 6.1-6.14).

Logs that are not compacted are paused for their pass and resumed after it, whatever happens (1.30); compacted ones are
taken as for a cleaning (1.28). A directory that a live broker owns is left to the broker's own retention, and not looked at:
the broker changes its files meanwhile. A log that another process has changed gets its pass in the next round; that is no
failure. What goes wrong with one log ends its pass alone; Kafka ends that of all the logs behind it as well (6.14).

The `-future` log to which a broker moves a log that is not compacted gets a pass with it (1.32). The broker goes on with the
move when it starts, from the end of that log; its entries in the checkpoints of its directory show how far it is behind.

Before anything goes, each log is asked again whether it is ours, with the configuration that its limits are from: a scan
may not have seen yet what has changed, and by the limits of a wrong topic all of a log may go.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial

import structlog

from cleanerd.cleaning.delete_records import DeletionForbidden, delete_records
from cleanerd.cleaning.knowledge import Knowledge
from cleanerd.cleaning.outcomes import Failed
from cleanerd.cleaning.retain import Preview, Retained, preview, retain_log
from cleanerd.config.load import Configuration
from cleanerd.config.model import TopicConfig
from cleanerd.daemon.inventory.inventory import Inventory
from cleanerd.daemon.inventory.listed_log import ListedLog
from cleanerd.daemon.rules.log_states import Taken
from cleanerd.daemon.telemetry.event_log import EventLog
from cleanerd.daemon.telemetry.metrics import Metrics
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.commits import UNREAD
from cleanerd.daemon.work.deletions import PendingDeletions
from cleanerd.daemon.work.ownership import Ownership
from cleanerd.daemon.work.states import NotTaken, PartitionStates
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.errors import (
    CleanerdError,
    DirOffline,
    LockHeld,
    LogUncleanable,
    SourceChanged,
    each_log,
    raising_ours,
)
from cleanerd.format.names import DirKind, parse_partition_dir
from cleanerd.policy.lifecycle import IllegalTransition
from cleanerd.policy.retention import Keeper
from cleanerd.storage.delete import deleted_files
from cleanerd.storage.generation import end_left_truncation
from cleanerd.storage.log_dir import LogDir, Owner
from cleanerd.storage.partition_dir import PartitionDir, log_size
from cleanerd.storage.scan import Checkpoints
from cleanerd.storage.topic_id import why_not_of_cluster

_STOP_S = 30.0
"""How long a deletion of records waits for the cleaning of its log to stop."""

_BROKERS = (Owner.LIVE_BROKER, Owner.BROKER_COMING)

_log = structlog.get_logger("cleanerd")


Passed = Retained | Failed | None
"""The result of a pass over one log: deleted segments, or why it failed."""


def whose_turn(
    logs: Iterable[ListedLog], configuration: Configuration, failed: Set[LogId], *, is_time: bool
) -> list[LogId]:
    """Logs that get a pass now: compacted ones at every round (1.29), unless they have failed, others when it is time."""
    return [
        known.log
        for known in logs
        if (
            _needs_pass(known, config, is_time=is_time) and known.log not in failed
            if (config := configuration.topic(known.log.topic_partition.topic)).compact
            else is_time
        )
    ]


def _needs_pass(known: ListedLog, config: TopicConfig, *, is_time: bool) -> bool:
    closed = known.contents.closed
    if known.contents.is_staged or not closed:
        return False
    following = [s.facts.base_offset for s in closed[1:]] + [known.contents.active_base_offset]
    return is_time or config.delete or following[0] <= known.offsets.log_start


@dataclass(frozen=True, slots=True)
class RetentionPasses:
    """Carries out passes; thread-safe. `refresh` takes in the cluster's changes, False where they cannot be read."""

    states: PartitionStates
    files: Files
    clock: Clock
    configuration: Callable[[], Configuration]
    deletions: PendingDeletions
    ownership: Ownership
    inventory: Inventory
    metrics: Metrics
    events: EventLog
    refresh: Callable[[], bool]

    def run(self, logs: Sequence[LogId]) -> dict[LogId, Passed]:
        """Run a pass over the logs that are free; returns those that had one.

        Missing are logs that may not be changed now, are paused or being cleaned, and those of a directory that a live
        broker owns.
        """
        outcomes: dict[LogId, Passed] = {}
        free = self._undisturbed(logs)
        # A stopped broker may have had to keep records that expire by our configuration.
        if free and not self.refresh():
            for log_dir in {log.log_dir for log in free}:
                _log.warning("retention_skipped", log_dir=log_dir, reason=UNREAD)
            return {}
        configuration = self.configuration()
        compacted = [log for log in free if configuration.topic(log.topic_partition.topic).compact]
        others = sorted(set(free) - set(compacted))
        if configuration.broker.log_cleaner_enable:  # else compacted logs get neither (1.31)
            taken = self.states.try_start_all(compacted)
            try:
                outcomes |= self._pass(taken, configuration)
            finally:
                self.states.done_deleting(taken)
        paused = self.states.pause_non_compacted(others)
        try:
            outcomes |= self._pass(paused, configuration)
            for log in paused:
                if log in outcomes and not isinstance(outcomes[log], Failed):
                    self._pass_future(log, configuration)
        finally:
            with suppress(IllegalTransition):  # of a log that has vanished meanwhile there is no pause left
                self.states.resume_all(paused)
        return outcomes

    def _undisturbed(self, logs: Iterable[LogId]) -> list[LogId]:
        """Logs in directories where no broker runs or is expected."""
        owner = cache(self.ownership.owner)
        return [log for log in logs if owner(log.log_dir) not in _BROKERS]

    def delete_records(self, log: LogId, offset: int) -> Retained:
        """Delete the records of a log below `offset`; work in progress on the log is stopped before.

        Raises NotTaken, or as `PartitionStates.abort`, for a log that may not be changed now; else as `delete_records`.
        """
        if self.ownership.owner(log.log_dir) is Owner.BROKER_COMING:
            raise NotTaken(f"{log.log_dir}: a broker is about to start")
        if not self.refresh():
            raise NotTaken(f"{log}: {UNREAD}")
        taken = self.states.take(log, _STOP_S)
        try:
            configuration, tp = self.configuration(), log.topic_partition
            config = configuration.topic(tp.topic)
            try:
                log_dir = self.ownership.at(log.log_dir)
            except DirOffline as error:  # it is damaged
                raise NotTaken(str(error)) from error
            foreign = Knowledge(log_dir, configuration).why_untouched(tp, has_begun=True)
            if foreign is not None:
                raise NotTaken(f"{log}: {foreign}")
            try:
                with raising_ours(log.directory):
                    deleted = delete_records(
                        log_dir, tp, offset, config, dispose=partial(self._dispose, config)
                    )
            except (DeletionForbidden, LockHeld):
                raise
            except CleanerdError:
                self._dispose_left(config, log.directory)
                raise
            if deleted.segments:
                self._record(log, deleted)
            return deleted
        finally:
            self.states.done_deleting([taken])

    def preview(self, log: LogId) -> Preview:
        """Plan a pass over a log, or the pass of its live broker, without carrying it out. Raises CleanerdError."""
        configuration, topic, now_ms = self.configuration(), log.topic_partition.topic, self.clock.now_ms()
        known, is_live = configuration.topic(topic), self.ownership.owner(log.log_dir) is Owner.LIVE_BROKER
        with raising_ours(log.directory):
            log_dir, checkpoints = self._read(log.log_dir)
            knowledge = Knowledge(log_dir, configuration)
            config = known if is_live else knowledge.limits(topic)
            snapshot = log_dir.scan(log.topic_partition, checkpoints)
            if snapshot is None:
                raise LogUncleanable(f"{log.directory}: no segment")
            found = preview(self.files, snapshot, config, now_ms)
            is_by_limits = found.kept is not None and found.kept.keeper is Keeper.LIMITS
            if config != known and is_by_limits:
                found = replace(found, cause=knowledge.why_kept(topic))
        return found

    def reset_checkpoints(self, logs: Sequence[LogId]) -> None:
        """Take the checkpoints of those of these logs that are compacted back, where they are stale (1.7)."""
        configuration, free = self.configuration(), self._undisturbed(logs)
        compacted = [log for log in free if configuration.topic(log.topic_partition.topic).compact]
        if not configuration.broker.log_cleaner_enable:
            return
        taken = self.states.try_start_all(compacted)
        try:
            for log in taken:
                self._reset_checkpoint(log, configuration)
        finally:
            self.states.done_deleting(taken)

    def _reset_checkpoint(self, log: Taken, configuration: Configuration) -> None:
        with each_log(log.directory):  # the next round tries again, and a cleaning names the error
            log_dir, checkpoints = self._read(log.log_dir)
            if Knowledge(log_dir, configuration).why_untouched(log.topic_partition) is not None:
                return
            start = log_dir.reset_checkpoint(log.topic_partition, checkpoints)
            if start is not None:
                _log.warning("checkpoint_reset", **log.fields(), offset=start)

    def _pass(self, logs: Sequence[Taken], configuration: Configuration) -> dict[LogId, Passed]:
        outcomes: dict[LogId, Passed] = {}
        by_dir: dict[str, list[Taken]] = {}
        for log in logs:
            by_dir.setdefault(log.log_dir, []).append(log)
        for log_dir, members in by_dir.items():
            with each_log(log_dir) as directory:
                outcomes |= self._pass_dir(members, configuration, *self._read(log_dir))
            if directory.error is not None:
                _log.warning("retention_skipped", log_dir=log_dir, reason=str(directory.error))
        return outcomes

    def _pass_dir(
        self, logs: Sequence[Taken], configuration: Configuration, log_dir: LogDir, checkpoints: Checkpoints
    ) -> dict[LogId, Passed]:
        outcomes: dict[LogId, Passed] = {}
        for log in logs:
            with each_log(log.directory) as one:
                outcomes[log] = self._one(log, configuration, log_dir, checkpoints)
            if isinstance(one.error, LockHeld):  # the other logs are their broker's, too
                break
            if one.error is not None:
                outcomes[log] = Failed(str(one.error), type(one.error).__name__)
        return outcomes

    def _read(self, path: str) -> tuple[LogDir, Checkpoints]:
        """A log directory and its checkpoints. Raises CorruptFile, OSError."""
        log_dir = self.ownership.at(path)
        return log_dir, log_dir.checkpoints()

    def _one(
        self, log: Taken, configuration: Configuration, log_dir: LogDir, checkpoints: Checkpoints
    ) -> Retained | None:
        foreign = Knowledge(log_dir, configuration).why_untouched(log.topic_partition)
        if foreign is not None:
            raise LogUncleanable(foreign)
        end_left_truncation(PartitionDir(self.files, log.directory))
        return self._retain(log, log.directory, configuration, log_dir, checkpoints)

    def _pass_future(self, log: Taken, configuration: Configuration) -> None:
        """The unfinished copy of a log that its broker moves, in the directory to which it is moved."""
        target, tp = self.inventory.moving_to(log), log.topic_partition
        if target is None or self.ownership.owner(target) in _BROKERS:
            return
        with each_log(target):
            log_dir, checkpoints = self._read(target)
            for name in self.files.list_names(target):
                if parse_partition_dir(name) != (tp, DirKind.FUTURE):
                    continue
                future = PartitionDir(self.files, f"{target}/{name}")
                if why_not_of_cluster(future, tp.topic, configuration.metadata) is None:
                    self._retain(LogId(target, tp), future.path, configuration, log_dir, checkpoints)

    def _retain(
        self,
        log: LogId,
        directory: str,
        configuration: Configuration,
        log_dir: LogDir,
        checkpoints: Checkpoints,
    ) -> Retained | None:
        config = Knowledge(log_dir, configuration).limits(log.topic_partition.topic)
        try:
            with raising_ours(directory):
                done = retain_log(
                    log_dir, log.topic_partition, checkpoints, config,
                    dry_run=False, dispose=partial(self._dispose, config), directory=directory,
                )  # fmt: skip
        except LockHeld:
            raise
        except CleanerdError as error:
            self._dispose_left(config, directory)
            if not isinstance(error, SourceChanged):
                self._record(log, None, str(error))
            raise
        if done is None:
            return None
        self._record(log, done)
        return done

    def _record(self, log: LogId, retained: Retained | None, reason: str | None = None) -> None:
        """A log lost segments, or its pass failed for this reason."""
        assert (retained is None) == (reason is not None)
        self.inventory.touch_log(log)
        self.metrics.retained(log, retained)
        if retained is None:
            self.events.record("retention", "failed", reason, log)
        else:
            after, _ = log_size(PartitionDir(self.files, log.directory))
            self.events.record(
                "retention", "deleted", str(retained), log,
                bytes=retained.bytes, bytes_before=after + retained.bytes, bytes_after=after,
            )  # fmt: skip

    def _dispose(self, config: TopicConfig, paths: tuple[str, ...]) -> None:
        self.deletions.add(paths, self.clock.now_ms() + config.file_delete_delay_ms)

    def _dispose_left(self, config: TopicConfig, directory: str) -> None:
        """Queue files that were renamed before a failure; files that wait already keep their time."""
        with each_log(directory):
            self._dispose(config, deleted_files(PartitionDir(self.files, directory)))
