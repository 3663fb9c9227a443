"""Compressed blobs as the JVM writes and reads them (spec disk C4).

======  ====================================================================================================
codec   on disk
======  ====================================================================================================
gzip    RFC 1952 members
snappy  `82 SNAPPY 00`, int32 version 1, int32 compatible 1, then {int32 length, raw block of <= 32 KiB}*;
        librdkafka writes one bare raw block instead: read, never written
lz4     one LZ4 frame of independent 64 KiB blocks, `04 22 4d 18 60 40 82`; Kafka refuses linked blocks.
        Magic 0: the header checksum covers the frame magic too (`60 40 1a`), and readers do not check it
zstd    standard frames without content size; magic 2 only
======  ====================================================================================================

The fact this module exists for: left to their defaults, the Python libraries write LZ4 and snappy that Kafka
cannot read, and cannot read the zstd and snappy that Kafka writes.
"""

import struct
import threading
import zlib
from enum import IntEnum
from typing import Any

import cramjam
import lz4.frame
import zstandard
from isal import isal_zlib

from cleanerd.format.errors import FormatError

Data = bytes | bytearray | memoryview

GZIP_LEVEL = 2
LZ4_LEVEL = 0
ZSTD_LEVEL = 3
_GZIP_WBITS = 31
_ISAL_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # its stub declares an instance

MAX_EXPANDED_BYTES = 512 << 20
"""What one blob may expand to: a few KiB of zstd or gzip can stand for gigabytes, and every one costs the same memory."""

XERIAL_MAGIC = bytes.fromhex("82534e4150505900")
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 * 1024
_SNAPPY_MAX_RATIO = 24  # three bytes of snappy can stand for 64 at most

_MEMBER_WINDOW_BYTES = 512

_ZSTD_BLOCK_MAX = 128 << 10
_ZSTD_BLOCK_MIN = 4  # a header of three bytes and at least one more
_ZSTD_RLE, _ZSTD_COMPRESSED = 1, 2

_LZ4_MAGIC = bytes.fromhex("04224d18")
_LZ4_FLG, _LZ4_BD = 4, 5
_LZ4_MAX_RATIO = 255
_LZ4_KAFKA_DEFAULT, _LZ4_HC_MIN = 9, 3
_LZ4_HC_OF_60_40 = 0x82
_LZ4_QUIRK_HC_OF_60_40 = 0x1A


class Codec(IntEnum):
    """Bits 0-2 of the batch attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def is_fast_lz4(level: int | None) -> bool:
    """Whether a broker with this compression.lz4.level has the fast compressor: with its default, and no other level."""
    return level in (None, _LZ4_KAFKA_DEFAULT)


def compress(codec: Codec, data: Data, magic: int = 2, level: int | None = None) -> bytes:
    """Compress `data` as the JVM would for a batch of this `magic`, at a fast level.

    `level`: a value of compression.<codec>.level, with Kafka's meaning. Requires: no zstd below magic 2.
    """
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            if level is None:
                return bytes(isal_zlib.compress(data, GZIP_LEVEL, _GZIP_WBITS))
            return zlib.compress(data, level, _GZIP_WBITS)  # isal has none of the levels from 4 on
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            return _compress_lz4(data, magic, level)
        case Codec.ZSTD:
            assert magic >= 2, "zstd exists only for magic 2"
            return _engines.zstd_compressor(ZSTD_LEVEL if level is None else level).compress(data)


class ExpandsBeyond(FormatError):
    """A blob that may expand to more than was allowed."""


def decompress(
    codec: Codec, data: Data, magic: int = 2, expanded_bytes_max: int = MAX_EXPANDED_BYTES
) -> bytes:
    """Decompress the whole of `data`.

    Raises: `FormatError` for anything that is not exactly one complete blob of the codec, `ExpandsBeyond` for one that
    expands to more than `expanded_bytes_max`, which are never allocated.
    """
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return _decompress_members(codec, data, expanded_bytes_max)
        case Codec.SNAPPY:
            return _decompress_snappy(data, expanded_bytes_max)
        case Codec.LZ4:
            return _decompress_lz4(data, magic, expanded_bytes_max)
        case Codec.ZSTD:
            if magic < 2:
                raise FormatError(0, "a codec of magic 0 or 1", "zstd")
            return _decompress_members(codec, data, expanded_bytes_max)


class _Engines(threading.local):
    """Reusable zstd contexts per thread: making one costs more than a 16 KiB batch."""

    def __init__(self) -> None:
        self._zstd_compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.zstd_decompressor = zstandard.ZstdDecompressor()

    def zstd_compressor(self, level: int) -> zstandard.ZstdCompressor:
        """The one of this level."""
        found = self._zstd_compressors.get(level)
        if found is None:
            found = zstandard.ZstdCompressor(level=level, write_content_size=False)
            self._zstd_compressors[level] = found
        return found


_engines = _Engines()


def _check_size(expanded_bytes: int, expanded_bytes_max: int) -> None:
    if expanded_bytes > expanded_bytes_max:
        raise ExpandsBeyond(
            0, f"a blob that expands to {expanded_bytes_max} bytes at most", f"{expanded_bytes} or more"
        )


def _check_zstd_blocks(data: memoryview, expanded_bytes_max: int) -> None:
    """Raise FormatError when the blocks of a frame may expand beyond the limit (RFC 8878: 128 KiB each).

    zstd can neither stop at a size nor report it: Kafka writes frames without content size.
    """
    if len(data) // _ZSTD_BLOCK_MIN * _ZSTD_BLOCK_MAX <= expanded_bytes_max:
        return  # too short to hold so many blocks
    try:
        position = zstandard.frame_header_size(data)
    except zstandard.ZstdError:
        return  # no frame at all: the decompressor reports it
    expanded, last = 0, False
    while not last and position + 3 <= len(data):
        header = int.from_bytes(data[position : position + 3], "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        expanded += _ZSTD_BLOCK_MAX if kind == _ZSTD_COMPRESSED else size
        position += 3 + (1 if kind == _ZSTD_RLE else size)
    _check_size(expanded, expanded_bytes_max)


def _new_member(codec: Codec, data: memoryview, expanded_bytes_max: int) -> Any:
    """The decompressor of one gzip member or zstd frame, which is refused when it may get too large."""
    if codec is Codec.GZIP:
        return isal_zlib.decompressobj(_GZIP_WBITS)
    _check_zstd_blocks(data, expanded_bytes_max)
    return _engines.zstd_decompressor.decompressobj()


def _decompress_members(codec: Codec, data: Data, expanded_bytes_max: int) -> bytes:
    """Decompress concatenated members until the input is used up, as the JVM's input streams do.

    A member that has ended copies what it was given too much. So the first, mostly the only one, is given all, a later one
    a window that doubles: a blob of a hundred thousand tiny members costs no more than one of their size.
    """
    view, parts = memoryview(data), []
    position, expanded, window = 0, 0, len(data)
    name = codec.name.lower()
    while True:
        start = position
        try:
            member = _new_member(codec, view[start:], expanded_bytes_max)
            while not member.eof and position < len(view):
                room = [expanded_bytes_max + 1 - expanded] if codec is Codec.GZIP else []
                parts.append(member.decompress(view[position : position + window], *room))
                expanded += len(parts[-1])
                _check_size(expanded, expanded_bytes_max)
                position = min(position + window, len(view))
                window *= 2
        except (_ISAL_ERROR, zstandard.ZstdError) as problem:
            raise FormatError(start, f"a {name} member", problem) from problem
        if not member.eof:
            raise FormatError(
                start, f"a complete {name} member", f"{len(view) - start} bytes without its end"
            )
        position -= len(member.unused_data)
        if position == len(view):
            return parts[0] if len(parts) == 1 else b"".join(parts)
        window = _MEMBER_WINDOW_BYTES


def _compress_xerial(data: Data) -> bytes:
    view = memoryview(data)
    parts: list[bytes] = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        parts.append(struct.pack(">i", len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: Data, expanded_bytes_max: int) -> bytes:
    view = memoryview(data)
    if view[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return _decompress_raw_snappy(view, 0, expanded_bytes_max)
    if len(view) < len(XERIAL_HEADER) or struct.unpack_from(">i", view, 12)[0] != 1:
        raise FormatError(8, "snappy framing compatible with version 1", bytes(view[8:16]).hex())
    parts: list[bytes] = []
    position, expanded = len(XERIAL_HEADER), 0
    while position < len(view):
        start = position + 4
        size = struct.unpack_from(">i", view, position)[0] if start <= len(view) else -1
        if size < 0 or start + size > len(view):
            raise FormatError(position, f"a snappy block of at most {len(view) - start} bytes", size)
        position = start + size
        parts.append(_decompress_raw_snappy(view[start:position], start, expanded_bytes_max))
        expanded += len(parts[-1])
        _check_size(expanded, expanded_bytes_max)
    return b"".join(parts)


def _decompress_raw_snappy(block: memoryview, position: int, expanded_bytes_max: int) -> bytes:
    try:
        size_bytes = cramjam.snappy.decompress_raw_len(block)
        if size_bytes > _SNAPPY_MAX_RATIO * len(block):  # never allocate what cannot be there
            raise FormatError(position, "a plausible snappy length", size_bytes)
        _check_size(size_bytes, expanded_bytes_max)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as problem:
        raise FormatError(position, "a snappy block", problem) from problem


def _compress_lz4(data: Data, magic: int, level: int | None) -> bytes:
    frame: bytes = lz4.frame.compress(
        data,
        compression_level=LZ4_LEVEL if level is None or is_fast_lz4(level) else max(level, _LZ4_HC_MIN),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        block_checksum=False,
        store_size=False,
    )
    assert frame[4:7] == bytes((0x60, 0x40, _LZ4_HC_OF_60_40)), "the descriptor that Kafka writes"
    if magic > 0:
        return frame
    return frame[:6] + bytes((_LZ4_QUIRK_HC_OF_60_40,)) + frame[7:]


def _decompress_lz4(data: Data, magic: int, expanded_bytes_max: int) -> bytes:
    frame = memoryview(data)
    _check_lz4_descriptor(frame)
    _check_lz4_content_size(frame, expanded_bytes_max)
    try:
        source = _with_right_checksum(frame) if magic == 0 else frame
        _check_lz4_blocks(source, expanded_bytes_max)
        content, used = lz4.frame.decompress(source, return_bytes_read=True)
    except RuntimeError as problem:
        raise FormatError(0, "an lz4 frame", problem) from problem
    if used != len(frame):
        raise FormatError(used, "the end of the lz4 frame", f"{len(frame) - used} more bytes")
    return bytes(content)


def _check_lz4_descriptor(frame: memoryview) -> None:
    """What the JVM demands of FLG and BD, stricter than the LZ4 library (spec disk C4)."""
    if len(frame) < 7 or frame[:4] != _LZ4_MAGIC:
        raise FormatError(0, f"an lz4 frame ({_LZ4_MAGIC.hex()})", bytes(frame[:7]).hex() or "nothing")
    flags, block_size_code = frame[_LZ4_FLG], frame[_LZ4_BD] >> 4
    if flags >> 6 != 1 or flags & 0x03:
        raise FormatError(_LZ4_FLG, "lz4 version 01 without dictionary or reserved bits", f"{flags:#04x}")
    if not flags & 0x20:
        raise FormatError(_LZ4_FLG, "independent lz4 blocks", f"linked ones ({flags:#04x})")
    if not 4 <= block_size_code <= 7:
        raise FormatError(_LZ4_BD, "an lz4 block size code of 4 to 7", block_size_code)


def _check_lz4_content_size(frame: memoryview, expanded_bytes_max: int) -> None:
    """The library allocates the size that a frame claims to have, before it looks at a block."""
    if frame[_LZ4_FLG] & 0x08:
        size_bytes = int.from_bytes(frame[6:14], "little")
        if size_bytes > _LZ4_MAX_RATIO * len(frame):
            raise FormatError(6, "a plausible lz4 content size", size_bytes)
        _check_size(size_bytes, expanded_bytes_max)


def _check_lz4_blocks(frame: Data, expanded_bytes_max: int) -> None:
    """Raise FormatError when the blocks of a frame may expand beyond the limit, before any of them is expanded."""
    if len(frame) * _LZ4_MAX_RATIO <= expanded_bytes_max:
        return
    flags, block_bytes_max = frame[_LZ4_FLG], 1 << (8 + 2 * (frame[_LZ4_BD] >> 4))
    position = 15 if flags & 0x08 else 7  # an 8-byte content size may precede the descriptor checksum
    expanded = 0
    while position + 4 <= len(frame):
        header = int.from_bytes(frame[position : position + 4], "little")
        size = header & 0x7FFFFFFF
        if size == 0:
            break
        expanded += size if header >> 31 else min(size * _LZ4_MAX_RATIO, block_bytes_max)
        position += 4 + size + (4 if flags & 0x10 else 0)
    _check_size(expanded, expanded_bytes_max)


def _with_right_checksum(frame: memoryview) -> bytes:
    """The frame with the descriptor checksum that the LZ4 library insists on; magic 0 carries a wrong one."""
    end = 14 if frame[_LZ4_FLG] & 0x08 else 6  # an 8-byte content size may follow BD
    if len(frame) <= end:
        raise FormatError(end, "an lz4 descriptor checksum", "the end")
    checksum = (_xxh32_of_short(bytes(frame[4:end])) >> 8) & 0xFF
    return b"".join((frame[:end], bytes((checksum,)), frame[end + 1 :]))


def _xxh32_of_short(data: bytes) -> int:
    """The xxh32 hash, seed 0, of fewer than 16 bytes: all that an LZ4 descriptor needs."""
    assert len(data) < 16
    mask = 0xFFFFFFFF
    value = (374761393 + len(data)) & mask
    words = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:words]):
        value = (value + word * 3266489917) & mask
        value = ((value << 17 | value >> 15) * 668265263) & mask
    for byte in data[words:]:
        value = (value + byte * 374761393) & mask
        value = ((value << 11 | value >> 21) * 2654435761) & mask
    value = ((value ^ value >> 15) * 2246822519) & mask
    value = ((value ^ value >> 13) * 3266489917) & mask
    return value ^ value >> 16
