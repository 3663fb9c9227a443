"""A log directory in a few numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from cleanerd.daemon.inventory.listed_log import ListedLog
from cleanerd.daemon.inventory.urgency import DirtyEstimate


@dataclass(frozen=True, slots=True)
class Totals:
    """Of a log directory. What has to do with dirt is of compacted logs, and an upper bound.

    `max_dirty_ratio`: rule 1.25. `max_delay_ms`: how long the most overdue log has been (1.18). `largest_bytes`: of the log
    with the most bytes in closed segments that may be cleaned, or were. `unreadable`: partition directories.
    `staged_results` of logs wait for their commit, which will free `staged_freed_bytes`, the oldest since `staged_since_ms`.
    """

    size_bytes: int
    cleanable_bytes: int
    max_dirty_ratio: float
    max_delay_ms: int
    largest_bytes: int
    unreadable: int
    staged_results: int
    staged_freed_bytes: int
    staged_since_ms: int | None


def sum_up(
    known: Sequence[ListedLog], estimates: Sequence[DirtyEstimate], *, unreadable: int, now_ms: int
) -> Totals:
    """Totals of the logs in `known`; `estimates` of those that are compacted."""
    staged = [one.contents.staged for one in known if one.contents.staged is not None]
    dirty = [found.range for found in estimates if not found.range.is_empty]
    return Totals(
        size_bytes=sum(one.contents.size_bytes for one in known),
        cleanable_bytes=sum(found.cleanable_bytes for found in dirty),
        max_dirty_ratio=max((found.dirty_ratio for found in dirty), default=0.0),
        max_delay_ms=max((max(now_ms - found.deadline_ms, 0) for found in estimates), default=0),
        largest_bytes=max((f.range.clean_bytes + f.range.cleanable_bytes for f in estimates), default=0),
        unreadable=unreadable,
        staged_results=len(staged),
        staged_freed_bytes=sum(one.freed_bytes for one in staged),
        staged_since_ms=min((one.since_ms for one in staged), default=None),
    )
