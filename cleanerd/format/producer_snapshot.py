"""`<offset>.snapshot`: Kafka's state of each producer just below that offset (spec disk B7, rule 0.13).

===  ====  ========  ===============================================================
off  size  field     note
===  ====  ========  ===============================================================
0    2     version   1
2    4     CRC-32C   of bytes 6 to the end
6    4     count
10   46    entries   see below, `count` times
===  ====  ========  ===============================================================

===  ====  ========================  =============================================
off  size  field of an entry         note
===  ====  ========================  =============================================
0    8     producer id
8    2     producer epoch
10   4     last sequence             of the last batch, -1 none
14   8     last offset               of the last batch, -1 none
22   4     offset delta              last offset minus base offset of that batch
26   8     timestamp                 of the last batch or marker
34   4     coordinator epoch         of the last marker, -1 none
38   8     current txn first offset  -1: no transaction is open
===  ====  ========================  =============================================
"""

import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from crc32c import crc32c

from cleanerd.format.errors import FormatError

_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_END = 6
assert _HEADER.size == 10
assert _ENTRY.size == 46


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """State of one producer, in the order of the bytes."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    current_txn_first_offset: int


def parse_producer_snapshot(data: bytes, offset: int) -> tuple[ProducerEntry, ...]:
    """Read all entries of the snapshot with `offset` in its name.

    Raises: `FormatError` for another version, a wrong CRC, a size that disagrees with the count, or what is not known yet at
    that offset: the snapshot of another one.
    """
    if len(data) < _HEADER.size:
        raise FormatError(0, f"a snapshot of at least {_HEADER.size} bytes", f"{len(data)} bytes")
    version, crc, count = _HEADER.unpack_from(data)
    if version != 1:
        raise FormatError(0, "snapshot version 1", version)
    found_crc = crc32c(memoryview(data)[_CRC_END:])
    if found_crc != crc:
        raise FormatError(2, f"CRC {crc:#010x}", f"{found_crc:#010x}")
    body = memoryview(data)[_HEADER.size :]
    if len(body) != count * _ENTRY.size:
        raise FormatError(_CRC_END, f"{count} entries of {_ENTRY.size} bytes", f"{len(body)} bytes")
    entries = tuple(ProducerEntry(*fields) for fields in _ENTRY.iter_unpack(body))
    for row, entry in enumerate(entries):
        last = max(entry.last_offset, entry.current_txn_first_offset)
        if last >= offset:
            raise FormatError(_HEADER.size + row * _ENTRY.size, f"offsets below {offset}", last)
    return entries


def render_producer_snapshot(entries: Sequence[ProducerEntry]) -> bytes:
    """The file for these entries, in the given order."""
    count = struct.pack(">i", len(entries))
    body = count + b"".join(_ENTRY.pack(*astuple(entry)) for entry in entries)
    return struct.pack(">hI", 1, crc32c(body)) + body
