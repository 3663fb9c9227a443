"""Which segments retention may delete (rules 6.1-6.6).

Three scans, each from the oldest segment that is left, each ending at the first segment that does not go:

==========  ===================  ==========================================================================
scan        with policy delete   a segment goes if
==========  ===================  ==========================================================================
log start   not needed           the next segment starts at or below the log start offset (6.3)
size        needed               the log without it is still `retention.bytes` or more (6.4)
time        needed               its largest timestamp is more than `retention.ms` ago (6.5)
==========  ===================  ==========================================================================

None of them goes beyond the high watermark, or takes a last segment in which no offset was assigned (6.2, 6.6).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from .cleanable import SegmentFacts


class Breach(Enum):
    """Why a segment goes; the value is for people."""

    LOG_START_OFFSET = "below the log start offset"
    SIZE = "retention.bytes"
    TIME = "retention.ms"


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """The topic settings that decide on retention; -1 = unlimited."""

    delete: bool  # cleanup.policy contains delete
    retention_ms: int
    retention_bytes: int


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The oldest segments that go, with the reason of each, and the log start offset that results.

    `roll`: every segment goes, and an empty one at the log end has to take their place before the first of them does (6.6).
    """

    deletions: tuple[tuple[SegmentFacts, Breach], ...]
    log_start_offset: int
    roll: bool


class Keeper(Enum):
    """What a segment waits for that stays; the value is for people."""

    LIMITS = "neither limit is breached"
    HIGH_WATERMARK = "the high watermark or recovery point is below its end"
    EMPTY = "it is the active segment, and empty"
    ACTIVE = "it is the active segment, and a writer may append to it"


@dataclass(frozen=True, slots=True)
class Kept:
    """The oldest segment that stays: it keeps all behind it.

    `due_ms`: from when on retention.ms is breached; `due_bytes`: how many bytes the log has to grow until retention.bytes
    is. None where that limit does not hold.
    """

    segment: SegmentFacts
    keeper: Keeper
    due_ms: int | None
    due_bytes: int | None


def what_stays(
    segments: Sequence[SegmentFacts],
    config: RetentionConfig,
    plan: RetentionPlan,
    *,
    now_ms: int,
    log_end_offset: int,
    high_watermark: int,
) -> Kept | None:
    """Why the first segment that `plan` spares is still there (6.2, 6.4, 6.5); None when none is spared."""
    rest = segments[len(plan.deletions) :]
    if not rest:
        return None
    segment, is_active = rest[0], len(rest) == 1
    upper = log_end_offset if is_active else rest[1].base_offset
    due_ms = segment.largest_timestamp_ms + config.retention_ms + 1
    due_bytes = max(config.retention_bytes + segment.size_bytes - sum(s.size_bytes for s in rest), 0)
    has_time, has_size = (
        config.delete and config.retention_ms >= 0,
        config.delete and config.retention_bytes >= 0,
    )
    is_breached = (has_time and due_ms <= now_ms) or (has_size and due_bytes == 0)
    if is_active and (segment.size_bytes == 0 or segment.base_offset == log_end_offset):
        keeper = Keeper.EMPTY
    elif high_watermark < upper:
        keeper = Keeper.HIGH_WATERMARK
    elif is_breached:
        keeper = Keeper.ACTIVE
    else:
        keeper = Keeper.LIMITS
    return Kept(segment, keeper, due_ms if has_time else None, due_bytes if has_size else None)


def plan_retention(
    segments: Sequence[SegmentFacts],
    config: RetentionConfig,
    *,
    now_ms: int,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
) -> RetentionPlan:
    """Apply log start, then size, then time, each as a scan from the oldest remaining segment (6.1, 6.2)."""
    deletions: list[tuple[SegmentFacts, Breach]] = []

    def scan(breach: Breach, breaches: Callable[[SegmentFacts, SegmentFacts | None], bool]) -> None:
        while (gone := len(deletions)) < len(segments):
            segment, following = segments[gone], segments[gone + 1] if gone + 1 < len(segments) else None
            upper = following.base_offset if following else log_end_offset
            empty_last = following is None and (
                segment.size_bytes == 0 or segment.base_offset == log_end_offset
            )
            if high_watermark < upper or empty_last or not breaches(segment, following):
                return
            deletions.append((segment, breach))

    start = log_start_offset
    scan(
        Breach.LOG_START_OFFSET, lambda _, following: following is not None and following.base_offset <= start
    )
    if config.delete:
        if config.retention_bytes >= 0:
            excess = sum(s.size_bytes for s in segments[len(deletions) :]) - config.retention_bytes

            def too_big(segment: SegmentFacts, _: SegmentFacts | None) -> bool:
                nonlocal excess
                if excess < segment.size_bytes:
                    return False
                excess -= segment.size_bytes
                return True

            scan(Breach.SIZE, too_big)
        if config.retention_ms >= 0:
            scan(Breach.TIME, lambda s, _: now_ms - s.largest_timestamp_ms > config.retention_ms)
    is_emptied = len(deletions) == len(segments)
    new_start = log_end_offset if is_emptied else segments[len(deletions)].base_offset
    # Values go before the tombstones behind them (architecture 2): a gap would bring deleted keys back.
    assert [gone for gone, _ in deletions] == list(segments[: len(deletions)]), (
        "the oldest segments, without a gap"
    )
    assert not deletions or new_start <= high_watermark, "nothing goes that other replicas may lack"
    return RetentionPlan(tuple(deletions), max(start, new_start), roll=bool(deletions) and is_emptied)


def epochs_from(epochs: Sequence[tuple[int, int]], log_start_offset: int) -> tuple[tuple[int, int], ...]:
    """Leader epochs, as (epoch, start offset) ascending, of a log that starts later now (6.9).

    The last one that starts at or below the log start goes on to hold for what is left.
    """
    below = [epoch for epoch, start in epochs if start <= log_start_offset]
    above = [(epoch, start) for epoch, start in epochs if start > log_start_offset]
    return (*((epoch, log_start_offset) for epoch in below[-1:]), *above)
