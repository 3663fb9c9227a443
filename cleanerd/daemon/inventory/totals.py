"""A log directory in a few numbers."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from cleanerd.daemon.inventory.known_log import KnownLog
from cleanerd.daemon.inventory.urgency import Estimate
from cleanerd.daemon.values.log_id import LogId


@dataclass(frozen=True, slots=True)
class Totals:
    """Of a log directory. What has to do with dirt is of compacted logs, and an upper bound.

    `max_dirty_ratio`: rule 1.25. `max_delay_ms`: how long the most overdue log has been (1.18). `largest_bytes`: of the log
    with the most bytes in closed segments that may be cleaned, or were. `states` counts logs as far as files and
    configuration tell. `unreadable`: partition directories.
    """

    logs: int
    size_bytes: int
    cleanable_bytes: int
    max_dirty_ratio: float
    max_delay_ms: int
    largest_bytes: int
    states: Mapping[Literal["clean", "dirty", "staged", "ignored"], int]
    unreadable: int


def sum_up(
    known: Mapping[LogId, KnownLog],
    estimates: Sequence[Estimate],
    compacted: Set[LogId],
    apart: Set[LogId],
    *,
    unreadable: int,
    now_ms: int,
) -> Totals:
    """Totals of the logs in `known`; `estimates` of those that are compacted, `apart` those that `states` leaves out."""
    dirty = [found for found in estimates if not found.range.is_empty]
    is_dirty = {found.known.log for found in dirty}
    staged = {log for log, one in known.items() if one.contents.is_staged} - apart
    rest = known.keys() - staged - apart
    return Totals(
        logs=len(known),
        size_bytes=sum(one.contents.size_bytes for one in known.values()),
        cleanable_bytes=sum(found.range.cleanable_bytes for found in dirty),
        max_dirty_ratio=max((found.range.dirty_ratio for found in dirty), default=0.0),
        max_delay_ms=max((max(now_ms - found.deadline_ms, 0) for found in estimates), default=0),
        largest_bytes=max((f.range.clean_bytes + f.range.cleanable_bytes for f in estimates), default=0),
        states={
            "staged": len(staged),
            "ignored": len(rest - compacted),
            "dirty": len(rest & is_dirty),
            "clean": len((rest & compacted) - is_dirty),
        },
        unreadable=unreadable,
    )
