"""Which logs are the cluster's, and may be changed at all (`cleaning.knowledge`); the others become `Obstacles.ignored`."""

import contextlib
import os
from collections.abc import Iterable, Sequence

import structlog

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.cleaning.knowledge import Knowledge, is_known
from cleanerd.config.load import Configuration
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.condition import Conditions
from cleanerd.errors import each_log
from cleanerd.format import names
from cleanerd.format.names import TopicPartition
from cleanerd.storage.log_dir import Owner, why_two_copies

_NEW_FOR_S = 60.0
"""A broker creates a partition before it writes its topic id, and before we have read of the topic: for so long that is
nothing to warn of."""
_SHOWN = 5

_log = structlog.get_logger("cleanerd")


class Judge:
    """Judges logs after each scan, in the thread of the scanner or of a reload."""

    def __init__(self, log_dirs: Sequence[str], conditions: Conditions, brokers: LiveBrokers) -> None:
        self._log_dirs = log_dirs
        self._conditions = conditions
        self._ownership, self._inventory = conditions.ownership, conditions.inventory
        self._obstacles = conditions.states.obstacles
        self._brokers = brokers
        self._new_since_s: dict[LogId, float] = {}  # logs that may be of a topic that is just being created
        self._lives = dict[str, tuple[Owner, str | None]]()  # as which brokers the logs were judged

    def new_logs(self) -> list[LogId]:
        """Logs whose topic may be just being created: the next scan judges them again."""
        return list(self._new_since_s)

    def forget(self, log: LogId) -> None:
        """The log has vanished."""
        self._obstacles.ignored.pop(log, None)
        self._obstacles.stale.discard(log)
        self._new_since_s.pop(log, None)

    def rule_on(self, logs: Iterable[LogId]) -> None:
        """Note in `Obstacles` which of these logs may not be changed, and why; try changed uncleanable logs again."""
        configuration, ignored = self._conditions.configuration(), self._obstacles.ignored
        judged, now_s = list(logs), self._conditions.clock.monotonic_s()
        twice = self._twice(judged)
        unknown: dict[tuple[str, str | None], set[str]] = {}
        for log in judged:
            # first, so that the next scan finds later writes of the broker
            is_named = self._is_named(log, configuration)
            foreign = self._why_foreign(log, configuration)
            reason = twice.get(log, foreign)
            is_stale = reason is not None and reason == foreign and self._is_stale(log, configuration)
            (self._obstacles.stale.add if is_stale else self._obstacles.stale.discard)(log)
            if reason is None:
                ignored.pop(log, None)
                self._new_since_s.pop(log, None)
                continue
            is_reported = ignored.get(log) == reason and log not in self._new_since_s
            ignored[log] = reason
            if is_reported:
                continue
            if not is_named and self._may_be_new(log, now_s):
                self._new_since_s.setdefault(log, now_s)
                continue
            self._new_since_s.pop(log, None)
            topic = log.topic_partition.topic
            if is_stale:
                unknown.setdefault((log.log_dir, reason), set()).add(topic)
            elif reason == foreign and not is_known(topic, configuration):
                unknown.setdefault((log.log_dir, None), set()).add(topic)
            else:
                _log.warning("ignored", **log.fields(), reason=reason)
        for (log_dir, stale), topics in unknown.items():
            why = self._brokers.known_refusal(log_dir) or "no broker answers about its topics"
            _log.warning(
                "topics_unknown", log_dir=log_dir, count=len(topics), topics=sorted(topics)[:_SHOWN],
                reason=stale or f"a broker's without a metadata log; {why}",
            )  # fmt: skip
        failures = self._conditions.failures
        for failure in failures.all():
            if failures.forget_changed(failure.log, self._conditions.stamp(failure.log)):
                _log.info("tried_again", **failure.log.fields(), reason="it changed")

    def note_lives(self) -> list[LogId]:
        """Note which brokers live; the logs of those that have started or stopped since, or have been down for too long."""
        changed = list[str]()
        for path in self._obstacles.online(self._log_dirs):
            life = self._ownership.owner(path), self._why_stale(path)
            if life != self._lives.get(path):
                changed.append(path)
            self._lives[path] = life
        return [log for log in self._inventory.logs() if log.log_dir in changed]

    def _why_foreign(self, log: LogId, configuration: Configuration) -> str | None:
        """Why a log must be left alone; what keeps that from being known is a reason as well."""
        with each_log(log.directory) as asked:
            return Knowledge(self._ownership.at(log.log_dir), configuration).why_untouched(
                log.topic_partition
            )
        return str(asked.error)

    def _is_stale(self, log: LogId, configuration: Configuration) -> bool:
        """Whether only nothing may begin in a log that must be left alone."""
        with each_log(log.directory):
            knowledge = Knowledge(self._ownership.at(log.log_dir), configuration)
            return knowledge.why_untouched(log.topic_partition, has_begun=True) is None
        return False

    def _why_stale(self, path: str) -> str | None:
        with each_log(path) as asked:
            return Knowledge(self._ownership.at(path), self._conditions.configuration()).why_stale()
        return str(asked.error)

    def _twice(self, logs: Iterable[LogId]) -> dict[LogId, str]:
        """Logs that lie in two directories of their broker, with the reason for leaving them alone."""
        found = dict[LogId, str]()
        unseen = set(self._conditions.configuration().broker.log_dirs) - set(
            self._log_dirs
        )  # by the inventory
        by_dir: dict[str, list[TopicPartition]] = {}
        for log in logs:
            if unseen or self._inventory.twins(log):
                by_dir.setdefault(log.log_dir, []).append(log.topic_partition)
        for path, partitions in by_dir.items():
            with each_log(path):  # else it is about to be offline
                twice = self._ownership.at(path).copies(partitions)
                found |= {LogId(path, tp): why_two_copies(other) for tp, other in twice.items()}
        return found

    def _is_named(self, log: LogId, configuration: Configuration) -> bool:
        """Whether everything is there by which the topic of a log can be known."""
        metadata = configuration.metadata
        if metadata is None:
            return True
        if not metadata.is_whole:
            return log.topic_partition.topic in metadata.topic_ids
        path = os.path.join(log.directory, names.PARTITION_METADATA)
        with contextlib.suppress(OSError):
            return self._ownership.files.exists(path) and log.topic_partition.topic in metadata.topic_ids
        return False

    def _may_be_new(self, log: LogId, now_s: float) -> bool:
        """Whether its broker may still name the topic of a log that is ignored."""
        return now_s - self._new_since_s.get(log, now_s) < _NEW_FOR_S
