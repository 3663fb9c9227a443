"""The condition of a log: the one place that decides its state, the reason, and what prevents a cleaning.

What comes first in this order decides.

==========================  ==================================================================================
state                       what decides it
==========================  ==================================================================================
offline                     its log directory does not work
ignored                     it is not known to be ours to change (`cleaning.foreign`), though it can be read
cleaning, aborted, paused   a worker has it, or a hold or a client keeps it (rule 2A), or its broker moves it (2.10)
uncleanable                 it is compacted and cannot be read, or failed too often
staged                      a result waits for its commit
retained                    it is not compacted: retention only
dirty                       it qualifies for a cleaning (1.21), by its files
clean                       all others
==========================  ==================================================================================
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cleanerd.config.load import Configuration
from cleanerd.config.model import TopicConfig
from cleanerd.daemon.inventory.due_logs import DueLogs
from cleanerd.daemon.inventory.inventory import Inventory
from cleanerd.daemon.inventory.listed_log import ListedLog, stamp_of
from cleanerd.daemon.inventory.urgency import DirtyEstimate
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import LogState
from cleanerd.daemon.work.brokers_cleaner import BrokersCleaner
from cleanerd.daemon.work.failures import Failures
from cleanerd.daemon.work.ownership import Ownership
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.env.clock import Clock
from cleanerd.policy.broker_start import BrokerStart
from cleanerd.policy.lifecycle import Status
from cleanerd.policy.staging import has_half_waited, pays_again
from cleanerd.units import utc

LEFT_TO_BROKER = "left to the broker's own cleaner"
NOT_COMPACTED = "its cleanup.policy no longer contains compact"
_BUSY: dict[Status, LogState] = {Status.IN_PROGRESS: "cleaning", Status.ABORTED: "aborted"}
_Look = Callable[[str], BrokerStart]
"""`Ownership.look`, which is asked once for each log directory where many logs are looked at."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The state of a log in one word, and the reason if it is not plain.

    `obstacle`: what prevents a cleaning now, None for nothing. One that `yields_to_requests` keeps only the schedule
    away: a request for a cleaning is granted.
    """

    state: LogState
    reason: str | None = None
    obstacle: str | None = None
    yields_to_requests: bool = False


@dataclass(frozen=True, slots=True)
class Conditions:
    """The condition of every log; thread-safe."""

    inventory: Inventory
    due_logs: DueLogs
    states: PartitionStates
    failures: Failures
    ownership: Ownership
    configuration: Callable[[], Configuration]
    clock: Clock
    brokers_cleaner: BrokersCleaner
    is_leased: Callable[[LogId], bool]

    def topic_config(self, log: LogId) -> TopicConfig:
        """The settings of the topic of a log that hold now."""
        return self.configuration().topic(log.topic_partition.topic)

    def stamp(self, log: LogId) -> str:
        """Changes with the files of a log and its settings: then a failure may be over."""
        return stamp_of(self.inventory.facts(log), self.topic_config(log))

    def why_unwanted(self, log: LogId) -> str | None:
        """Why nobody would commit the result of a cleaning that runs; None if somebody would.

        Changes of the log itself (truncated, created again) are found by the commit.
        """
        if barred := self.states.obstacles.barred(log, goes_on=True):
            return barred
        if not self.topic_config(log).compact:
            return NOT_COMPACTED
        target = self.inventory.moving_to(log)
        return None if target is None else f"its broker moves it to {target}"

    def broker_cleans(self, log: LogId) -> bool:
        """Whether the cleaner of the broker that owns the log directory is at work, and not kept from the log."""
        return self.brokers_cleaner.is_at_work(log.log_dir) and not self.is_leased(log)

    def left_to_broker(self, log: LogId) -> bool:
        """Whether a live broker's cleaner, once it is seen at work, has a log for some time before cleanerd takes it."""
        broker, config = self.configuration().broker, self.topic_config(log)
        is_off = self.brokers_cleaner.is_off(log.log_dir) or self.is_leased(log)
        is_first = config.broker_min_cleanable_dirty_ratio <= config.min_cleanable_dirty_ratio < 1
        return is_first and not is_off and broker.broker_cleaner_grace_ms > 0

    def of(self, log: LogId) -> Condition:
        """The condition of a log as it is now."""
        return self._of(log, self.ownership.look)

    def all(self, logs: Iterable[LogId]) -> Iterator[tuple[LogId, Condition]]:
        """The condition of each of these; for many logs, that is cheaper than one by one."""
        look = functools.cache(self.ownership.look)
        for log in logs:
            yield log, self._of(log, look)

    def obstacle_of(self) -> Callable[[LogId], str | None]:
        """Answers, for one look at many logs, why a log may not be cleaned now."""
        look = functools.cache(self.ownership.look)
        return lambda log: self._of(log, look).obstacle

    def _of(self, log: LogId, look: _Look) -> Condition:
        barred, offline = self.states.obstacles.barred(log), self.states.obstacles.offline.get(log.log_dir)
        if barred is not None:
            unread = self._unread(log)  # so nobody can tell whose it is, and somebody has to be told
            state: LogState = "ignored" if unread is None else "uncleanable"
            return Condition(state if offline is None else "offline", offline or unread or barred, barred)
        status = self.states.state(log).status
        if status in _BUSY:
            return Condition(_BUSY[status])
        if status is Status.PAUSED:
            return Condition("paused", None, "it is paused; `cleanerctl holds` shows by whom")
        return self._at_rest(log, look)

    def _unread(self, log: LogId) -> str | None:
        """Why a compacted log cannot be read, None if it can."""
        is_compacted = self.topic_config(log).compact
        return self.inventory.error(log) if is_compacted else None

    def _at_rest(self, log: LogId, look: _Look) -> Condition:
        """The condition of a log that is neither being cleaned nor paused."""
        is_compacted = self.topic_config(log).compact
        known, unread, failure = self.inventory.facts(log), self._unread(log), self.failures.of(log)
        if unread is not None:
            return Condition("uncleanable", unread, unread)
        target = self.inventory.moving_to(log) if is_compacted else None
        if target is not None:
            reason = f"its broker moves it to {target}"
            return Condition("paused", reason, reason)
        if failure is not None and failure.is_uncleanable:
            return Condition("uncleanable", failure.reason, f"uncleanable: {failure.reason}", True)
        if known is not None and known.contents.staged is not None:
            owner = look(log.log_dir).owner
            has_aged = owner is not None and is_compacted and self._has_aged(known)
            obstacle = None if has_aged else "a result is staged and waits for its commit"
            way = None if owner is None else str(self.ownership.way(log.log_dir))
            return Condition("staged", way, obstacle, yields_to_requests=True)
        if not is_compacted:
            return Condition(
                "retained", "not compacted: retention only", "its cleanup.policy does not contain compact"
            )
        return self._compacted(log, look)

    def _has_aged(self, known: ListedLog) -> bool:
        """Whether to replace a waiting result by a new cleaning: it has waited for half of its time, or much was written."""
        staged, found = known.contents.staged, self.due_logs.estimate(known.log)
        if staged is None or staged.round_end is None or found is None or self._until(found):
            return False
        if has_half_waited(staged.since_ms, staged.commit_by_ms, self.clock.now_ms()):
            return True
        closed = [segment.facts for segment in known.contents.closed]
        end = found.range.first_uncleanable_offset
        return pays_again(
            staged_bytes=staged.bytes,
            clean_bytes=sum(s.size_bytes for s in closed if s.base_offset < staged.round_end)
            - staged.freed_bytes,
            dirty_bytes=sum(s.size_bytes for s in closed if staged.round_end <= s.base_offset < end),
            min_cleanable_dirty_ratio=found.config.min_cleanable_dirty_ratio,
        )

    def _until(self, found: DirtyEstimate) -> int | None:
        """Time in ms until which a log is left to the cleaner of its live broker; None if it is not left to it.

        It is left if that cleaner takes it by its own ratio, but only for a while: it may have given up on the log.
        """
        log, now_ms = found.known.log, self.clock.now_ms()
        if not self.broker_cleans(log) or found.range.is_empty:
            return None
        brokers_ratio = found.config.broker_min_cleanable_dirty_ratio
        if now_ms < found.deadline_ms and found.range.dirty_ratio <= brokers_ratio:
            return None
        grace_ms = self.configuration().broker.broker_cleaner_grace_ms
        left_ms = grace_ms - round(1000 * self.due_logs.due_for_s(log))
        return now_ms + left_ms if left_ms > 0 else None

    def _compacted(self, log: LogId, look: _Look) -> Condition:
        """The condition of a compacted log that can be read; circumstances may still keep it from being cleaned."""
        now_ms, failure = self.clock.now_ms(), self.failures.of(log)
        found, broker = self.due_logs.estimate(log), look(log.log_dir)
        state: LogState = "clean" if found is None or found.reason(now_ms) is None else "dirty"
        reason = failure.reason if failure is not None else None
        if broker.is_expected(self.clock.monotonic_s()):
            return Condition(state, reason, f"{log.log_dir}: a broker is about to start")
        if not self.configuration().broker.log_cleaner_enable:
            return Condition(state, reason, "cleaning is off: log.cleaner.enable is false")
        full = self.states.obstacles.full.get(log.log_dir)
        if full is not None:
            return Condition(state, reason or (full if state == "dirty" else None), full)
        if failure is not None and self.failures.blocks(log, now_ms):
            return Condition(state, reason, f"backing off: {reason}", True)
        if broker.owner is not None and self.due_logs.is_unrecorded(log):
            way = self.ownership.way(log.log_dir)
            if way.committed_by == "restart":
                waits = f"nothing in it has to go; to write its checkpoint, {way}"
                return Condition(state, reason or waits, waits, True)
        until_ms = None if found is None or state == "clean" else self._until(found)
        if until_ms is not None and broker.owner is not None:
            left = f"{LEFT_TO_BROKER}, which is at work, until {utc(until_ms)}"
            return Condition(state, reason or left, left, True)
        return Condition(state, reason)
