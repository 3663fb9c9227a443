"""`.index`: from an offset to where in the `.log` to start looking (spec disk B2, B5).

===  ====  =========  ==========================================================
off  size  field      note
===  ====  =========  ==========================================================
0    4     offset     minus the base offset of the segment; last offset of a batch
4    4     position   byte at which that batch (or append) starts
===  ====  =========  ==========================================================

Offsets rise strictly. No entry ever stands at position 0, so zeros are the unused rest of a preallocated
file. A live broker also leaves files that are all zeros (spec disk E3): every lookup then starts at byte 0.
"""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleanerd.format.errors import FormatError
from cleanerd.format.index_entries import used_entries, whole_entries

INDEX_INTERVAL_BYTES = 4096
"""Of log between two entries: Kafka's default of index.interval.bytes."""

ENTRY = struct.Struct(">ii")
"""An entry: relative offset, position."""

ENTRY_BYTES = ENTRY.size
NAMED_BATCH = "the start of a batch at or below the offset"
"""The batch that an entry must point to, in the words of errors."""
_ENTRY = np.dtype([("relative offset", ">i4"), ("position", ">i4")])
assert _ENTRY.itemsize == ENTRY_BYTES == 8


@dataclass(frozen=True, slots=True, eq=False)
class OffsetIndex:
    """Absolute offsets and the positions of the batches that they end, as two arrays of one length.

    `flaw`: why the file has more bytes than these entries, None if it has not.
    """

    offsets: NDArray[np.int64]
    positions: NDArray[np.int64]
    flaw: FormatError | None = None

    def lookup(self, offset: int) -> int:
        """Position from which to scan for `offset`: that of the greatest entry at or below it, else 0."""
        slot = int(np.searchsorted(self.offsets, offset, side="right")) - 1
        return int(self.positions[slot]) if slot >= 0 else 0

    def entry(self, slot: int) -> str:
        """One entry in words."""
        return f"offset {self.offsets[slot]} at position {self.positions[slot]}"

    def within(self, log_bytes: int, end_offset: int) -> "OffsetIndex":
        """The entries that can be of a segment of `log_bytes` whose offsets are below `end_offset`; the rest is a flaw."""
        used = min(np.searchsorted(self.positions, log_bytes), np.searchsorted(self.offsets, end_offset))
        if used == len(self.offsets):
            return self
        expected = f"entries below byte {log_bytes} and offset {end_offset}"
        flaw = FormatError(int(used) * ENTRY_BYTES, expected, self.entry(int(used)))
        return OffsetIndex(self.offsets[:used], self.positions[:used], flaw)


def parse_offset_index(data: bytes, base_offset: int, size_bytes: int | None = None) -> OffsetIndex:
    """Read the entries up to the first that is none. Raises nothing: an index is a hint, never the only evidence.

    `data` ends at the first hole of a file of `size_bytes`.
    """
    entries = whole_entries(data, _ENTRY)
    relative = entries["relative offset"].astype(np.int64)
    positions = entries["position"].astype(np.int64)
    good = (relative >= 0) & (positions > 0)
    good[1:] &= (relative[1:] > relative[:-1]) & (positions[1:] > positions[:-1])
    size_bytes = len(data) if size_bytes is None else size_bytes
    used, flaw = used_entries(good, entries, size_bytes, "rising offsets and positions")
    return OffsetIndex(relative[:used] + base_offset, positions[:used], flaw)


def render_offset_index(index: OffsetIndex, base_offset: int) -> bytes:
    """The file for these entries, exactly as long as they need.

    Requires: entries that rise, and offsets less than 2^31 above the base.
    """
    relative = index.offsets - base_offset
    assert relative.size == 0 or (relative.min() >= 0 and relative.max() < 2**31)
    entries = np.empty(len(relative), dtype=_ENTRY)
    entries["relative offset"] = relative
    entries["position"] = index.positions
    return entries.tobytes()
