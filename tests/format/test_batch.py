"""Batches of magic 2 against bytes that Kafka itself wrote, round trips, and damage."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.format.batch import (
    Record,
    checksum,
    decode_batch,
    encode_batch,
    encode_empty_batch,
    iterate_batches,
    parse_header,
)
from cleanerd.format.codecs import Codec
from cleanerd.format.errors import FormatError
from cleanerd.format.head import CRC_AT, HEADER_SIZE, Head, peek_batch

PLAIN = bytes.fromhex(
    "00000000000003e8 00000047 00000007 02 25ea5497 0000 00000001 0000018bcfe56800 0000018bcfe56896"
    "ffffffffffffffff ffff ffffffff 00000002"
    "18 00 00   00 02 61 02 31 02 02 68 02 78"
    "10 00 ac02 02 02 62 01 00"
)
PLAIN_RECORDS = [
    Record(1000, 1700000000000, b"a", b"1", (("h", b"x"),)),
    Record(1001, 1700000000150, b"b", None),
]


HORIZON_MS = 1700000090000
GOLDEN = {
    "C5.1": (PLAIN, PLAIN_RECORDS, {"base_offset": 1000, "leader_epoch": 7}),
    "C5.4": (
        bytes.fromhex(
            "0000000000000005 0000003b 00000003 02 cc38d228 0040 00000004 0000018bcfe6c790 0000018bcfe569f4"
            "ffffffffffffffff ffff ffffffff 00000001 12 00 b7f60a 02 02 6b 01 00"
        ),
        [Record(6, 1700000000500, b"k", None)],
        {"base_offset": 5, "last_offset": 9, "leader_epoch": 3, "delete_horizon_ms": HORIZON_MS},
    ),
}


@pytest.mark.parametrize(("data", "records", "options"), GOLDEN.values(), ids=GOLDEN)
def test_golden_batches(data, records, options):
    """Spec disk C5, both ways: where the base timestamp is a horizon, the record's time is still its own."""
    assert encode_batch(records, **options) == data
    assert decode_batch(data)[1] == records


def test_golden_empty_batch_rule_4_30():
    """Spec disk C5.3: the header that stays of a batch 100..109, whatever codec and horizon it had."""
    source = encode_batch(
        [Record(103, 1700000000500, b"k", None)],
        base_offset=100,
        last_offset=109,
        leader_epoch=3,
        codec=Codec.ZSTD,
        delete_horizon_ms=HORIZON_MS,
    )
    empty = bytes.fromhex(
        "0000000000000064 00000031 00000003 02 471ab389 0000 00000009 ffffffffffffffff 0000018bcfe569f4"
        "ffffffffffffffff ffff ffffffff 00000000"
    )
    assert encode_empty_batch(parse_header(source)) == empty
    assert decode_batch(empty)[1] == []


@pytest.mark.parametrize(
    ("base_sequence", "delta", "expected"),
    [(-1, 5, -1), (0, 0, 0), (10, 2, 12), (2**31 - 1, 0, 2**31 - 1), (2**31 - 1, 1, 0), (2**31 - 3, 9, 6)],
)
def test_last_sequence_wraps_rule_0_7(base_sequence, delta, expected):
    header = parse_header(
        encode_batch(
            [Record(0, 0, None, None)], base_offset=0, last_offset=delta, base_sequence=base_sequence
        )
    )
    assert expected == header.last_sequence


field = st.none() | st.binary(max_size=300)
timestamps_ms = st.integers(min_value=-1, max_value=2**52)
headers = st.lists(st.tuples(st.text(max_size=5), field), max_size=3).map(tuple)


@st.composite
def batches(draw):
    """Some records with gaps between their offsets, and the options of a batch around them."""
    base_offset = draw(st.integers(min_value=0, max_value=2**62))
    offset = base_offset
    records = []
    for gap in draw(st.lists(st.integers(min_value=0, max_value=10**6), min_size=1, max_size=8)):
        offset += gap
        records.append(Record(offset, draw(timestamps_ms), draw(field), draw(field), draw(headers)))
        offset += 1
    options = {
        "base_offset": base_offset,
        "last_offset": offset - 1 + draw(st.integers(min_value=0, max_value=1000)),
        "codec": draw(st.sampled_from(Codec)),
        "leader_epoch": draw(st.integers(min_value=-1, max_value=2**31 - 1)),
        "producer_id": draw(st.integers(min_value=-1, max_value=2**62)),
        "producer_epoch": draw(st.integers(min_value=-1, max_value=2**15 - 1)),
        "base_sequence": draw(st.integers(min_value=-1, max_value=2**31 - 1)),
        "log_append_time": draw(st.booleans()),
        "transactional": draw(st.booleans()),
        "control": draw(st.booleans()),
        "delete_horizon_ms": draw(st.none() | st.integers(min_value=0, max_value=2**52)),
    }
    return records, options


@given(batches())
def test_round_trip(batch):
    """What goes in comes out, for every codec and option; of the empty batch, all but codec and horizon (rule 4.30)."""
    records, options = batch
    header, decoded = decode_batch(encode_batch(records, **options))
    largest = max(record.timestamp_ms for record in records)
    if options["log_append_time"]:
        records = [replace(record, timestamp_ms=largest) for record in records]
    assert decoded == records
    assert header.max_timestamp_ms == largest
    assert header.next_offset == options["last_offset"] + 1
    empty, _ = decode_batch(encode_empty_batch(header))
    for name, value in options.items():
        field = f"is_{name}" if isinstance(value, bool) else name
        assert getattr(header, field) == value
        assert getattr(empty, field) == {"codec": Codec.NONE, "delete_horizon_ms": None}.get(name, value)


@given(st.binary(max_size=5).map(lambda key: key.decode("utf-8", "surrogateescape")))
def test_header_keys_that_are_not_utf8_survive(key):
    record = Record(0, 0, b"k", b"v", ((key, b"x"),))
    assert [record] == decode_batch(encode_batch([record], base_offset=0))[1]


def reseal(batch: bytearray) -> bytes:
    struct.pack_into(">I", batch, CRC_AT, checksum(batch))
    return bytes(batch)


@given(st.data())
def test_every_truncation_is_a_format_error(data):
    """A torn batch, cut anywhere, with or without its size corrected."""
    size = data.draw(st.integers(min_value=0, max_value=len(PLAIN) - 1))
    with pytest.raises(FormatError):
        decode_batch(PLAIN[:size])
    if size > HEADER_SIZE:
        torn = bytearray(PLAIN[:size])
        struct.pack_into(">i", torn, 8, size - 12)
        with pytest.raises(FormatError):
            decode_batch(reseal(torn))


def test_errors_name_position_expected_and_found():
    """Positions count from the start of the data, not of the batch."""
    damaged = bytearray(PLAIN * 2)
    damaged[83 + 70] ^= 1
    assert decode_batch(damaged)[1] == PLAIN_RECORDS
    with pytest.raises(FormatError, match="at byte 100: expected CRC 0x25ea5497, found 0x") as caught:
        decode_batch(damaged, 83)
    assert caught.value.position == 83 + CRC_AT


@pytest.mark.parametrize(
    ("position", "value", "expected"),
    [
        (8, struct.pack(">i", 48), "at least 61"),
        (16, b"\x01", "magic 2"),
        (16, b"\x03", "magic 2"),
        (22, b"\x05", "codec of 0 to 4"),
        (23, struct.pack(">i", -1), "last offset delta"),
        (57, struct.pack(">i", -1), "record count"),
        (57, struct.pack(">i", 1), "the end after 1 records"),
        (57, struct.pack(">i", 3), "3 records"),
    ],
)
def test_impossible_headers_rule_4_37(position, value, expected):
    """Also with a CRC that fits."""
    damaged = bytearray(PLAIN)
    damaged[position : position + len(value)] = value
    with pytest.raises(FormatError, match=expected):
        decode_batch(reseal(damaged))
    if expected == "last offset delta":  # who reads heads alone meets it, too
        with pytest.raises(FormatError, match=expected):
            parse_header(damaged)


def test_iterate_batches_walks_every_magic_and_stops_at_a_torn_tail():
    """Spec disk B1: whole batches only, fewer than 18 bytes are none."""
    v0 = bytes.fromhex("0000000000000064 00000010 1fecd70a 00 00 00000001 6b 00000001 76")
    v1 = bytes.fromhex("0000000000000064 00000018 39268c33 01 00 0000018bcfe56800 00000001 6b 00000001 76")
    log = v0 + v1 + PLAIN
    expected = [(0, len(v0), 0), (len(v0), len(v1), 1), (len(v0) + len(v1), 83, 2)]
    assert expected == list(iterate_batches(log))
    for torn in range(len(PLAIN)):
        assert expected == list(iterate_batches(log + PLAIN[:torn]))
    assert list(iterate_batches(b"")) == []


@pytest.mark.parametrize(
    ("damage", "position"),
    [
        (bytes(100), 8),
        (PLAIN[:16] + b"\x03" + PLAIN[17:], 16),
        (PLAIN[:8] + struct.pack(">i", 48) + PLAIN[12:], 8),
    ],
)
def test_c102_sizes_and_magics_that_cannot_be(damage, position):
    """Zeros, magic 3, and a v2 batch shorter than its header (rule 4.37) are never skipped silently."""
    with pytest.raises(FormatError) as caught:
        list(iterate_batches(PLAIN + damage))
    assert 83 + position == caught.value.position


def test_the_head_of_a_batch_needs_17_bytes_of_it():
    """Size and magic are known before the rest is there; fewer bytes say nothing."""
    assert peek_batch(b"?" + PLAIN[:17], 1) == Head(1000, len(PLAIN), 2)
    with pytest.raises(FormatError, match="17 bytes"):
        peek_batch(PLAIN[:16])
