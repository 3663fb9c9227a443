"""The indexes of a new segment: entries of each part, joined, and its aborted transactions (spec disk B2, B3, B6)."""

from collections.abc import Sequence

import numpy as np

from cleanerd.format.offset_index import OffsetIndex
from cleanerd.format.time_index import TimeIndex
from cleanerd.format.txn_index import AbortedTxn
from cleanerd.kernels.index_marks import index_marks
from cleanerd.kernels.tables import Table

from .values import IndexedLog, IndexEntries, Part


def index_entries(written: Table, interval_bytes: int) -> IndexEntries:
    """Entries for batches laid end to end: one batch start per `interval_bytes`, as an appending broker sets them (B4)."""
    marks = index_marks(written, interval_bytes)
    running = np.maximum.accumulate(written["max_timestamp"]) if len(written) else written["max_timestamp"]
    rises = np.ones(len(written), np.bool_)
    rises[1:] = running[1:] > running[:-1]
    first_with = np.maximum.accumulate(np.where(rises, np.arange(len(written)), 0))
    is_named = marks.copy()
    is_named[-1:] = True
    at, at_time = np.flatnonzero(marks), np.flatnonzero(is_named)
    return IndexEntries(
        offsets=written["last_offset"][at].copy(),
        positions=written["position"][at].copy(),
        timestamps=running[at_time].copy(),
        timestamp_offsets=written["last_offset"][first_with[at_time]].copy(),
    )


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


def aborted_in(log: IndexedLog, first: int, end: int) -> list[AbortedTxn]:
    """Entries of the transaction index of a new segment with offsets [first, end), by marker (spec disk B6)."""
    found = [txn for txn in log.kept_aborted if first <= txn.last_offset < end]
    return sorted(found, key=lambda txn: txn.last_offset)
