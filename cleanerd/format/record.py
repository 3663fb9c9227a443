"""Records of magic 2 and the varints they are made of (spec disk C1).

==============  ============  =================================================================
type            field         note
==============  ============  =================================================================
varint          body length   bytes after this field
int8            attributes    always 0
varlong         timestamp     minus the base timestamp of the batch, also when that is a horizon
varint          offset        minus the base offset
varint, bytes   key           length -1: null
varint, bytes   value         length -1: null, a tombstone
varint          header count
{varint, utf8}  header key    never null
{varint, bytes} header value  length -1: null
==============  ============  =================================================================

Varints are zig-zag, then groups of seven bits, low group first; at most 5 bytes, a varlong 10.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from cleanerd.format.errors import FormatError

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One record with its absolute offset. Header keys that are not UTF-8 survive as surrogate escapes."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def encode_varint(value: int) -> bytes:
    """Zig-zag varint of a signed 64-bit number; equal to the 32-bit one for 32-bit numbers."""
    return encode_unsigned_varint(value << 1 if value >= 0 else (-value << 1) - 1)


def encode_unsigned_varint(value: int) -> bytes:
    """Base-128 groups, low group first, without zig-zag.

    Requires: `value` is not negative.
    """
    assert value >= 0
    if value < 0x80:
        return bytes((value,))
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def decode_varint(data: bytes | memoryview, position: int, bits: int = 32) -> tuple[int, int]:
    """Zig-zag varint of at most `bits` bits -> (value, next position).

    Raises: `FormatError` for one that is too long; `IndexError` at the end of the data.
    """
    raw, following = decode_unsigned_varint(data, position, bits)
    return (raw >> 1) ^ -(raw & 1), following


def decode_unsigned_varint(data: bytes | memoryview, position: int, bits: int = 32) -> tuple[int, int]:
    """Base-128 groups without zig-zag -> (value, next position); errors as in `decode_varint`."""
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    shift = 7
    following = position + 1
    while byte & 0x80:
        if shift >= bits:
            raise FormatError(position, f"a varint of at most {bits} bits", "a longer one")
        byte = data[following]
        following += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    if value >> bits:
        raise FormatError(position, f"a varint of at most {bits} bits", f"{value:#x}")
    return value, following


def encode_records(records: Iterable[Record], *, base_offset: int, base_timestamp_ms: int) -> bytes:
    """The records of a batch, uncompressed."""
    parts: list[bytes] = []
    for record in records:
        body = _encode_body(record, record.timestamp_ms - base_timestamp_ms, record.offset - base_offset)
        parts.append(encode_varint(len(body)))
        parts.append(body)
    return b"".join(parts)


def _encode_body(record: Record, timestamp_delta: int, offset_delta: int) -> bytes:
    parts = [b"\0", encode_varint(timestamp_delta), encode_varint(offset_delta)]
    parts += _encode_bytes(record.key)
    parts += _encode_bytes(record.value)
    parts.append(encode_varint(len(record.headers)))
    for key, value in record.headers:
        parts += _encode_bytes(key.encode("utf-8", "surrogateescape"))
        parts += _encode_bytes(value)
    return b"".join(parts)


def _encode_bytes(value: bytes | None) -> tuple[bytes, bytes]:
    return (b"\x01", b"") if value is None else (encode_varint(len(value)), value)


def decode_records(
    data: bytes, position: int, count: int, *, base_offset: int, base_timestamp_ms: int
) -> list[Record]:
    """`count` records that fill `data` from `position` exactly; timestamps as CreateTime.

    Raises: `FormatError` for lengths that disagree, too few records, or bytes left over (rule 4.37).
    """
    records: list[Record] = []
    start = position
    for _ in range(count):
        start = position
        try:
            record, position = _decode_record(data, position, base_offset, base_timestamp_ms)
        except IndexError:
            found = f"the end of the data in record {len(records)}"
            raise FormatError(start, f"{count} records", found) from None
        records.append(record)
    if position != len(data):
        raise FormatError(position, f"the end after {count} records", f"{len(data) - position} more bytes")
    return records


def _decode_record(data: bytes, start: int, base_offset: int, base_timestamp_ms: int) -> tuple[Record, int]:
    body_bytes, body = decode_varint(data, start)
    timestamp_delta, position = decode_varint(data, body + 1, 64)
    offset_delta, position = decode_varint(data, position)
    key, position = _decode_bytes(data, position)
    value, position = _decode_bytes(data, position)
    headers: Headers = ()
    if data[position] == 0:
        position += 1
    else:
        headers, position = _decode_headers(data, position)
    if position != body + body_bytes:
        raise FormatError(start, f"a record body of {body_bytes} bytes", position - body)
    if position > len(data):
        raise IndexError(position)
    offset, timestamp_ms = base_offset + offset_delta, base_timestamp_ms + timestamp_delta
    return Record(offset, timestamp_ms, key, value, headers), position


def _decode_headers(data: bytes, start: int) -> tuple[Headers, int]:
    count, position = decode_varint(data, start)
    if count < 0:
        raise FormatError(start, "a header count", count)
    headers = []
    for _ in range(count):
        key_start = position
        key, position = _decode_bytes(data, position)
        if key is None:
            raise FormatError(key_start, "a header key", "null")
        value, position = _decode_bytes(data, position)
        headers.append((key.decode("utf-8", "surrogateescape"), value))
    return tuple(headers), position


def _decode_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    """A field, null with any negative length; a slice that runs past the end comes out short: the body length shows that."""
    size, start = decode_varint(data, position)
    if size < 0:
        return None, start
    return data[start : start + size], start + size
