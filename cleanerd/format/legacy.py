"""Log entries of magic 0 and 1 (spec disk C3, rule 0.9), in plain Python.

======  ======  ====  ============  ==================================================================
v0 off  v1 off  size  field         note
======  ======  ====  ============  ==================================================================
0       0       8     offset        of the record; of the last inner record in a wrapper
8       8       4     message size  bytes after this field
12      12      4     CRC-32        IEEE, of bytes 16 to the end
16      16      1     magic         0 or 1
17      17      1     attributes    bits 0-2 codec (no zstd), bit 3 LogAppendTime (v1 only)
        18      8     timestamp     -1 none; in a wrapper the largest inner one
18      26      4     key length    -1 null, then the key
...     ...     4     value length  -1 null, then the value
======  ======  ====  ============  ==================================================================

Without compression each entry is one record. A compressed entry is a wrapper: null key, and a value that is
the compressed sequence of inner entries. Inner offsets are absolute in v0 and relative in v1: there absolute
= wrapper offset - last inner offset + inner offset, but a wrapper offset of 0 leaves them as they are.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cleanerd.format import head
from cleanerd.format.batch import NO_TIMESTAMP, codec_of
from cleanerd.format.codecs import Codec, compress, decompress
from cleanerd.format.errors import FormatError
from cleanerd.format.record import Record

_ENTRY = struct.Struct(">qiIbB")  # offset, message size, CRC, magic, attributes
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_KEY_AT = {0: head.V0_KEY_AT, 1: head.V1_KEY_AT}
MIN_MESSAGE_BYTES = {0: head.V0_SIZE_MIN - head.LOG_OVERHEAD, 1: head.V1_SIZE_MIN - head.LOG_OVERHEAD}
"""Smallest message size field by magic: both lengths, nothing in them."""


@dataclass(frozen=True, slots=True)
class LegacyEntry:
    """One log entry with its records, absolute offsets and true timestamps.

    `last_offset` and `timestamp_ms` are the entry's own on disk; no timestamp, -1, in v0. An old bug put
    messages of another magic into wrappers (KAFKA-4298): `magic` is the wrapper's.
    """

    magic: int
    size_bytes: int
    last_offset: int
    codec: Codec
    log_append_time: bool
    timestamp_ms: int
    records: tuple[Record, ...]

    @property
    def base_offset(self) -> int:
        """Offset of the first record."""
        return self.records[0].offset


@dataclass(frozen=True, slots=True)
class _Message:
    """One entry taken apart, compressed or not; `end` is where the next one starts."""

    offset: int
    magic: int
    attributes: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    end: int


def decode_entry(data: bytes | memoryview, position: int = 0) -> LegacyEntry:
    """Read one whole entry. Its CRC is checked, and not those of the messages in a wrapper, as by the JVM.

    Raises: `FormatError` for a torn entry, a wrong CRC, impossible lengths or offsets, or a damaged wrapper.
    """
    message = _parse_message(data, position)
    codec = codec_of(message.attributes, position + head.LEGACY_FLAGS_AT)
    records: tuple[Record, ...]
    if codec == Codec.NONE:
        records = (Record(message.offset, message.timestamp_ms, message.key, message.value),)
    else:
        records = _unwrap(message, codec, position)
    return LegacyEntry(
        magic=message.magic,
        size_bytes=message.end - position,
        last_offset=message.offset,
        codec=codec,
        log_append_time=_is_log_append_time(message),
        timestamp_ms=message.timestamp_ms,
        records=records,
    )


def _parse_message(data: bytes | memoryview, position: int, *, is_inner: bool = False) -> _Message:
    if position + _ENTRY.size > len(data):
        raise FormatError(
            position, f"an entry of {_ENTRY.size} bytes or more", f"{len(data) - position} bytes"
        )
    offset, size, crc, magic, attributes = _ENTRY.unpack_from(data, position)
    if magic not in MIN_MESSAGE_BYTES:
        raise FormatError(position + head.MAGIC_AT, "magic 0 or 1", magic)
    end = position + head.LOG_OVERHEAD + size
    if size < MIN_MESSAGE_BYTES[magic]:
        raise FormatError(
            position + head.LENGTH_AT, f"a message of at least {MIN_MESSAGE_BYTES[magic]} bytes", size
        )
    if end > len(data):
        raise FormatError(position, f"an entry of {end - position} bytes", f"{len(data) - position} bytes")
    message = memoryview(data)[:end]
    found_crc = zlib.crc32(message[position + head.MAGIC_AT :])
    if found_crc != crc and not is_inner:
        raise FormatError(position + head.LEGACY_CRC_AT, f"CRC {crc:#010x}", f"{found_crc:#010x}")
    timestamp_ms = (
        _TIMESTAMP.unpack_from(message, position + head.LEGACY_TIMESTAMP_AT)[0] if magic else NO_TIMESTAMP
    )
    key, after_key = _read_field(message, position + _KEY_AT[magic])
    value, after_value = _read_field(message, after_key)
    if after_value != end:
        raise FormatError(after_value, "the end of the message", f"{end - after_value} more bytes")
    return _Message(offset, magic, attributes, timestamp_ms, key, value, end)


def _read_field(message: memoryview, position: int) -> tuple[bytes | None, int]:
    start = position + _LENGTH.size
    size = _LENGTH.unpack_from(message, position)[0] if start <= len(message) else None
    if size == -1:
        return None, start
    if size is None or size < 0 or start + size > len(message):
        raise FormatError(position, f"a length of -1 to {len(message) - start}", size)
    return bytes(message[start : start + size]), start + size


def _unwrap(wrapper: _Message, codec: Codec, position: int) -> tuple[Record, ...]:
    """The inner records of a wrapper at `position`."""
    if wrapper.value is None:
        raise FormatError(position, "a wrapper with a value", "null")
    try:
        inner = _parse_inner(decompress(codec, wrapper.value, wrapper.magic))
    except FormatError as problem:
        where = f"{problem.expected} at byte {problem.position} of the {codec.name} messages"
        raise FormatError(position, where, problem.found) from problem
    shift = _inner_shift(wrapper, inner[-1].offset, position)
    return tuple(
        Record(
            message.offset + shift,
            wrapper.timestamp_ms if _is_log_append_time(wrapper) else message.timestamp_ms,
            message.key,
            message.value,
        )
        for message in inner
    )


def _parse_inner(data: bytes) -> list[_Message]:
    """All messages. A last one that is cut off is none, as for the JVM."""
    messages: list[_Message] = []
    position = 0
    while not _is_cut_off(data, position):
        message = _parse_message(data, position, is_inner=True)
        if codec_of(message.attributes, position + head.LEGACY_FLAGS_AT) != Codec.NONE:
            raise FormatError(position, "an uncompressed inner message", "a compressed one")
        messages.append(message)
        position = message.end
    if not messages:
        raise FormatError(0, "at least one inner message", "none")
    return messages


def _is_cut_off(data: bytes, position: int) -> bool:
    """Whether no whole message begins here."""
    if position + head.LOG_OVERHEAD > len(data):
        return True
    (size,) = _LENGTH.unpack_from(data, position + head.LENGTH_AT)
    return int(size) >= MIN_MESSAGE_BYTES[0] and position + head.LOG_OVERHEAD + size > len(data)


def _inner_shift(wrapper: _Message, last_inner: int, position: int) -> int:
    """The number that turns the inner offsets of a wrapper into absolute ones."""
    if wrapper.magic == 0 or wrapper.offset == 0:
        return 0
    if wrapper.offset < last_inner:
        raise FormatError(position, f"a wrapper offset of {last_inner} or more", wrapper.offset)
    return wrapper.offset - last_inner


def _is_log_append_time(message: _Message) -> bool:
    return message.magic == 1 and bool(message.attributes & head.LOG_APPEND_TIME)


def encode_message(record: Record, *, magic: int, log_append_time: bool = False) -> bytes:
    """One uncompressed entry.

    Requires: magic 0 or 1, no headers, LogAppendTime only in v1. The timestamp is lost in v0.
    """
    assert not record.headers, "headers need magic 2"
    return _encode(record, magic, head.LOG_APPEND_TIME if log_append_time else 0)


def encode_wrapper(
    records: Sequence[Record],
    *,
    magic: int,
    codec: Codec,
    log_append_time: bool = False,
    timestamp_ms: int | None = None,
) -> bytes:
    """One compressed entry of these records; `timestamp_ms` defaults to their largest.

    Requires: at least one record, offsets rising, no headers; neither zstd nor NONE.
    """
    assert records
    assert codec not in (Codec.NONE, Codec.ZSTD)
    base = records[0].offset if magic == 1 else 0
    inner = b"".join(
        encode_message(replace(record, offset=record.offset - base), magic=magic) for record in records
    )
    if timestamp_ms is None:
        timestamp_ms = max(record.timestamp_ms for record in records)
    return wrap_messages(
        inner,
        magic=magic,
        codec=codec,
        last_offset=records[-1].offset,
        timestamp_ms=timestamp_ms,
        log_append_time=log_append_time,
    )


def wrap_messages(
    messages: bytes, *, magic: int, codec: Codec, last_offset: int, timestamp_ms: int, log_append_time: bool
) -> bytes:
    """One compressed entry around encoded inner messages, whose offsets are already as `magic` wants them."""
    wrapper = Record(last_offset, timestamp_ms, None, compress(codec, messages, magic))
    return _encode(wrapper, magic, codec | (head.LOG_APPEND_TIME if log_append_time else 0))


def _encode(record: Record, magic: int, attributes: int) -> bytes:
    assert magic in MIN_MESSAGE_BYTES
    assert magic == 1 or not attributes & head.LOG_APPEND_TIME
    parts = [struct.pack(">bB", magic, attributes)]
    if magic == 1:
        parts.append(_TIMESTAMP.pack(record.timestamp_ms))
    for field in (record.key, record.value):
        parts.append(_LENGTH.pack(-1 if field is None else len(field)))
        parts.append(field or b"")
    body = b"".join(parts)
    return struct.pack(">qiI", record.offset, len(body) + 4, zlib.crc32(body)) + body
