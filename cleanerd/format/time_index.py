"""`.timeindex`: from a timestamp to an offset, and the largest timestamp of the segment (spec disk B3, B5).

===  ====  =========  ========================================================================
off  size  field      note
===  ====  =========  ========================================================================
0    8     timestamp  largest max timestamp of a batch so far in the segment
8    4     offset     last offset of the batch that first carried it, minus the base offset
===  ====  =========  ========================================================================

Timestamps rise strictly, offsets never fall. The last entry *is* the segment's largest timestamp after a
restart: it drives `retention.ms` and both compaction lags. No entry at all reads as -1.
"""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleanerd.format.errors import FormatError

ENTRY = struct.Struct(">qi")
"""One entry, for who writes them one at a time."""

ENTRY_BYTES = ENTRY.size
_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
assert _ENTRY.itemsize == ENTRY_BYTES == 12


@dataclass(frozen=True, slots=True, eq=False)
class TimeIndex:
    """Timestamps in ms and absolute offsets, as two arrays of one length."""

    timestamps_ms: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @property
    def largest_timestamp_ms(self) -> int | None:
        """Timestamp of the last entry; None without entries, where Kafka takes the mtime of the `.log`."""
        return int(self.timestamps_ms[-1]) if self.timestamps_ms.size else None


def parse_time_index(data: bytes, base_offset: int, *, preallocated: bool = False) -> TimeIndex:
    """Read the entries. `preallocated` for the active segment: stop at the first entry that does not rise or
    is not written to its end.

    Raises: `FormatError` for a broken entry, timestamps that do not rise, or offsets that fall.
    """
    if preallocated:
        data = data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]
    if len(data) % ENTRY_BYTES:
        raise FormatError(len(data), f"entries of {ENTRY_BYTES} bytes", f"{len(data)} bytes")
    entries = np.frombuffer(data, dtype=_ENTRY)
    timestamps_ms = entries["timestamp"].astype(np.int64)
    relative = entries["offset"].astype(np.int64)
    good = (timestamps_ms >= 0) & (relative >= 0)
    good[1:] &= (timestamps_ms[1:] > timestamps_ms[:-1]) & (relative[1:] >= relative[:-1])
    if preallocated and good.size and timestamps_ms[0] == 0 and relative[0] == 0:
        good[0] = False
    used = len(good) if good.all() else int(np.argmin(good))
    if used < len(good) and not preallocated:
        found = f"timestamp {timestamps_ms[used]}, offset +{relative[used]}"
        raise FormatError(used * ENTRY_BYTES, "rising timestamps and offsets", found)
    return TimeIndex(timestamps_ms[:used], relative[:used] + base_offset)


def render_time_index(index: TimeIndex, base_offset: int) -> bytes:
    """The file for these entries, exactly as long as they need.

    Requires: what `parse_time_index` demands, and offsets less than 2^31 above the base.
    """
    relative = index.offsets - base_offset
    assert relative.size == 0 or (relative.min() >= 0 and relative.max() < 2**31)
    entries = np.empty(len(relative), dtype=_ENTRY)
    entries["timestamp"] = index.timestamps_ms
    entries["offset"] = relative
    return entries.tobytes()
