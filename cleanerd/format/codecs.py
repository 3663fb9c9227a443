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

Two facts this module exists for: left to their defaults, the Python libraries write LZ4 and snappy that Kafka
cannot read, and cannot read the zstd and snappy that Kafka writes. And the readers of the JVM take more than the formats
allow, and a broker stores it: padding behind an end, a checksum that nobody compares. What they take is taken here
(`tests/kernels/test_framings.py` compares), for a log that its broker can read must be one that can be cleaned.
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
_DEFLATE_WBITS = -15
_GZIP_MAGIC = bytes.fromhex("1f8b08")
_GZIP_HEADER, _GZIP_TRAILER = 10, 8
_GZIP_HCRC, _GZIP_EXTRA, _GZIP_TEXTS = 0x02, 0x04, (0x08, 0x10)
_GZIP_NO_MEMBER = 18
"""So few bytes behind a member are not looked at by `GZIPInputStream`: the shortest member has 20."""
_ISAL_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # its stub declares an instance

MAX_EXPANDED_BYTES = 512 << 20
"""Limit in bytes for an expanded blob: a few KiB of zstd or gzip can expand to gigabytes."""

XERIAL_MAGIC = bytes.fromhex("82534e4150505900")
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 * 1024
_XERIAL_AGAIN = struct.unpack(">i", XERIAL_MAGIC[:4])[0]
"""In place of the length of a block: another stream begins."""
_SNAPPY_MAX_RATIO = 24  # three bytes of snappy can stand for 64 at most

_MEMBER_WINDOW_BYTES = 512

_ZSTD_READ_BYTES = (128 << 10) + 3
"""Bytes that `ZstdInputStream` reads at a time (ZSTD_DStreamInSize)."""
_ZSTD_BLOCK_MAX = 128 << 10
_ZSTD_BLOCK_MIN = 4  # a header of three bytes and at least one more
_ZSTD_RLE, _ZSTD_COMPRESSED = 1, 2

_LZ4_MAGIC = bytes.fromhex("04224d18")
_LZ4_FLG, _LZ4_BD = 4, 5
_LZ4_CONTENT_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_BLOCK_CHECKSUM = 0x04, 0x08, 0x10
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

    Raises: `FormatError` for what the JVM does not read to its end, `ExpandsBeyond` for a blob that expands to more than
    `expanded_bytes_max`, which are never allocated.
    """
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return _decompress_gzip(memoryview(data), expanded_bytes_max)
        case Codec.SNAPPY:
            return _decompress_snappy(data, expanded_bytes_max)
        case Codec.LZ4:
            return _decompress_lz4(data, magic, expanded_bytes_max)
        case Codec.ZSTD:
            if magic < 2:
                raise FormatError(0, "a codec of magic 0 or 1", "zstd")
            return _decompress_zstd(memoryview(data), expanded_bytes_max)


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


class _Parts:
    """The expanded members of a blob, in order.

    The library copies all input behind the end of a member. So the first member, mostly the only one, is given the whole
    input, later ones a window that doubles: a hundred thousand tiny members cost no more than one of their size.
    """

    def __init__(self, view: memoryview, expanded_bytes_max: int) -> None:
        self._view = view
        self._limit_bytes = expanded_bytes_max
        self._parts: list[bytes] = []
        self._expanded = 0
        self._window = len(view)

    def take(self, member: Any, position: int, *, stops_early: bool) -> int:
        """Expand a member that begins here; returns where it ends, or where the data do before it (`member.eof`).

        `stops_early`: it can be told how much to give.
        """
        while not member.eof and position < len(self._view):
            room = [self._limit_bytes + 1 - self._expanded] if stops_early else []
            self._parts.append(member.decompress(self._view[position : position + self._window], *room))
            self._expanded += len(self._parts[-1])
            _check_size(self._expanded, self._limit_bytes)
            position = min(position + self._window, len(self._view))
            self._window *= 2
        self._window = _MEMBER_WINDOW_BYTES
        return position - len(member.unused_data)

    def since(self, number: int) -> list[bytes]:
        """The parts from this number on."""
        return self._parts[number:]

    def __len__(self) -> int:
        return len(self._parts)

    def joined(self) -> bytes:
        """The expanded members as one buffer."""
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)


def _new_inflater() -> Any:
    return isal_zlib.decompressobj(_DEFLATE_WBITS)


def _new_zstd() -> Any:
    return _engines.zstd_decompressor.decompressobj()


def _decompress_gzip(view: memoryview, expanded_bytes_max: int) -> bytes:
    """Expand all members; like `GZIPInputStream`, ignore bytes after the last one that are no complete header."""
    parts, start = _Parts(view, expanded_bytes_max), 0
    body = _after_gzip_header(view, start)
    if body is None:
        raise FormatError(start, "a gzip member", bytes(view[:_GZIP_HEADER]).hex() or "nothing")
    while body is not None:
        member, before = _new_inflater(), len(parts)
        try:
            end = parts.take(member, body, stops_early=True)
        except _ISAL_ERROR as problem:
            raise FormatError(start, "a gzip member", str(problem)) from problem
        if not member.eof or len(view) - end < _GZIP_TRAILER:
            raise FormatError(start, "a complete gzip member", f"{len(view) - start} bytes without its end")
        _check_gzip_trailer(view, start, end, parts.since(before))
        start = end + _GZIP_TRAILER
        body = _after_gzip_header(view, start) if len(view) - start > _GZIP_NO_MEMBER else None
    return parts.joined()


def _after_gzip_header(view: memoryview, start: int) -> int | None:
    """Position of the deflated data of a member; None if no member begins there. Flags without a meaning are ignored."""
    if view[start : start + len(_GZIP_MAGIC)] != _GZIP_MAGIC or len(view) - start < _GZIP_HEADER:
        return None
    flags, at = view[start + len(_GZIP_MAGIC)], start + _GZIP_HEADER
    if flags & _GZIP_EXTRA:
        at += 2 + int.from_bytes(view[at : at + 2], "little")
    for _ in [text for text in _GZIP_TEXTS if flags & text]:
        while at < len(view) and view[at]:
            at += 1
        at += 1
    if flags & _GZIP_HCRC:
        if int.from_bytes(view[at : at + 2], "little") != zlib.crc32(view[start:at]) & 0xFFFF:
            return None
        at += 2
    return at if at <= len(view) else None


def _check_gzip_trailer(view: memoryview, start: int, end: int, parts: list[bytes]) -> None:
    crc = size_bytes = 0
    for part in parts:
        crc, size_bytes = isal_zlib.crc32(part, crc), size_bytes + len(part)
    trailer = struct.unpack_from("<II", view, end)
    if trailer != (crc, size_bytes & 0xFFFFFFFF):
        found = f"{size_bytes} bytes with CRC {crc:08x}"
        raise FormatError(start, f"a gzip member of {trailer[1]} bytes with CRC {trailer[0]:08x}", found)


def _decompress_zstd(view: memoryview, expanded_bytes_max: int) -> bytes:
    """Expand all frames. A frame after the first may be truncated: `ZstdInputStream` accepts that if it has read the end of
    the frame before and all remaining bytes at once.
    """
    parts, start = _Parts(view, expanded_bytes_max), 0
    while True:
        try:
            _check_zstd_blocks(view[start:], expanded_bytes_max)
            frame = _new_zstd()
            end = parts.take(frame, start, stops_early=False)
        except zstandard.ZstdError as problem:
            raise FormatError(start, "a zstd member", str(problem)) from problem
        if not frame.eof:
            is_read_at_once = start // _ZSTD_READ_BYTES == (len(view) - 1) // _ZSTD_READ_BYTES
            if start and is_read_at_once:
                return parts.joined()
            found = f"{len(view) - start} bytes without its end"
            raise FormatError(start, "a complete zstd member", found)
        if end == len(view):
            return parts.joined()
        start = end


def _compress_xerial(data: Data) -> bytes:
    view = memoryview(data)
    parts: list[bytes] = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        parts.append(struct.pack(">i", len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: Data, expanded_bytes_max: int) -> bytes:
    """Streams one behind the other, or a raw block. `SnappyInputStream` compares no version in the first header, and ends
    where a length is cut off, or behind a header that is no further stream.
    """
    view = memoryview(data)
    if view[: len(XERIAL_MAGIC)] != XERIAL_MAGIC or len(view) < len(XERIAL_HEADER):
        return _decompress_raw_snappy(view, 0, expanded_bytes_max)
    parts: list[bytes] = []
    position, expanded = len(XERIAL_HEADER), 0
    while len(view) - position >= 4:
        start = position + 4
        size = struct.unpack_from(">i", view, position)[0]
        if size == _XERIAL_AGAIN:
            position = _after_xerial_header(view, position)
            continue
        if size < 0 or start + size > len(view):
            raise FormatError(position, f"a snappy block of at most {len(view) - start} bytes", size)
        position = start + size
        parts.append(_decompress_raw_snappy(view[start:position], start, expanded_bytes_max))
        expanded += len(parts[-1])
        _check_size(expanded, expanded_bytes_max)
    return b"".join(parts)


def _after_xerial_header(view: memoryview, position: int) -> int:
    """Behind the header of another stream."""
    end = position + len(XERIAL_HEADER)
    header = view[position:end]
    is_odd = header[: len(XERIAL_MAGIC)] != XERIAL_MAGIC
    if len(header) < len(XERIAL_HEADER) or (is_odd and len(view) - end >= 4):
        raise FormatError(position, "the header of another snappy stream", bytes(header).hex())
    if is_odd:
        return end
    version = struct.unpack_from(">i", header, len(XERIAL_MAGIC))[0]
    if version < 1:
        raise FormatError(position + len(XERIAL_MAGIC), "version 1 or later of snappy framing", version)
    return end


def _decompress_raw_snappy(block: memoryview, position: int, expanded_bytes_max: int) -> bytes:
    try:
        size_bytes = cramjam.snappy.decompress_raw_len(block)
        if size_bytes > _SNAPPY_MAX_RATIO * len(block):  # never allocate more than the blob can expand to
            raise FormatError(position, "a plausible snappy length", size_bytes)
        _check_size(size_bytes, expanded_bytes_max)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as problem:
        raise FormatError(position, "a snappy block", str(problem)) from problem


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
    """One frame. `Lz4BlockInputStream` compares neither size nor checksum of the content, and reads nothing behind it."""
    frame = memoryview(data)
    _check_lz4_descriptor(frame, magic)
    blocks, end = _lz4_blocks(frame, expanded_bytes_max)
    flags = frame[_LZ4_FLG] & ~(_LZ4_CONTENT_SIZE | _LZ4_CONTENT_CHECKSUM)
    descriptor = bytes((flags, frame[_LZ4_BD]))
    source = b"".join((_LZ4_MAGIC, descriptor, _descriptor_checksum(descriptor), frame[blocks:end], bytes(4)))
    try:
        content, used = lz4.frame.decompress(source, return_bytes_read=True)
    except RuntimeError as problem:
        raise FormatError(0, "an lz4 frame", str(problem)) from problem
    assert used == len(source), "a frame ends with its end mark"
    return bytes(content)


def _check_lz4_descriptor(frame: memoryview, magic: int) -> None:
    """Check FLG and BD as strictly as the JVM does, which is stricter than the LZ4 library (spec disk C4)."""
    if len(frame) < 7 or frame[:4] != _LZ4_MAGIC:
        raise FormatError(0, f"an lz4 frame ({_LZ4_MAGIC.hex()})", bytes(frame[:7]).hex() or "nothing")
    flags, block_size_code = frame[_LZ4_FLG], frame[_LZ4_BD] >> 4
    if flags >> 6 != 1 or flags & 0x03:
        raise FormatError(_LZ4_FLG, "lz4 version 01 without dictionary or reserved bits", f"{flags:#04x}")
    if not flags & 0x20:
        raise FormatError(_LZ4_FLG, "independent lz4 blocks", f"linked ones ({flags:#04x})")
    if not 4 <= block_size_code <= 7:
        raise FormatError(_LZ4_BD, "an lz4 block size code of 4 to 7", block_size_code)
    if frame[_LZ4_BD] & 0x8F:
        raise FormatError(_LZ4_BD, "no reserved bits of an lz4 block descriptor", f"{frame[_LZ4_BD]:#04x}")
    end = _lz4_descriptor_end(flags)
    if len(frame) <= end:
        raise FormatError(end, "an lz4 descriptor checksum", "the end")
    if magic > 0 and frame[end : end + 1] != _descriptor_checksum(frame[_LZ4_FLG:end]):
        raise FormatError(end, "the checksum of the lz4 descriptor", f"{frame[end]:#04x}")


def _lz4_descriptor_end(flags: int) -> int:
    return 14 if flags & _LZ4_CONTENT_SIZE else 6  # an 8-byte content size may follow BD


def _descriptor_checksum(descriptor: Data) -> bytes:
    return bytes((_xxh32_of_short(bytes(descriptor)) >> 8 & 0xFF,))


def _lz4_blocks(frame: memoryview, expanded_bytes_max: int) -> tuple[int, int]:
    """Positions of the blocks of a frame. Raises FormatError for blocks that are cut off, ExpandsBeyond before any of
    them is expanded.

    A block of nothing, which is one zero byte, ends the content too: the JVM's reader gives nothing then, and its callers
    take that for the end.
    """
    flags, block_bytes_max = frame[_LZ4_FLG], 1 << (8 + 2 * (frame[_LZ4_BD] >> 4))
    start = position = _lz4_descriptor_end(flags) + 1
    checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    expanded = 0
    while position + 4 <= len(frame):
        header = int.from_bytes(frame[position : position + 4], "little")
        size, is_stored = header & 0x7FFFFFFF, header >> 31
        is_end = size == 0
        following = position + 4 + (0 if is_end else size + checksum_bytes)
        if size > block_bytes_max:
            raise FormatError(position, f"an lz4 block of at most {block_bytes_max} bytes", size)
        if is_end and flags & _LZ4_CONTENT_CHECKSUM:
            following += 4
        if following > len(frame):
            break
        if is_end or (size == 1 and not is_stored and not frame[position + 4]):
            _check_size(expanded, expanded_bytes_max)
            return start, position
        expanded += size if is_stored else min(size * _LZ4_MAX_RATIO, block_bytes_max)
        position = following
    raise FormatError(position, "the end of the lz4 frame", "the end of the data")


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
