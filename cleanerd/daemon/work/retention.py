"""Retention passes of the daemon (rules 1.28-1.32, 6.1-6.14).

Logs that are not compacted are paused for their pass and resumed after it, whatever happens (1.30); compacted ones are
taken as for a cleaning (1.28). A directory that a live broker owns is left to the broker's own retention. What goes wrong
with one log ends its pass alone; Kafka ends that of all the logs behind it as well (6.14).

A `-future` log gets no pass (1.32): it is the unfinished copy of a move that only its broker can go on with, and that
broker's retention takes from it then what it has to.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import partial

import structlog

from cleanerd.cleaning.retain import Preview, Retained, preview, retain_log
from cleanerd.config.load import Configuration
from cleanerd.config.model import TopicConfig
from cleanerd.daemon.inventory.due_logs import TopicConfigs
from cleanerd.daemon.inventory.listed_log import ListedLog
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.errors import CleanerdError, LockHeld, LogUncleanable, attempt
from cleanerd.storage.delete import deleted_files
from cleanerd.storage.generation import end_left_truncation
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import Checkpoints

_log = structlog.get_logger("cleanerd")


Passed = Retained | CleanerdError | None
"""What a pass took from a log, or what went wrong with it."""


def whose_turn(
    logs: Iterable[ListedLog], topic_config: TopicConfigs, failed: Set[LogId], *, is_time: bool
) -> list[LogId]:
    """Logs that get a pass now: compacted ones at every round (1.29), unless they have failed, others when it is time."""
    return [
        known.log
        for known in logs
        if (
            _needs_pass(known, config, is_time=is_time) and known.log not in failed
            if (config := topic_config(known.log.topic_partition.topic)).compact
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
    """Carries out passes; thread-safe.

    `dispose` gets `.deleted` files and when they may go; `done` is called with every log that lost segments or failed.
    """

    states: PartitionStates
    files: Files
    clock: Clock
    configuration: Callable[[], Configuration]
    dispose: Callable[[tuple[str, ...], int], None]
    done: Callable[[LogId, Retained | None, str | None], None]

    def run(self, logs: Sequence[LogId]) -> dict[LogId, Passed]:
        """One pass over all of these that are free; those that had one.

        Missing are logs that are paused or being cleaned, and those of a directory that a live broker owns.
        """
        outcomes: dict[LogId, Passed] = {}
        configuration = self.configuration()
        compacted = [log for log in logs if configuration.topic(log.topic_partition.topic).compact]
        others = sorted(set(logs) - set(compacted))
        if configuration.broker.log_cleaner_enable:  # else compacted logs get neither (1.31)
            taken = self.states.try_start_all(compacted)
            try:
                outcomes |= self._pass(taken, configuration)
            finally:
                self.states.done_deleting(taken)
        paused = self.states.pause_non_compacted(others)
        try:
            outcomes |= self._pass(paused, configuration)
        finally:
            self.states.resume_all(paused)
        return outcomes

    def preview(self, log: LogId) -> Preview:
        """What a pass would do to a log, without doing it. Raises CleanerdError."""
        config, now_ms = self.configuration().topic(log.topic_partition.topic), self.clock.now_ms()

        def look() -> Preview:
            log_dir, checkpoints = self._read(log.log_dir)
            snapshot = log_dir.scan(log.topic_partition, checkpoints)
            if snapshot is None:
                raise LogUncleanable(f"{log.directory}: no segment")
            return preview(self.files, snapshot, config, now_ms)

        found = attempt(look, log.directory)
        if isinstance(found, CleanerdError):
            raise found
        return found

    def reset_checkpoints(self, logs: Sequence[LogId]) -> None:
        """Take the checkpoints of those of these logs that are compacted back, where they are stale (1.7)."""
        configuration = self.configuration()
        compacted = [log for log in logs if configuration.topic(log.topic_partition.topic).compact]
        if not configuration.broker.log_cleaner_enable:
            return
        taken = self.states.try_start_all(compacted)
        try:
            for log in taken:
                self._reset_checkpoint(log)
        finally:
            self.states.done_deleting(taken)

    def _reset_checkpoint(self, log: LogId) -> None:
        def reset() -> int | None:
            log_dir, checkpoints = self._read(log.log_dir)
            return log_dir.reset_checkpoint(log.topic_partition, checkpoints)

        start = attempt(reset, log.directory)
        if isinstance(start, int):  # else the next round tries again; whatever is wrong, a cleaning names it
            _log.warning("checkpoint_reset", **log.fields(), offset=start)

    def _pass(self, logs: Sequence[LogId], configuration: Configuration) -> dict[LogId, Passed]:
        outcomes: dict[LogId, Passed] = {}
        by_dir: dict[str, list[LogId]] = {}
        for log in logs:
            by_dir.setdefault(log.log_dir, []).append(log)
        for log_dir, members in by_dir.items():
            found = attempt(partial(self._read, log_dir), log_dir)
            if isinstance(found, CleanerdError):
                _log.warning("retention_skipped", log_dir=log_dir, reason=str(found))
                continue
            for log in members:
                outcome = self._one(log, configuration, *found)
                if isinstance(outcome, LockHeld):
                    break
                outcomes[log] = outcome
        return outcomes

    def _read(self, path: str) -> tuple[LogDir, Checkpoints]:
        """A log directory and its checkpoints. Raises CorruptFile, OSError."""
        log_dir = LogDir.at(self.files, path, self.clock)
        return log_dir, log_dir.checkpoints()

    def _one(
        self, log: LogId, configuration: Configuration, log_dir: LogDir, checkpoints: Checkpoints
    ) -> Passed:
        """LockHeld: the other logs of the directory are their broker's, too."""
        config = configuration.topic(log.topic_partition.topic)

        def dispose(paths: tuple[str, ...]) -> None:
            self.dispose(paths, self.clock.now_ms() + config.file_delete_delay_ms)

        attempt(partial(end_left_truncation, PartitionDir(self.files, log.directory)), log.directory)
        tp = log.topic_partition
        done = retain_log(log_dir, tp, checkpoints, config, dry_run=False, dispose=dispose)
        if done is None or isinstance(done, LockHeld):
            return done
        if isinstance(done, CleanerdError):
            attempt(
                lambda: dispose(deleted_files(PartitionDir(self.files, log.directory))), log.directory
            )  # what it had renamed when it failed
            self.done(log, None, str(done))
            return done
        self.done(log, done[1], None)
        return done[1]
