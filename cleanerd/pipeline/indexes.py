"""Index entries of the parts of a group, joined to the indexes of its new segment (spec disk B2, B3)."""

from collections.abc import Sequence

import numpy as np

from cleanerd.format.offset_index import OffsetIndex
from cleanerd.format.time_index import TimeIndex

from .rewrite import Part


def join_entries(parts: Sequence[Part], interval_bytes: int) -> tuple[OffsetIndex, TimeIndex]:
    """Positions count from the start of the segment; timestamps rise strictly, as a reader of the index requires.

    A part may be too small for an entry of its own: it gets one for its start if the last entry is more than
    `interval_bytes` away, so that a segment made of many small ones is indexed like any other.
    """
    offsets, positions, timestamps, timestamp_offsets = ([np.zeros(0, np.int64)] for _ in range(4))
    start = indexed = 0
    for part in parts:
        entries = part.entries
        if part.size_bytes and start - indexed > interval_bytes:
            offsets.append(np.array([part.first_last_offset]))
            positions.append(np.array([start]))
            indexed = start
        if len(entries.positions):
            indexed = start + int(entries.positions[-1])
        offsets.append(entries.offsets)
        positions.append(entries.positions + start)
        timestamps.append(entries.timestamps)
        timestamp_offsets.append(entries.timestamp_offsets)
        start += part.size_bytes
    times = np.concatenate(timestamps)
    largest_before = np.maximum.accumulate(np.concatenate([[-1], times]))[:-1]
    rises = times > largest_before
    return (
        OffsetIndex(np.concatenate(offsets), np.concatenate(positions)),
        TimeIndex(times[rises], np.concatenate(timestamp_offsets)[rises]),
    )
