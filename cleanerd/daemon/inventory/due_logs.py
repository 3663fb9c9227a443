"""Which logs are due to be looked at or cleaned, most urgent first.

What is offered as due is an upper bound (`listed_log`): the exact examination decides. One that found nothing to do is
remembered with the facts it was based on, so that no log is examined twice for the same reason. Everything here may be
lost at any time. Every method may be called by any thread.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from cleanerd.config.load import Configuration
from cleanerd.config.model import TopicConfig
from cleanerd.daemon.inventory.inventory import Entry, Inventory, Visits
from cleanerd.daemon.inventory.listed_log import ClosedSegment, ListedLog
from cleanerd.daemon.inventory.urgency import FOREVER_MS, DirtyEstimate, Due, DueReason, estimate
from cleanerd.daemon.values.log_id import LogId
from cleanerd.env.clock import Clock
from cleanerd.format.names import FileKind, segment_path
from cleanerd.policy.deadlines import MOVED_PER_BYTE, Work, grace_ms
from cleanerd.policy.tombstones import wait_for_ratio_ms
from cleanerd.storage.scan import first_batch_timestamp_ms

IsFree = Callable[[LogId], bool]
RESERVED_MAX_WAIT_S = 60.0
"""Longest wait of a reserved topic that is due: coordinators load such a log as a whole, and wait for it."""


@dataclass(frozen=True, slots=True)
class Look:
    """Logs that are `due`, most urgent first; and `later`: when time alone may make one due that is not, or late."""

    due: list[Due]
    later: list[tuple[int, LogId]]

    def next_ms(self, is_free: IsFree) -> int | None:
        """When another look may find more, None if it will not. It may be early (look again), never late."""
        by_time = sorted(self.later, key=lambda one: one[0])
        return next((at_ms for at_ms, log in by_time if is_free(log)), None)


class DueLogs:
    """See the head of this module."""

    def __init__(
        self, inventory: Inventory, clock: Clock, configuration: Callable[[], Configuration]
    ) -> None:
        self._inventory = inventory
        self._clock = clock
        self._configuration = configuration

    def look(self, is_free: IsFree, *, reserved_only: bool = False) -> Look:
        """Compacted logs that may be worth a visit, and when others may be; `reserved_only`: those of reserved topics.

        Reserved topics that waited too long; logs past max.compaction.lag.ms, earliest deadline first; the highest dirty
        ratio (1.21, 1.23 with cleanerd's deviation); expired delete horizons. Logs that `is_free` refuses are left out.
        """
        now_ms, now_s, configuration = self._clock.now_ms(), self._clock.monotonic_s(), self._configuration()
        reserved = frozenset(configuration.broker.reserved_topics)
        if reserved_only and not reserved:
            return Look([], [])
        due_now: list[Due] = []
        later: list[tuple[int, LogId]] = []
        for entry in self._online():
            is_reserved = entry.log.topic_partition.topic in reserved
            if reserved_only and not is_reserved:
                continue
            visits, found = entry.visits, self._estimate(entry, now_ms, configuration)
            due, basis = self._due(entry, found, now_ms)
            if due is None:
                visits.due_since_s = None
                instants = [] if found is None else [found.next_change_ms(now_ms), visits.examined_until_ms]
                if found is not None and found.clean_range.clean_bytes:
                    instants.append(_visit_ms(visits, found))
            else:
                if visits.due_since_s is None:
                    visits.due_since_s = now_s
                left_s = math.inf  # until it is late
                if is_reserved:
                    left_s = visits.due_since_s + RESERVED_MAX_WAIT_S - now_s
                instants = [now_ms + math.ceil(min(left_s * 1000, FOREVER_MS))]
                if is_free(entry.log):
                    visits.offered = basis
                    due_now.append(due if left_s > 0 else replace(due, late_s=-left_s))
            later += [(at, entry.log) for at in instants if now_ms < at < FOREVER_MS]
        return Look(sorted(due_now, key=lambda due: due.urgency), later)

    def note_examined(self, log: LogId, until_ms: int | None) -> None:
        """An exact examination of what `due` offered found nothing to do.

        The log is offered again when its files, its checkpoint, its configuration or the reason are others, and at
        `until_ms`: give one when what held it back cannot be seen from here, as an open transaction.
        """
        visits = self._visits(log)
        visits.examined_until_ms = FOREVER_MS if until_ms is None else until_ms
        visits.examined = visits.offered

    def note_unrecorded(self, log: LogId) -> None:
        """Note that an offered log had nothing to remove, but its checkpoint belongs to the process that has `.lock`."""
        visits = self._visits(log)
        visits.unrecorded = visits.offered

    def is_unrecorded(self, log: LogId) -> bool:
        """Whether a cleaning of the log would only write the checkpoint, as `note_unrecorded` found."""
        entry = self._inventory.entry(log)
        if entry is None or entry.visits.unrecorded is None:
            return False
        _, basis = self._offer(entry, self.estimate(log), self._clock.now_ms())
        return basis == entry.visits.unrecorded

    def note_horizon(self, log: LogId, next_ms: int | None) -> None:
        """A look found no expired delete horizon (rule 0.6); the next one expires at `next_ms`, None if there is none."""
        self._visits(log).horizon_ms = FOREVER_MS if next_ms is None else next_ms

    def note_cleaned(self, log: LogId) -> None:
        """All that had expired is gone, and what was stamped now will have after delete.retention.ms."""
        delay_ms = self._configuration().topic(log.topic_partition.topic).delete_retention_ms
        self.note_horizon(log, _sum_ms(self._clock.now_ms(), delay_ms))

    def note_tombstones(self, log: LogId, stay: str | None) -> None:
        """Why tombstones and markers stay in a log whose time has come; None: they are gone, or would be."""
        self._visits(log).tombstones_stay = stay

    def horizons_at_ms(self, log: LogId) -> tuple[int, int] | None:
        """When the next delete horizon of a log may have passed, and when it will be looked at for that if nobody cleans it
        before; None if it need not be.
        """
        found, visits = self.estimate(log), self._visits(log)
        if found is None or not found.clean_range.clean_bytes or visits.horizon_ms >= FOREVER_MS:
            return None
        return visits.horizon_ms, _visit_ms(visits, found)

    def due_for_s(self, log: LogId) -> float:
        """For how long a log has been found due without a break, in seconds; 0 for one that is not due."""
        since_s = self._visits(log).due_since_s
        return 0.0 if since_s is None else self._clock.monotonic_s() - since_s

    def duty(self, log: LogId) -> tuple[bool | None, int | None]:
        """Whether a log is due by dirty ratio or age, unless an examination has found otherwise; and its first dirty offset.

        Both are None where that is not known: the log cannot be read, or its segments are being exchanged. With a ratio of
        1.0, by which cleanerd never takes it, that of its broker counts.
        """
        entry, found = self._inventory.entry(log), self.estimate(log)
        if entry is None or found is None or found.known.contents.in_transition:
            return None, None
        due, _ = self._due(entry, found, self._clock.now_ms())
        is_due = due is not None and due.reason is not DueReason.HORIZON
        if found.config.min_cleanable_dirty_ratio >= 1 and not found.range.is_empty:
            is_due |= found.range.dirty_ratio > found.config.broker_min_cleanable_dirty_ratio
        return is_due, found.range.first_dirty_offset

    def estimate(self, log: LogId) -> DirtyEstimate | None:
        """The most that may be cleanable of a log; None if it is not compacted, does not exist or cannot be read."""
        entry = self._inventory.entry(log)
        return self._estimate(entry, self._clock.now_ms(), self._configuration()) if entry else None

    def dirty_bytes(self, log_dir: str) -> int:
        """The most that a cleaning of all logs of a directory, or a rescue there, can read of dirty sections, and free."""
        now_ms, configuration = self._clock.now_ms(), self._configuration()
        entries = self._inventory.online_entries().get(log_dir, [])
        found = [self._estimate(entry, now_ms, configuration) for entry in entries]
        return sum(one.range.cleanable_bytes for one in found if one is not None and not one.range.is_empty)

    def with_deadline(self, is_hindered: Callable[[LogId], object]) -> Iterator[Work[LogId]]:
        """Logs of topics with max.compaction.lag.ms that are due, being cleaned or not, unless they are hindered.

        `size_bytes`: at most what their cleaning moves.
        """
        now_ms, configuration = self._clock.now_ms(), self._configuration()
        for entry in self._online():
            lag_ms = configuration.topic(entry.log.topic_partition.topic).max_compaction_lag_ms
            found = self._estimate(entry, now_ms, configuration) if lag_ms < FOREVER_MS else None
            if found is None or found.deadline_ms >= FOREVER_MS or is_hindered(entry.log):
                continue
            due, _ = self._due(entry, found, now_ms)
            if due is not None and due.reason is not DueReason.HORIZON:
                size_bytes = MOVED_PER_BYTE * due.range.size_bytes
                yield Work(entry.log, size_bytes, now_ms, _sum_ms(found.deadline_ms, grace_ms(lag_ms)))

    def _visits(self, log: LogId) -> Visits:
        """Earlier visits to a log; a fresh value, which is not kept, for one that has vanished."""
        entry = self._inventory.entry(log)
        return Visits() if entry is None else entry.visits

    def _online(self) -> list[Entry]:
        return [entry for entries in self._inventory.online_entries().values() for entry in entries]

    def _due(self, entry: Entry, found: DirtyEstimate | None, now_ms: int) -> tuple[Due | None, object]:
        """The reason why this log is due, and its basis; None if an examination on the same basis found nothing."""
        due, basis = self._offer(entry, found, now_ms)
        if now_ms < entry.visits.examined_until_ms and basis == entry.visits.examined:
            return None, None
        return due, basis

    def _offer(self, entry: Entry, found: DirtyEstimate | None, now_ms: int) -> tuple[Due | None, object]:
        if found is None or found.known.contents.in_transition:
            return None, None
        reason, offered = found.reason(now_ms), found.range
        if reason is None and now_ms >= _visit_ms(entry.visits, found) and found.clean_range.clean_bytes:
            reason, offered = DueReason.HORIZON, found.clean_range
        if reason is None:
            return None, None
        limits = (found.range.first_dirty_offset, found.range.first_uncleanable_offset)
        at_ms = {DueReason.MAX_LAG: found.deadline_ms, DueReason.HORIZON: entry.visits.horizon_ms}.get(reason)
        basis = (found.known.contents, limits, found.config, reason, at_ms)
        deadline_ms = FOREVER_MS if found.range.is_empty else found.deadline_ms
        return Due(entry.log, reason, offered, at_ms, deadline_ms), basis

    def _estimate(self, entry: Entry, now_ms: int, configuration: Configuration) -> DirtyEstimate | None:
        """None for a log that is not compacted, or cannot be read."""
        known = entry.known
        config = configuration.topic(entry.log.topic_partition.topic)
        if known is None or entry.error is not None or not config.compact:
            return None
        current = entry.visits.estimate
        if current is not None and current.holds(known, config, now_ms):
            return current
        try:
            first_batches_ms = self._first_batches_ms(entry, known, config)
        except OSError:  # it changes under our hands; if it cannot be read at all, the scan reports it
            self._inventory.touch_log(entry.log)
            return None
        found = entry.visits.estimate = estimate(known, config, now_ms, first_batches_ms)
        self._watch_clean_section(entry, found, now_ms)
        return found

    def _watch_clean_section(self, entry: Entry, found: DirtyEstimate, now_ms: int) -> None:
        """When to look for delete horizons: at once in a log that is new here, delete.retention.ms after a cleaning.

        That is when the last one that the cleaning stamped expires, whoever cleaned: so a log that is cleaned more often is
        never looked at, and one that is quiet is once. Retention, which only takes segments away, is no cleaning.
        """
        visits, end = entry.visits, found.range.first_dirty_offset
        section = frozenset(one for one in found.known.contents.closed if one.facts.base_offset < end)
        if visits.clean_section is None:
            visits.horizon_ms = now_ms - found.config.delete_retention_ms  # it waits for no ratio
        elif not section <= visits.clean_section:
            visits.horizon_ms = _sum_ms(now_ms, found.config.delete_retention_ms)
        visits.clean_section = section

    def _first_batches_ms(self, entry: Entry, known: ListedLog, config: TopicConfig) -> dict[int, int | None]:
        """Rule 1.19, read once for each closed segment of a topic that has max.compaction.lag.ms."""
        if config.max_compaction_lag_ms >= FOREVER_MS:
            return {}

        def first_ms(segment: ClosedSegment) -> int | None:
            path = segment_path(entry.log.directory, segment.facts.base_offset, FileKind.LOG)
            return read[segment] if segment in read else first_batch_timestamp_ms(path)

        read = entry.visits.first_batches_ms
        entry.visits.first_batches_ms = {segment: first_ms(segment) for segment in known.contents.closed}
        return {segment.facts.base_offset: at for segment, at in entry.visits.first_batches_ms.items()}


def _visit_ms(visits: Visits, found: DirtyEstimate) -> int:
    """When a log is looked at for expired delete horizons (`policy.tombstones`)."""
    ratio = 0.0 if found.range.is_empty else found.range.dirty_ratio
    config = found.config
    wait_ms = wait_for_ratio_ms(ratio, config.min_cleanable_dirty_ratio, config.delete_retention_ms)
    return _sum_ms(visits.horizon_ms, wait_ms)


def _sum_ms(time_ms: int, delay_ms: int) -> int:
    return min(time_ms + max(delay_ms, 0), FOREVER_MS)
