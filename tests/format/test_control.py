"""Control records (spec disk C2)."""

import pytest

from cleanerd.format.batch import decode_batch
from cleanerd.format.control import ControlType, encode_end_txn_marker, parse_control_key, parse_end_txn_value
from cleanerd.format.errors import FormatError

COMMIT = bytes.fromhex(
    "0000000000000002 00000042 00000000 02 3a7ce395 0030 00000000 000001a1fbdff250 000001a1fbdff250"
    "0000000000000000 0000 ffffffff 00000001 20 00 00 00 08 00000001 0c 0000 00000000 00"
)


def test_golden_commit_marker():
    """Spec disk C5.2."""
    encoded = encode_end_txn_marker(
        ControlType.COMMIT, offset=2, timestamp_ms=0x1A1FBDFF250, producer_id=0, producer_epoch=0
    )
    assert encoded == COMMIT


def test_the_coordinator_epoch_is_in_the_value():
    marker = encode_end_txn_marker(
        ControlType.ABORT,
        offset=9,
        timestamp_ms=1,
        producer_id=5,
        producer_epoch=6,
        coordinator_epoch=7,
        leader_epoch=8,
    )
    header, (record,) = decode_batch(marker)
    assert (header.producer_id, header.producer_epoch, header.leader_epoch) == (5, 6, 8)
    assert parse_control_key(record.key) == ControlType.ABORT
    assert parse_end_txn_value(record.value) == 7


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("00000000", ControlType.ABORT),
        ("00000001", ControlType.COMMIT),
        ("00000002", ControlType.LEADER_CHANGE),
        ("00000006", ControlType.KRAFT_VOTERS),
        ("00000007", ControlType.UNKNOWN),
        ("0000ffff", ControlType.UNKNOWN),
        ("00010001ff", ControlType.COMMIT),
    ],
)
def test_control_types(key, expected):
    """Numbers and versions of a later Kafka are not errors."""
    assert parse_control_key(bytes.fromhex(key)) == expected


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\1"])
def test_damaged_keys(key):
    with pytest.raises(FormatError):
        parse_control_key(key)


@pytest.mark.parametrize("value", [None, b"", bytes(5), b"\xff\xff\0\0\0\0"])
def test_damaged_values(value):
    with pytest.raises(FormatError):
        parse_end_txn_value(value)
