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
from cleanerd.format.index_entries import used_entries, whole_entries

ENTRY = struct.Struct(">qi")
"""An entry: timestamp in ms, relative offset."""

ENTRY_BYTES = ENTRY.size
_ENTRY = np.dtype([("timestamp", ">i8"), ("relative offset", ">i4")])
assert _ENTRY.itemsize == ENTRY_BYTES == 12


@dataclass(frozen=True, slots=True, eq=False)
class TimeIndex:
    """Timestamps in ms and absolute offsets, as two arrays of one length.

    `flaw`: why the file has more bytes than these entries, None if it has not.
    """

    timestamps_ms: NDArray[np.int64]
    offsets: NDArray[np.int64]
    flaw: FormatError | None = None

    @property
    def largest_timestamp_ms(self) -> int | None:
        """Timestamp of the last entry; None without entries, where Kafka takes the mtime of the `.log`."""
        return int(self.timestamps_ms[-1]) if self.timestamps_ms.size else None


def parse_time_index(data: bytes, base_offset: int, size_bytes: int | None = None) -> TimeIndex:
    """Read the entries up to the first that does not rise or was never written. Raises nothing: it is a hint.

    `data` ends at the first hole of a file of `size_bytes`. Zeros at the start are an entry only where nothing but zeros
    would not fit behind them: timestamp 0 at the base offset is a legal one.
    """
    entries = whole_entries(data, _ENTRY)
    timestamps_ms = entries["timestamp"].astype(np.int64)
    relative = entries["relative offset"].astype(np.int64)
    size_bytes = len(data) if size_bytes is None else size_bytes
    good = (timestamps_ms >= 0) & (relative >= 0)
    good[1:] &= (timestamps_ms[1:] > timestamps_ms[:-1]) & (relative[1:] >= relative[:-1])
    if size_bytes > ENTRY_BYTES and not (timestamps_ms[:2].any() or relative[:2].any()):
        good[:1] = False
    used, flaw = used_entries(good, entries, size_bytes, "rising timestamps and offsets")
    return TimeIndex(timestamps_ms[:used], relative[:used] + base_offset, flaw)


def render_time_index(index: TimeIndex, base_offset: int) -> bytes:
    """The file for these entries, exactly as long as they need.

    Requires: entries that rise, and offsets less than 2^31 above the base.
    """
    relative = index.offsets - base_offset
    assert relative.size == 0 or (relative.min() >= 0 and relative.max() < 2**31)
    entries = np.empty(len(relative), dtype=_ENTRY)
    entries["timestamp"] = index.timestamps_ms
    entries["relative offset"] = relative
    return entries.tobytes()
