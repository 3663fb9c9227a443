"""Batches expanded and packed a slice at a time: lz4 and zstd through their C libraries, straight from buffer to buffer.

Only what Kafka and its clients write is taken: one lz4 frame of independent blocks without checksums, one zstd frame. All
else, and all that is broken, is left to `cleanerd.format.codecs`, which knows every case and reports what is wrong.
"""

import numpy as np
import numpy.typing as npt

from cleanerd.format.codecs import ZSTD_LEVEL, Codec, compress, is_fast_lz4
from cleanerd.format.head import CODEC_MASK

from .libraries import addresses, set_zstd_level
from .native import JIT, call_lz4, call_zstd, copy_bytes, le32, njit
from .tables import Bytes, Table

Spans = npt.NDArray[np.int64]
"""(start, end) for every row."""

_LZ4, _ZSTD = int(Codec.LZ4), int(Codec.ZSTD)
_FULL, _ODD = -1, -2
"""Instead of a size: it does not fit the rest of the buffer; it is for `format.codecs`."""

_LZ4_MAGIC, _LZ4_HEADER, _LZ4_BLOCK_BYTES = 0x184D2204, 7, 1 << 16
_LZ4_STORED = 0x80000000
_LZ4_CHECKSUMS = (0x82, 0xFB, 0x51, 0x73)  # of the descriptors 60 40, 60 50, 60 60 and 60 70
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_WINDOW_MAX = (27 - 10) << 3  # 128 MiB, the limit of a zstd stream
_ZSTD_TOO_SMALL = -70  # ZSTD_error_dstSize_tooSmall
_ZSTD_GROWTH_BYTES = 512  # with a 128th of the size more than ZSTD_compressBound adds


@njit(**JIT)
def _expand_lz4(address, raw, start, end, out, at):
    """Bytes that the frame `raw[start:end]` takes in `out` from `at` on, _FULL or _ODD."""
    if (
        end - start < _LZ4_HEADER
        or np.int64(le32(raw, np.int64(start))) != _LZ4_MAGIC
        or raw[start + 4] != 0x60
    ):
        return np.int64(_ODD)
    code = np.int64(raw[start + 5]) >> 4
    if not 4 <= code <= 7 or raw[start + 5] & 0x0F or raw[start + 6] != _LZ4_CHECKSUMS[code - 4]:
        return np.int64(_ODD)
    block_bytes_max = np.int64(1) << (8 + 2 * code)
    position, filled = np.int64(start + _LZ4_HEADER), np.int64(at)
    while end - position >= 4:
        header = np.int64(le32(raw, position))
        position += 4
        if header == 0:
            return filled - at if position == end else np.int64(_ODD)
        size = header & (_LZ4_STORED - 1)
        if size == 0 or size > block_bytes_max or size > end - position:
            return np.int64(_ODD)
        room = len(out) - filled
        if header >= _LZ4_STORED:
            if size > room:
                return np.int64(_FULL)
            copy_bytes(out, filled, raw, position, size)
            written = size
        else:
            room = min(room, block_bytes_max)
            written = call_lz4(address, np.int64(0), raw, position, size, out, filled, room)
            if written <= 0 or written > room:
                return np.int64(_FULL) if room < block_bytes_max else np.int64(_ODD)
        position += size
        filled += written
    return np.int64(_ODD)


@njit(**JIT)
def _is_one_zstd_frame(raw, start, end):
    """Whether `raw[start:end]` is one frame from end to end, without dictionary, with a window that streams allow."""
    if end - start < 6 or np.int64(le32(raw, np.int64(start))) != _ZSTD_MAGIC:
        return False
    descriptor = raw[start + 4]
    single, size_code = descriptor & 0x20, descriptor >> 6
    if descriptor & 0x0B or (not single and raw[start + 5] > _ZSTD_WINDOW_MAX):
        return False
    position = start + 5 + (0 if single else 1)
    position += (1 << size_code) if size_code else (1 if single else 0)
    checksum = 4 if descriptor & 0x04 else 0
    while end - position >= 3:
        header = (
            np.int64(raw[position]) | np.int64(raw[position + 1]) << 8 | np.int64(raw[position + 2]) << 16
        )
        position += 3 + (1 if header >> 1 & 3 == 1 else header >> 3)
        if header & 1:
            return position + checksum == end
    return False


@njit(**JIT)
def _expand_zstd(address, context, raw, start, end, out, at):
    if not _is_one_zstd_frame(raw, start, end):
        return np.int64(_ODD)
    room = len(out) - at
    written = call_zstd(
        address, context, raw, np.int64(start), np.int64(end - start), out, np.int64(at), room
    )
    if 0 <= written <= room:
        return written
    return np.int64(_FULL) if written == _ZSTD_TOO_SMALL else np.int64(_ODD)


@njit(**JIT)
def _expand(raw, batches, begin, wanted, large, lz4, zstd, context, out):
    """(end row, bytes in `out`)"""
    filled, plain = np.int64(0), np.int64(0)
    row = begin
    while row < len(batches) and plain + filled < wanted and batches[row].size <= large:
        batch = batches[row]
        codec = batch.attributes & CODEC_MASK
        if codec == 0 or batch.count == 0:
            plain += batch.size
            row += 1
            continue
        expanded_bytes = np.int64(_ODD)
        if batch.magic == 2 and codec == _LZ4 and lz4 != 0:
            expanded_bytes = _expand_lz4(lz4, raw, batch.payload_start, batch.payload_end, out, filled)
        elif batch.magic == 2 and codec == _ZSTD and zstd != 0:
            expanded_bytes = _expand_zstd(
                zstd, context, raw, batch.payload_start, batch.payload_end, out, filled
            )
        if expanded_bytes < 0:
            break
        batch.payload_start = filled
        filled += expanded_bytes
        batch.payload_end = filled
        batch.expanded = 1
        row += 1
    return row, filled


@njit(**JIT)
def _pack_lz4(address, bodies, start, end, out, at):
    """Write one frame as Kafka does and return where it ends; -1 when the library fails."""
    for i in range(4):
        out[at + i] = np.uint8(_LZ4_MAGIC >> 8 * i & 0xFF)
    out[at + 4], out[at + 5], out[at + 6] = 0x60, 0x40, _LZ4_CHECKSUMS[0]
    at += _LZ4_HEADER
    while start < end:
        size = min(end - start, np.int64(_LZ4_BLOCK_BYTES))
        written = call_lz4(
            address, np.int64(0), bodies, np.int64(start), size, out, np.int64(at + 4), size - 1
        )
        header = written
        if written <= 0:  # not smaller: stored
            copy_bytes(out, np.int64(at + 4), bodies, np.int64(start), size)
            header, written = size | _LZ4_STORED, size
        for i in range(4):
            out[at + i] = np.uint8(header >> 8 * i & 0xFF)
        at += 4 + written
        start += size
    out[at : at + 4] = 0
    return at + 4


@njit(**JIT)
def _pack(bodies, codecs, is_packed, lz4, zstd, context, spans, out):
    at = np.int64(0)
    for j in range(len(spans)):
        if not is_packed[j]:
            continue
        start, end = spans[j, 0], spans[j, 1]
        spans[j, 0] = at
        if codecs[j] == _LZ4:
            at = _pack_lz4(lz4, bodies, start, end, out, at)
        else:
            written = call_zstd(zstd, context, bodies, start, end - start, out, at, len(out) - at)
            if not 0 <= written <= len(out) - at:
                return np.int64(-1)
            at += written
        spans[j, 1] = at
    return at


def expand(raw: Bytes, batches: Table, begin: int, wanted: int, large: int) -> tuple[int, Bytes]:
    """Expand batches from row `begin` on until their records take `wanted` bytes, or one is met that is for `format.codecs`.

    Nor are batches touched that have or take more than `large` bytes, or that take twice `wanted`. Returns (the row where it
    stopped, the expanded bytes); the rows before it hold the positions of their records in them.
    """
    found = addresses()
    out = np.empty(min(2 * wanted, large), np.uint8)
    end, size = _expand(
        raw,
        batches,
        begin,
        wanted,
        large,
        found.lz4_decompress,
        found.zstd_decompress,
        found.zstd_reader,
        out,
    )
    return int(end), out[:size]


def pack(
    bodies: Bytes,
    codecs: npt.NDArray[np.integer],
    is_packed: npt.NDArray[np.bool_],
    spans: Spans,
    level: int | None = None,
) -> tuple[Bytes, Spans] | None:
    """Compress `bodies[spans[j]]` with codec `codecs[j]` where `is_packed[j]`; returns (buffer, spans in it).

    The spans of other rows stay as they are. `level`: as in `codecs.compress`.

    None when that is not for these kernels: another codec, slow lz4, or a library that is not there.
    """
    found = addresses()
    used = np.unique(codecs[is_packed])
    able = {_LZ4: found.lz4_compress if is_fast_lz4(level) else 0, _ZSTD: found.zstd_compress}
    if not all(able.get(codec) for codec in used.tolist()):
        return None
    set_zstd_level(ZSTD_LEVEL if level is None else level)
    sizes = (spans[:, 1] - spans[:, 0])[is_packed]
    frames = (
        sizes + sizes // 128 + _ZSTD_GROWTH_BYTES
        if _ZSTD in used
        else sizes + 4 * (sizes // _LZ4_BLOCK_BYTES + 4)
    )
    packed, out = spans.copy(), np.empty(int(frames.sum()), np.uint8)
    size = _pack(
        bodies, codecs, is_packed, found.lz4_compress, found.zstd_compress, found.zstd_writer, packed, out
    )
    return None if size < 0 else (out[:size], packed)


def pack_singly(
    bodies: Bytes,
    codecs: npt.NDArray[np.integer],
    is_packed: npt.NDArray[np.bool_],
    spans: Spans,
    level: int | None = None,
) -> tuple[Bytes, Spans]:
    """As `pack`, for any codec, with a Python call per batch."""
    packed, moved, filled = [], spans.copy(), 0
    for j in np.flatnonzero(is_packed):
        body = compress(Codec(int(codecs[j])), bodies[spans[j, 0] : spans[j, 1]].tobytes(), level=level)
        moved[j] = filled, filled + len(body)
        filled += len(body)
        packed.append(body)
    return np.frombuffer(bytearray(b"".join(packed)), np.uint8), moved
