"""Batches of magic 2 against bytes that Kafka itself wrote, round trips, and damage."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.format.batch import (
    BatchHeader,
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
from cleanerd.format.head import (
    CRC_AT,
    HEADER_SIZE,
    LENGTH_AT,
    MAX_TIMESTAMP_AT,
    RECORD_COUNT_AT,
    Head,
    peek_batch,
)

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
EMPTY = bytes.fromhex(
    "0000000000000064 00000031 00000003 02 471ab389 0000 00000009 ffffffffffffffff 0000018bcfe569f4"
    "ffffffffffffffff ffff ffffffff 00000000"
)
WITH_HORIZON = bytes.fromhex(
    "0000000000000005 0000003b 00000003 02 cc38d228 0040 00000004 0000018bcfe6c790 0000018bcfe569f4"
    "ffffffffffffffff ffff ffffffff 00000001 12 00 b7f60a 02 02 6b 01 00"
)


def test_golden_plain_batch():
    """Spec disk C5.1, both ways."""
    assert encode_batch(PLAIN_RECORDS, base_offset=1000, leader_epoch=7) == PLAIN
    header, records = decode_batch(PLAIN)
    assert records == PLAIN_RECORDS
    assert (
        header.base_offset,
        header.last_offset,
        header.next_offset,
        header.size_bytes,
    ) == (1000, 1001, 1002, 83)
    assert (
        header.leader_epoch,
        header.record_count,
        header.codec,
        header.delete_horizon_ms,
    ) == (7, 2, Codec.NONE, None)


def test_golden_empty_batch_rule_4_30():
    """Spec disk C5.3: the header that stays of a batch 100..109, whatever codec and horizon it had."""
    header, records = decode_batch(EMPTY)
    assert records == []
    assert (header.base_offset, header.last_offset, header.max_timestamp_ms) == (100, 109, 1700000000500)
    source = encode_batch(
        [Record(103, 1700000000500, b"k", None)],
        base_offset=100,
        last_offset=109,
        leader_epoch=3,
        codec=Codec.ZSTD,
        delete_horizon_ms=1700000090000,
    )
    assert encode_empty_batch(parse_header(source)) == EMPTY


def test_empty_batch_keeps_producer_and_kind_rule_4_30():
    """Producer fields, LogAppendTime, transactional and control bits stay (case C092)."""
    source = parse_header(
        encode_batch(
            [Record(3, 11, b"k", b"v"), Record(4, 12, b"l", b"w")],
            base_offset=3,
            codec=Codec.GZIP,
            producer_id=23,
            producer_epoch=5,
            base_sequence=10,
            transactional=True,
            log_append_time=True,
        )
    )
    empty, _ = decode_batch(encode_empty_batch(source))
    assert (
        empty.size_bytes,
        empty.record_count,
        empty.base_timestamp_ms,
        empty.max_timestamp_ms,
    ) == (HEADER_SIZE, 0, -1, 12)
    assert (
        empty.base_offset,
        empty.last_offset,
        empty.producer_id,
        empty.producer_epoch,
        empty.base_sequence,
        empty.last_sequence,
    ) == (3, 4, 23, 5, 10, 11)
    assert empty.is_transactional
    assert empty.is_log_append_time
    assert not empty.is_control
    assert empty.codec == Codec.NONE


def test_golden_delete_horizon_rule_0_6():
    """Spec disk C5.4: the base timestamp is the horizon, and the record's time is still its own."""
    header, records = decode_batch(WITH_HORIZON)
    assert header.delete_horizon_ms == 1700000090000
    assert records == [Record(6, 1700000000500, b"k", None)]
    encoded = encode_batch(
        records, base_offset=5, last_offset=9, leader_epoch=3, delete_horizon_ms=1700000090000
    )
    assert encoded == WITH_HORIZON


def test_c103_checksum():
    """The CRC of upstream's two records."""
    batch = encode_batch(
        [Record(0, 283843, b"key1", b"value1"), Record(1, 1234, b"key2", b"value2")], base_offset=0
    )
    assert parse_header(batch).crc == 3851219455


def test_crc_covers_neither_offset_nor_leader_epoch():
    """Spec disk C1: the broker assigns both after the producer's CRC."""
    moved = struct.pack(">q", 77) + PLAIN[8:12] + struct.pack(">i", 9) + PLAIN[16:]
    header, records = decode_batch(moved)
    assert (header.base_offset, header.leader_epoch) == (77, 9)
    assert [record.offset for record in records] == [77, 78]


def test_log_append_time_gives_every_record_the_max_timestamp():
    """Spec disk C1, attribute bit 3."""
    batch = encode_batch(PLAIN_RECORDS, base_offset=1000, log_append_time=True, max_timestamp_ms=42)
    _, records = decode_batch(batch)
    assert [record.timestamp_ms for record in records] == [42, 42]


@pytest.mark.parametrize(
    ("base_sequence", "delta", "expected"),
    [(-1, 5, -1), (0, 0, 0), (10, 2, 12), (2**31 - 1, 0, 2**31 - 1), (2**31 - 1, 1, 0), (2**31 - 3, 9, 6)],
)
def test_last_sequence_wraps_rule_0_7(base_sequence, delta, expected):
    """After 2^31-1 comes 0."""
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
        "transactional": draw(st.booleans()),
        "control": draw(st.booleans()),
        "delete_horizon_ms": draw(st.none() | st.integers(min_value=0, max_value=2**52)),
    }
    return records, options


@given(batches())
def test_round_trip(batch):
    """What goes in comes out, for every codec and option."""
    records, options = batch
    header, decoded = decode_batch(encode_batch(records, **options))
    assert decoded == records
    assert max(record.timestamp_ms for record in records) == header.max_timestamp_ms
    found = {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "codec": header.codec,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon_ms": header.delete_horizon_ms,
    }
    assert options == found


@given(st.binary(max_size=5).map(lambda key: key.decode("utf-8", "surrogateescape")))
def test_header_keys_that_are_not_utf8_survive(key):
    """A header key is only bytes on disk."""
    record = Record(0, 0, b"k", b"v", ((key, b"x"),))
    assert [record] == decode_batch(encode_batch([record], base_offset=0))[1]


def reseal(batch: bytearray) -> bytes:
    """Make the CRC fit the damage, so that the damage itself is met."""
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
        (23, struct.pack(">i", -1), "last offset delta"),
        (57, struct.pack(">i", -1), "record count"),
    ],
)
def test_impossible_headers(position, value, expected):
    """Each field that must hold before the CRC is even looked at."""
    damaged = bytearray(PLAIN)
    damaged[position : position + len(value)] = value
    with pytest.raises(FormatError, match=expected):
        parse_header(damaged)


@pytest.mark.parametrize(("count", "expected"), [(1, "the end after 1 records"), (3, "3 records")])
def test_count_must_equal_the_records_rule_4_37(count, expected):
    """Fewer declared leaves bytes over, more runs out of them."""
    damaged = bytearray(PLAIN)
    struct.pack_into(">i", damaged, 57, count)
    with pytest.raises(FormatError, match=expected):
        decode_batch(reseal(damaged))


def test_unknown_codec():
    """Codes 5 to 7 belong to nobody."""
    damaged = bytearray(PLAIN)
    damaged[22] |= 5
    with pytest.raises(FormatError, match="codec of 0 to 4"):
        decode_batch(reseal(damaged))


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


def test_header_is_what_the_struct_says():
    """Field order of the dataclass is the order on disk."""
    header = parse_header(PLAIN)
    assert isinstance(header, BatchHeader)
    assert (
        header.magic,
        header.crc,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    ) == (2, 0x25EA5497, -1, -1, -1)


def test_positions_are_those_of_kafkas_bytes():
    """What kernels read at a named position is the field of that name."""
    header = parse_header(PLAIN)
    assert PLAIN[LENGTH_AT : LENGTH_AT + 4] == (header.size_bytes - 12).to_bytes(4)
    assert PLAIN[CRC_AT : CRC_AT + 4] == header.crc.to_bytes(4)
    assert PLAIN[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8] == header.max_timestamp_ms.to_bytes(8)
    assert PLAIN[RECORD_COUNT_AT : RECORD_COUNT_AT + 4] == header.record_count.to_bytes(4)


def test_the_head_of_a_batch_needs_17_bytes_of_it():
    """Size and magic are known before the rest is there; fewer bytes say nothing."""
    assert peek_batch(b"?" + PLAIN[:17], 1) == Head(1000, len(PLAIN), 2)
    with pytest.raises(FormatError, match="17 bytes"):
        peek_batch(PLAIN[:16])
