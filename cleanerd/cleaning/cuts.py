"""Where segments are cut into chunks, and how many records each chunk can hold.

Most segments show it unread: their offset index names a batch every few KiB, and between two offsets there are no
more records than offsets. That is a poor bound for a segment of the dirty section that was compacted before, and for records
that hardly take bytes; and an index may be missing or wrong. Then all batch headers of the segment are walked.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cleanerd.env.cores import usable_cores
from cleanerd.env.files import open_regular
from cleanerd.env.pace import Pace
from cleanerd.format.offset_index import OffsetIndex
from cleanerd.kernels.heads import Heads, walk_heads
from cleanerd.storage.scan import SegmentOnDisk, sound_batch

_WALK_BYTES_PER_THREAD = 64 << 20  # some ms: less is not worth a thread
_BYTES_PER_OFFSET_MIN = 32  # of log: with more offsets than that their number is a poor bound
_OFFSETS_PER_RECORD_MAX = 2  # in the batches that are looked at, which stand for the others
_TAIL_CHUNKS = 2  # of a log are cut in _TAIL_CUTS: a core that finds nothing more to do waits for less
_TAIL_CUTS = 4

_Marks = npt.NDArray[np.int64]
"""Positions in a segment, ascending: it is cut at the first batch from each on."""


@dataclass(frozen=True, slots=True)
class Uncut:
    """A segment that is not empty; all its offsets are below `end_offset`."""

    segment: SegmentOnDisk
    end_offset: int
    index: OffsetIndex


def cut_all(
    segments: Sequence[Uncut], *, chunk_bytes: int, first_dirty_offset: int, pace: Pace
) -> list[Heads]:
    """Cut the segments of a log at batch starts, about every `chunk_bytes`. Raises OSError, and the errors of `pace`."""
    marks = [_marks(one.segment.size_bytes, chunk_bytes, is_last=one is segments[-1]) for one in segments]
    found = [
        _cut_by_index(one, own, chunk_bytes, first_dirty_offset)
        for one, own in zip(segments, marks, strict=True)
    ]
    rest = [number for number, heads in enumerate(found) if heads is None]
    walked = iter(
        _walk_all(
            [segments[n].segment for n in rest],
            [marks[n] for n in rest],
            _fine(chunk_bytes),
            first_dirty_offset,
            pace,
        )
    )
    return [next(walked) if heads is None else heads for heads in found]


def _cut_by_index(uncut: Uncut, marks: _Marks, chunk_bytes: int, first_dirty_offset: int) -> Heads | None:
    """The cuts by index and offsets, None where these are no good bound or not true. Reads a batch for each chunk."""
    segment, size_bytes = uncut.segment, uncut.segment.size_bytes
    if uncut.end_offset - segment.base_offset > size_bytes // _BYTES_PER_OFFSET_MIN:
        return None
    rows = _first_from(uncut.index.positions, marks)  # the first position in the index from each mark on
    starts = [0, *uncut.index.positions[rows].tolist()]
    last_offsets = [uncut.end_offset - 1, *uncut.index.offsets[rows].tolist()]
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


def _fine(chunk_bytes: int) -> int:
    """About how far from each other two cuts are at the end of a log."""
    return max(chunk_bytes // _TAIL_CUTS, 1)


def _marks(size_bytes: int, chunk_bytes: int, *, is_last: bool) -> _Marks:
    """The positions at which a segment is to be cut, if batches begin there."""
    fine = _fine(chunk_bytes)
    tail = max(size_bytes // chunk_bytes + 1 - _TAIL_CHUNKS, 0) * chunk_bytes if is_last else size_bytes
    marks = [np.arange(chunk_bytes, tail, chunk_bytes), np.arange(tail or fine, size_bytes, fine)]
    return np.concatenate(marks)


def _first_from(positions: npt.NDArray[Any], marks: _Marks) -> npt.NDArray[np.int64]:
    """Rows of the first position from each mark on; none where there is no more."""
    rows = np.unique(np.searchsorted(positions, marks))
    return rows[rows < len(positions)]


def _walk_all(
    segments: Sequence[SegmentOnDisk],
    marks: Sequence[_Marks],
    fine_bytes: int,
    first_dirty_offset: int,
    pace: Pace,
) -> list[Heads]:
    """Headers of segments, cut at the first batch from each mark on, by as many cores as that pays for. Raises OSError."""

    def walk(segment: SegmentOnDisk, own: _Marks) -> Heads:
        with open_regular(segment.path) as fd:
            heads = walk_heads(fd, segment.size_bytes, fine_bytes, first_dirty_offset, pace)
        rows = np.union1d([0], _first_from(heads.starts, own))
        records, dirty_records = (
            np.add.reduceat(column, rows) for column in (heads.records, heads.dirty_records)
        )
        return Heads(heads.starts[rows], records, dirty_records)

    paying = sum(segment.size_bytes for segment in segments) // _WALK_BYTES_PER_THREAD
    threads = min(len(segments), paying)
    if threads > 1:  # most logs need not ask
        threads = min(threads, usable_cores())
    if threads < 2:
        return list(map(walk, segments, marks))
    with ThreadPoolExecutor(threads, thread_name_prefix="cleanerd-plan") as pool:
        return list(pool.map(walk, segments, marks))
