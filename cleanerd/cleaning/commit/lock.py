"""Commits where no other process has `.lock`: cleanerd renames the files itself (`storage.commit`)."""

from collections.abc import Iterator, Mapping, Sequence

from cleanerd.cleaning.commit.checks import Checks, Ready
from cleanerd.cleaning.commit.host import Commit, CommitHost, Committed, Done, TimeUp
from cleanerd.errors import (
    CorruptFile,
    LockHeld,
    LogUncleanable,
    SourceChanged,
    each_log,
    from_os_error,
)
from cleanerd.format.names import TopicPartition
from cleanerd.storage.commit import commit_steps
from cleanerd.storage.lock import HOLD_S, LogDirLock
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.staged import discard_staged


class CommitUnderLock:
    """Commits logs side by side in one hold of `.lock`, which lasts longer than this object.

    Each step is taken in all of them, then all are synced, which a file system with a journal does at once, and their
    checkpoint is written once. No group but the first of a log is begun later than `HOLD_S` after the first ones: the
    rest waits, and its result is TimeUp. What goes wrong with one log is its own.

    The first dirty offset of a log that waits, or of which groups are left, is written again as it was found. A group that
    joins clean and dirty segments is as new as the last of them: once it is in place, its log would pass for one that a
    broker has truncated, and lose its entry when those of the others are written (`storage.checkpoints`).
    """

    def __init__(
        self, log_dir: LogDir, host: CommitHost, lock: LogDirLock, logs: Sequence[TopicPartition]
    ) -> None:
        self._log_dir, self._host, self._lock = log_dir, host, lock
        self._checks = Checks(log_dir, host, logs)
        self._ends_s = log_dir.clock.monotonic_s() + HOLD_S

    def prepare(self, commit: Commit) -> Ready | None:
        """As `Checks.ready`; a result that is worth nothing is dropped. Lock: `.lock`. Raises LockHeld if it is wanted."""
        self._make_way()
        try:
            return self._checks.ready(commit)
        except (SourceChanged, CorruptFile):
            if commit.unchanged is None:
                discard_staged(self._log_dir.partition(commit.topic_partition))
            raise

    def run(self, commits: Sequence[Commit]) -> dict[TopicPartition, Done]:
        """Commit these. Lock: `.lock`. Never raises for a log; after what is neither LockHeld, Aborted, SourceChanged nor
        CorruptFile the log has to be recovered.
        """
        done: dict[TopicPartition, Done] = {}
        ready: dict[TopicPartition, Ready] = {}
        kept: dict[TopicPartition, int] = {}
        for commit in commits:
            tp = commit.topic_partition
            with each_log(self._log_dir.partition(tp).path) as log:
                found = self.prepare(commit)
                if found is not None:
                    checkpoint = self._log_dir.kept_checkpoint(tp)
                    if checkpoint is not None:
                        kept[tp] = checkpoint
                    ready[tp] = found
            if tp not in ready:
                done[tp] = log.error
        under_way = {tp: self._steps(one) for tp, one in ready.items()}
        while under_way:
            for tp, steps in list(under_way.items()):
                ended: Done = None
                with each_log(ready[tp].partition.path) as log:
                    ended = next(steps)
                if ended is not None or log.error is not None:
                    done[tp] = ended or log.error
                    del under_way[tp]
            synced = [ready[tp].partition.path for tp in under_way]
            failures = self._log_dir.files.fsync_dirs(synced)
            for tp, directory, failure in zip(list(under_way), synced, failures, strict=True):
                if failure is not None:
                    done[tp] = from_os_error(failure, directory)
                    del under_way[tp]
        done.update(self._record(ready, kept, done))
        return done

    def _steps(self, ready: Ready) -> Iterator[Committed | LockHeld | None]:
        """The commit of a log; at every None its directory has to be synced, all else is what became of it."""
        for group in ready.groups:
            try:
                self._make_way()
                if group is not ready.groups[0] and self._log_dir.clock.monotonic_s() >= self._ends_s:
                    raise TimeUp("the rest of its groups is committed in a moment", None)
            except LockHeld as held:
                yield held
                return
            try:
                yield from commit_steps(ready.partition, group, ready.live)
            except FileNotFoundError as error:  # past step 0, which looked: for recovery, not stale
                raise LogUncleanable(f"{error.filename} vanished during the commit") from error
            except (SourceChanged, LogUncleanable):
                discard_staged(ready.partition)
                raise
            self._host.swapped(ready.topic_partition, group)
        yield Committed(ready.basis.round_end, "lock")

    def _record(
        self,
        ready: Mapping[TopicPartition, Ready],
        found: Mapping[TopicPartition, int],
        done: Mapping[TopicPartition, Done],
    ) -> Mapping[TopicPartition, Done]:
        """Write the first dirty offsets of all logs at once. `found`: those that were in order before. Returns why
        that failed, for the logs whose offset has moved.
        """
        moved, kept = dict[TopicPartition, int](), dict[TopicPartition, int]()
        for tp, one in ready.items():
            if isinstance(done[tp], Committed) and one.moves_checkpoint:
                moved[tp] = one.basis.round_end
            elif tp in found and isinstance(done[tp], Committed | LockHeld):
                is_under_way = isinstance(done[tp], Committed | TimeUp)  # other groups of it follow
                (moved if is_under_way else kept)[tp] = found[tp]
        if not moved:
            return {}
        with each_log(self._log_dir.path) as directory:
            self._log_dir.record_cleaned(moved | kept)
        return {} if directory.error is None else dict.fromkeys(moved, directory.error)

    def _make_way(self) -> None:
        """Raise LockHeld when another process has taken the lock file away or waits for it: a broker that starts.

        Between two groups a commit may end: the rest of the cleaning goes on waiting. Where no broker is, a writer wants the
        lock for the moment of a roll: TimeUp, and the rest is committed in a moment.
        """
        self._lock.check()
        if self._lock.is_wanted and not self._log_dir.is_kafka:
            raise TimeUp("a writer waits for the lock: it is committed in a moment", None)
        if self._lock.is_wanted:
            raise LockHeld("another process waits for the lock, a broker may be starting", None)
