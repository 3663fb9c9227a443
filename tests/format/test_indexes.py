"""The three index files of a segment (spec disk B2, B3, B5, B6)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.format.errors import FormatError
from cleanerd.format.offset_index import OffsetIndex, parse_offset_index, render_offset_index
from cleanerd.format.time_index import TimeIndex, parse_time_index, render_time_index
from cleanerd.format.txn_index import AbortedTxn, parse_txn_index, render_txn_index

BASE = 2**40
rising = st.lists(st.integers(1, 2**31 - 1), unique=True, max_size=50).map(sorted)


def array(values):
    """An int64 array."""
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
    for stored in (content, content + bytes(800)):
        found = parse_offset_index(stored, BASE)
        assert found.offsets.tolist() == index.offsets.tolist()
        assert found.positions.tolist() == index.positions.tolist()


def test_offset_index_bytes():
    """Spec disk B2: relative offset, position, big endian."""
    content = bytes.fromhex("00000005 00001000 0000000a 00002001")
    index = parse_offset_index(content, 100)
    assert (index.offsets.tolist(), index.positions.tolist()) == ([105, 110], [4096, 8193])
    assert render_offset_index(index, 100) == content


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


@pytest.mark.parametrize(
    ("entries", "slot"),
    [
        ("00000005 00000010 00000005 00000020", 1),
        ("00000005 00000010 00000004 00000020", 1),
        ("00000005 00000010 00000006 00000010", 1),
        ("00000005 00000010 00000006 00000009", 1),
        ("ffffffff 00000010", 0),
        ("00000005 00000000", 0),
        ("00000005 ffffffff", 0),
    ],
)
def test_offset_index_damage(entries, slot):
    """Offsets and positions rise and are not negative; nothing points at byte 0."""
    with pytest.raises(FormatError, match="rising offsets") as caught:
        parse_offset_index(bytes.fromhex(entries), 0)
    assert caught.value.position == 8 * slot


@given(rising, st.data())
def test_time_index_round_trip(relative, data):
    """Timestamps rise, offsets may repeat."""
    stamps = data.draw(
        st.lists(st.integers(1, 2**60), unique=True, min_size=len(relative), max_size=len(relative))
    )
    index = TimeIndex(array(sorted(stamps)), array(relative) // 2 + BASE)
    content = render_time_index(index, BASE)
    assert len(content) == 12 * len(relative)
    closed = parse_time_index(content, BASE)
    active = parse_time_index(content + bytes(1200), BASE, preallocated=True)
    for found in (closed, active):
        assert found.timestamps_ms.tolist() == index.timestamps_ms.tolist()
        assert found.offsets.tolist() == index.offsets.tolist()
        assert found.largest_timestamp_ms == (max(stamps) if stamps else None)


def test_time_index_bytes():
    """Spec disk B3: timestamp, relative offset, big endian; timestamp 0 is one like any other."""
    content = bytes.fromhex("0000000000000000 00000000 0000018bcfe56800 00000009")
    index = parse_time_index(content, 100)
    assert (index.timestamps_ms.tolist(), index.offsets.tolist()) == ([0, 1700000000000], [100, 109])
    assert render_time_index(index, 100) == content


def test_time_index_of_zeros_is_empty_when_preallocated():
    """Spec disk B5: nobody wrote to it yet."""
    index = parse_time_index(bytes(10485756), 7, preallocated=True)
    assert index.largest_timestamp_ms is None


@pytest.mark.parametrize(
    ("entries", "slot"),
    [
        ("0000000000000005 00000001 0000000000000005 00000002", 1),
        ("0000000000000005 00000001 0000000000000004 00000002", 1),
        ("0000000000000005 00000002 0000000000000006 00000001", 1),
        ("ffffffffffffffff 00000001", 0),
        ("0000000000000005 ffffffff", 0),
    ],
)
def test_time_index_damage(entries, slot):
    """An error in a closed file; the end of the data in a preallocated one."""
    content = bytes.fromhex(entries)
    with pytest.raises(FormatError, match="rising timestamps") as caught:
        parse_time_index(content, 0)
    assert caught.value.position == 12 * slot
    assert len(parse_time_index(content, 0, preallocated=True).offsets) == slot


def test_txn_index_sample():
    """Spec disk B6, as a broker wrote it."""
    content = bytes.fromhex("0000 0000000000000000 0000000000000003 0000000000000004 0000000000000005")
    entries = (AbortedTxn(producer_id=0, first_offset=3, last_offset=4, last_stable_offset=5),)
    assert parse_txn_index(content) == entries
    assert render_txn_index(entries) == content


@given(rising, st.integers(0, 2**62))
def test_txn_index_round_trip(last_offsets, producer_id):
    """Last offsets rise strictly, the rest is free."""
    entries = tuple(AbortedTxn(producer_id, last // 2, last, last + 1) for last in last_offsets)
    assert parse_txn_index(render_txn_index(entries)) == entries


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("0001" + "00" * 32, "version 0"),
        ("00" * 68, "above 0"),
        ("00" * 33, "entries of 34 bytes"),
    ],
)
def test_txn_index_damage(content, expected):
    """Another version, last offsets that do not rise (rule 4.23), a broken entry."""
    with pytest.raises(FormatError, match=expected):
        parse_txn_index(bytes.fromhex(content))


@pytest.mark.parametrize(
    "parse",
    [
        lambda data: parse_offset_index(data, 0),
        lambda data: parse_time_index(data, 0),
        parse_txn_index,
    ],
)
def test_files_end_with_a_whole_entry(parse):
    """Half an entry is damage."""
    for size in (1, 7, 13):
        with pytest.raises(FormatError):
            parse(bytes(size))


def test_time_index_of_the_active_segment_may_end_in_half_an_entry():
    """Its writer may be at work, or have been killed."""
    content = bytes.fromhex("0000000000000005 00000001 0000000000000006 000000")
    assert parse_time_index(content, 0, preallocated=True).largest_timestamp_ms == 5
