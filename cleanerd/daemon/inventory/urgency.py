"""When a log is due, and why: arithmetic on what is known of it (rules 1.9-1.25)."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from cleanerd.config.model import TopicConfig
from cleanerd.daemon.inventory.listed_log import ListedLog, compaction_config
from cleanerd.daemon.values.log_id import LogId
from cleanerd.policy.cleanable import CleanableRange, clean_section_only, cleanable_range, non_active_from

FOREVER_MS = 2**63 - 1
"""As a lag: none. As an instant: never."""


class DueReason(Enum):
    """Why a log is due; the value is for people."""

    MAX_LAG = "older than max.compaction.lag.ms"
    RATIO = "dirty ratio above min.cleanable.dirty.ratio"
    HORIZON = "a delete horizon may have passed"


@dataclass(frozen=True, slots=True)
class DirtyEstimate:
    """The most that may be cleanable, and until when that stands if nothing else changes.

    `clean_range`: of a visit for expired delete horizons alone, without bytes where there can be none.
    `deadline_ms`: first instant at which a dirty segment is older than max.compaction.lag.ms (1.18), FOREVER_MS if none is.
    """

    known: ListedLog
    config: TopicConfig
    range: CleanableRange
    clean_range: CleanableRange
    deadline_ms: int
    from_ms: int
    until_ms: int

    def holds(self, known: ListedLog, config: TopicConfig, now_ms: int) -> bool:
        """Whether a new one would be the same."""
        return self.known == known and self.from_ms <= now_ms < self.until_ms and self.config == config

    def reason(self, now_ms: int) -> DueReason | None:
        """Whether the log qualifies, as `policy.cleanable.is_filthy` (1.21)."""
        if self.range.is_empty:
            return None
        if now_ms >= self.deadline_ms:
            return DueReason.MAX_LAG
        return DueReason.RATIO if self.range.dirty_ratio > self.config.min_cleanable_dirty_ratio else None

    def next_change_ms(self, now_ms: int) -> int:
        """The next instant at which `reason` may be another one by the mere passing of time, FOREVER_MS if none."""
        deadlines = [] if self.range.is_empty else [self.deadline_ms]
        return min((at for at in [*deadlines, self.until_ms] if at > now_ms), default=FOREVER_MS)


def estimate(
    known: ListedLog, config: TopicConfig, now_ms: int, first_batches_ms: Mapping[int, int | None]
) -> DirtyEstimate:
    """The upper bound at `now_ms`. `first_batches_ms`: by base offset, needed only with max.compaction.lag.ms."""
    facts = known.facts(first_batches_ms)
    found = cleanable_range(facts, compaction_config(config), now_ms)
    dirty = non_active_from(facts.segments, found.first_dirty_offset)
    stamped = [s.first_batch_timestamp_ms for s in dirty if (s.first_batch_timestamp_ms or 0) > 0]
    oldest_ms = min((at for at in stamped if at is not None), default=FOREVER_MS)
    min_lag_ms = max(config.min_compaction_lag_ms, 0)
    young = (
        s.largest_timestamp_ms + min_lag_ms for s in dirty if s.largest_timestamp_ms > now_ms - min_lag_ms
    )
    return DirtyEstimate(
        known=known,
        config=config,
        range=found,
        clean_range=clean_section_only(facts, found),
        deadline_ms=min(oldest_ms + max(config.max_compaction_lag_ms, 0) + 1, FOREVER_MS),
        from_ms=now_ms,
        until_ms=next(young, FOREVER_MS) if min_lag_ms else FOREVER_MS,
    )


@dataclass(frozen=True, slots=True)
class Due:
    """A log that may be worth a visit.

    `range` is an upper bound. `at_ms`: since when, for MAX_LAG and HORIZON. `deadline_ms`: by max.compaction.lag.ms.
    `late_s`: for how much longer than it should a reserved log has been waiting; None for all others.
    """

    log: LogId
    reason: DueReason
    range: CleanableRange
    at_ms: int | None
    deadline_ms: int = FOREVER_MS
    late_s: float | None = None

    @property
    def urgency(self) -> tuple[float, int, int, float, LogId]:
        """Sort key, most urgent first: late ones, then as `policy.cleanable.urgency` (1.23, 1.24), then horizons by age."""
        late = 0.0 if self.late_s is None else -1.0 - self.late_s
        order = (DueReason.MAX_LAG, DueReason.RATIO, DueReason.HORIZON).index(self.reason)
        return (late, order, self.at_ms or 0, -self.range.dirty_ratio, self.log)
