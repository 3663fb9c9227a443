"""The three index files of a segment (spec disk B2, B3, B5, B6)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.format.errors import FormatError, Padded
from cleanerd.format.offset_index import OffsetIndex, parse_offset_index, render_offset_index
from cleanerd.format.time_index import TimeIndex, parse_time_index, render_time_index
from cleanerd.format.txn_index import AbortedTxn, parse_txn_index, render_txn_index

BASE = 2**40
rising = st.lists(st.integers(1, 2**31 - 1), unique=True, max_size=50).map(sorted)


def array(values):
    return np.array(values, dtype=np.int64)


@given(rising, st.data())
def test_offset_index_round_trip(relative, data):
    """Absolute offsets above 2^31 come back from 32-bit entries."""
    positions = data.draw(
        st.lists(st.integers(1, 2**31 - 1), unique=True, min_size=len(relative), max_size=len(relative))
    )
    index = OffsetIndex(array(relative) + BASE, array(sorted(positions)))
    content = render_offset_index(index, BASE)
    assert len(content) == 8 * len(relative)
    for padding in (0, 800):
        found = parse_offset_index(content + bytes(padding), BASE)
        assert found.offsets.tolist() == index.offsets.tolist()
        assert found.positions.tolist() == index.positions.tolist()
        assert_padded(found.flaw, len(content), padding)


def assert_padded(flaw: FormatError | None, position: int, padding: int) -> None:
    """With so many bytes of zeros from `position` on."""
    assert (flaw is None) == (padding == 0)
    if flaw is not None:
        assert isinstance(flaw, Padded)
        assert (flaw.position, flaw.found) == (position, f"{padding} bytes of zeros")


def test_offset_index_of_zeros_is_legal_and_empty():
    """Experiment X4: a live broker makes such a file, and every lookup starts at byte 0."""
    index = parse_offset_index(bytes(10485760), 7)
    assert index.offsets.size == 0
    assert index.lookup(12345) == 0


@pytest.mark.parametrize(
    ("offset", "position"), [(0, 0), (104, 0), (105, 50), (109, 50), (110, 90), (999, 90)]
)
def test_offset_index_lookup(offset, position):
    """Greatest entry at or below the target, else the start (spec disk B2)."""
    assert OffsetIndex(array([105, 110]), array([50, 90])).lookup(offset) == position


def assert_flaw(flaw: FormatError | None, expected: str, position: int) -> None:
    assert flaw is not None
    assert not isinstance(flaw, Padded)
    assert expected in str(flaw.expected)
    assert flaw.position == position


OFFSET, TIME = (parse_offset_index, 8, "rising offsets"), (parse_time_index, 12, "rising timestamps")


@pytest.mark.parametrize(
    ("kind", "entries", "used"),
    [
        (OFFSET, "00000005 00000010 00000005 00000020", 1),
        (OFFSET, "00000005 00000010 00000004 00000020", 1),
        (OFFSET, "00000005 00000010 00000006 00000010", 1),
        (OFFSET, "00000005 00000010 00000006 00000009", 1),
        (OFFSET, "ffffffff 00000010", 0),
        (OFFSET, "00000005 00000000", 0),
        (OFFSET, "00000005 ffffffff", 0),
        (TIME, "0000000000000005 00000001 0000000000000005 00000002", 1),
        (TIME, "0000000000000005 00000001 0000000000000004 00000002", 1),
        (TIME, "0000000000000005 00000002 0000000000000006 00000001", 1),
        (TIME, "ffffffffffffffff 00000001", 0),
        (TIME, "0000000000000005 ffffffff", 0),
    ],
)
def test_entries_that_none_can_be(kind, entries, used):
    """Fields rise and are not negative, no position is byte 0: what comes before is used, the rest is a flaw."""
    parse, entry_bytes, expected = kind
    index = parse(bytes.fromhex(entries), 0)
    assert_flaw(index.flaw, expected, entry_bytes * used)
    assert len(index.offsets) == used


@pytest.mark.parametrize("half", [b"\0", b"\7\7"])
@pytest.mark.parametrize(
    ("parse", "entry"),
    [(parse_offset_index, "00000005 00000010"), (parse_time_index, "0000000000000005 00000001")],
)
def test_half_an_entry_is_a_flaw(parse, entry, half):
    content = bytes.fromhex(entry) + half
    index = parse(content, 0)
    assert index.offsets.size == 1
    assert_flaw(index.flaw, "entries of", len(content))


@pytest.mark.parametrize(
    ("log_bytes", "end_offset", "used"), [(91, 111, 2), (90, 111, 1), (91, 110, 1), (50, 111, 0)]
)
def test_an_offset_index_that_leads_out_of_its_segment(log_bytes, end_offset, used):
    """By position or by offset: it belongs to another one."""
    index = OffsetIndex(array([105, 110]), array([50, 90])).within(log_bytes, end_offset)
    assert index.offsets.tolist() == [105, 110][:used]
    if used < 2:
        assert_flaw(index.flaw, f"entries below byte {log_bytes} and offset {end_offset}", 8 * used)


@given(rising, st.data())
def test_time_index_round_trip(relative, data):
    stamps = data.draw(
        st.lists(st.integers(1, 2**60), unique=True, min_size=len(relative), max_size=len(relative))
    )
    index = TimeIndex(array(sorted(stamps)), array(relative) // 2 + BASE)
    content = render_time_index(index, BASE)
    assert len(content) == 12 * len(relative)
    for padding in (0, 1200):
        found = parse_time_index(content + bytes(padding), BASE)
        assert_padded(found.flaw, len(content), padding)
        assert found.timestamps_ms.tolist() == index.timestamps_ms.tolist()
        assert found.offsets.tolist() == index.offsets.tolist()
        assert found.largest_timestamp_ms == (max(stamps) if stamps else None)


def test_time_index_bytes():
    """Spec disk B3: timestamp, relative offset, big endian; timestamp 0 is one like any other."""
    content = bytes.fromhex("0000000000000000 00000000 0000018bcfe56800 00000009")
    index = parse_time_index(content, 100)
    assert (index.timestamps_ms.tolist(), index.offsets.tolist()) == ([0, 1700000000000], [100, 109])
    assert render_time_index(index, 100) == content


@pytest.mark.parametrize("data", [bytes(10485756), bytes(4096), b""])
def test_time_index_of_zeros_is_empty(data):
    """Spec disk B5: nobody wrote to it yet. Of a sparse file no more is read than up to the first hole."""
    index = parse_time_index(data, 7, 10485756)
    assert index.largest_timestamp_ms is None
    assert_padded(index.flaw, 0, 10485756)


@given(rising, st.integers(0, 2**62))
def test_txn_index_round_trip(last_offsets, producer_id):
    entries = tuple(AbortedTxn(producer_id, last // 2, last, last + 1) for last in last_offsets)
    assert parse_txn_index(render_txn_index(entries)) == entries


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("0001" + "00" * 32, "version 0"),
        ("00" * 68, "1 or more"),
        ("00" * 33, "entries of 34 bytes"),
    ],
)
def test_txn_index_damage(content, expected):
    """Another version, last offsets that do not rise (rule 4.23), a broken entry."""
    with pytest.raises(FormatError, match=expected):
        parse_txn_index(bytes.fromhex(content))


def test_b8_a_txn_index_of_an_earlier_segment():
    """With which a broker recovers the segment when it loads it."""
    content = render_txn_index([AbortedTxn(0, 3, 4, 5)])
    assert parse_txn_index(content, 4)
    with pytest.raises(FormatError, match="5 or more, found 4"):
        parse_txn_index(content, 5)
