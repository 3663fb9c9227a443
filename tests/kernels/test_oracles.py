"""Each small kernel against its oracle: a library, a published vector, or a loop that anybody can read."""

import random
from pathlib import Path

import crc32c as crc32c_package
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from siphash24 import siphash13

from cleanerd.env.files import FileStat
from cleanerd.format.head import CONTROL
from cleanerd.format.record import decode_varint, encode_varint
from cleanerd.kernels.crc import crc32c, crc32c_of_three, crc_step1, crc_step8_table
from cleanerd.kernels.digest import digest_records
from cleanerd.kernels.fingerprint import (
    Fingerprints,
    bucket_hash,
    fingerprint_records,
    look_up_answers,
    siphash128,
)
from cleanerd.kernels.index_marks import index_marks
from cleanerd.kernels.judge import Context, all_stay, judge
from cleanerd.kernels.newest import (
    answer_rest,
    key_set,
    look_up,
    mark_superseded,
    new_set,
    split_by_bucket,
    survivors,
)
from cleanerd.kernels.rebuild import varint_size, write_varint
from cleanerd.kernels.records import read_varint
from cleanerd.kernels.tables import BATCH, RECORD, WRITTEN, Bytes, Producers
from cleanerd.pipeline.chunks import read_pieces, slices
from cleanerd.pipeline.values import Source
from cleanerd.policy.verdicts import RecordVerdict
from tests.harness.logs.random_log import NOW_MS, RandomLog

_MASK = 2**64 - 1


def array(data: bytes) -> Bytes:
    """Bytes as kernels take them: writable, one type."""
    return np.frombuffer(bytearray(data), np.uint8) if data else np.empty(0, np.uint8)


def plain_siphash(data: bytes, key: bytes, size: int, per_word: int = 1, at_end: int = 3) -> bytes:
    """SipHash with 8 or 16 bytes of output, as its authors describe it."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rounds(count: int) -> None:
        for _ in range(count):
            for a, b, left, right in ((0, 1, 13, 32), (2, 3, 16, 0), (0, 3, 21, 0), (2, 1, 17, 32)):
                v[a] = (v[a] + v[b]) & _MASK
                v[b] = ((v[b] << left | v[b] >> 64 - left) & _MASK) ^ v[a]
                v[a] = (v[a] << right | v[a] >> 64 - right) & _MASK

    if size == 16:
        v[1] ^= 0xEE
    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(per_word)
        v[0] ^= word
    v[2] ^= 0xEE if size == 16 else 0xFF
    rounds(at_end)
    digest = (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")
    if size == 16:
        v[1] ^= 0xDD
        rounds(at_end)
        digest += (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")
    return digest


def compiled_siphash(data: bytes, key: bytes, at: int = 0) -> bytes:
    """The kernel's digest of `data` that lies `at` bytes into a buffer."""
    words = (np.uint64(int.from_bytes(key[i : i + 8], "little")) for i in (0, 8))
    buffer = array(b"\xaa" * at + data + b"\xbb" * 9)
    low, high = siphash128(buffer, np.int64(at), np.int64(len(data)), *words)
    return int(low).to_bytes(8, "little") + int(high).to_bytes(8, "little")


SIPHASH_VECTORS = {  # of the authors' vectors.h: key 00 01 .. 0f, input 00 01 ..
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    63: "5150d1772f50834a503e069a973fbd7c",
}


@pytest.mark.parametrize(("length", "digest"), SIPHASH_VECTORS.items())
def test_siphash_vectors(length: int, digest: str) -> None:
    """SipHash-2-4 with 128 bits of output, and nothing else, has these digests: they prove 128 bits of the plain one."""
    data, key = bytes(range(length)), bytes(range(16))
    assert plain_siphash(data, key, 16, per_word=2, at_end=4).hex() == digest


@pytest.mark.trap("keys compared by a bare hash of 64 bits")
@pytest.mark.parametrize("length", range(65))
def test_siphash_at_every_length(length: int) -> None:
    """The siphash24 package knows 64 bits only: it proves how many plain rounds there are, and they prove the kernel."""
    rng = random.Random(length)
    for _ in range(5):
        data, key = rng.randbytes(length), rng.randbytes(16)
        assert plain_siphash(data, key, 8) == siphash13(data, key=key).digest()
        assert compiled_siphash(data, key, at=rng.randrange(9)) == plain_siphash(data, key, 16)


@given(data=st.binary(max_size=600), key=st.binary(min_size=16, max_size=16))
@settings(max_examples=60, deadline=None)
def test_siphash_of_any_key(data: bytes, key: bytes) -> None:
    """Also beyond 255 bytes, where the length byte wraps."""
    assert compiled_siphash(data, key) == plain_siphash(data, key, 16)


@pytest.mark.trap("control batches treated as keyed")
def test_fingerprints_leave_out_what_does_not_compete() -> None:
    """Rules 4.51, 3.12: no control records, no null keys, no records of aborted batches."""
    batches, records = np.zeros(3, BATCH), np.zeros(4, RECORD)
    batches["attributes"] = [0, 0x20, 0x10]
    records["batch"] = [0, 0, 1, 2]
    records["key_length"] = [-1, 2, 2, 2]
    aborted = np.array([False, False, True])
    raw = array(b"ab")
    records["offset"] = [5, 6, 7, 8]
    found, numbers, clean = fingerprint_records(raw, array(b""), batches, records, aborted, 7, (1, 2), 64)
    assert found.tobytes() == plain_siphash(b"ab", (1).to_bytes(8, "little") + (2).to_bytes(8, "little"), 16)
    assert numbers.tolist() == [plain_bucket_hash(b"ab", 1, 2) >> 58]
    assert clean == 1
    answers, cursors = np.array([True]), np.zeros(64, np.int64)
    found = look_up_answers(raw, array(b""), batches, records, aborted, (1, 2), answers, cursors)
    assert found.tolist() == [False, True, False, False]
    assert cursors.sum() == cursors[numbers[0]] == 1


def plain_bucket_hash(data: bytes, k0: int, k1: int) -> int:
    mixed = k0 ^ len(data)
    for at in range(0, len(data), 8):
        mixed = (mixed ^ int.from_bytes(data[at : at + 8], "little")) * (k1 | 1) & _MASK
        mixed ^= mixed >> 32
    return mixed * (k1 | 1) & _MASK


@given(data=st.binary(max_size=40), k0=st.integers(0, _MASK), k1=st.integers(0, _MASK))
@settings(max_examples=60, deadline=None)
def test_bucket_hash_against_plain_numbers(data: bytes, k0: int, k1: int) -> None:
    """At any length and any place in the buffer."""
    buffer = array(b"xyz" + data)
    assert int(bucket_hash(buffer, 3, len(data), np.uint64(k0), np.uint64(k1))) == plain_bucket_hash(
        data, k0, k1
    )


@pytest.mark.parametrize(
    "name",
    ["user-{}", "{:020d}", "{}", "prefix-that-is-the-same-{:08d}-and-a-suffix", "{:<16}", "big-endian"],
)
def test_keys_of_every_pattern_spread_over_the_buckets(name: str) -> None:
    """No bucket holds much more than its share, or it would not fit the budget (architecture 4)."""
    keys = [n.to_bytes(8, "big") if name == "big-endian" else name.format(n).encode() for n in range(16_384)]
    buffer, at, counts = array(b"".join(keys)), 0, np.zeros(64, np.int64)
    for key in keys:
        hashed = bucket_hash(
            buffer, at, len(key), np.uint64(0x0706050403020100), np.uint64(0x9E3779B97F4A7C15)
        )
        counts[int(hashed) >> 58] += 1
        at += len(key)
    assert counts.max() < 1.5 * 16_384 / 64
    assert counts.min() > 0.5 * 16_384 / 64


_RUN = st.binary(max_size=90) | st.builds(
    lambda bytes_, seed: random.Random(seed).randbytes(bytes_), st.integers(0, 2_000), st.integers(0, 9)
)
"""Of bytes: few of any kind, or as many as a CRC takes 256 at a time."""


@given(runs=st.lists(_RUN, min_size=3, max_size=3), gap=st.integers(0, 9))
@settings(max_examples=200, deadline=None)
def test_three_crc32c_at_once_are_those_of_each(runs: list[bytes], gap: int) -> None:
    """Of any lengths, in any places."""
    buffer = array(bytes(gap) + b"".join(run + b"?" for run in runs))
    starts = [gap, gap + len(runs[0]) + 1, gap + len(runs[0]) + len(runs[1]) + 2]
    places = [place for start, run in zip(starts, runs, strict=True) for place in (start, start + len(run))]
    assert list(map(int, crc32c_of_three(buffer, *places))) == [crc32c_package.crc32c(run) for run in runs]


@given(data=_RUN, start=st.integers(0, 20))
@settings(max_examples=200, deadline=None)
def test_crc32c_against_the_package(data: bytes, start: int) -> None:
    """At every alignment, by instruction and by table."""
    expected = crc32c_package.crc32c(data[start:])
    buffer = array(data)
    start = min(start, len(data))
    assert int(crc32c(buffer, start, len(data))) == expected
    crc, at = np.uint32(0xFFFFFFFF), start
    while at + 8 <= len(data):
        crc = crc_step8_table(crc, np.uint64(int.from_bytes(data[at : at + 8], "little")))
        at += 8
    for byte in data[at:]:
        crc = crc_step1(crc, np.uint8(byte))
    assert int(crc) ^ 0xFFFFFFFF == expected


EDGES = sorted(
    {s * (2**n + d) for n in range(63) for d in (-1, 0, 1) for s in (-1, 1)} | {2**63 - 1, -(2**63)}
)


def test_varints_at_all_boundaries() -> None:
    """Written, measured and read as `format.record` does, with every length from 1 to 10 bytes."""
    for value in EDGES:
        expected = encode_varint(value)
        out = np.zeros(12, np.uint8)
        end = write_varint(out, np.int64(1), np.int64(value))
        assert out[1:end].tobytes() == expected
        assert varint_size(np.int64(value)) == len(expected)
        assert read_varint(array(expected), 0, len(expected), 10) == (value, len(expected))
        if -(2**31) <= value < 2**31:
            assert read_varint(array(expected), 0, len(expected), 5) == (value, len(expected))
            assert decode_varint(expected, 0) == (value, len(expected))


def test_varints_that_are_none() -> None:
    """Cut off at every byte, or longer than the type: next position -1."""
    for value in EDGES:
        encoded = encode_varint(value)
        for end in range(len(encoded)):
            assert read_varint(array(encoded), 0, end, 10)[1] == -1
    assert read_varint(array(b"\x80" * 5 + b"\0"), 0, 6, 5)[1] == -1
    assert read_varint(array(b"\x80" * 10 + b"\0"), 0, 11, 10)[1] == -1
    assert read_varint(array(b"\0"), 1, 1, 5)[1] == -1
    assert read_varint(array(b"\0"), 7, 1, 5)[1] == -1


def keyed(numbers: list[int]) -> Fingerprints:
    """A fingerprint per key number, spread over the whole range."""
    return np.array(
        [[(n * 0x9E3779B97F4A7C15 + 1) & _MASK, (n * 0xC2B2AE3D27D4EB4F) & _MASK] for n in numbers], np.uint64
    ).reshape(-1, 2)


def superseded_by_dict(numbers: list[int], clean: int) -> list[bool]:
    """Rule 4.19 with a plain dict over the dirty section."""
    newest = {number: row for row, number in enumerate(numbers) if row >= clean}
    return [row < newest.get(number, -1) for row, number in enumerate(numbers)]


@given(numbers=st.lists(st.integers(0, 12), max_size=60), data=st.data())
@settings(max_examples=80, deadline=None)
def test_mark_superseded_against_a_dict(numbers: list[int], data: st.DataObject) -> None:
    """In one call, and block by block from the newest to the oldest."""
    clean = data.draw(st.integers(0, len(numbers)))
    expected = superseded_by_dict(numbers, clean)
    whole = mark_superseded(keyed(numbers), clean, new_set(len(numbers)))
    assert whole.tolist() == expected
    cut = data.draw(st.integers(0, len(numbers)))
    table = new_set(len(numbers) - clean)
    newer = mark_superseded(keyed(numbers[cut:]), max(clean - cut, 0), table)
    older = mark_superseded(keyed(numbers[:cut]), min(clean, cut), table)
    assert [*older, *newer] == expected
    table = new_set(len(numbers) - clean)
    mark_superseded(keyed(numbers[clean:]), 0, table)
    assert look_up_in({0: table}, keyed(numbers[:clean])).tolist() == expected[:clean]
    assert not look_up_in({}, keyed(numbers)).any()


def look_up_in(
    tables: dict[int, Fingerprints], fingerprints: Fingerprints, bucket: int = 0
) -> npt.NDArray[np.bool_]:
    return look_up(key_set(tables, 4), fingerprints, np.full(len(fingerprints), bucket, np.int32))


@pytest.mark.parametrize("keys", [0, 1, 100, 20_000])
def test_a_key_set_knows_its_keys_and_no_others(keys: int) -> None:
    """Whatever its hints say: they are for the fewest others, and for all of its own."""
    chance = np.random.default_rng(keys)
    many = chance.integers(0, 2**64 - 1, (keys + 5_000, 2), np.uint64)
    table = new_set(keys)
    mark_superseded(many[:keys], 0, table)
    other = new_set(3)
    mark_superseded(keyed([1, 2, 3]), 0, other)
    known = key_set({1: table, 3: other}, 4)
    buckets = np.ones(len(many), np.int32)
    assert look_up(known, many, buckets).tolist() == [True] * keys + [False] * 5_000
    assert look_up(known, keyed([1, 2, 3, 4]), np.full(4, 3, np.int32)).tolist() == [True, True, True, False]
    for another in (0, 2, 3):
        assert not look_up(known, many, another * buckets).any(), "keys of another bucket"
    set_bits = int(np.unpackbits(known.hints.view(np.uint8)).sum())
    assert set_bits * 8 <= 64 * len(known.hints)


def test_a_set_that_is_full_to_the_brim() -> None:
    """As many keys as it was made for, all in the same first slot."""
    clustered = np.array([[n, 7] for n in range(1, 1001)], np.uint64)
    table = new_set(1000)
    assert not mark_superseded(clustered, 0, table).any()
    assert mark_superseded(clustered, 1000, table).all()
    assert look_up_in({2: table}, clustered, 2).all()


@given(numbers=st.lists(st.integers(0, 63), max_size=80), data=st.data())
@settings(max_examples=60, deadline=None)
def test_split_keeps_the_order_in_every_bucket(numbers: list[int], data: st.DataObject) -> None:
    """And `survivors` and `answer_rest` are the masks that they say."""
    fingerprints = keyed(list(range(len(numbers))))
    parts = split_by_bucket(fingerprints, np.array(numbers, np.int32), 64)
    assert parts.keys() == set(numbers)
    for bucket, part in parts.items():
        assert part.tolist() == [
            f.tolist() for f, n in zip(fingerprints, numbers, strict=True) if n == bucket
        ]
    gone = np.array([data.draw(st.booleans()) for _ in numbers], np.bool_)
    assert survivors(fingerprints, gone).tolist() == fingerprints[~gone].tolist()
    answers = np.array([data.draw(st.booleans()) for _ in range(np.count_nonzero(~gone))], np.bool_)
    expected = gone.copy()
    expected[~gone] = answers
    answer_rest(gone, answers)
    assert gone.tolist() == expected.tolist()


@given(sizes=st.lists(st.integers(61, 3000), max_size=60), interval=st.integers(0, 5000))
@settings(max_examples=60, deadline=None)
def test_index_marks_as_an_appending_broker_sets_them(sizes: list[int], interval: int) -> None:
    """Spec disk B4: bytes since the last entry, counted before the batch itself."""
    written = np.zeros(len(sizes), WRITTEN)
    written["size"] = sizes
    written["position"] = np.cumsum([0, *sizes])[: len(sizes)]
    expected, since = [], 0
    for size in sizes:
        expected.append(since > interval)
        since = size if expected[-1] else since + size
    assert index_marks(written, interval).tolist() == expected


def field(data: bytes | None, magic: int) -> bytes:
    size = -1 if data is None else len(data)
    return (encode_varint(size) if magic == 2 else size.to_bytes(4, "big", signed=True)) + (data or b"")


def digest_of(key: bytes | None, value: bytes | None, magic: int, *, offset: int = 7) -> int:
    """The digest of one record or message that lies behind some other bytes."""
    tail = field(key, magic) + field(value, magic) + (b"\0" if magic == 2 else b"")
    records = np.zeros(1, RECORD)
    key_at = 3 + len(field(key, magic)) - len(key or b"")
    for name, cell in {
        "offset": offset, "timestamp": 99, "tail_start": 3, "end": 3 + len(tail), "magic": magic,
        "key_start": key_at, "key_length": -1 if key is None else len(key),
    }.items():  # fmt: skip
        records[name] = cell
    raw, verdicts = array(b"xyz" + tail), np.zeros(1, np.uint8)
    return digest_records(0, raw, raw, np.zeros(1, BATCH), records, verdicts)


@pytest.mark.parametrize("key", [None, b"", b"a key"])
def test_a_message_has_the_digest_of_the_record_it_becomes(key: bytes | None) -> None:
    """Rule 4.33: whatever its length, which says which of the three CRCs its last words go to."""
    for length in range(80):
        value = random.Random(length).randbytes(length)
        assert digest_of(key, value, 1) == digest_of(key, value, 2)
    assert digest_of(key, None, 1) == digest_of(key, None, 2) != digest_of(key, b"", 2)


def test_every_bit_of_a_record_changes_its_digest() -> None:
    value = random.Random(1).randbytes(70)
    digests = {digest_of(b"k", value, 2), digest_of(b"k", value, 2, offset=8)}
    for bit in range(8 * len(value)):
        changed = bytearray(value)
        changed[bit // 8] ^= 1 << bit % 8
        digests.add(digest_of(b"k", bytes(changed), 2))
    for i in range(0, 40, 8):  # two words that change places
        digests.add(
            digest_of(b"k", value[:i] + value[i + 8 : i + 16] + value[i : i + 8] + value[i + 16 :], 2)
        )
    assert len(digests) == 2 + 8 * len(value) + 5


@pytest.mark.parametrize("seed", range(20))
def test_what_is_plain_to_stay_is_left_by_the_judge(seed: int, tmp_path: Path) -> None:
    """Batch by batch, of every kind; and what is not plain has a reason to be looked at."""
    log = RandomLog(random.Random(seed)).append(60)
    (tmp_path / "0.log").write_bytes(log.data)
    stat = FileStat.of((tmp_path / "0.log").stat())
    producers = Producers(*(np.zeros(0, np.int64) for _ in range(3)))
    context = Context(NOW_MS, NOW_MS + 1, 1 << 60, producers, np.zeros(0, np.int64))
    plain = 0
    for piece in read_pieces(Source(str(tmp_path / "0.log"), stat, 0, stat.size_bytes, 0)):
        for part in slices(piece):
            for row in range(part.begin, part.end):
                records = part.records[part.records["batch"] == row]
                aborted = np.zeros(len(piece.batches), np.bool_)
                stays = all_stay(piece.batches, row, row + 1, records, aborted)
                batch, reasons = piece.batches[row], np.zeros(len(RecordVerdict), np.int64)
                changed = judge(
                    piece.batches, row, row + 1, records, np.zeros(len(records), np.bool_), aborted, context,
                    False, reasons,
                )[2]  # fmt: skip
                assert not (stays and changed)
                has_all = (records["key_length"] >= 0).all() and not records["value_is_null"].any()
                is_data = batch["magic"] == 2 and not batch["attributes"] & CONTROL and len(records) > 0
                assert stays == bool(has_all and is_data)
                aborted[row] = True
                assert not all_stay(piece.batches, row, row + 1, records, aborted)
                plain += stays
    assert plain
