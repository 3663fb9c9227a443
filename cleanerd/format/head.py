"""Where the fields of a batch header lie, derived once from its layout, and the fields of the head of a batch.

Batches of every magic begin alike: an offset, a length and, at the same byte, the magic (spec disk B1). Plain readers and
compiled kernels take every position from here. `batch` and `legacy` explain the fields.
"""

import struct
from typing import NamedTuple

from cleanerd.format.errors import FormatError

_V2 = {
    "base_offset": "q",
    "length": "i",
    "leader_epoch": "i",
    "magic": "b",
    "crc": "I",
    "attributes": "h",
    "last_offset_delta": "i",
    "base_timestamp": "q",
    "max_timestamp": "q",
    "producer_id": "q",
    "producer_epoch": "h",
    "base_sequence": "i",
    "record_count": "i",
}
_LEGACY = {"offset": "q", "length": "i", "crc": "I", "magic": "b", "attributes": "b", "timestamp": "q"}


def _positions(layout: dict[str, str]) -> dict[str, int]:
    codes = list(layout.values())
    return {name: struct.calcsize(">" + "".join(codes[:i])) for i, name in enumerate(layout)}


HEADER = struct.Struct(">" + "".join(_V2.values()))
"""Of a batch of magic 2."""
HEADER_SIZE = HEADER.size

_AT, _LEGACY_AT = _positions(_V2), _positions(_LEGACY)
LENGTH_AT = _AT["length"]
LEADER_EPOCH_AT = _AT["leader_epoch"]
MAGIC_AT = _AT["magic"]
CRC_AT = _AT["crc"]
ATTRIBUTES_AT = _AT["attributes"]
"""The CRC covers a batch from here on."""
FLAGS_AT = ATTRIBUTES_AT + 1
"""The low byte of the attributes, the only one with a meaning."""
LAST_OFFSET_DELTA_AT = _AT["last_offset_delta"]
BASE_TIMESTAMP_AT = _AT["base_timestamp"]
MAX_TIMESTAMP_AT = _AT["max_timestamp"]
PRODUCER_ID_AT = _AT["producer_id"]
PRODUCER_EPOCH_AT = _AT["producer_epoch"]
BASE_SEQUENCE_AT = _AT["base_sequence"]
RECORD_COUNT_AT = _AT["record_count"]

LEGACY_CRC_AT = _LEGACY_AT["crc"]
"""It covers a message from `MAGIC_AT` on."""
LEGACY_FLAGS_AT = _LEGACY_AT["attributes"]
LEGACY_TIMESTAMP_AT = _LEGACY_AT["timestamp"]
V0_KEY_AT = LEGACY_TIMESTAMP_AT
"""Key length of magic 0, which has no timestamp."""
V1_KEY_AT = LEGACY_TIMESTAMP_AT + struct.calcsize(">q")

LOG_OVERHEAD = LENGTH_AT + 4
"""Base offset and length, which the length does not count."""
V0_SIZE_MIN = V0_KEY_AT + 8
"""An entry of magic 0 with neither key nor value: both lengths are still there."""
V1_SIZE_MIN = V1_KEY_AT + 8
LENGTH_MIN = V0_SIZE_MIN - LOG_OVERHEAD
"""Smallest value of the length field in any magic."""

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

_HEAD = struct.Struct(">qi4xb")
HEAD_BYTES = _HEAD.size
"""Bytes of offset, length and magic, which give the size of a batch."""

assert (HEADER_SIZE, HEAD_BYTES, LENGTH_MIN) == (61, 17, 14)
assert MAGIC_AT == _LEGACY_AT["magic"] == HEAD_BYTES - 1


class Head(NamedTuple):
    """The head of a batch of any magic; `offset` is the first offset for magic 2, the last one for older magics."""

    offset: int
    size_bytes: int
    magic: int


def peek_batch(data: bytes | memoryview, position: int = 0) -> Head:
    """The head of a batch of any magic at `position`; the rest of the batch may be missing, and no CRC is checked.

    Raises: `FormatError` for fewer than 17 bytes, a size that no batch of its magic has, or an unknown magic (rule 4.37).
    """
    if len(data) - position < HEAD_BYTES:
        raise FormatError(position, f"a batch head of {HEAD_BYTES} bytes", f"{len(data) - position} bytes")
    offset, length, magic = _HEAD.unpack_from(data, position)
    if length < LENGTH_MIN:
        raise FormatError(position + LENGTH_AT, f"a length of at least {LENGTH_MIN}", length)
    if not 0 <= magic <= 2:
        raise FormatError(position + MAGIC_AT, "magic 0, 1 or 2", magic)
    size_bytes = length + LOG_OVERHEAD
    if magic == 2 and size_bytes < HEADER_SIZE:
        raise FormatError(position + LENGTH_AT, f"a batch of at least {HEADER_SIZE} bytes", size_bytes)
    return Head(offset, size_bytes, magic)
