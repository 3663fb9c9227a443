"""Walk the headers of all batches of a file: where it can be cut, and how many records and which horizons lie in each part.

The plan of a cleaning follows from these numbers, so none of them is taken on a header's word: a batch holds no more
records than its offsets and its bytes have room for. Nothing but headers is read where batches are large.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from cleanerd.env.pace import Pace
from cleanerd.format.codecs import MAX_EXPANDED_BYTES
from cleanerd.format.head import (
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    DELETE_HORIZON,
    FLAGS_AT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LEGACY_FLAGS_AT,
    MAGIC_AT,
    RECORD_COUNT_AT,
    V0_SIZE_MIN,
)

from .fingerprint import may_supersede
from .horizons import earlier
from .native import JIT, be32, be64, njit
from .records import RECORD_BYTES_MIN
from .scan import next_size
from .tables import ReadStatus

_OK = int(ReadStatus.OK)
_WINDOW_BYTES = 32 << 10
_SKIPPED_BYTES = 4 << 10  # from this size of batch on, its header alone is read
_AHEAD_BYTES = 8 << 20  # the system is asked to read so far ahead
_WILL_NEED = 3  # POSIX_FADV_WILLNEED
_STEP_BYTES = 16 << 20  # bytes between two calls of the pace
_RATIO_MAX = (1, 1032, 24, 255, 32768, 1, 1, 1)
"""Largest expansion of a byte, by codec: none, gzip, snappy, lz4, zstd (RLE blocks)."""
_WRAPPER_RATIO = 10
"""Assumed expansion of wrappers of magic 0 and 1, whose headers hold no count."""

_pread: Any = types.ExternalFunction("pread", types.intp(types.int32, types.uintp, types.uintp, types.int64))
_fadvise: Any = types.ExternalFunction(
    "posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32)
)


@dataclass(frozen=True, slots=True)
class Heads:
    """Sums over the headers of a file, an entry per chunk. Numbers of records are upper bounds."""

    starts: npt.NDArray[np.int64]  # position of the first batch; the chunk ends where the next one starts
    records: npt.NDArray[np.int64]
    dirty_records: npt.NDArray[np.int64]  # those of batches that reach into the dirty section


@njit(**JIT)
def _records_max(buffer, at, size, previous, expanded_max):
    """(how many records the batch at `at` can hold, its last offset)."""
    if buffer[at + MAGIC_AT] < 2:
        last_offset = be64(buffer, at)
        if buffer[at + LEGACY_FLAGS_AT] & CODEC_MASK == 0:
            return np.int64(1), last_offset
        fitting = size * _WRAPPER_RATIO // V0_SIZE_MIN
        return max(min(last_offset - previous, fitting), 1), last_offset
    delta = be32(buffer, at + LAST_OFFSET_DELTA_AT)
    expanded = min((size - HEADER_SIZE) * _RATIO_MAX[buffer[at + FLAGS_AT] & CODEC_MASK], expanded_max)
    count = min(be32(buffer, at + RECORD_COUNT_AT), delta + 1, expanded // RECORD_BYTES_MIN)
    return max(count, 0), be64(buffer, at) + delta


@njit(**JIT)
def _horizon(buffer, at):
    """Delete horizon of the batch at `at`, -1 none."""
    if buffer[at + MAGIC_AT] < 2 or buffer[at + FLAGS_AT] & DELETE_HORIZON == 0:
        return np.int64(-1)
    return max(be64(buffer, at + BASE_TIMESTAMP_AT), np.int64(-1))


@njit(**JIT)
def _walk_heads(
    fd, size, until, chunk_bytes, first_dirty_offset, expanded_max, buffer, address, state, starts, records,
    dirty_records, horizons,
):  # fmt: skip
    """Fills the outputs from where `state` is to `until`, and moves it there; whether no batch was met before that."""
    position, previous, chunk, next_cut, advised = state
    loaded_at, loaded, wanted, is_stuck = np.int64(0), np.int64(0), np.int64(_WINDOW_BYTES), False
    while position < until:
        if position + _AHEAD_BYTES // 2 > advised:
            advised = max(position, advised)
            _fadvise(fd, advised, _AHEAD_BYTES, _WILL_NEED)
            advised += _AHEAD_BYTES
        head_end = min(position + HEADER_SIZE, size)
        if head_end > loaded_at + loaded:
            loaded_at, loaded = position, np.int64(_pread(fd, address, wanted, position))
            if loaded < head_end - position:
                is_stuck = True
                break
        at = position - loaded_at
        batch_bytes, status = next_size(buffer, at, at + size - position)
        if status != _OK:
            is_stuck = True
            break
        if position >= next_cut:
            chunk += 1
            starts[chunk] = position
            next_cut = (position // chunk_bytes + 1) * chunk_bytes
        count, previous = _records_max(buffer, at, batch_bytes, previous, expanded_max)
        records[chunk] += count
        dirty_records[chunk] += count if may_supersede(previous, first_dirty_offset) else 0
        horizons[chunk] = earlier(_horizon(buffer, at), horizons[chunk])
        wanted = np.int64(HEADER_SIZE if batch_bytes >= _SKIPPED_BYTES else _WINDOW_BYTES)
        position += batch_bytes
    state[:] = position, previous, chunk, next_cut, advised
    return is_stuck


def walk_heads(fd: int, size_bytes: int, chunk_bytes: int, first_dirty_offset: int, pace: Pace) -> Heads:
    """Cut the first `size_bytes` of an open file at batch starts, about every `chunk_bytes`.

    What cannot be read, or is no header, ends the walk: all that is left belongs to the last chunk, whose reader meets the
    same and reports it. Raises what `pace` does.
    """
    return _walk(fd, size_bytes, chunk_bytes, first_dirty_offset, pace)[0]


def walk_horizons(
    fd: int, size_bytes: int, chunk_bytes: int, pace: Pace
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(starts as in `Heads`, the earliest delete horizon of each chunk in ms, -1 none). Raises what `pace` does."""
    heads, horizons = _walk(fd, size_bytes, chunk_bytes, 0, pace)
    return heads.starts, horizons


def _walk(
    fd: int, size_bytes: int, chunk_bytes: int, first_dirty_offset: int, pace: Pace
) -> tuple[Heads, npt.NDArray[np.int64]]:
    room = min(size_bytes // chunk_bytes, size_bytes // V0_SIZE_MIN) + 1
    starts, records, dirty_records = (np.zeros(room, np.int64) for _ in range(3))
    horizons = np.full(room, -1, np.int64)
    buffer = np.empty(_WINDOW_BYTES, np.uint8)
    state, position, is_stuck = np.array([0, -1, -1, 0, 0], np.int64), 0, False
    while position < size_bytes and not is_stuck:
        is_stuck = _walk_heads(
            fd, size_bytes, min(position + _STEP_BYTES, size_bytes), chunk_bytes, first_dirty_offset,
            MAX_EXPANDED_BYTES, buffer, buffer.ctypes.data, state, starts, records, dirty_records, horizons,
        )  # fmt: skip
        passed, position = int(state[0]) - position, int(state[0])
        pace(passed)
    kept = max(int(state[2]) + 1, 1)
    return Heads(starts[:kept], records[:kept], dirty_records[:kept]), horizons[:kept]
