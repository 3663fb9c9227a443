"""Commits results that wait in one log directory.

The process that commits need not be the one that cleaned: a result may wait for hours until its broker stops. All that is
needed lies in the manifests.

There are three ways: where no process has `.lock`, it is taken (`CommitUnderLock`); a live broker that can be asked swaps
the segments itself (`CommitBySwap`); beside any other the result waits.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.cleaning import outcomes
from cleanerd.cleaning.commit.host import Commit, CommitHost, Committed, Done, TimeUp, Turn
from cleanerd.cleaning.commit.lock import CommitUnderLock
from cleanerd.cleaning.commit.slices import SliceSize
from cleanerd.cleaning.commit.swap import UNTRIED, CommitBySwap
from cleanerd.cleaning.outcomes import Staged, Unchanged
from cleanerd.cleaning.result import LogResult
from cleanerd.errors import (
    Aborted,
    CleanerdError,
    CorruptFile,
    DirOffline,
    LockHeld,
    SourceChanged,
)
from cleanerd.format.names import TopicPartition
from cleanerd.storage.lock import pause_after
from cleanerd.storage.log_dir import LogDir, Recovered
from cleanerd.storage.staged import try_discard_staged

_IN_ORDER = (Aborted, CorruptFile, LockHeld, SourceChanged)
"""After these nothing is left to recover: the result waits untouched, or was dropped."""


class Committer:
    """Commits in one log directory. `brokers`: None for those who commit with `.lock` held only."""

    def __init__(
        self,
        log_dir: LogDir,
        host: CommitHost | None = None,
        size: SliceSize | None = None,
        brokers: LiveBrokers | None = None,
    ) -> None:
        self._log_dir, self._brokers = log_dir, brokers
        self._host, self._size = host or CommitHost(), size or SliceSize()

    def commit(self, commits: Sequence[Commit]) -> dict[TopicPartition, Done]:
        """Swap the staged groups of these logs, those first that free the most, and record the first dirty offsets.

        Slice by slice: the lock is held for one, then left alone so that others can take it. Not in the answer are logs that
        the host did not let begin.
        """
        answers: dict[TopicPartition, Done] = {}
        rest = sorted(commits, key=lambda one: (-one.gain_bytes, one.topic_partition))
        while rest and self._host.goes_on():
            batch = self._size.next_slice(rest)
            turn = Turn(self._host.begin([one.topic_partition for one in batch]))
            try:
                turn = self._take_turn([one for one in batch if one.topic_partition in turn.taken])
            except (LockHeld, DirOffline) as error:
                return answers | dict.fromkeys((one.topic_partition for one in rest), error)
            finally:
                self._host.end(turn)
            self._size.adapt(batch, turn.seconds)
            unfinished = [one for one in batch if isinstance(turn.done.get(one.topic_partition), TimeUp)]
            answers |= turn.done
            rest = unfinished + rest[len(batch) :]
            self._host.pause(turn.pause_s)
        return answers

    def _take_turn(self, commits: Sequence[Commit]) -> Turn:
        """Commit these in one hold of the lock, or by the broker that has it.

        Raises LockHeld, with the reason why that broker cannot be asked, and DirOffline: nothing was done.
        """
        logs, now_s = [one.topic_partition for one in commits], self._log_dir.clock.monotonic_s
        try:
            with self._log_dir.lock() as lock:
                began_s = now_s()
                done = CommitUnderLock(self._log_dir, self._host, lock, logs).run(commits)
                seconds = now_s() - began_s
                pause_s, is_wanted = pause_after(lock, seconds), lock.is_wanted
        except LockHeld as held:
            if self._brokers is None:
                raise
            self._brokers.check(held, self._log_dir)
            began_s = now_s()
            done = CommitBySwap(self._log_dir, self._host, self._brokers, logs).run(commits)
            return Turn(logs, done, now_s() - began_s)
        return Turn(logs, done, seconds, is_wanted, pause_s, self._recovered(done))

    def _recovered(self, done: dict[TopicPartition, Done]) -> dict[TopicPartition, Recovered]:
        """Recover logs whose commit failed in the middle: finish the commit, or take it back."""
        return {
            tp: self._log_dir.recover_log(tp)
            for tp, error in done.items()
            if isinstance(error, CleanerdError) and not isinstance(error, _IN_ORDER)
        }

    def settle(self, results: Sequence[LogResult]) -> list[LogResult]:
        """Commit logs of the directory that are staged or unchanged; other results are passed through. Never raises.

        While another process holds `.lock`, a result waits. After a failure nothing is left of it: the log is what it was,
        or, past the commit point of a group, has that group. Each log reports its share of the seconds.
        """
        commits = [_commit_of(one) for one in results if isinstance(one.outcome, Staged | Unchanged)]
        began_s = self._log_dir.clock.monotonic_s()
        done = dict.fromkeys((one.topic_partition for one in commits), UNTRIED) | self.commit(commits)
        share_s = (self._log_dir.clock.monotonic_s() - began_s) / max(len(commits), 1)
        return [
            self._settled(one, done[one.topic_partition], share_s) if one.topic_partition in done else one
            for one in results
        ]

    def _settled(self, result: LogResult, done: Done, seconds: float) -> LogResult:
        """The end of the account of a log."""
        made = result.outcome
        if isinstance(done, LockHeld):
            what = "waits" if isinstance(made, Staged) else "checkpoint not written"
            return result.waiting(f"{what}: {done}")
        if isinstance(done, CleanerdError):
            try_discard_staged(self._log_dir.partition(result.topic_partition))
            return result.untouched().failed(done)
        if not isinstance(made, Staged):
            return replace(result, statistics=result.statistics.after("checkpoint", seconds))
        if not isinstance(done, Committed):
            path = self._log_dir.partition(result.topic_partition).path
            return result.untouched().failed(SourceChanged(f"{path}: what was staged is not there any more"))
        return replace(
            result,
            outcome=outcomes.Committed(done.by, made.reason, made.groups_left),
            statistics=result.statistics.after("commit", seconds),
        )


def _commit_of(result: LogResult) -> Commit:
    tp, outcome = result.topic_partition, result.outcome
    if not isinstance(outcome, Unchanged):
        return Commit.of(tp, freed_bytes=0, segments=1, replaced_bytes=result.before.bytes)
    assert outcome.basis.round_end == result.end_offset, "the first dirty offset moves as far as was cleaned"
    return Commit(tp, unchanged=outcome.basis)


def in_rounds(first: LogResult, again: Callable[[], LogResult]) -> LogResult:
    """A log of which groups are left: cleaned `again` after each commit (`cleaning.rounds`).

    What was committed changes no more; the last round moves the checkpoint.
    """
    result = first
    while isinstance(before := result.outcome, outcomes.Committed) and before.groups_left:
        result = result.then(again())
        after = result.outcome
        assert not isinstance(after, outcomes.Committed) or after.groups_left < before.groups_left
    return result
