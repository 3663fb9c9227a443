"""Log entries of magic 0 and 1 (spec disk C3)."""

import gzip
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.format.batch import Record
from cleanerd.format.codecs import Codec
from cleanerd.format.errors import FormatError
from cleanerd.format.legacy import decode_entry, encode_message, encode_wrapper, wrap_messages

V0 = bytes.fromhex("0000000000000064 00000010 1fecd70a 00 00 00000001 6b 00000001 76")
V1 = bytes.fromhex("0000000000000064 00000018 39268c33 01 00 0000018bcfe56800 00000001 6b 00000001 76")
T = 1700000000000
WRAPPING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]


@pytest.mark.parametrize(
    ("magic", "data", "record"), [(0, V0, Record(100, -1, b"k", b"v")), (1, V1, Record(100, T, b"k", b"v"))]
)
def test_golden_messages(magic, data, record):
    """Spec disk C5.5 and C5.6, both ways."""
    entry = decode_entry(b"xy" + data, 2)
    assert entry.records == (record,)
    assert (entry.magic, entry.size_bytes, entry.codec) == (magic, len(data), Codec.NONE)
    assert (entry.timestamp_ms, entry.last_offset) == (record.timestamp_ms, 100)
    assert encode_message(record, magic=magic) == data


def test_v1_wrapper_layout():
    """Spec disk C5.7: the head of a gzip wrapper of offsets 100 and 101, and its inner offsets 0 and 1."""
    records = [Record(100, T, b"k", b"v"), Record(101, T + 1, b"k", b"v")]
    wrapper = encode_wrapper(records, magic=1, codec=Codec.GZIP)
    assert wrapper[:8].hex() == "0000000000000065"
    assert wrapper[16:30].hex() == "01010000018bcfe56801ffffffff"
    inner = gzip.decompress(wrapper[34:])
    assert [inner[at : at + 8].hex() for at in (0, 36)] == ["0000000000000000", "0000000000000001"]
    entry = decode_entry(wrapper)
    assert entry.records == tuple(records)
    assert (entry.base_offset, entry.last_offset, entry.timestamp_ms) == (100, 101, T + 1)


field = st.none() | st.binary(max_size=100)


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(-1, 2**50), field, field), min_size=1, max_size=6),
    st.sampled_from([0, 1]),
    st.sampled_from(WRAPPING),
    st.integers(0, 2**40),
    st.booleans(),
)
def test_wrapper_round_trip(rows, magic, codec, base_offset, log_append_time):
    """Offsets with gaps, all codecs; LogAppendTime gives every record the wrapper's time."""
    log_append_time = log_append_time and magic == 1
    offset, records = base_offset, []
    for gap, timestamp_ms, key, value in rows:
        offset += gap + 1
        records.append(Record(offset, timestamp_ms if magic else -1, key, value))
    entry = decode_entry(encode_wrapper(records, magic=magic, codec=codec, log_append_time=log_append_time))
    largest = max(record.timestamp_ms for record in records)
    if log_append_time:
        records = [replace(record, timestamp_ms=largest) for record in records]
    assert entry.records == tuple(records)
    assert (entry.codec, entry.log_append_time, entry.last_offset) == (codec, log_append_time, offset)


def wrapper_of(inner: bytes, *, offset: int) -> bytes:
    return wrap_messages(
        inner, magic=1, codec=Codec.GZIP, last_offset=offset, timestamp_ms=T, log_append_time=False
    )


def test_v1_wrapper_offset_0_leaves_inner_offsets_as_they_are():
    """Old librdkafka (spec disk C3)."""
    inner = b"".join(encode_message(Record(n, T, b"k", b"v"), magic=1) for n in (0, 1, 2))
    assert [r.offset for r in decode_entry(wrapper_of(inner, offset=0)).records] == [0, 1, 2]


def test_v1_wrapper_offset_below_last_inner_is_an_error():
    """Spec disk C3: except when it is 0."""
    inner = encode_message(Record(7, T, b"k", b"v"), magic=1)
    with pytest.raises(FormatError, match="wrapper offset of 7 or more"):
        decode_entry(wrapper_of(inner, offset=6))


def test_inner_magic_that_differs_is_read():
    """KAFKA-4298: v0 messages in a v1 wrapper."""
    inner = encode_message(Record(0, T, b"k", b"v"), magic=0)
    entry = decode_entry(wrapper_of(inner, offset=5))
    assert entry.magic == 1
    assert entry.records == (Record(5, -1, b"k", b"v"),)


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        (b"", "at least one inner message"),
        (V1[:-1], "at least one inner message"),
        (V1 + bytes(12), "an entry of 18 bytes"),
        (wrapper_of(V1, offset=100), "an uncompressed inner message"),
    ],
)
def test_damaged_wrappers(inner, expected):
    """The wrapper's CRC fits, what it holds does not."""
    with pytest.raises(FormatError, match=expected):
        decode_entry(wrapper_of(inner, offset=100))


@pytest.mark.parametrize("rest", [b"\0", V1[:11], V1[:-1]])
def test_a_last_message_that_is_cut_off_is_none_as_for_the_jvm(rest):
    """Spec disk C3: its reader ends where it finds no whole message."""
    assert decode_entry(wrapper_of(V1 + rest, offset=100)).records == decode_entry(V1).records


def test_the_checksum_of_a_message_in_a_wrapper_is_not_compared_as_by_the_jvm():
    """Spec disk C3: that of the wrapper covers it."""
    entry = decode_entry(wrapper_of(V1[:-1] + b"w", offset=100))
    assert [record.value for record in entry.records] == [b"w"]


@pytest.mark.parametrize("entry", [V0, V1])
def test_every_truncation_is_a_format_error(entry):
    for size in range(len(entry)):
        with pytest.raises(FormatError):
            decode_entry(entry[:size])
