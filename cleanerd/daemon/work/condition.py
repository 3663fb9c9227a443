"""The facts that decide the condition of a log (`rules.condition`), gathered in one place."""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cleanerd.config.load import Configuration
from cleanerd.config.model import TopicConfig
from cleanerd.daemon.inventory.due_logs import DueLogs
from cleanerd.daemon.inventory.inventory import Inventory
from cleanerd.daemon.inventory.listed_log import stamp_of
from cleanerd.daemon.inventory.urgency import DirtyEstimate
from cleanerd.daemon.rules.condition import Condition, Known, Seen, after_a_look, at_once, left_until_ms
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.brokers_cleaner import BrokersCleaner
from cleanerd.daemon.work.failures import Failures
from cleanerd.daemon.work.ownership import Ownership
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.env.clock import Clock
from cleanerd.policy.broker_start import BrokerStart
from cleanerd.policy.staging import has_half_waited, pays_again

NOT_COMPACTED = "its cleanup.policy no longer contains compact"
_Look = Callable[[str], BrokerStart]
"""`Ownership.look`, which is asked once for each log directory where many logs are looked at."""


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
        known = self._known(log)
        return at_once(known) or after_a_look(known, self._seen(log, known, look(log.log_dir)))

    def _known(self, log: LogId) -> Known:
        obstacles, failure, entry = self.states.obstacles, self.failures.of(log), self.inventory.entry(log)
        found = None if entry is None else entry.known
        return Known(
            offline=obstacles.offline.get(log.log_dir),
            barred=obstacles.barred(log),
            unread=None if entry is None else entry.error,
            status=self.states.state(log).status,
            is_compacted=self.topic_config(log).compact,
            moves_to=self.inventory.moving_to(log),
            failure=None if failure is None else failure.reason,
            is_uncleanable=failure is not None and failure.is_uncleanable,
            is_staged=found is not None and found.contents.is_staged,
        )

    def _seen(self, log: LogId, known: Known, broker: BrokerStart) -> Seen:
        found, now_ms, is_owned = self.due_logs.estimate(log), self.clock.now_ms(), broker.owner is not None
        is_unrecorded = is_owned and not known.is_staged and self.due_logs.is_unrecorded(log)
        way = self.ownership.way(log.log_dir) if is_owned and (known.is_staged or is_unrecorded) else None
        is_coming = broker.is_expected(self.clock.monotonic_s())
        is_dirty = found is not None and found.reason(now_ms) is not None
        must_wait = way is not None and way.waits
        has_aged = (
            is_owned and known.is_staged and found is not None and self._has_aged(found, now_ms, must_wait)
        )
        is_wanted = is_owned and (is_dirty or has_aged)
        return Seen(
            coming=f"{log.log_dir}: a broker is about to start" if is_coming else None,
            way=None if way is None else str(way),
            must_wait=must_wait,
            is_dirty=is_dirty,
            has_aged=has_aged,
            is_unrecorded=is_unrecorded,
            off_by=self.configuration().broker.off_by,
            full=self.states.obstacles.full.get(log.log_dir),
            backs_off=known.failure is not None and self.failures.blocks(log, now_ms),
            left_until_ms=self._left_until_ms(found, now_ms) if is_wanted else None,
        )

    def _has_aged(self, found: DirtyEstimate, now_ms: int, must_wait: bool) -> bool:
        """Whether a waiting result is worth another cleaning: it is not all of one, it has waited for half of its
        time, or much was written.
        """
        contents, end = found.known.contents, found.range.first_uncleanable_offset
        staged, closed = contents.staged, [segment.facts for segment in contents.closed]
        if staged is None or staged.round_end is None:
            return False
        if must_wait and not staged.is_whole:
            return True
        return has_half_waited(staged.since_ms, staged.commit_by_ms, now_ms) or pays_again(
            staged_bytes=staged.bytes,
            clean_bytes=sum(s.size_bytes for s in closed if s.base_offset < staged.round_end)
            - staged.freed_bytes,
            dirty_bytes=sum(s.size_bytes for s in closed if staged.round_end <= s.base_offset < end),
            min_cleanable_dirty_ratio=found.config.min_cleanable_dirty_ratio,
        )

    def _left_until_ms(self, found: DirtyEstimate | None, now_ms: int) -> int | None:
        if found is None or not self.broker_cleans(found.known.log):
            return None
        return left_until_ms(
            found.range,
            found.deadline_ms,
            found.config.broker_min_cleanable_dirty_ratio,
            due_for_s=self.due_logs.due_for_s(found.known.log),
            grace_ms=self.configuration().broker.broker_cleaner_grace_ms,
            now_ms=now_ms,
        )
