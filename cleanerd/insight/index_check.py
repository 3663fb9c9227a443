"""The offset index and the time index of a segment against its batches, as these are walked (spec disk B2, B3, B5).

Only the first wrong entry of an index is reported: nothing after it can be trusted, and one remedy fixes all of it.
What is not settled (the active segment of a live or killed broker) may be longer than its log was when it was listed, ends
at the first entry that is not used, and may have half of its last one.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .walk import Sound

Wrong = Callable[[int, object, object], None]
"""Called with (byte of the index, what was expected, what was found)."""

Int64s = npt.NDArray[np.int64]
_OFFSET_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


class _IndexCheck:
    """What both have in common: the entries that are used, and the one wrong entry that is reported."""

    def __init__(
        self, entry: np.dtype[np.void], content: bytes, size_bytes: int, wrong: Wrong, is_settled: bool
    ) -> None:
        self._entry_bytes = entry.itemsize
        self._wrong = wrong
        self._is_settled = is_settled
        self._was_wrong = False
        if size_bytes % self._entry_bytes and is_settled:
            self._tell(size_bytes, f"entries of {self._entry_bytes} bytes", f"{size_bytes} bytes")
        whole = len(content) // self._entry_bytes * self._entry_bytes
        self._entries = np.frombuffer(content[:whole], entry)

    def _tell(self, position: int, expected: object, found: object) -> None:
        if not self._was_wrong:
            self._was_wrong = True
            self._wrong(position, expected, found)

    def _tell_entry(self, slot: int, expected: object, found: object) -> None:
        self._tell(slot * self._entry_bytes, expected, found)


class OffsetIndexCheck(_IndexCheck):
    """Every entry names the start of a batch that is not above its offset, and offsets and positions rise."""

    def __init__(
        self, content: bytes, size_bytes: int, base_offset: int, wrong: Wrong, *, is_settled: bool
    ) -> None:
        super().__init__(_OFFSET_ENTRY, content, size_bytes, wrong, is_settled)
        relative = self._entries["offset"].astype(np.int64)
        positions = self._entries["position"].astype(np.int64)
        unused = np.flatnonzero((relative == 0) & (positions == 0))
        used = int(unused[0]) if len(unused) else len(relative)
        if not is_settled and used and positions[used - 1] == 0:
            used -= 1  # being written: the offset comes first
        good = (relative[:used] >= 0) & (positions[:used] > 0)
        good[1:] &= (np.diff(relative[:used]) > 0) & (np.diff(positions[:used]) > 0)
        if not good.all():
            slot = int(np.argmin(good))
            self._tell_entry(
                slot, "rising offsets and positions", f"offset +{relative[slot]}, position {positions[slot]}"
            )
            used = slot
        self._offsets: Int64s = relative[:used] + base_offset
        self._positions: Int64s = positions[:used]

    def add(self, sound: Sound) -> None:
        """Judge the entries that point into these batches."""
        rows = sound.batches
        starts: Int64s = rows["position"] + sound.piece.file_position
        low, high = np.searchsorted(self._positions, [starts[0], starts[-1] + int(rows["size"][-1])])
        if low == high:
            return
        at = np.searchsorted(starts, self._positions[low:high])
        at[at == len(starts)] = 0
        good = starts[at] == self._positions[low:high]
        good &= rows["base_offset"][at] <= self._offsets[low:high]
        if not good.all():
            slot = int(low + np.argmin(good))
            found = f"offset {self._offsets[slot]} at position {self._positions[slot]}"
            self._tell_entry(slot, "the start of a batch at or below the offset", found)

    def finish(self, log_bytes: int, last_offset: int) -> None:
        """Judge what points behind the log."""
        behind = np.flatnonzero((self._positions >= log_bytes) | (self._offsets > last_offset))
        if self._is_settled and len(behind):
            slot = int(behind[0])
            found = f"offset {self._offsets[slot]} at position {self._positions[slot]}"
            self._tell_entry(slot, f"entries below byte {log_bytes} and offset {last_offset + 1}", found)


class TimeIndexCheck(_IndexCheck):
    """No batch up to the offset of an entry is younger than it says, timestamps rise and offsets do not fall."""

    def __init__(
        self, content: bytes, size_bytes: int, base_offset: int, wrong: Wrong, *, is_settled: bool
    ) -> None:
        super().__init__(_TIME_ENTRY, content, size_bytes, wrong, is_settled)
        timestamps = self._entries["timestamp"].astype(np.int64)
        relative = self._entries["offset"].astype(np.int64)
        is_sparse = len(content) < size_bytes or len(timestamps) > 1
        if (
            is_sparse and not timestamps[:2].any() and not relative[:2].any()
        ):  # nothing but allocated in advance
            timestamps, relative = timestamps[:0], relative[:0]
        good = (timestamps >= 0) & (relative >= 0)
        good[1:] &= (np.diff(timestamps) > 0) & (np.diff(relative) >= 0)
        used = len(good) if good.all() else int(np.argmin(good))
        if used < len(good) and is_settled and (timestamps[used] or relative[used]):
            found = f"timestamp {timestamps[used]}, offset +{relative[used]}"
            self._tell_entry(used, "rising timestamps and offsets", found)
        self._timestamps: Int64s = timestamps[:used]
        self._offsets: Int64s = relative[:used] + base_offset
        self._checked = 0
        self._largest = -1

    def add(self, sound: Sound) -> None:
        """Judge the entries whose offsets lie in these batches."""
        rows = sound.batches
        high = int(np.searchsorted(self._offsets, int(rows["last_offset"][-1]), side="right"))
        largest = np.maximum.accumulate(np.maximum(rows["max_timestamp"], self._largest))
        if high > self._checked:
            entries = slice(self._checked, high)
            at = np.searchsorted(rows["last_offset"], self._offsets[entries], side="right") - 1
            below = np.where(at >= 0, largest[at], self._largest)
            good = below <= self._timestamps[entries]
            if not good.all():
                slot = self._checked + int(np.argmin(good))
                found = f"timestamp {self._timestamps[slot]} at offset {self._offsets[slot]}"
                self._tell_entry(slot, f"timestamp {below[slot - self._checked]} or later", found)
            self._checked = high
        self._largest = int(largest[-1])

    def finish(self, last_offset: int) -> None:
        """Judge what lies behind the log or is younger than all of it."""
        if not self._is_settled:
            return
        behind = np.flatnonzero((self._offsets > last_offset) | (self._timestamps > self._largest))
        if len(behind):
            slot = int(behind[0])
            found = f"timestamp {self._timestamps[slot]} at offset {self._offsets[slot]}"
            wanted = f"at most timestamp {self._largest} and offset {last_offset}"
            self._tell_entry(slot, wanted, found)

    @property
    def missing_timestamp(self) -> int | None:
        """The largest timestamp of the segment, where the index ends with a smaller one."""
        last = int(self._timestamps[-1]) if len(self._timestamps) else -1
        return self._largest if not self._was_wrong and last < self._largest else None

    @property
    def last_timestamp(self) -> int:
        """Timestamp of the last entry, -1 without one."""
        return int(self._timestamps[-1]) if len(self._timestamps) else -1
