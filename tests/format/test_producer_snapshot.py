"""Producer snapshots (spec disk B7)."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.format.errors import FormatError
from cleanerd.format.producer_snapshot import ProducerEntry, parse_producer_snapshot, render_producer_snapshot

EMPTY = bytes.fromhex("0001 48674bc7 00000000")
OPEN_TXN = bytes.fromhex(
    "0001 5a3ee3c8 00000001"
    "0000000000000000 0002 00000000 0000000000000007 00000000 000001a1fbe9f00b 00000000 0000000000000007"
)


int16, int32, int64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64))


@given(st.lists(st.builds(ProducerEntry, int64, int16, int32, int64, int32, int64, int32, int64), max_size=5))
def test_round_trip(entries):
    assert parse_producer_snapshot(render_producer_snapshot(entries), 2**63) == tuple(entries)


def sealed(rest: bytes, version: int = 1) -> bytes:
    """Any bytes behind a CRC that fits."""
    return struct.pack(">hI", version, crc32c(rest)) + rest


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "at least 10"),
        (EMPTY[:9], "at least 10"),
        (sealed(EMPTY[6:], version=2), "version 1"),
        (OPEN_TXN[:-1] + b"\1", "CRC"),
        (OPEN_TXN[:-1], "CRC"),
        (sealed(OPEN_TXN[6:-1]), "1 entries"),
        (sealed(OPEN_TXN[6:] + b"x"), "1 entries"),
        (sealed(struct.pack(">i", -1)), "-1 entries"),
    ],
)
def test_damage(content, expected):
    with pytest.raises(FormatError, match=expected):
        parse_producer_snapshot(content, 9)


def test_a_snapshot_of_a_later_offset_is_none():
    """It would tell what ended as open, or what began as unknown."""
    with pytest.raises(FormatError, match="offsets below 7, found 7") as caught:
        parse_producer_snapshot(OPEN_TXN, 7)
    assert caught.value.position == 10
