"""What another setting would have done: the recorded growth of a log, cleaned by other rules.

The replay is coarse on purpose. It knows what was written between two samples, not when a key came back, so it takes one
share of all written bytes to have stayed; what is dirty in the active segment waits for it to be closed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class RecordedLog:
    """A log at an instant, as it was recorded."""

    time_ms: int
    size_bytes: int
    clean_bytes: int


@dataclass(frozen=True, slots=True)
class CleaningSetting:
    """What decides when a log is cleaned. `max_compaction_lag_ms`: 0 or less is none."""

    min_cleanable_dirty_ratio: float
    max_compaction_lag_ms: int
    segment_bytes: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """What it came to. `mean_bytes` is by time, `read_bytes` what all cleanings read."""

    cleanings: int
    read_bytes: int
    mean_bytes: int
    max_bytes: int


def stayed(seen: Sequence[RecordedLog]) -> float:
    """The share of all written bytes that cleanings have left, from what was written and what became of the clean part."""
    written = sum(max(after.size_bytes - before.size_bytes, 0) for before, after in pairwise(seen))
    grown = seen[-1].clean_bytes - seen[0].clean_bytes if seen else 0
    return min(max(grown / written, 0.0), 1.0) if written else 0.0


def replay(seen: Sequence[RecordedLog], setting: CleaningSetting) -> Replayed:
    """The log from the first sample on, written as it was, cleaned by `setting`. Requires: samples ascend by time."""
    share = stayed(seen)
    clean, dirty = float(seen[0].clean_bytes), float(seen[0].size_bytes - seen[0].clean_bytes)
    dirty_since_ms, cleanings, read = seen[0].time_ms, 0, 0.0
    weighted, largest = 0.0, clean + dirty
    for before, after in pairwise(seen):
        weighted += (clean + dirty) * (after.time_ms - before.time_ms)
        written = max(after.size_bytes - before.size_bytes, 0)
        if not dirty:
            dirty_since_ms = after.time_ms
        dirty += written
        largest = max(largest, clean + dirty)
        closed = dirty - dirty % setting.segment_bytes
        overdue = 0 < setting.max_compaction_lag_ms < after.time_ms - dirty_since_ms
        if closed and (closed > setting.min_cleanable_dirty_ratio * (clean + closed) or overdue):
            cleanings += 1
            read += clean + closed
            clean += closed * share
            dirty -= closed
            dirty_since_ms = after.time_ms
    lasted_ms = seen[-1].time_ms - seen[0].time_ms
    mean = weighted / lasted_ms if lasted_ms else clean + dirty
    return Replayed(cleanings, round(read), round(mean), round(largest))
