"""Compressed batches as Java clients never write them: every codec in the forms that its format has, and in others.

By seed: frames with checksums, sizes and dictionaries, members and streams one behind the other, what is skipped, what is
padded, what is cut off or flipped, counts and lengths that disagree with the content; in batches of magic 0, 1 and 2.
"""

import gzip
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import cramjam
import lz4.block
import lz4.frame
import zstandard

from cleanerd.format.batch import checksum, encode_batch
from cleanerd.format.codecs import XERIAL_MAGIC, Codec
from cleanerd.format.codecs import _xxh32_of_short as xxh32_of_short
from cleanerd.format.head import HEADER_SIZE, LENGTH_AT, LOG_OVERHEAD, RECORD_COUNT_AT
from cleanerd.format.legacy import encode_message
from cleanerd.format.record import Record, encode_records, encode_varint

TIMESTAMP_MS = 1_700_000_000_000
_CRC = struct.Struct(">I")
_CRC_AT, _ATTRIBUTES_AT = 17, 21
_SKIPPABLE = 0x184D2A50
_LZ4_MAGIC, _LZ4_LEGACY = bytes.fromhex("04224d18"), bytes.fromhex("02214c18")


@dataclass(frozen=True, slots=True)
class Framing:
    """One batch: `what` it is, and its bytes."""

    what: str
    batch: bytes
    magic: int


Pack = Callable[[random.Random, bytes], bytes]


# -- gzip -----------------------------------------------------------------------------------------------------------


def gzip_member(rng: random.Random, data: bytes) -> bytes:
    """RFC 1952, with optional fields, right or wrong; Java checks the header's checksum and ignores reserved flags."""
    flags = rng.choice((0, 0, 0, rng.randrange(32), rng.randrange(256)))
    head = bytearray([0x1F, 0x8B, rng.choice((8,) * 20 + (7,)), flags])
    head += rng.randbytes(4) + bytes([rng.choice((0, 2, 4)), rng.choice((0, 3, 255))])
    if flags & 4:
        extra = rng.randbytes(rng.choice((0, 1, 4, 300)))
        head += struct.pack("<H", len(extra)) + extra
    for flag, text in ((8, b"name"), (16, b"comment")):
        if flags & flag:
            head += rng.choice((b"", text)) + b"\0"
    if flags & 2:
        head += struct.pack("<H", zlib.crc32(head) & 0xFFFF ^ (rng.random() < 0.1))
    deflate = zlib.compressobj(rng.randrange(10), zlib.DEFLATED, -rng.randrange(9, 16))
    body = deflate.compress(data) + deflate.flush()
    crc, size = zlib.crc32(data) ^ (rng.random() < 0.05), len(data) ^ (rng.random() < 0.05)
    return bytes(head) + body + struct.pack("<II", crc, size)


def gzip_blob(rng: random.Random, data: bytes) -> bytes:
    """Members one behind the other, and what may lie behind the last one."""
    blob = b"".join(gzip_member(rng, part) for part in _parts(rng, data))
    return blob + _rest(rng, gzip.compress(data))


# -- snappy ---------------------------------------------------------------------------------------------------------


def snappy_block(rng: random.Random, data: bytes) -> bytes:
    """A raw block, with its length in more bytes than it needs at times."""
    block = bytes(cramjam.snappy.compress_raw(data))
    if rng.random() < 0.1 and len(data) < 0x80:
        return bytes([block[0] | 0x80, 0]) + block[1:]
    return block


def xerial(rng: random.Random, data: bytes) -> bytes:
    """A stream of snappy-java; of other versions, with empty chunks and with chunks of nothing at times."""
    versions = rng.choice(((1, 1), (1, 1), (1, 1), (2, 1), (1, 2), (0, 1), (1, 0), (-1, -1)))
    out = [XERIAL_MAGIC + struct.pack(">ii", *versions)]
    step = rng.choice((1, 100, 32768, 1 << 20))
    for at in range(0, len(data), max(step, len(data) // 50)):
        block = snappy_block(rng, data[at : at + max(step, len(data) // 50)])
        out.append(struct.pack(">i", len(block)) + block)
        if rng.random() < 0.02:
            out.append(rng.choice((b"\0\0\0\1\0", b"\0\0\0\0")))
    return b"".join(out)


def snappy_blob(rng: random.Random, data: bytes) -> bytes:
    """Raw, or streams one behind the other."""
    if rng.random() < 0.3:
        return snappy_block(rng, data) + _rest(rng, b"", 0.2)
    blob = b"".join(xerial(rng, part) for part in _parts(rng, data))
    return blob + _rest(rng, rng.choice((XERIAL_MAGIC, XERIAL_MAGIC[:4] + rng.randbytes(12), b"\xff" * 4)))


# -- lz4 ------------------------------------------------------------------------------------------------------------


def lz4_frame(rng: random.Random, data: bytes) -> bytes:
    """A frame with what the format allows, and a flag or a checksum that is wrong at times."""
    block_sizes = (lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX256KB, lz4.frame.BLOCKSIZE_MAX4MB)
    block_checksum = rng.random() < 0.3
    frame = bytearray(
        lz4.frame.compress(
            data,
            block_size=rng.choice(block_sizes),
            block_linked=rng.random() < 0.1,
            content_checksum=rng.random() < 0.3,
            block_checksum=block_checksum,
            store_size=rng.random() < 0.3,
            compression_level=rng.choice((-5, 0, 3, 12)),
        )
    )
    has_size = frame[4] & 8
    if has_size and rng.random() < 0.3:
        frame[6:14] = struct.pack("<Q", rng.choice((0, 1, len(data) + 1, 2**40, 2**64 - 1)))
    if rng.random() < 0.05:
        frame[4] ^= 1 << rng.randrange(8)
    if rng.random() < 0.05:
        frame[5] ^= 1 << rng.randrange(8)
    end = 14 if has_size else 6
    frame[end] = _descriptor_checksum(bytes(frame[4:end]))
    if rng.random() < 0.1:
        frame[end] = rng.choice((frame[end] ^ 0xFF, _descriptor_checksum(bytes(frame[:end]))))
    if frame[4] & 4 and rng.random() < 0.3:
        frame[-4:] = rng.randbytes(4)
    if rng.random() < 0.05:
        del frame[-4:]  # its end, or its checksum
    if rng.random() < 0.05:  # a block that holds nothing
        block = struct.pack("<I", 1) + b"\0"
        frame[end + 1 : end + 1] = block + (
            struct.pack("<I", xxh32_of_short(b"\0")) if block_checksum else b""
        )
    if rng.random() < 0.02:
        frame[end + 1 : end + 1] = b"\0\0\0\x80"
    return bytes(frame)


def lz4_blob(rng: random.Random, data: bytes) -> bytes:
    """A frame, several, an old one, or one behind something that is skipped."""
    if rng.random() < 0.03:
        block = lz4.block.compress(data, store_size=False)
        return _LZ4_LEGACY + struct.pack("<I", len(block)) + block
    start = _skippable(rng) if rng.random() < 0.05 else b""
    blob = b"".join(lz4_frame(rng, part) for part in _parts(rng, data, 0.1))
    return start + blob + _rest(rng, _skippable(rng))


def _descriptor_checksum(descriptor: bytes) -> int:
    return xxh32_of_short(descriptor) >> 8 & 0xFF


# -- zstd -----------------------------------------------------------------------------------------------------------


def zstd_frame(rng: random.Random, data: bytes) -> bytes:
    """A frame with what the format allows."""
    if rng.random() < 0.05:
        words = [rng.randbytes(8) for _ in range(100)]
        trained = zstandard.ZstdCompressionDict(b"".join(words), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        return zstandard.ZstdCompressor(dict_data=trained).compress(data)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        rng.choice((-7, 1, 3, 9)),
        window_log=rng.choice((10, 17, 27, 28)),
        write_content_size=rng.random() < 0.5,
        write_checksum=rng.random() < 0.5,
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    if rng.random() < 0.5:  # as a stream, whose window has the size that it asks for
        stream = compressor.compressobj()
        frame = stream.compress(data) + stream.flush()
    else:
        frame = compressor.compress(data)
    if rng.random() < 0.05:
        return frame[:-4] + rng.randbytes(4)
    return bytes(frame)


def zstd_blob(rng: random.Random, data: bytes) -> bytes:
    """Frames one behind the other, with some that are skipped."""
    blob = b""
    for part in _parts(rng, data):
        blob += _skippable(rng) if rng.random() < 0.1 else b""
        blob += zstd_frame(rng, part)
    return blob + _rest(rng, _skippable(rng))


def _skippable(rng: random.Random) -> bytes:
    size = rng.choice((0, 5, 300))
    return struct.pack("<II", _SKIPPABLE + rng.randrange(16), size) + rng.randbytes(size)


# -- any codec ------------------------------------------------------------------------------------------------------


def _parts(rng: random.Random, data: bytes, share: float = 0.3) -> list[bytes]:
    """The data in one part or in several, some of them empty."""
    cuts = sorted(
        rng.randint(0, len(data)) for _ in range(rng.choice((1, 1, 2, 5)) if rng.random() < share else 0)
    )
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def _rest(rng: random.Random, more: bytes, share: float = 0.3) -> bytes:
    """What lies behind the end: nothing, padding, anything, or `more`, whole or cut off."""
    if rng.random() >= share:
        return b""
    sizes = (1, 2, 3, 4, 7, 8, 9, 10, 17, 18, 19, 26, 27, 100, 9000)
    size = rng.choice(sizes)
    return rng.choice((bytes(size), rng.randbytes(size), more, more[:size], more + bytes(size)))


def _damaged(rng: random.Random, blob: bytes) -> tuple[bytes, str]:
    changed = bytearray(blob)
    at = rng.choice((rng.randrange(len(blob)), rng.randrange(min(len(blob), 24)))) if blob else 0
    if rng.random() < 0.5 or not blob:
        return blob[:at], f", cut off at {at}"
    changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed), f", flipped at {at}"


_BLOBS: dict[Codec, Pack] = {
    Codec.GZIP: gzip_blob,
    Codec.SNAPPY: snappy_blob,
    Codec.LZ4: lz4_blob,
    Codec.ZSTD: zstd_blob,
}


def framing(seed: int) -> Framing:
    """The batch of a seed."""
    rng = random.Random(seed)
    codec = Codec(1 + seed % 4)
    magic = rng.choice((2, 2, 2, 1, 0)) if codec is not Codec.ZSTD or rng.random() < 0.05 else 2
    records = list(_records(rng, magic))
    plain = _plain(rng, records, magic)
    blob, what = _BLOBS[codec](rng, plain), f"seed {seed}: magic {magic}, {codec.name}"
    if rng.random() < 0.2:
        blob, damage = _damaged(rng, blob)
        what += damage
    batch = _batch(rng, records, blob, codec) if magic == 2 else _wrapper(records, blob, codec, magic)
    return Framing(what, batch, magic)


def _records(rng: random.Random, magic: int) -> Iterator[Record]:
    size = rng.choice((0, 5, 100, 100, 3000))
    for offset in range(rng.choice((1, 1, 2, 30, 30, 100))):
        value = bytes(rng.choices(b"abcd", k=size)) if rng.random() < 0.5 else rng.randbytes(size)
        key = b"key-%d" % offset if rng.random() < 0.9 else None
        headers = (("h", b"v"),) if magic == 2 and rng.random() < 0.2 else ()
        yield Record(
            offset, TIMESTAMP_MS + offset if magic else -1, key, rng.choice((value, value, None)), headers
        )


def _plain(rng: random.Random, records: list[Record], magic: int) -> bytes:
    """What is compressed; with something behind the records, or without their end, at times."""
    if magic == 2:
        plain = encode_records(records, base_offset=0, base_timestamp_ms=TIMESTAMP_MS)
        if rng.random() < 0.1:
            plain = b"".join(_odd_record(rng, record) for record in records)
    else:
        plain = b"".join(encode_message(record, magic=magic) for record in records)
    if rng.random() < 0.03:
        return plain + rng.choice((b"\0", plain[:20], bytes(30)))
    return plain[: -rng.randrange(1, 20)] if rng.random() < 0.03 else plain


def _odd_record(rng: random.Random, record: Record) -> bytes:
    """Numbers in more bytes than they need, attributes that mean nothing, nulls by any negative length."""

    def number(value: int) -> bytes:
        if rng.random() < 0.7:
            return encode_varint(value)
        raw = (value << 1 ^ value >> 31) & 0xFFFFFFFF
        return bytes(raw >> 7 * i & 0x7F | 0x80 for i in range(4)) + bytes([raw >> 28])

    def field(value: bytes | None) -> bytes:
        null = rng.choice((-1, -1, -2, -(2**31)))
        return number(null) if value is None else number(len(value)) + value

    body = bytes([rng.choice((0, 0x7F))]) + number(record.timestamp_ms - TIMESTAMP_MS) + number(record.offset)
    body += field(record.key) + field(record.value) + number(len(record.headers))
    for key, value in record.headers:
        body += field(rng.choice((key.encode(),) * 20 + (None,))) + field(rng.choice((value, None)))
    return number(len(body)) + body


def _batch(rng: random.Random, records: list[Record], blob: bytes, codec: Codec) -> bytes:
    whole = encode_batch(records, base_offset=0)
    batch = bytearray(whole[:HEADER_SIZE] + blob)
    struct.pack_into(">i", batch, LENGTH_AT, len(batch) - LOG_OVERHEAD)
    struct.pack_into(">h", batch, _ATTRIBUTES_AT, codec)
    if rng.random() < 0.05:
        struct.pack_into(">i", batch, RECORD_COUNT_AT, max(len(records) + rng.choice((-1, 1)), 0))
    _CRC.pack_into(batch, _CRC_AT, checksum(batch))
    return bytes(batch)


def _wrapper(records: list[Record], blob: bytes, codec: Codec, magic: int) -> bytes:
    timestamp_ms = max(record.timestamp_ms for record in records)
    message = bytearray(encode_message(Record(records[-1].offset, timestamp_ms, None, blob), magic=magic))
    message[17] |= codec
    _CRC.pack_into(message, 12, zlib.crc32(message[16:]))
    return bytes(message)
