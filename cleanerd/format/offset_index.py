"""`.index`: from an offset to where in the `.log` to start looking (spec disk B2, B5).

===  ====  =========  ==========================================================
off  size  field      note
===  ====  =========  ==========================================================
0    4     offset     minus the base offset of the segment; last offset of a batch
4    4     position   byte at which that batch (or append) starts
===  ====  =========  ==========================================================

Offsets rise strictly. No entry ever stands at position 0, so zeros are the unused rest of a preallocated
file. A live broker also leaves files that are all zeros, and they are legal: every lookup then starts at
byte 0.
"""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleanerd.format.errors import FormatError

INDEX_INTERVAL_BYTES = 4096
"""Of log between two entries: Kafka's default of index.interval.bytes."""

ENTRY = struct.Struct(">ii")
"""One entry, for who writes them one at a time."""

ENTRY_BYTES = ENTRY.size
_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
assert _ENTRY.itemsize == ENTRY_BYTES == 8


@dataclass(frozen=True, slots=True, eq=False)
class OffsetIndex:
    """Absolute offsets and the positions of the batches that they end, as two arrays of one length."""

    offsets: NDArray[np.int64]
    positions: NDArray[np.int64]

    def lookup(self, offset: int) -> int:
        """Position from which to scan for `offset`: that of the greatest entry at or below it, else 0."""
        slot = int(np.searchsorted(self.offsets, offset, side="right")) - 1
        return int(self.positions[slot]) if slot >= 0 else 0


def parse_offset_index(data: bytes, base_offset: int) -> OffsetIndex:
    """Read the entries up to the first unused one.

    Raises: `FormatError` for a broken entry, offsets that do not rise, or negative numbers.
    """
    if len(data) % ENTRY_BYTES:
        raise FormatError(len(data), f"entries of {ENTRY_BYTES} bytes", f"{len(data)} bytes")
    entries = np.frombuffer(data, dtype=_ENTRY)
    relative = entries["offset"].astype(np.int64)
    positions = entries["position"].astype(np.int64)
    unused = np.flatnonzero((relative == 0) & (positions == 0))
    used = int(unused[0]) if unused.size else len(entries)
    relative, positions = relative[:used], positions[:used]
    _check_rising(relative, positions)
    return OffsetIndex(relative + base_offset, positions)


def _check_rising(relative: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
    good = (relative >= 0) & (positions > 0)
    good[1:] &= (relative[1:] > relative[:-1]) & (positions[1:] > positions[:-1])
    if not good.all():
        slot = int(np.argmin(good))
        found = f"offset +{relative[slot]}, position {positions[slot]}"
        raise FormatError(slot * ENTRY_BYTES, "rising offsets and positions", found)


def render_offset_index(index: OffsetIndex, base_offset: int) -> bytes:
    """The file for these entries, exactly as long as they need.

    Requires: what `parse_offset_index` demands, and offsets less than 2^31 above the base.
    """
    relative = index.offsets - base_offset
    assert relative.size == 0 or (relative.min() >= 0 and relative.max() < 2**31)
    entries = np.empty(len(relative), dtype=_ENTRY)
    entries["offset"] = relative
    entries["position"] = index.positions
    return entries.tobytes()
