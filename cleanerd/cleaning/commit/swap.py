"""Commits beside a live broker that can be asked: it swaps the segments itself (`broker_agent.swap`)."""

from collections.abc import Sequence

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.broker_agent.swap import BrokerStarting, Swap
from cleanerd.cleaning.commit.checks import Checks
from cleanerd.cleaning.commit.host import Commit, CommitHost, Committed, Done, TimeUp
from cleanerd.cleaning.wanted import check_wanted
from cleanerd.config.model import TopicConfig
from cleanerd.errors import LockHeld, LogUncleanable, NoWayIn, PolicyChanged, SourceChanged, each_log
from cleanerd.format.names import TopicPartition
from cleanerd.storage.commit import check_previous
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.staged import discard_staged

UNTRIED = TimeUp("its turn has not come", None)


class CommitBySwap:
    """Has the live broker commit log by log, for no other process has to be let in between."""

    def __init__(
        self, log_dir: LogDir, host: CommitHost, brokers: LiveBrokers, logs: Sequence[TopicPartition]
    ) -> None:
        self._log_dir, self._host, self._brokers = log_dir, host, brokers
        self._checks = Checks(log_dir, host, logs, is_live=True)

    def prepare(self, commit: Commit) -> Swap | None:
        """The request for a log; None where nothing is staged. Lock: none, the broker checks again under its own.

        Raises as `Checks.ready`.
        """
        ready = self._checks.ready(commit)
        if ready is None:
            return None
        if ready.groups:
            check_previous(ready.partition, ready.groups[0], ready.live)
        return Swap(
            ready.partition, ready.topic_partition, ready.groups, ready.basis.round_end,
            ready.basis.checkpoint, ready.basis.leader_epochs, ready.moves_checkpoint,
        )  # fmt: skip

    def run(self, commits: Sequence[Commit]) -> dict[TopicPartition, Done]:
        """Commit these, until the broker starts or stops, or the host wants no more. Lock: none. Never raises for a log."""
        done: dict[TopicPartition, Done] = {}
        for commit in commits:
            tp = commit.topic_partition
            with each_log(self._log_dir.partition(tp).path) as log:
                done[tp] = self._swap(commit)
            if log.error is not None:
                done[tp] = log.error
            if isinstance(log.error, BrokerStarting) or not self._host.goes_on():
                left = log.error if isinstance(log.error, BrokerStarting) else UNTRIED
                return dict.fromkeys((one.topic_partition for one in commits), left) | done
        return done

    def _swap(self, commit: Commit) -> Committed | None:
        """Groups that were swapped before something went wrong stay; of the others none is left, unless it waits on."""
        try:
            swap = self.prepare(commit)
            if swap is None:
                return None
            kept = (
                None
                if swap.moves_checkpoint
                else self._log_dir.kept_checkpoint(swap.topic_partition, is_live=True)
            )
            if swap.groups:  # else nothing goes, and the log would be read again and again
                self._check_lag(swap)
            answer = self._brokers.swap(self._log_dir.path, swap)
            self._host.answered(answer)
            for group in swap.groups[: len(answer.lock_s)]:
                self._host.swapped(commit.topic_partition, group)
            error = answer.error()
            if error is not None:
                raise error
        except NoWayIn as error:  # the broker may have ended, and `.lock` may be free
            raise LockHeld(f"{self._log_dir.partition(commit.topic_partition).path}: {error}") from error
        except (SourceChanged, LogUncleanable):
            if commit.unchanged is None:
                discard_staged(self._log_dir.partition(commit.topic_partition))
            raise
        recorded = swap.round_end if swap.moves_checkpoint else kept
        if recorded is not None and not answer.has_cleaner:  # then nobody but us writes one
            self._log_dir.record_cleaned({swap.topic_partition: recorded})
        return Committed(swap.round_end, "swap")

    def _check_lag(self, swap: Swap) -> None:
        """Raise LockHeld if the min.compaction.lag.ms that the broker applies keeps what is to be swapped: it waits.

        The end of the metadata log may have a change that the quorum has not accepted, and the broker applies what it has,
        also of its own configuration. A result that was thrown away would be made again at once, for as long as that lasts.
        """
        tp = swap.topic_partition
        for log in self._brokers.describe_if_live(self._log_dir.path, [tp]) or ():
            lag_ms = 0 if log.is_future else int(log.config.get("min.compaction.lag.ms", 0))
            applied = TopicConfig(cleanup_policy=("compact",), min_compaction_lag_ms=lag_ms)
            try:
                check_wanted(self._log_dir, tp, applied, swap.round_end)
            except PolicyChanged as error:
                raise LockHeld(f"by what its broker applies, {error}") from error
