"""Where segments are cut into chunks, and how many records each chunk can hold.

Most segments say so without being read: their offset index names a batch every few KiB, and between two offsets there are no
more records than offsets. That is a poor bound for a segment of the dirty section that was compacted before, and for records
that hardly take bytes; and an index may be missing or wrong. Then all batch headers of the segment are walked.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from cleanerd.env.files import open_regular
from cleanerd.env.pace import Pace
from cleanerd.format.offset_index import OffsetIndex
from cleanerd.kernels.heads import Heads, walk_heads
from cleanerd.storage.scan import SegmentOnDisk, sound_batch

_WALK_BYTES_PER_THREAD = 64 << 20  # some ms: less is not worth a thread
_BYTES_PER_OFFSET_MIN = 32  # of log: with more offsets than that their number says little about records
_OFFSETS_PER_RECORD_MAX = 2  # in the batches that are looked at, which stand for the others


@dataclass(frozen=True, slots=True)
class Uncut:
    """A segment that is not empty; all its offsets are below `end_offset`."""

    segment: SegmentOnDisk
    end_offset: int
    index: OffsetIndex | None


def cut_all(
    segments: Sequence[Uncut], *, chunk_bytes: int, first_dirty_offset: int, pace: Pace
) -> list[Heads]:
    """Cut segments at batch starts, about every `chunk_bytes`. Raises OSError, and what `pace` does."""
    found = [_cut_by_index(one, chunk_bytes, first_dirty_offset) for one in segments]
    rest = [one.segment for one, heads in zip(segments, found, strict=True) if heads is None]
    walked = iter(_walk_all(rest, chunk_bytes, first_dirty_offset, pace))
    return [next(walked) if heads is None else heads for heads in found]


def _cut_by_index(uncut: Uncut, chunk_bytes: int, first_dirty_offset: int) -> Heads | None:
    """What index and offsets tell, None where that is no good bound or not true. Reads a batch for each chunk."""
    segment, size_bytes = uncut.segment, uncut.segment.size_bytes
    if uncut.end_offset - segment.base_offset > size_bytes // _BYTES_PER_OFFSET_MIN:
        return None
    starts, last_offsets = _indexed_starts(uncut, chunk_bytes)
    if np.diff([*starts, size_bytes]).max() > 2 * chunk_bytes:
        return None
    lows = []
    for start, last_offset in zip(starts, last_offsets, strict=True):
        header = sound_batch(segment, start, last_offset, max_bytes=chunk_bytes)
        if header is None:
            return None
        lows.append(header.base_offset if start else segment.base_offset)
        is_dense = header.last_offset_delta < _OFFSETS_PER_RECORD_MAX * header.record_count
        if uncut.end_offset > first_dirty_offset and not is_dense:
            return None
    bounds = np.array([*lows, uncut.end_offset], np.int64)
    records = np.diff(bounds)
    if records.min() <= 0:
        return None
    clean = np.clip(first_dirty_offset - bounds[:-1], 0, records)
    return Heads(np.array(starts, np.int64), records, records - clean)


def _indexed_starts(uncut: Uncut, chunk_bytes: int) -> tuple[list[int], list[int]]:
    """The first position that the index names in each run of `chunk_bytes`, and the last offset of the batch there."""
    positions, offsets = [0], [uncut.end_offset - 1]
    if uncut.index is not None:
        marks = np.arange(chunk_bytes, uncut.segment.size_bytes, chunk_bytes)
        rows = np.unique(np.searchsorted(uncut.index.positions, marks))
        rows = rows[rows < len(uncut.index.positions)]
        positions += uncut.index.positions[rows].tolist()
        offsets += uncut.index.offsets[rows].tolist()
    return positions, offsets


def _walk_all(
    segments: Sequence[SegmentOnDisk], chunk_bytes: int, first_dirty_offset: int, pace: Pace
) -> list[Heads]:
    """The batch headers of segments on as many cores as that pays for. Raises OSError."""

    def walk(segment: SegmentOnDisk) -> Heads:
        with open_regular(segment.path) as fd:
            return walk_heads(fd, segment.size_bytes, chunk_bytes, first_dirty_offset, pace)

    paying = sum(segment.size_bytes for segment in segments) // _WALK_BYTES_PER_THREAD
    threads = min(len(segments), paying, len(os.sched_getaffinity(0)))
    if threads < 2:
        return [walk(segment) for segment in segments]
    with ThreadPoolExecutor(threads, thread_name_prefix="cleanerd-plan") as pool:
        return list(pool.map(walk, segments))
