"""Index entries of the parts of a group, joined to the indexes of its new segment (spec disk B2, B3)."""

from collections.abc import Sequence

import numpy as np

from cleanerd.format.offset_index import OffsetIndex
from cleanerd.format.time_index import TimeIndex

from .rewrite import Part


def join_entries(parts: Sequence[Part]) -> tuple[OffsetIndex, TimeIndex]:
    """Positions count from the start of the segment; timestamps rise strictly, as a reader of the index requires."""
    offsets, positions, timestamps, timestamp_offsets = [], [], [], []
    start = 0
    for part in parts:
        entries = part.entries
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
