"""For whom the daemon commits: logs of a job that is under way, and results that wait in a log directory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from cleanerd.cleaning.committer import CommitHost, Turn
from cleanerd.daemon.telemetry.metrics import Metrics
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.daemon.work.wanted import Wanted
from cleanerd.errors import CleanerdError
from cleanerd.format.names import TopicPartition
from cleanerd.storage.staged import StagedGroup

_log = structlog.get_logger("cleanerd")


@dataclass
class JobHost(CommitHost):
    """For logs that are in progress."""

    log_dir: str
    wanted: Wanted
    metrics: Metrics

    def check(self, tp: TopicPartition, round_end: int) -> None:
        """As everything is configured and held now."""
        self.wanted.check(LogId(self.log_dir, tp), round_end)

    def swapped(self, tp: TopicPartition, group: StagedGroup) -> None:  # noqa: ARG002
        """Counts what was swapped."""
        self.metrics.swapped(self.log_dir, group)

    def end(self, turn: Turn) -> None:
        """Counts what a commit that went wrong took to recover."""
        for tp, recovered in turn.recovered.items():
            for action in recovered.actions:
                self.metrics.recovered(self.log_dir, action)
            if isinstance(recovered.reason, CleanerdError):
                log = LogId(self.log_dir, tp)
                _log.error("recovery_failed", **log.fields(), reason=str(recovered.reason))


@dataclass
class WaitingHost(JobHost):
    """For logs at rest: they are taken for their slice. `refused`: those that were not to be had."""

    states: PartitionStates
    may_go_on: Callable[[], bool]
    ended: Callable[[Turn], None]
    wait: Callable[[float], object]
    refused: list[LogId] = field(default_factory=list)

    def goes_on(self) -> bool:
        """No broker is coming, and the daemon does not stop."""
        return self.may_go_on()

    def begin(self, logs: Sequence[TopicPartition]) -> Sequence[TopicPartition]:
        """Those that nobody else has."""
        wanted = [LogId(self.log_dir, tp) for tp in logs]
        taken = self.states.try_start_all(wanted)
        self.refused += [log for log in wanted if log not in set(taken)]
        return [log.topic_partition for log in taken]

    def end(self, turn: Turn) -> None:
        """Give the logs back."""
        super().end(turn)
        try:
            self.metrics.phases_took({"commit": turn.seconds} if turn.done else {})
            self.ended(turn)
        finally:
            for tp in turn.taken:
                self.states.done_cleaning(LogId(self.log_dir, tp))

    def pause(self, seconds: float) -> None:
        """Until the daemon stops, at most."""
        self.wait(seconds)
