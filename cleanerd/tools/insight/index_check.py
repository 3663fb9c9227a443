"""The offset index and the time index of a segment, checked against its batches during the walk (spec disk B2, B3, B5).

Only the first wrong entry of an index is reported: nothing after it can be trusted, and one remedy fixes all of it.
What is not settled (the active segment of a live or killed broker) may be longer than its log was when it was listed, and
ends at the first entry that is not used.
"""

import numpy as np

from cleanerd.format import offset_index, time_index
from cleanerd.format.errors import FormatError
from cleanerd.format.names import FileKind
from cleanerd.format.offset_index import NAMED_BATCH, OffsetIndex
from cleanerd.format.time_index import TimeIndex
from cleanerd.kernels.scan import first_misplaced

from .walk import Sound


class IndexCheck:
    """What both have in common. `flaw`: the one thing that is reported; `code`: how the code of its finding begins."""

    kind: FileKind
    code: str

    def __init__(self, flaw: FormatError | None, *, is_settled: bool) -> None:
        self._is_settled = is_settled
        self.flaw = flaw if is_settled else None

    def add(self, sound: Sound) -> None:
        """Judge the entries that lead into these batches."""
        raise NotImplementedError

    def finish(self, log_bytes: int, last_offset: int) -> None:
        """Judge what leads behind the log."""
        raise NotImplementedError


class OffsetIndexCheck(IndexCheck):
    """Every entry names the start of a batch that is not above its offset, and offsets and positions rise."""

    kind, code = FileKind.OFFSET_INDEX, "index"

    def __init__(self, index: OffsetIndex, *, is_settled: bool) -> None:
        super().__init__(index.flaw, is_settled=is_settled)
        self._index = index

    def add(self, sound: Sound) -> None:
        """Judge the entries that point into these batches."""
        slot = first_misplaced(sound.batches, sound.piece.file_position, self._index)
        if slot >= 0 and self.flaw is None:
            self.flaw = FormatError(slot * offset_index.ENTRY_BYTES, NAMED_BATCH, self._index.entry(slot))

    def finish(self, log_bytes: int, last_offset: int) -> None:
        """Judge what points behind the log."""
        if self._is_settled:
            self.flaw = self.flaw or self._index.within(log_bytes, last_offset + 1).flaw


class TimeIndexCheck(IndexCheck):
    """No batch up to the offset of an entry is younger than it says, timestamps rise and offsets do not fall."""

    kind, code = FileKind.TIME_INDEX, "time_index"

    def __init__(self, index: TimeIndex, *, is_settled: bool) -> None:
        super().__init__(index.flaw, is_settled=is_settled)
        self._timestamps = index.timestamps_ms
        self._offsets = index.offsets
        self._checked = 0
        self.largest = -1

    def add(self, sound: Sound) -> None:
        """Judge the entries whose offsets lie in these batches."""
        rows = sound.batches
        high = int(np.searchsorted(self._offsets, int(rows["last_offset"][-1]), side="right"))
        largest = np.maximum.accumulate(np.maximum(rows["max_timestamp"], self.largest))
        if high > self._checked:
            entries = slice(self._checked, high)
            at = np.searchsorted(rows["last_offset"], self._offsets[entries], side="right") - 1
            below = np.where(at >= 0, largest[at], self.largest)
            good = below <= self._timestamps[entries]
            if not good.all():
                slot = self._checked + int(np.argmin(good))
                self._report_entry(slot, f"timestamp {below[slot - self._checked]} or later")
            self._checked = high
        self.largest = int(largest[-1])

    def finish(self, log_bytes: int, last_offset: int) -> None:  # noqa: ARG002 - as every index
        """Judge what lies behind the log or is younger than all of it."""
        if not self._is_settled:
            return
        behind = np.flatnonzero((self._offsets > last_offset) | (self._timestamps > self.largest))
        if len(behind):
            wanted = f"at most timestamp {self.largest} and offset {last_offset}"
            self._report_entry(int(behind[0]), wanted)

    def _report_entry(self, slot: int, expected: str) -> None:
        found = f"timestamp {self._timestamps[slot]} at offset {self._offsets[slot]}"
        self.flaw = self.flaw or FormatError(slot * time_index.ENTRY_BYTES, expected, found)

    @property
    def is_too_short(self) -> bool:
        """Whether the segment has a larger timestamp than the last entry."""
        return self.last_timestamp < self.largest

    @property
    def last_timestamp(self) -> int:
        """Timestamp of the last entry, -1 without one."""
        return int(self._timestamps[-1]) if len(self._timestamps) else -1
