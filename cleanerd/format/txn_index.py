"""`.txnindex`: the transactions whose ABORT marker lies in the segment (spec disk B6).

===  ====  ==================  =====================================================================
off  size  field               note
===  ====  ==================  =====================================================================
0    2     version             0
2    8     producer id
10   8     first offset        of the transaction; may lie in an earlier segment
18   8     last offset         of the ABORT marker; rises strictly within a file
26   8     last stable offset  first offset of the earliest other open transaction, else the marker + 1
===  ====  ==================  =====================================================================

No file means no aborted transactions, silently: lose it, and read_committed consumers get aborted data.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from cleanerd.format.errors import FormatError

_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
assert ENTRY_BYTES == 34

Isolation = Literal["read_uncommitted", "read_committed"]
"""Kafka's `isolation.level`: whether a consumer gets data of aborted and open transactions."""


@dataclass(frozen=True, slots=True)
class AbortedTxn:
    """One aborted transaction."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def parse_txn_index(data: bytes, base_offset: int = 0) -> tuple[AbortedTxn, ...]:
    """Read all entries of a segment with this base offset.

    Raises: `FormatError` for a broken entry, another version, or last offsets that do not rise from the base offset on.
    """
    if len(data) % ENTRY_BYTES:
        raise FormatError(len(data), f"entries of {ENTRY_BYTES} bytes", f"{len(data)} bytes")
    entries: list[AbortedTxn] = []
    for version, *fields in _ENTRY.iter_unpack(data):
        position = len(entries) * ENTRY_BYTES
        if version != 0:
            raise FormatError(position, "txn index version 0", version)
        entry = AbortedTxn(*fields)
        least = entries[-1].last_offset + 1 if entries else base_offset
        if entry.last_offset < least:
            raise FormatError(position + 18, f"a last offset of {least} or more", entry.last_offset)
        entries.append(entry)
    return tuple(entries)


def render_txn_index(entries: Iterable[AbortedTxn]) -> bytes:
    """The file for these entries.

    Requires: last offsets rise strictly (rule 4.23).
    """
    parts: list[bytes] = []
    last_offset = -1
    for entry in entries:
        assert entry.last_offset > last_offset
        last_offset = entry.last_offset
        fields = (entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset)
        parts.append(_ENTRY.pack(0, *fields))
    return b"".join(parts)
