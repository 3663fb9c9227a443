"""What the walk over batches and the walk over records make of every kind of damage (spec disk B1, C1, C3, H)."""

import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.format.batch import Record, encode_batch
from cleanerd.format.codecs import Codec
from cleanerd.format.control import ControlType, encode_end_txn_marker
from cleanerd.format.legacy import encode_message, encode_wrapper, wrap_messages
from cleanerd.format.record import encode_varint
from cleanerd.kernels.records import count_records, walk_records
from cleanerd.kernels.scan import first_bad_crc, first_bad_order, first_with_more, is_plain, scan_batches
from cleanerd.kernels.tables import BATCH, Bytes, ReadStatus, Table
from tests.harness.damage.batches import guarded, sealed

NOTHING = np.empty(0, np.uint8)
RECORDS = [
    Record(5, 1000, b"a", b"1"),
    Record(7, 900, None, None, (("h", b"x"), ("i", None))),
    Record(9, -1, b"", b""),
]
V2 = encode_batch(RECORDS, base_offset=4, last_offset=11, producer_id=3, producer_epoch=2, base_sequence=8)
V1 = encode_message(Record(12, 77, b"k", None), magic=1)
V0 = encode_message(Record(13, -1, None, b"v"), magic=0)


def scan(data: bytes) -> tuple[Bytes, Table, int, ReadStatus]:
    """Scan a buffer that ends where the data ends."""
    raw = guarded(data)
    return raw, *scan_batches(raw, 0, len(raw))


def walk(data: bytes, previous_offset: int = -1) -> tuple[Table, ReadStatus, int]:
    raw, batches, _, status = scan(data)
    assert status is ReadStatus.OK
    rows = int(batches["count"].sum())
    records, status, batch, _ = walk_records(raw, NOTHING, batches, 0, len(batches), rows, previous_offset)
    return records, status, batch


def walk_wrapper(
    messages: bytes, wrapper: bytes, previous_offset: int = -1
) -> tuple[Table, Table, ReadStatus]:
    raw, batches, _, _ = scan(wrapper)
    expanded = guarded(messages)
    batches["expanded"], batches["payload_start"], batches["payload_end"] = 1, 0, len(messages)
    rows, impossible = count_records(expanded, batches, 0, 1)
    assert impossible == -1
    records, status, _, _ = walk_records(raw, expanded, batches, 0, 1, rows, previous_offset)
    return batches, records, status


@pytest.mark.parametrize(("data", "known"), [(V1, 0x0F), (V0, 0x07)], ids=["v1", "v0"])
def test_legacy_attributes_that_mean_nothing(data: bytes, known: int) -> None:
    """Spec disk C3: a codec, in magic 1 a timestamp type, and neither control nor transactional."""
    _, batches, _, _ = scan(sealed(data[:17] + b"\xff" + data[18:]))
    assert batches["attributes"].tolist() == [known]


def test_c102_next_batch_size() -> None:
    """Upstream's cases: fewer than 17 bytes say nothing, 17 do; other magic and small sizes are corrupt."""
    for end in range(17):
        assert scan(V2[:end])[3] is (ReadStatus.OK if end == 0 else ReadStatus.TORN)
    assert scan(V2[:17])[3] is ReadStatus.TORN
    assert scan(V2[:16] + b"\x0a")[3] is ReadStatus.BAD_MAGIC
    for size in (-(2**31), -1, 0, 13):
        assert scan(V2[:8] + struct.pack(">i", size) + V2[12:17])[3] is ReadStatus.BAD_SIZE
    assert scan(V2[:8] + struct.pack(">i", 48) + V2[12:])[3] is ReadStatus.BAD_SIZE  # 60 bytes with magic 2
    assert scan(V2[:8] + struct.pack(">i", 2**31 - 1) + V2[12:])[3] is ReadStatus.TORN


def test_c103_checksum() -> None:
    """Upstream's CRCs, which the kernel must compute itself."""
    records = [Record(0, 283843, b"key1", b"value1"), Record(1, 1234, b"key2", b"value2")]
    v2 = encode_batch(records, base_offset=0, leader_epoch=-1)
    for data, crc in (
        (encode_message(records[0], magic=0), 1978725405),
        (encode_message(records[0], magic=1), 109425508),
        (v2, 3851219455),
    ):
        at = 17 if data[16] == 2 else 12
        assert data[at : at + 4] == struct.pack(">I", crc)
        raw, batches, _, _ = scan(data)
        assert first_bad_crc(raw, batches) == -1
        raw, batches, _, _ = scan(data[:at] + struct.pack(">I", crc ^ 1) + data[at + 4 :])
        assert first_bad_crc(raw, batches) == 0


@pytest.mark.parametrize("data", [V2, V1, V0], ids=["v2", "v1", "v0"])
def test_every_flipped_bit_under_the_crc_shows(data: bytes) -> None:
    """And the batch that carries it is named."""
    start = 21 if data[16] == 2 else 17
    for at in range(start, len(data)):
        changed = bytearray(V2 + data)
        changed[len(V2) + at] ^= 1 << at % 8
        raw, batches, _, status = scan(bytes(changed))
        assert status is ReadStatus.OK
        assert first_bad_crc(raw, batches) == 1


def placed(base: int, last: int) -> bytes:
    return encode_batch([Record(base, 0, b"k", b"v")], base_offset=base, last_offset=last)


@pytest.mark.parametrize(
    ("data", "previous", "bad"),
    [
        (placed(3, 5) + placed(6, 6), 2, -1),
        (placed(3, 5), 3, 0),  # below the segment's base
        (placed(3, 5) + placed(5, 8), 2, 1),  # overlaps
        (placed(3, 5) + placed(1, 1), 2, 1),  # goes back
        (placed(3, 5) + V1 + V0, 2, -1),
        (placed(3, 12) + V1, 2, 1),
        (V0 + V0, 2, 1),
    ],
)
def test_order_of_batches(data: bytes, previous: int, bad: int) -> None:
    """Spec disk H: no batch begins before the one before it ended."""
    assert first_bad_order(scan(data)[1], previous) == bad


def test_order_with_offsets_that_overflow() -> None:
    """A last offset beyond 2^63 wraps and is below its base; so is a negative delta."""
    base_at_the_end = struct.pack(">q", 2**63 - 1)
    data = base_at_the_end + V2[8:]
    assert first_bad_order(scan(data)[1], -1) == 0
    data = sealed(V2[:23] + struct.pack(">i", -1) + V2[27:])
    assert first_bad_order(scan(data)[1], -1) == 0


def body(*fields: bytes, attributes: bytes = b"\0") -> bytes:
    """A v2 record of these encoded fields."""
    inner = attributes + b"".join(fields)
    return encode_varint(len(inner)) + inner


N = encode_varint
GOOD = body(N(0), N(0), N(1), b"k", N(1), b"v", N(0))
BAD_RECORDS = {
    "empty": b"",
    "length only": N(5),
    "length -1": N(-1) + GOOD[1:],
    "length beyond the batch": N(100) + GOOD[1:],
    "length beyond 2^31": b"\xff\xff\xff\xff\x1f" + GOOD[1:],
    "length without an end": b"\x80" * 12,
    "no timestamp": body(),
    "timestamp of 11 bytes": body(b"\x80" * 10, N(0), N(1), b"k", N(1), b"v", N(0)),
    "no offset": body(N(0)),
    "no key": body(N(0), N(0)),
    "key beyond the record": body(N(0), N(0), N(9), b"k", N(1), b"v", N(0)),
    "key of 2^34": body(N(0), N(0), N(2**33), b"k", N(1), b"v", N(0)),
    "no value": body(N(0), N(0), N(1), b"k"),
    "value beyond the record": body(N(0), N(0), N(1), b"k", N(9), b"v", N(0)),
    "no header count": body(N(0), N(0), N(1), b"k", N(1), b"v"),
    "header count -1": body(N(0), N(0), N(1), b"k", N(1), b"v", N(-1)),
    "header missing": body(N(0), N(0), N(1), b"k", N(1), b"v", N(1)),
    "header key null": body(N(0), N(0), N(1), b"k", N(1), b"v", N(1), N(-1), N(-1)),
    "header value beyond": body(N(0), N(0), N(1), b"k", N(1), b"v", N(1), N(1), b"h", N(3), b"x"),
    "header count huge": body(N(0), N(0), N(1), b"k", N(1), b"v", N(2**31 - 1), N(0), N(-1)),
    "bytes left in the record": body(N(0), N(0), N(1), b"k", N(1), b"v", N(0), b"!"),
}


def batch_of(payload: bytes, count: int = 1) -> bytes:
    """A batch at offset 5 with this payload."""
    source = encode_batch([Record(5, 0, b"k", b"v")], base_offset=5)
    return sealed(source[:57] + struct.pack(">i", count) + payload)


def test_the_record_that_the_bad_ones_are_made_from() -> None:
    assert walk(batch_of(GOOD))[1] is ReadStatus.OK


@pytest.mark.parametrize("length", [-1, -2, -1000])
def test_any_negative_length_stands_for_null(length: int) -> None:
    """As for the JVM (`DefaultRecord.readFrom`)."""
    for payload in (
        body(N(0), N(0), N(length), N(1), b"v", N(0)),
        body(N(0), N(0), N(1), b"k", N(length), N(0)),
    ):
        records, status, _ = walk(batch_of(payload))
        assert (status, len(records)) == (ReadStatus.OK, 1)
        assert payload.endswith(b"\0")


@pytest.mark.parametrize("payload", BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_records_that_lead_out_of_their_batch(payload: bytes) -> None:
    """BAD_RECORD, without a look beyond the batch: the buffer ends there, and is followed by a good record."""
    records, status, batch = walk(batch_of(payload))
    assert (status, batch, len(records)) == (ReadStatus.BAD_RECORD, 0, 0)
    assert walk(batch_of(payload) + batch_of(GOOD))[1] is ReadStatus.BAD_RECORD


def test_counts_that_are_wrong() -> None:
    """A record more than the header says, or fewer. Of a batch without records the JVM does not look at what there is."""
    assert walk(batch_of(GOOD, count=0))[1] is ReadStatus.OK
    assert walk(batch_of(GOOD * 2))[1] is ReadStatus.BAD_COUNT
    assert walk(batch_of(GOOD, count=2))[1] is ReadStatus.BAD_RECORD


def test_offsets_that_do_not_rise_inside_a_batch() -> None:
    """Twice the same, below the base, beyond the last, beyond 2^31."""
    at = [body(N(0), N(delta), N(1), b"k", N(1), b"v", N(0)) for delta in (-1, 0, 1, 2**31)]
    assert walk(batch_of(at[1] * 2, count=2))[1] is ReadStatus.BAD_OFFSET
    for wrong in (at[0], at[2], at[3]):
        assert walk(batch_of(wrong))[1] is ReadStatus.BAD_OFFSET


def test_control_records_need_a_key() -> None:
    """Version and type are four bytes; a data record may have any key."""
    marker = encode_end_txn_marker(
        ControlType.COMMIT, offset=5, timestamp_ms=0, producer_id=1, producer_epoch=0
    )
    assert walk(marker)[1] is ReadStatus.OK
    for key in (N(-1), N(3) + b"\0\0\0"):
        payload = body(N(0), N(0), key, N(1), b"v", N(0))
        assert walk(sealed(marker[:61] + payload))[1] is ReadStatus.BAD_CONTROL


LEGACY_DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "key length -2": lambda m: m[:26] + struct.pack(">i", -2) + m[30:],
    "key beyond the message": lambda m: m[:26] + struct.pack(">i", 50) + m[30:],
    "key of 2^31-1": lambda m: m[:26] + struct.pack(">i", 2**31 - 1) + m[30:],
    "value length -2": lambda m: m[:31] + struct.pack(">i", -2) + m[35:],
    "value too short": lambda m: m[:31] + struct.pack(">i", 1) + m[35:],
    "value beyond the message": lambda m: m[:31] + struct.pack(">i", 9) + m[35:],
    "no room for the value length": lambda m: m[:33],
    "v0 fields in v1": lambda m: m[:26],
}
MESSAGE = encode_message(Record(12, 77, b"k", b"vw"), magic=1)


@pytest.mark.parametrize("change", LEGACY_DAMAGE.values(), ids=LEGACY_DAMAGE.keys())
def test_messages_that_lead_out_of_their_entry(change: Callable[[bytes], bytes]) -> None:
    """The same for magic 0 and 1, alone and inside a wrapper."""
    assert walk(MESSAGE)[1] is ReadStatus.OK
    assert walk(sealed(change(MESSAGE)))[1] is ReadStatus.BAD_RECORD
    wrapper = encode_wrapper([Record(12, 77, b"k", b"vw")], magic=1, codec=Codec.GZIP)
    assert walk_wrapper(sealed(change(MESSAGE)), wrapper)[2] is ReadStatus.BAD_RECORD


def test_wrappers_that_hold_something_else() -> None:
    """Nothing, a torn message, another wrapper, a batch of magic 2: all refused."""
    records = [Record(12, 77, b"k", b"vw")]
    wrapper = encode_wrapper(records, magic=1, codec=Codec.GZIP)
    assert walk_wrapper(b"", wrapper)[2] is ReadStatus.BAD_COUNT
    for end in range(1, len(MESSAGE)):
        status = walk_wrapper(MESSAGE[:end], wrapper)[2]
        assert status in (ReadStatus.BAD_RECORD, ReadStatus.BAD_COUNT)
    assert walk_wrapper(wrapper, wrapper)[2] is ReadStatus.BAD_RECORD
    assert walk_wrapper(batch_of(GOOD), wrapper)[2] is ReadStatus.BAD_RECORD
    assert walk_wrapper(MESSAGE[:8] + struct.pack(">i", 13) + MESSAGE[12:], wrapper)[2] is not ReadStatus.OK


def inner(*offsets: int) -> bytes:
    return b"".join(encode_message(Record(o, 1, b"k", b"v"), magic=1) for o in offsets)


def wrapped(messages: bytes, last_offset: int, magic: int = 1) -> bytes:
    return wrap_messages(
        messages,
        magic=magic,
        codec=Codec.GZIP,
        last_offset=last_offset,
        timestamp_ms=1,
        log_append_time=False,
    )


@pytest.mark.parametrize(
    ("offsets", "last", "magic", "previous", "expected"),
    [
        ((0, 1, 4), 24, 1, 19, [20, 21, 24]),
        ((10, 11), 11, 1, 9, [10, 11]),  # not relative after all: shift 0
        ((0,), 0, 1, -1, [0]),
        ((20, 24), 24, 0, 19, [20, 24]),  # absolute in magic 0
        ((20, 22), 24, 0, 19, [20, 22]),
    ],
)
def test_offsets_in_wrappers(
    offsets: tuple[int, ...], last: int, magic: int, previous: int, expected: list[int]
) -> None:
    """Rule 0.9; base offset and count of the wrapper are known afterwards."""
    messages = inner(*offsets)
    batches, records, status = walk_wrapper(messages, wrapped(messages, last, magic), previous)
    assert status is ReadStatus.OK
    assert records["offset"].tolist() == expected
    assert (batches["base_offset"][0], batches["count"][0]) == (expected[0], len(expected))


@pytest.mark.parametrize(
    ("offsets", "last", "magic", "previous"),
    [
        ((0, 1), 24, 1, 23),  # goes back behind the batch before
        ((1, 0), 24, 1, -1),
        ((3, 3), 24, 1, -1),
        ((0, 30), 24, 1, -1),  # wrapper offset below the last inner one
        ((20, 25), 24, 0, -1),  # beyond the wrapper
        ((0, 1), 0, 1, -1),  # a wrapper offset of 0 leaves them as they are: beyond the wrapper
        ((-(2**63), 1), 24, 1, -1),
        ((2**63 - 1,), 24, 1, -1),
    ],
)
def test_bad_offsets_in_wrappers(offsets: tuple[int, ...], last: int, magic: int, previous: int) -> None:
    """Every offset lies between the batch before and the wrapper's own offset, and they rise."""
    messages = inner(*offsets)
    assert walk_wrapper(messages, wrapped(messages, last, magic), previous)[2] is ReadStatus.BAD_OFFSET


def test_messages_of_magic_1_have_a_timestamp_in_any_wrapper() -> None:
    """Also when they got into one of magic 0 (KAFKA-4298), as for Kafka's consumers."""
    messages = inner(20, 24)
    _, records, _ = walk_wrapper(messages, wrapped(messages, 24, magic=0), 19)
    assert records["timestamp"].tolist() == [1, 1]
    assert records["magic"].tolist() == [1, 1]


@pytest.mark.parametrize("bad", range(8))
def test_the_first_wrong_crc_is_named_wherever_it_is(bad: int) -> None:
    """Batches of magic 2 are checked three at a time, others one by one."""
    whole = [
        encode_batch([Record(offset, offset, b"k", b"v" * 30 * (1 + offset % 3))], base_offset=offset)
        for offset in range(8)
    ]
    whole[3] = sealed(encode_message(Record(3, 3, b"k", b"v"), magic=1))
    damaged = [*whole[:bad], *(batch[:-1] + bytes([batch[-1] ^ 1]) for batch in whole[bad:])]
    raw, batches, _, status = scan(b"".join(damaged))
    assert status is ReadStatus.OK
    assert first_bad_crc(raw, batches) == bad
    raw, batches, _, _ = scan(b"".join(whole))
    assert first_bad_crc(raw, batches) == -1


def test_a_count_that_the_bytes_cannot_hold() -> None:
    """A record takes seven bytes at least: no row is made for one that cannot be there."""
    fitting = (len(V2) - 61) // 7
    for count, impossible in ((fitting, -1), (fitting + 1, 0), (400_000_000, 0), (-1, 0)):
        _, batches, _, _ = scan(sealed(V2[:57] + struct.pack(">i", count) + V2[61:]))
        rows, found = count_records(NOTHING, batches, 0, 1)
        assert found == impossible
        assert rows <= fitting


@given(
    codecs=st.lists(st.sampled_from([0, 0, 0, 1, 4, 8, 16, 32]), max_size=8),
    counts=st.lists(st.sampled_from([-1, 0, 5, 6, 7, 2**31 - 1]), max_size=8),
    begin=st.integers(0, 8),
)
def test_what_batches_ask_for(codecs: list[int], counts: list[int], begin: int) -> None:
    """Attributes other than the codec, and a count that is not known (-1), ask for nothing."""
    table = np.zeros(len(codecs), BATCH)
    table["attributes"] = codecs
    assert is_plain(table) == (not any(attributes & 7 for attributes in codecs))
    table = np.zeros(len(counts), BATCH)
    table["count"] = counts
    more = [row for row in range(begin, len(counts)) if counts[row] > 6]
    assert first_with_more(table, min(begin, len(counts)), 6) == (more[0] if more else len(counts))
