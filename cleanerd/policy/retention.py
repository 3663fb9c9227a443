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

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

from .cleanable import SegmentFacts


class Breach(Enum):
    """Why a segment goes, in the order of the scans; the value is for people."""

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
    """The reason why a segment stays; the value is for people."""

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
    segment, has_time, has_size = rest[0], config.retention_ms >= 0, config.retention_bytes >= 0
    due_ms = segment.largest_timestamp_ms + config.retention_ms + 1 if config.delete and has_time else None
    behind_bytes = sum(s.size_bytes for s in rest[1:])
    due_bytes = max(config.retention_bytes - behind_bytes, 0) if config.delete and has_size else None
    is_breached = due_bytes == 0 or (due_ms is not None and due_ms <= now_ms)
    keeper = _keeper(rest, 0, log_end_offset, high_watermark)
    return Kept(segment, keeper or (Keeper.ACTIVE if is_breached else Keeper.LIMITS), due_ms, due_bytes)


def _keeper(
    segments: Sequence[SegmentFacts], place: int, log_end_offset: int, high_watermark: int
) -> Keeper | None:
    """Why a segment stays regardless of age and size (6.2, 6.6); None if nothing keeps it."""
    segment, is_last = segments[place], place + 1 == len(segments)
    if is_last and (segment.size_bytes == 0 or segment.base_offset == log_end_offset):
        return Keeper.EMPTY
    upper = log_end_offset if is_last else segments[place + 1].base_offset
    return Keeper.HIGH_WATERMARK if high_watermark < upper else None


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
    sizes = accumulate((segment.size_bytes for segment in reversed(segments)), initial=0)
    behind_bytes = list(sizes)[-2::-1]

    def is_breached(breach: Breach, place: int) -> bool:
        match breach:
            case Breach.LOG_START_OFFSET:
                return place + 1 < len(segments) and segments[place + 1].base_offset <= log_start_offset
            case Breach.SIZE:
                return config.delete and 0 <= config.retention_bytes <= behind_bytes[place]
            case Breach.TIME:
                age_ms = now_ms - segments[place].largest_timestamp_ms
                return config.delete and 0 <= config.retention_ms < age_ms

    deletions: list[tuple[SegmentFacts, Breach]] = []
    for breach in Breach:
        for place in range(len(deletions), len(segments)):
            if _keeper(segments, place, log_end_offset, high_watermark) or not is_breached(breach, place):
                break
            deletions.append((segments[place], breach))
    is_emptied = len(deletions) == len(segments)
    new_start = log_end_offset if is_emptied else segments[len(deletions)].base_offset
    # Values go before the tombstones behind them (architecture 2): a gap would bring deleted keys back.
    assert [gone for gone, _ in deletions] == list(segments[: len(deletions)]), (
        "the oldest segments, without a gap"
    )
    assert not deletions or new_start <= high_watermark, "nothing goes that other replicas may lack"
    return RetentionPlan(
        tuple(deletions), max(log_start_offset, new_start), roll=bool(deletions) and is_emptied
    )


def epochs_from(epochs: Sequence[tuple[int, int]], log_start_offset: int) -> tuple[tuple[int, int], ...]:
    """Leader epochs, as (epoch, start offset) ascending, of a log that starts later now (6.9).

    The last one that starts at or below the log start goes on to hold for what is left.
    """
    below = [epoch for epoch, start in epochs if start <= log_start_offset]
    above = [(epoch, start) for epoch, start in epochs if start > log_start_offset]
    return (*((epoch, log_start_offset) for epoch in below[-1:]), *above)
