"""What another setting would have done: the recorded growth of a log, cleaned by other rules.

The replay is coarse on purpose. It knows what was written between two samples, not when a key came back, so it takes one
share of all written bytes to have stayed; what is dirty in the active segment waits for it to be closed. What a log held
when the record begins counts as written then, so retention by time is late with it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class SizeSample:
    """How large and how dirty a compacted log was at an instant, or all of them together. Dirty bytes: an upper bound."""

    time_ms: int
    size_bytes: int
    clean_bytes: int
    cleanable_bytes: int

    @property
    def dirty_ratio(self) -> float:
        """Cleanable bytes over clean and cleanable ones (rule 1.21); 0 where there are none."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


@dataclass(frozen=True, slots=True)
class CleaningSetting:
    """What decides when a log is cleaned, and what of it is kept.

    `max_compaction_lag_ms`: 0 or less is none. `retention_ms`, `retention_bytes` (rules 6.4, 6.5): negative is none, as it
    is for a log whose policy does not delete.
    """

    min_cleanable_dirty_ratio: float
    max_compaction_lag_ms: int
    segment_bytes: int
    retention_ms: int = -1
    retention_bytes: int = -1


@dataclass(frozen=True, slots=True)
class Replayed:
    """What it came to. `mean_bytes` is by time, `read_bytes` what all cleanings read."""

    cleanings: int
    read_bytes: int
    mean_bytes: int
    max_bytes: int


def stayed(seen: Sequence[SizeSample]) -> float:
    """The share of all written bytes that cleanings have left, from what was written and what became of the clean part."""
    written = sum(max(after.size_bytes - before.size_bytes, 0) for before, after in pairwise(seen))
    grown = seen[-1].clean_bytes - seen[0].clean_bytes if seen else 0
    return min(max(grown / written, 0.0), 1.0) if written else 0.0


@dataclass(slots=True)
class _Part:
    """The clean or the dirty part of a log: when its bytes were written, oldest first."""

    size: float = 0.0
    runs: deque[tuple[int, float]] = field(default_factory=deque)

    def add(self, time_ms: int, size: float) -> None:
        if size:
            self.size += size
            self.runs.append((time_ms, size))

    def take(self, size: float) -> list[tuple[int, float]]:
        """The oldest bytes, which are gone from here."""
        self.size -= size
        taken: list[tuple[int, float]] = []
        while size > 0 and self.runs:
            time_ms, run = self.runs.popleft()
            if run > size:
                self.runs.appendleft((time_ms, run - size))
            taken.append((time_ms, min(run, size)))
            size -= run
        return taken


def _retain(part: _Part, keeps: float, total: float, setting: CleaningSetting, now_ms: int) -> float:
    """Delete the oldest runs of a part but for the last `keeps` bytes of it; what a log of `total` bytes is afterwards."""
    while part.runs:
        time_ms, run = part.runs[0]
        is_old = 0 <= setting.retention_ms < now_ms - time_ms
        is_much = 0 <= setting.retention_bytes <= total - run
        if not (is_old or is_much) or part.size - run < keeps:
            break
        part.take(run)
        total -= run
    return total


def replay(seen: Sequence[SizeSample], setting: CleaningSetting) -> Replayed:
    """The log from the first sample on, written as it was, cleaned by `setting`. Requires: samples ascend by time."""
    share, first = stayed(seen), seen[0]
    clean, dirty = _Part(), _Part()
    clean.add(first.time_ms, float(first.clean_bytes))
    dirty.add(first.time_ms, float(first.size_bytes - first.clean_bytes))
    dirty_since_ms, cleanings, read = first.time_ms, 0, 0.0
    weighted, largest = 0.0, clean.size + dirty.size
    for before, after in pairwise(seen):
        weighted += (clean.size + dirty.size) * (after.time_ms - before.time_ms)
        if not dirty.size:
            dirty_since_ms = after.time_ms
        dirty.add(after.time_ms, float(max(after.size_bytes - before.size_bytes, 0)))
        largest = max(largest, clean.size + dirty.size)
        total = _retain(clean, 0.0, clean.size + dirty.size, setting, after.time_ms)
        if not clean.size:
            _retain(dirty, dirty.size % setting.segment_bytes, total, setting, after.time_ms)
        closed = dirty.size - dirty.size % setting.segment_bytes
        overdue = 0 < setting.max_compaction_lag_ms < after.time_ms - dirty_since_ms
        if closed and (closed > setting.min_cleanable_dirty_ratio * (clean.size + closed) or overdue):
            cleanings += 1
            read += clean.size + closed
            for time_ms, size in dirty.take(closed):
                clean.add(time_ms, size * share)
            dirty_since_ms = after.time_ms
    lasted_ms = seen[-1].time_ms - first.time_ms
    mean = weighted / lasted_ms if lasted_ms else clean.size + dirty.size
    return Replayed(cleanings, round(read), round(mean), round(largest))
