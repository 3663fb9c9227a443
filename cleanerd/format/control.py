"""Control records: the markers that end transactions and the notes that KRaft writes (spec disk C2).

===  ====  =======  ===================================================
off  size  field    note
===  ====  =======  ===================================================
0    2     version  of the key; 0
2    2     type     `ControlType`; numbers not listed there are ignored
===  ====  =======  ===================================================

The value of ABORT and COMMIT: int16 version 0, int32 coordinator epoch. A transaction marker is a batch of
one such record with the transactional and control bits, the transaction's producer id and epoch, and no
sequence. A control batch without records is a marker that was cleaned before.
"""

import struct
from enum import IntEnum

from cleanerd.format.batch import Record, encode_batch
from cleanerd.format.errors import FormatError

_KEY = struct.Struct(">hh")
_END_TXN_VALUE = struct.Struct(">hi")


class ControlType(IntEnum):
    """A control record, parsed."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


def parse_control_key(key: bytes | None) -> ControlType:
    """The type of a control record; UNKNOWN for a number of a later Kafka.

    Raises: `FormatError` for a key that is null, too short, or of a negative version.
    """
    if key is None or len(key) < _KEY.size:
        raise FormatError(0, f"a control key of {_KEY.size} bytes", "null" if key is None else key.hex())
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise FormatError(0, "a control key version of 0 or more", version)
    return ControlType(number) if 0 <= number <= ControlType.KRAFT_VOTERS else ControlType.UNKNOWN


def parse_end_txn_value(value: bytes | None) -> int:
    """The coordinator epoch of an ABORT or COMMIT marker.

    Raises: `FormatError` for a value that is null, too short, or of a negative version.
    """
    if value is None or len(value) < _END_TXN_VALUE.size:
        found = "null" if value is None else value.hex()
        raise FormatError(0, f"a marker of {_END_TXN_VALUE.size} bytes", found)
    version, coordinator_epoch = _END_TXN_VALUE.unpack_from(value)
    if version < 0:
        raise FormatError(0, "a marker version of 0 or more", version)
    return int(coordinator_epoch)


def encode_end_txn_marker(
    control_type: ControlType,
    *,
    offset: int,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int = 0,
    leader_epoch: int = 0,
) -> bytes:
    """The whole batch that ends a transaction.

    Requires: ABORT or COMMIT.
    """
    assert control_type in (ControlType.ABORT, ControlType.COMMIT)
    marker = Record(
        offset, timestamp_ms, _KEY.pack(0, control_type), _END_TXN_VALUE.pack(0, coordinator_epoch)
    )
    return encode_batch(
        [marker],
        base_offset=offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
