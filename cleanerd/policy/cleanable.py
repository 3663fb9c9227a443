"""Which part of a log may be cleaned, and whether it is worth it (rules 1.5-1.25, spec disk G).

::

    log start        first dirty        first uncleanable       log end
        |---- clean ------|---- cleanable -----|--- uncleanable ----|

Below the first dirty offset each record was once judged by a cleaning. That holds for what there was when the checkpoint was
written, so a segment below it that was written later is dirty again, and all that follow it (`lowered_checkpoint`).

The upper bound never passes the last stable offset, the active segment, the first segment that is younger than
min.compaction.lag.ms, and, where a broker will recover the log, the recovery point; it is rounded down to a segment.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """The facts about a segment that policy uses. Sizes in bytes, times in ms."""

    base_offset: int
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int
    largest_timestamp_ms: int  # rule 1.10: time index, else mtime
    first_batch_timestamp_ms: int | None  # rule 1.19: None counts as +infinity
    modified_ms: int = 0  # when its `.log` was last written


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The facts about a log that policy uses, at one moment."""

    segments: tuple[SegmentFacts, ...]  # ascending; the last one is active
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int  # never above the high watermark
    recovery_point: int | None  # None: no broker will recover this log
    checkpoint: int | None  # cleaner-offset-checkpoint
    checkpoint_written_ms: int | None = None  # when that file was; None: later than all segments

    @property
    def active(self) -> SegmentFacts:
        """The segment that is being appended to."""
        return self.segments[-1]


@dataclass(frozen=True, slots=True)
class CompactionConfig:
    """The topic settings that decide on compaction."""

    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int


class RangeLimit(Enum):
    """The bound that sets the first uncleanable offset; `cleaning.causes` puts it into words."""

    LAST_STABLE_OFFSET = "last stable offset (high watermark or an open transaction)"
    ACTIVE_SEGMENT = "active segment"
    MIN_COMPACTION_LAG = "min.compaction.lag.ms"
    RECOVERY_POINT = "recovery point of the broker"


@dataclass(frozen=True, slots=True)
class CleanableRange:
    """Offsets [first_dirty, first_uncleanable) may be cleaned; empty when they are equal or crossed (10.3)."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    limit: RangeLimit
    checkpoint_reset: bool  # rule 1.5: the stored checkpoint is not usable, or older than what lies below it
    clean_bytes: int
    cleanable_bytes: int
    compaction_delay_ms: int  # rule 1.18

    @property
    def is_empty(self) -> bool:
        """Whether nothing may be cleaned."""
        return self.cleanable_bytes == 0 or self.first_uncleanable_offset <= self.first_dirty_offset

    @property
    def size_bytes(self) -> int:
        """Bytes that its cleaning reads."""
        return self.clean_bytes + self.cleanable_bytes

    @property
    def dirty_ratio(self) -> float:
        """Cleanable bytes over clean plus cleanable bytes; 0 for an empty log (1.14)."""
        return self.cleanable_bytes / self.size_bytes if self.size_bytes else 0.0


def range_query(segments: Sequence[SegmentFacts], start: int, end: int) -> tuple[SegmentFacts, ...]:
    """Segments from the one that contains `start` up to those that begin below `end` (0.4)."""
    if end < start:
        raise ValueError(f"range query [{start}, {end}): ends before it starts")
    if start == end or not segments:
        return ()
    at_or_below = [i for i, segment in enumerate(segments) if segment.base_offset <= start]
    first = at_or_below[-1] if at_or_below else 0
    return tuple(segment for segment in segments[first:] if segment.base_offset < end)


def non_active_from(segments: Sequence[SegmentFacts], start: int) -> tuple[SegmentFacts, ...]:
    """Closed segments from the one that contains `start` (0.4)."""
    active_base = segments[-1].base_offset
    return () if start > active_base else range_query(segments, start, active_base)


def first_dirty_offset(log: LogFacts, now_ms: int) -> tuple[int, bool]:
    """(first dirty offset, whether the checkpoint has to be reset) by rule 1.5 and `lowered_checkpoint`."""
    if log.checkpoint is None:
        return log.log_start_offset, False
    if not usable_checkpoint(log.checkpoint, log.log_start_offset, log.log_end_offset):
        return log.log_start_offset, True
    modified = ((segment.base_offset, segment.modified_ms) for segment in log.segments)
    clean_up_to = lowered_checkpoint(log.checkpoint, log.checkpoint_written_ms, modified, now_ms)
    assert clean_up_to <= log.checkpoint, "a checkpoint is only ever lowered: nothing dirty passes for clean"
    return max(clean_up_to, log.log_start_offset), clean_up_to < log.checkpoint


def lowered_checkpoint(
    checkpoint: int, written_ms: int | None, modified: Iterable[tuple[int, int]], now_ms: int | None
) -> int:
    """The checkpoint, or the base offset of the first segment below it that was written later than the checkpoint.

    `written_ms`: when the checkpoint was (None: later than all segments); `modified`: (base offset, when its `.log` was
    modified in ms), ascending. No cleaning has seen what is in such a segment. A broker whose cleaner is off keeps the entry
    of a topic that is deleted and created again, and does not lower that of a log that it truncates (rules 2.7, 2.9, 2.11).
    Taken for clean, the tombstones in there would go before the values that they delete. So the checkpoint is lowered as a
    cleaner would have lowered it, to the base of a segment (2.14).

    Files that are copied without their times count as written, which costs a cleaning. A segment that was modified after
    `now_ms`, by a clock that was set back, counts as old: each cleaning would be the next one's reason. Not if the
    checkpoint was written later than that as well: then one clock wrote both, and the next checkpoint ends it.
    """
    if written_ms is None:
        return checkpoint
    for base, modified_ms in modified:
        if base >= checkpoint:
            break
        is_of_future = now_ms is not None and written_ms <= now_ms < modified_ms
        if is_written_since(written_ms, modified_ms) and not is_of_future:
            return base
    return checkpoint


WRITTEN_MARGIN_MS = 1_000
"""Some file systems know whole seconds only, a copy of small files takes no longer; and between a cleaning and what a broker
takes next lies its start."""


def is_written_since(written_ms: int, modified_ms: int) -> bool:
    """Whether something was modified after a checkpoint was written, beyond doubt."""
    return modified_ms > written_ms + WRITTEN_MARGIN_MS


def usable_checkpoint(checkpoint: int, log_start_offset: int, log_end_offset: int) -> bool:
    """Whether a cleaning can have left this first dirty offset; the log end itself is one (1.5c)."""
    return log_start_offset <= checkpoint <= log_end_offset


def cleanable_range(log: LogFacts, config: CompactionConfig, now_ms: int) -> CleanableRange:
    """The cleanable range and its sizes (rules 1.5-1.20)."""
    first_dirty, reset = first_dirty_offset(log, now_ms)
    bounds = [
        (log.active.base_offset, RangeLimit.ACTIVE_SEGMENT),
        (log.last_stable_offset, RangeLimit.LAST_STABLE_OFFSET),
    ]
    dirty_closed = non_active_from(log.segments, first_dirty)
    young = first_young(dirty_closed, config.min_compaction_lag_ms, now_ms)
    if young is not None:
        bounds.append((young, RangeLimit.MIN_COMPACTION_LAG))
    if log.recovery_point is not None:
        bounds.append((log.recovery_point, RangeLimit.RECOVERY_POINT))
    bound, limit = min(bounds, key=lambda pair: pair[0])
    bound = max(first_dirty, bound)
    rest = non_active_from(log.segments, bound)
    first_uncleanable = rest[0].base_offset if rest else log.active.base_offset
    clean = range_query(log.segments, -1, first_dirty)
    cleanable = range_query(log.segments, min(first_dirty, first_uncleanable), first_uncleanable)
    assert first_dirty >= log.log_start_offset, "what is below the log start is no longer part of the log"
    assert first_uncleanable <= log.active.base_offset, "the active segment is never cleaned"
    assert first_uncleanable <= bound or not cleanable, "no limit is passed"
    oldest = [s.first_batch_timestamp_ms for s in dirty_closed if (s.first_batch_timestamp_ms or 0) > 0]
    clean_until = now_ms - max(config.max_compaction_lag_ms, 0)
    delay = max(clean_until - min(t for t in oldest if t is not None), 0) if oldest else 0
    return CleanableRange(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=first_uncleanable,
        limit=limit,
        checkpoint_reset=reset,
        clean_bytes=sum(s.size_bytes for s in clean),
        cleanable_bytes=sum(s.size_bytes for s in cleanable),
        compaction_delay_ms=delay,
    )


def first_young(segments: Sequence[SegmentFacts], min_compaction_lag_ms: int, now_ms: int) -> int | None:
    """Base offset of the first segment with a record younger than min.compaction.lag.ms (1.11); None: all are old enough."""
    if min_compaction_lag_ms <= 0:
        return None
    newest_ms = now_ms - min_compaction_lag_ms
    return next((s.base_offset for s in segments if s.largest_timestamp_ms > newest_ms), None)


def clean_section_only(log: LogFacts, found: CleanableRange) -> CleanableRange:
    """The range of a visit for expired delete horizons alone: it ends where the dirty section begins.

    Kafka waits for new dirty records before it drops an expired tombstone. `clean_bytes` is 0 when there is no such range:
    a round ends at the base of a segment (1.13), and a checkpoint lifts none of the other bounds (1.9), such as the high
    watermark of a restored log whose entry is missing.
    """
    end = found.first_dirty_offset
    bounds = [log.active.base_offset, log.last_stable_offset]
    if log.recovery_point is not None:
        bounds.append(log.recovery_point)
    usable = (
        not found.checkpoint_reset
        and end <= min(bounds)
        and any(segment.base_offset == end for segment in log.segments)
    )
    clean_bytes = found.clean_bytes if usable else 0
    return replace(found, first_uncleanable_offset=end, cleanable_bytes=0, clean_bytes=clean_bytes)


def is_filthy(found: CleanableRange, config: CompactionConfig) -> bool:
    """Whether a log qualifies for cleaning: overdue, or its ratio above the threshold, strictly (1.21)."""
    if found.is_empty:
        return False
    return found.compaction_delay_ms > 0 or found.dirty_ratio > config.min_cleanable_dirty_ratio


def urgency(found: CleanableRange) -> tuple[int, float]:
    """Sort key, greatest first: overdue logs by their delay, then the highest dirty ratio.

    Kafka gives overdue logs no priority (1.23); here the earliest deadline goes first (architecture 1).
    """
    return (found.compaction_delay_ms, found.dirty_ratio)
