"""Steps 8 and 9 of a cleaning, second half: staged groups take the place of their sources, the checkpoint moves.

The process that commits need not be the one that cleaned: a result may wait for hours until its broker stops. All that is
needed lies in the manifests.

There are three ways, and `Committer` chooses: where no process has `.lock`, it is taken; a live broker that can
be asked swaps the segments itself (`broker_agent.swap`); beside any other the result waits.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.broker_agent.swap import BrokerStarting, Swap, Swapped
from cleanerd.cleaning.commit_host import CommitHost, Committed, CommittedBy, TimeUp, Turn
from cleanerd.cleaning.result import Basis, LogResult
from cleanerd.cleaning.slices import SliceSize, Weighed
from cleanerd.errors import (
    Aborted,
    CleanerdError,
    CorruptFile,
    DirOffline,
    InternalError,
    LockHeld,
    LogUncleanable,
    NoWayIn,
    PolicyChanged,
    SourceChanged,
    attempt,
    from_os_error,
    guarded,
    report_unexpected,
)
from cleanerd.format.names import FileKind, TopicPartition, segment_path
from cleanerd.policy.commit_plan import epochs_contradiction
from cleanerd.storage.checkpoints import read_leader_epochs
from cleanerd.storage.commit import check_previous, commit_steps, revalidate
from cleanerd.storage.generation import check_generation
from cleanerd.storage.lock import HOLD_S, LogDirLock, pause_after
from cleanerd.storage.log_dir import Around, LogDir
from cleanerd.storage.staged import StagedGroup, discard_staged, live_logs, manifest_names, read_manifests
from cleanerd.storage.topic_id import topic_stamp
from cleanerd.units import utc

_IN_ORDER = (Aborted, CorruptFile, LockHeld, SourceChanged)
"""After these nothing is left to recover: the result waits untouched, or was dropped."""
_UNTRIED = TimeUp("its turn has not come", None)


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A cleaned range in which nothing had to go: only the checkpoint moves. `basis`: the log that it was planned on."""

    round_end: int
    basis: Basis

    @classmethod
    def of(cls, result: LogResult) -> "Unchanged":
        """As the result of a cleaning has it."""
        assert result.end_offset is not None
        assert result.basis is not None
        return cls(result.end_offset, result.basis)


class Committer:
    """Commits results that wait in one log directory. `brokers`: None for those who commit with `.lock` held only.

    `ways`: which way each log was committed last.
    """

    def __init__(
        self,
        log_dir: LogDir,
        host: CommitHost | None = None,
        size: SliceSize | None = None,
        brokers: LiveBrokers | None = None,
    ) -> None:
        self._log_dir = log_dir
        self._brokers = brokers
        self._unchanged: Mapping[TopicPartition, Unchanged] = {}
        self.ways: dict[TopicPartition, CommittedBy] = {}
        self._files = log_dir.files
        self._clock = log_dir.clock
        self._host = host or CommitHost()
        self._size = size or SliceSize()

    def commit(
        self, waiting: Sequence[Weighed], unchanged: Mapping[TopicPartition, Unchanged] | None = None
    ) -> dict[TopicPartition, Committed]:
        """Swap the staged groups of these logs, those first that free the most, and record the checkpoints.

        Slice by slice: the lock is held for one, then left alone so that others can take it. `unchanged`: those of the logs
        for which nothing is staged. Not in the answer are logs that the host did not let begin. The checkpoint of a log
        stays where it is if there was no room for all groups of its cleaning (`StagedGroup.moves_checkpoint`).
        """
        self._unchanged = unchanged or {}
        answers: dict[TopicPartition, Committed] = {}
        rest = sorted(waiting, key=lambda one: (-one.gain_bytes, one.topic_partition))
        while rest and self._host.goes_on():
            batch = self._size.next_slice(rest)
            turn = Turn(self._host.begin([one.topic_partition for one in batch]))
            try:
                turn, pause_s = self._hold(turn.taken)
            except (LockHeld, DirOffline) as error:
                return answers | dict.fromkeys((one.topic_partition for one in rest), error)
            finally:
                self._host.end(turn)
            self._size.took(batch, turn.seconds)
            unfinished = [one for one in batch if isinstance(turn.done.get(one.topic_partition), TimeUp)]
            answers |= turn.done
            rest = unfinished + list(rest[len(batch) :])
            self._host.pause(pause_s)
        return answers

    def _hold(self, logs: Sequence[TopicPartition]) -> tuple[Turn, float]:
        """Commit these under one hold of the lock, then recover what went wrong; the pause that should follow, in seconds.

        Or by the broker that has the lock. Raises LockHeld, with the reason why it cannot be asked, and DirOffline: nothing
        was done.
        """
        with contextlib.ExitStack() as stack:
            try:
                lock = stack.enter_context(self._log_dir.lock())
            except LockHeld as held:
                if self._brokers is None:
                    raise
                self._brokers.check(held, self._log_dir)
                return self._swap_all(logs, self._brokers), 0.0
            self.ways |= dict.fromkeys(logs, "lock")
            began_s = self._clock.monotonic_s()
            done = self.under(lock, logs)
            seconds = self._clock.monotonic_s() - began_s
            pause_s, is_wanted = pause_after(lock, seconds), lock.is_wanted
        recovered = {}
        for tp, found in done.items():
            if isinstance(found, InternalError):
                report_unexpected(found)
            if isinstance(found, CleanerdError) and not isinstance(found, _IN_ORDER):
                recovered[tp] = self._log_dir.recover_log(tp)
        return Turn(logs, done, seconds, is_wanted, recovered), pause_s

    def _swap_all(self, logs: Sequence[TopicPartition], brokers: LiveBrokers) -> Turn:
        """By the live broker: log by log, for no other process has to be let in between."""
        self.ways |= dict.fromkeys(logs, "swap")
        began_s = self._clock.monotonic_s()
        around = self.look_around(logs, is_live=True)
        done: dict[TopicPartition, Committed] = {}
        for tp in logs:
            done[tp] = guarded(partial(self._swap, tp, around, brokers), self._directory(tp))
            if isinstance(done[tp], BrokerStarting) or not self._host.goes_on():
                left = done[tp] if isinstance(done[tp], BrokerStarting) else _UNTRIED
                done |= dict.fromkeys((one for one in logs if one not in done), left)
                break
        return Turn(logs, done, self._clock.monotonic_s() - began_s, by="swap")

    def _swap(self, tp: TopicPartition, around: Around | CleanerdError, brokers: LiveBrokers) -> int | None:
        """Groups that were swapped before something went wrong stay; of the others none is left, unless it waits on."""
        partition, unchanged = self._log_dir.partition(tp), self._unchanged.get(tp)
        if unchanged is not None:
            self._check_unchanged(tp, unchanged, around)
            basis = unchanged.basis
            swap = Swap(partition, tp, (), unchanged.round_end, basis.checkpoint, basis.leader_epochs)
            self._finish_swap(swap, self._ask(swap, brokers))
            return swap.round_end
        try:
            groups, live = self.waiting_groups(tp, around)
            if not groups:
                return None
            check_previous(partition, groups[0], live)
            swap = Swap.of(partition, tp, groups)
            answer = self._ask(swap, brokers)
            for group in groups[: len(answer.lock_s)]:
                self._host.swapped(tp, group)
            self._finish_swap(swap, answer)
        except (SourceChanged, LogUncleanable):
            discard_staged(partition)
            raise
        return swap.round_end

    def _ask(self, swap: Swap, brokers: LiveBrokers) -> Swapped:
        """The broker's answer. Raises LockHeld when there is none: it may have ended, and the lock may be free."""
        try:
            answer = brokers.swap(self._log_dir.path, swap)
        except NoWayIn as error:
            raise LockHeld(f"{swap.partition.path}: {error}") from error
        self._host.answered(answer)
        return answer

    def _finish_swap(self, swap: Swap, answer: Swapped) -> None:
        """Raises what the answer means. A broker without a cleaner writes no checkpoint, and none but we do."""
        error = answer.error()
        if error is not None:
            raise error
        if swap.moves_checkpoint and not answer.has_cleaner:
            self._log_dir.record_cleaned({swap.topic_partition: swap.round_end})

    def under(self, lock: LogDirLock, logs: Sequence[TopicPartition]) -> dict[TopicPartition, Committed]:
        """Commit logs side by side while `lock` is held.

        Each step is taken in all of them, then all are synced, which a file system with a journal does at once, and their
        checkpoint is written once. No group but the first of a log is begun later than `HOLD_S` after the first ones: the
        rest waits, and its result is TimeUp. What goes wrong with one log is its own. Never raises for a log.

        The first dirty offset of a log that waits is written again as it was found. A group that joins clean and dirty
        segments is as new as the last of them: once it is in place, its log would pass for one that a broker has truncated,
        and lose its entry when those of the others are written (`storage.checkpoints`).
        """
        ends_s = self._clock.monotonic_s() + HOLD_S
        around = self.look_around(logs)
        done: dict[TopicPartition, Committed] = dict.fromkeys(logs)
        first_dirty: dict[TopicPartition, int] = {}
        under_way = {tp: self._steps(tp, lock, around, ends_s) for tp in logs}
        while under_way:
            for tp, steps in list(under_way.items()):
                found = guarded(partial(next, steps, _Ended(None)), self._directory(tp))
                if found is not None:
                    done[tp] = found.done if isinstance(found, _Ended) else found
                    if isinstance(found, _Ended) and found.first_dirty_offset is not None:
                        first_dirty[tp] = found.first_dirty_offset
                    del under_way[tp]
            synced = [self._directory(tp) for tp in under_way]
            for tp, directory, failure in zip(
                list(under_way), synced, self._files.fsync_dirs(synced), strict=True
            ):
                if failure is not None:
                    done[tp] = from_os_error(failure, directory)
                    del under_way[tp]
        moved = [tp for tp in first_dirty if not isinstance(done[tp], LockHeld)]
        error = guarded(
            partial(self._log_dir.record_cleaned, first_dirty if moved else {}), self._log_dir.path
        )
        return done if error is None else done | dict.fromkeys(moved, error)

    def _steps(
        self, tp: TopicPartition, lock: LogDirLock, around: Around | CleanerdError, ends_s: float
    ) -> "Iterator[_Ended | None]":
        """The commit of a log; at every yield of None its directory has to be synced."""
        partition, unchanged = self._log_dir.partition(tp), self._unchanged.get(tp)
        self._make_way(lock)
        if unchanged is not None:
            self._check_unchanged(tp, unchanged, around)
            yield _Ended(unchanged.round_end, unchanged.round_end)
            return
        try:
            groups, live = self.waiting_groups(tp, around)
        except (SourceChanged, CorruptFile):
            discard_staged(partition)
            raise
        if not groups:
            return
        for group in groups:
            try:
                self._make_way(lock)
                if group is not groups[0] and self._clock.monotonic_s() >= ends_s:
                    raise TimeUp("the rest of its groups is committed in a moment", None)
            except LockHeld as held:
                yield _Ended(held, groups[0].checkpoint)
                return
            try:
                yield from commit_steps(partition, group, live)
            except FileNotFoundError as error:  # past step 0, which looked: for recovery, not stale
                raise LogUncleanable(f"{error.filename} vanished during the commit") from error
            except (SourceChanged, LogUncleanable):
                discard_staged(partition)
                raise
            self._host.swapped(tp, group)
        round_end = groups[-1].round_end
        yield _Ended(round_end, round_end if groups[-1].moves_checkpoint else None)

    def _make_way(self, lock: LogDirLock) -> None:
        """Raise LockHeld when another process has taken the lock file away or waits for it: a broker that starts.

        Between two groups a commit may end: the rest of the cleaning goes on waiting. Where no broker is, a writer wants the
        lock for the moment of a roll: TimeUp, and the rest is committed in a moment.
        """
        lock.check()
        if lock.is_wanted and not self._log_dir.is_kafka:
            raise TimeUp("a writer waits for the lock: it is committed in a moment", None)
        if lock.is_wanted:
            raise LockHeld("another process waits for the lock, a broker may be starting", None)

    def look_around(self, logs: Sequence[TopicPartition], *, is_live: bool = False) -> Around | CleanerdError:
        """Once for all logs that are to be committed; or why it cannot be known."""
        return guarded(partial(self._log_dir.around, logs, is_live=is_live), self._log_dir.path)

    def waiting_groups(
        self, tp: TopicPartition, around: Around | CleanerdError
    ) -> tuple[list[StagedGroup], list[int]]:
        """The groups that a commit would swap now, none for none, and `live_logs`; without `.lock` that may change any time.

        Raises SourceChanged, CorruptFile where it would drop them; what the host's `check` raises; OSError.
        """
        partition = self._log_dir.partition(tp)
        groups = read_manifests(partition)
        if not groups:
            return [], []
        if not groups[-1].is_last:
            # A cleaning that was interrupted while it staged must not move the checkpoint.
            raise SourceChanged(
                f"{partition.path}: the cleaning was interrupted before it had staged everything"
            )
        if self._clock.now_ms() > groups[-1].commit_by_ms:
            raise SourceChanged(
                f"{partition.path}: the result waited too long: after {utc(groups[-1].commit_by_ms)} its tombstones may go "
                "before a reader of the values meets them"
            )
        live = live_logs(partition)
        for group in groups:
            basis = Basis(group.generation, group.checkpoint, group.leader_epochs)
            self._check_basis(tp, basis)
            revalidate(partition, group, live)
            self._check_reach(tp, basis, group.round_end)
        self._check_wanted(tp, groups[-1].round_end, around)
        if any(group.removes_expired for group in groups):
            self._host.check_expired(tp)
        return groups, live

    def _check_unchanged(
        self, tp: TopicPartition, unchanged: Unchanged, around: Around | CleanerdError
    ) -> None:
        """Raise SourceChanged, CorruptFile, and what the host's `check` raises, where the checkpoint must not move."""
        self._check_basis(tp, unchanged.basis)
        if topic_stamp(self._log_dir.partition(tp)) != unchanged.basis.topic_stamp:
            raise SourceChanged(
                f"{self._directory(tp)}: the topic was created again, or its directory exchanged, since this "
                "was planned"
            )
        self._check_reach(tp, unchanged.basis, unchanged.round_end)
        self._check_wanted(tp, unchanged.round_end, around)

    def settle(self, results: Sequence[LogResult]) -> list[LogResult]:
        """What became of logs of the directory that are staged or unchanged; other results are passed through. Never raises.

        While another process holds `.lock`, a result waits. After a failure nothing is left of it: the log is what it was,
        or, past the commit point of a group, has that group. Each log reports its share of the seconds.
        """
        replaced_bytes = {
            one.topic_partition: one.bytes_before if one.outcome == "staged" else 0
            for one in results
            if one.outcome in ("staged", "unchanged")
        }
        began_s = self._clock.monotonic_s()
        done = self.commit(
            [
                Weighed.of(tp, freed_bytes=0, segments=1, replaced_bytes=size)
                for tp, size in replaced_bytes.items()
            ],
            {one.topic_partition: Unchanged.of(one) for one in results if one.outcome == "unchanged"},
        )
        share_s = (self._clock.monotonic_s() - began_s) / max(len(replaced_bytes), 1)
        return [
            self._settled(result, done.get(result.topic_partition, _UNTRIED), share_s)
            if result.topic_partition in replaced_bytes
            else result
            for result in results
        ]

    def _settled(self, result: LogResult, done: Committed, seconds: float) -> LogResult:
        """The end of the account of a log."""
        is_staged = result.outcome == "staged"
        if isinstance(done, LockHeld):
            what = "waits for the lock" if is_staged else "checkpoint not written"
            return replace(result, reason=f"{what}: {done}")
        if isinstance(done, CleanerdError):
            partition = self._log_dir.partition(result.topic_partition)
            attempt(partial(discard_staged, partition), partition.path)
            return result.untouched().failed(done)
        if not is_staged:
            return result.after("checkpoint", seconds)
        committed = replace(result, outcome="committed", committed_by=self.ways.get(result.topic_partition))
        return committed.after("commit", seconds)

    def _check_wanted(self, tp: TopicPartition, round_end: int, around: Around | CleanerdError) -> None:
        """What is above the high watermark may be cut off, after what it superseded has gone. The one that the cleaning was
        planned with may have been that of a topic that was deleted and created again, or of before a truncation.
        """
        if isinstance(around, CleanerdError):
            raise around
        if tp in around.elsewhere:
            raise PolicyChanged(f"{self._directory(tp)}: {around.elsewhere[tp]}")
        high_watermark = around.high_watermarks.get(tp)
        if high_watermark is not None and high_watermark < round_end:
            raise SourceChanged(
                f"{self._directory(tp)}: cleaned up to {round_end}, but the high watermark is {high_watermark}"
            )
        self._host.check(tp, round_end)

    def _check_basis(self, tp: TopicPartition, basis: Basis) -> None:
        """Raise SourceChanged if the log was truncated, or created again, since the cleaning was planned. Needs `.lock`.

        A checkpoint above records that no cleaning has seen would let tombstones among them go before the values that they
        delete. So it moves only from where the cleaning found it.
        """
        check_generation(self._log_dir.partition(tp), basis.generation)
        found = self._log_dir.first_dirty_offset(tp)
        if found != basis.checkpoint:
            raise SourceChanged(
                f"{self._directory(tp)}: the first dirty offset was {basis.checkpoint}, is {found}"
            )

    def _check_reach(self, tp: TopicPartition, basis: Basis, round_end: int) -> None:
        """Raise SourceChanged if the log was cut below the end of the cleaned range by an unclean leader election (spec disk
        G).

        A cleaning judges with all records of its range: what superseded a record in a staged group may be gone although
        nothing in that group has changed.
        """
        partition = self._log_dir.partition(tp)
        epochs = read_leader_epochs(partition)
        reason = epochs_contradiction(basis.leader_epochs, epochs, next_base_offset=round_end)
        if not self._files.exists(segment_path(partition.path, round_end, FileKind.LOG)):
            reason = f"segment {round_end}, which follows the cleaned range, is gone"
        if reason is not None:
            raise SourceChanged(f"{partition.path}: {reason}")

    def _directory(self, tp: TopicPartition) -> str:
        return self._log_dir.partition(tp).path


@dataclass(frozen=True, slots=True)
class _Ended:
    """The last thing that `_steps` yields. `first_dirty_offset`: to be recorded, of a log that waits as it was found."""

    done: Committed
    first_dirty_offset: int | None = None


def has_result(log_dir: LogDir, tp: TopicPartition) -> bool:
    """Whether something waits to be committed; a log that cannot be looked at has nothing."""
    partition = log_dir.partition(tp)
    found = attempt(partial(manifest_names, partition), partition.path)
    return not isinstance(found, CleanerdError) and bool(found)


def in_rounds(first: LogResult, again: Callable[[], LogResult]) -> LogResult:
    """A log for whose groups there is no room at a time: cleaned `again` after each commit, as long as that gets on.

    What was committed changes no more, so each round is about the groups that are left; the last one moves the checkpoint.
    """
    result = first
    while result.outcome == "committed" and result.groups_left:
        left = result.groups_left
        result = result.then(again())
        if result.groups_left >= left:
            break  # the log grows faster than it is cleaned: the next cleaning goes on
    return result
