"""The condition of a log: the one place that says what state it is in, why, and what stands against a cleaning.

What comes first in this order decides.

==========================  ==================================================================================
state                       what decides it
==========================  ==================================================================================
offline                     its log directory does not work
ignored                     it is not known to be ours to clean (`inventory.ignored`)
cleaning, aborted, paused   somebody works on it, or a hold or a client keeps it (rule 2A)
uncleanable                 it is compacted and cannot be read, or failed too often
staged                      a result waits for its commit
ignored                     it is not compacted: retention only
dirty                       it qualifies for a cleaning (1.21), as far as its files tell
clean                       all others
==========================  ==================================================================================
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from cleanerd.config.load import Configuration
from cleanerd.daemon.inventory.inventory import Inventory, TopicConfigs
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import State
from cleanerd.daemon.work.failures import Troubles
from cleanerd.daemon.work.ownership import Ownership
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.env.clock import Clock
from cleanerd.policy.lifecycle import Status

_BUSY: dict[Status, State] = {Status.IN_PROGRESS: "cleaning", Status.ABORTED: "aborted"}


@dataclass(frozen=True, slots=True)
class Condition:
    """What a log is in one word, and why where that is not plain.

    `obstacle`: what stands against cleaning it now, None for nothing. One that `yields_to_requests` keeps only the schedule
    away: somebody who asks for a cleaning gets it.
    """

    state: State
    reason: str | None = None
    obstacle: str | None = None
    yields_to_requests: bool = False


@dataclass(frozen=True, slots=True)
class Conditions:
    """Tells the condition of every log; thread-safe.

    `offline` and `full` are log directories and why, `ignored` logs and why: what they answer is asked for anew each time.
    """

    inventory: Inventory
    states: PartitionStates
    troubles: Troubles
    ownership: Ownership
    configuration: Callable[[], Configuration]
    clock: Clock
    offline: Callable[[], Mapping[str, str]]
    ignored: Callable[[], Mapping[LogId, str]]
    full: Callable[[], Mapping[str, str]]

    def of(self, log: LogId) -> Condition:
        """The condition of a log as it is now."""
        return self._of(log, self.configuration().topic, self.ownership.owner_of)

    def all(self, logs: Iterable[LogId]) -> Iterator[tuple[LogId, Condition]]:
        """The condition of each of these; for many logs, that is cheaper than one by one."""
        config_of = functools.cache(self.configuration().topic)
        owner_of = functools.cache(self.ownership.owner_of)
        for log in logs:
            yield log, self._of(log, config_of, owner_of)

    def _of(self, log: LogId, config_of: TopicConfigs, owner_of: Callable[[str], int | None]) -> Condition:
        offline, ignored = self.offline().get(log.log_dir), self.ignored().get(log)
        if offline is not None:
            return Condition("offline", offline, f"{log.log_dir}: {offline}")
        if ignored is not None:
            return Condition("ignored", ignored, ignored)
        status = self.states.state(log).status
        if status in _BUSY:
            return Condition(_BUSY[status])
        if status is Status.PAUSED:
            return Condition("paused", None, "it is paused; `cleanerctl holds` tells by whom")
        return self._at_rest(log, config_of, owner_of)

    def _at_rest(
        self, log: LogId, config_of: TopicConfigs, owner_of: Callable[[str], int | None]
    ) -> Condition:
        """Of a log that nobody works on or keeps."""
        is_compacted = config_of(log.topic_partition.topic).compact
        known, error, trouble = self.inventory.facts(log), self.inventory.error(log), self.troubles.of(log)
        if is_compacted and error is not None:
            return Condition("uncleanable", error, error)
        if trouble is not None and trouble.is_uncleanable:
            return Condition("uncleanable", trouble.reason, f"uncleanable: {trouble.reason}", True)
        if known is not None and known.contents.is_staged:
            return Condition(
                "staged", _waits_for(owner_of(log.log_dir)), "a result is staged and waits for its commit"
            )
        if not is_compacted:
            return Condition(
                "ignored", "not compacted: retention only", "its cleanup.policy does not contain compact"
            )
        return self._compacted(log, config_of)

    def _compacted(self, log: LogId, config_of: TopicConfigs) -> Condition:
        """Of a log that may be cleaned, if it is dirty and nothing but circumstances is in the way."""
        now_ms, trouble = self.clock.now_ms(), self.troubles.of(log)
        found = self.inventory.estimate(log, now_ms, config_of)
        state: State = "clean" if found is None or found.reason(now_ms) is None else "dirty"
        reason = trouble.reason if trouble is not None else None
        if not self.configuration().broker.log_cleaner_enable:
            return Condition(state, reason, "cleaning is off: log.cleaner.enable is false")
        full = self.full().get(log.log_dir)
        if full is not None:
            return Condition(state, reason, full)
        if trouble is not None and self.troubles.blocks(log, now_ms):
            return Condition(state, reason, f"backing off: {reason}", True)
        return Condition(state, reason)


def _waits_for(owner: int | None) -> str | None:
    return None if owner is None else f"commit waits until process {owner or 'unknown'} releases .lock"
