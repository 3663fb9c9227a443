"""For whom the daemon commits: logs of a job that is under way, and results that wait in a log directory."""

from dataclasses import dataclass

import structlog

from cleanerd.broker_agent.swap import Swapped
from cleanerd.cleaning import steps
from cleanerd.cleaning.commit_host import CommitHost, Turn
from cleanerd.daemon.telemetry.event_log import log_step
from cleanerd.daemon.telemetry.metrics import Metrics
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.brokers_cleaner import BrokersCleaner
from cleanerd.daemon.work.ownership import Ownership
from cleanerd.daemon.work.wanted import Wanted
from cleanerd.errors import CleanerdError
from cleanerd.format.names import TopicPartition
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.staged import StagedGroup

_log = structlog.get_logger("cleanerd")


@dataclass
class JobHost(CommitHost):
    """For logs that are in progress."""

    log_dir: LogDir
    wanted: Wanted
    metrics: Metrics
    brokers_cleaner: BrokersCleaner
    ownership: Ownership

    @property
    def path(self) -> str:
        """Of the log directory."""
        return self.log_dir.path

    def goes_on(self) -> bool:
        """Not once a broker is about to start there."""
        return not self.ownership.is_yielding(self.path)

    def check(self, tp: TopicPartition, round_end: int) -> None:
        """As everything is configured and held now."""
        self.wanted.check(LogId(self.path, tp), round_end)

    def answered(self, answer: Swapped) -> None:
        """Counts it, and notes whether that broker has a cleaner."""
        self.metrics.asked_to_swap(self.path, answer)
        self.brokers_cleaner.asked_to_swap(self.path, answer)

    def swapped(self, tp: TopicPartition, group: StagedGroup) -> None:
        """Counts what was swapped."""
        self.metrics.swapped(self.path, group)
        log_step(self.path, steps.swapped(tp, group))

    def end(self, turn: Turn) -> None:
        """Counts what a commit that went wrong took to recover, and makes way for a broker that starts."""
        for tp, done in turn.done.items():
            if isinstance(done, int):
                log_step(self.path, steps.ended(tp, done))
        for tp, recovered in turn.recovered.items():
            for action in recovered.actions:
                self.metrics.recovered(self.path, action)
            if isinstance(recovered.reason, CleanerdError):
                log = LogId(self.path, tp)
                _log.error("recovery_failed", **log.fields(), reason=str(recovered.reason))
        if turn.is_wanted and self.log_dir.is_kafka:
            self.ownership.yield_to_broker(self.path)
