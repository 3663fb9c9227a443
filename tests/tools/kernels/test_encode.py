"""Columns to batches, decoded again by the plain Python of `cleanerd.format`: every field of every record."""

import random

import numpy as np
import pytest

from cleanerd.format.batch import decode_batch, iterate_batches
from cleanerd.format.codecs import Codec
from cleanerd.format.record import Record
from cleanerd.tools.kernels.encode import RecordColumns, Strings, encode_columns


def strings(items: list[bytes | None]) -> Strings:
    lengths = np.array([-1 if item is None else len(item) for item in items], np.int64)
    ends = np.cumsum(np.maximum(lengths, 0))
    return Strings(
        np.frombuffer(b"".join(item or b"" for item in items), np.uint8),
        ends - np.maximum(lengths, 0),
        lengths,
    )


def columns(records: list[Record]) -> RecordColumns:
    headers = [header for record in records for header in record.headers]
    return RecordColumns(
        offsets=np.array([record.offset for record in records], np.int64),
        timestamps_ms=np.array([record.timestamp_ms for record in records], np.int64),
        keys=strings([record.key for record in records]),
        values=strings([record.value for record in records]),
        header_ends=np.cumsum([0, *(len(record.headers) for record in records)]).astype(np.int64),
        header_keys=strings([key.encode() for key, _ in headers]),
        header_values=strings([value for _, value in headers]),
    )


def some_bytes(rng: random.Random, most: int) -> bytes | None:
    kind = rng.randrange(6)
    return None if kind == 0 else b"" if kind == 1 else rng.randbytes(rng.randrange(most))


def some_records(rng: random.Random, count: int) -> list[Record]:
    offset, found = rng.choice([0, 5, 2**40]), []
    for _ in range(count):
        headers = tuple(
            (f"h{n}" * rng.randrange(3), some_bytes(rng, 100)) for n in range(rng.choice([0, 0, 1, 3]))
        )
        time = rng.choice([-1, 0, 1_700_000_000_000, 2**62]) + rng.randrange(1000)
        found.append(
            Record(offset, time, some_bytes(rng, 40), some_bytes(rng, rng.choice([10, 300, 20000])), headers)
        )
        offset += rng.choice([1, 1, 1, 2, 70, 2**20])
    return found


@pytest.mark.parametrize("codec", list(Codec))
def test_every_record_comes_back(codec: Codec) -> None:
    """Null and empty keys, values and headers; times before and after the first; gaps; batches of one and of many."""
    rng = random.Random(int(codec))
    for batch_bytes in (100, 4000, 1 << 20):
        for count in (1, 2, 300):
            expected = some_records(rng, count)
            raw, rows = encode_columns(columns(expected), codec, batch_bytes)
            data = raw.tobytes()
            places = [(at, size) for at, size, _ in iterate_batches(data)]
            assert places == [(row["position"], row["size"]) for row in rows]
            found: list[Record] = []
            for (at, _), row in zip(places, rows, strict=True):
                header, records = decode_batch(data, at)
                assert (header.codec, header.leader_epoch, header.producer_id) == (codec, 0, -1)
                assert (header.base_offset, header.last_offset) == (records[0].offset, records[-1].offset)
                assert (row["last_offset"], row["max_timestamp"]) == (
                    header.last_offset,
                    header.max_timestamp_ms,
                )
                assert header.max_timestamp_ms == max(record.timestamp_ms for record in records)
                assert not header.is_log_append_time
                found += records
            assert found == expected


def test_batches_have_the_size_that_was_asked_for() -> None:
    """Not much less, never more, except for a record that is larger."""
    plain = [Record(n, n, b"k%07d" % n, bytes(100)) for n in range(2000)]
    _, rows = encode_columns(columns(plain), Codec.NONE, 16384)
    assert rows["size"].max() <= 16384
    assert rows["size"][:-1].min() > 12000
    _, rows = encode_columns(columns([*plain[:3], Record(5000, 1, None, bytes(100_000))]), Codec.NONE, 16384)
    assert len(rows) == 2


def test_offsets_that_are_far_from_each_other() -> None:
    """A batch has room for 2^31 - 1 more than its first."""
    far = [Record(0, 1, None, b"a"), Record(2**31 - 1, 1, None, b"b"), Record(2**31, 1, None, b"c")]
    raw, rows = encode_columns(columns(far), Codec.NONE, 16384)
    assert rows["last_offset"].tolist() == [2**31 - 1, 2**31]
    assert [
        r for at, _, _ in iterate_batches(raw.tobytes()) for r in decode_batch(raw.tobytes(), at)[1]
    ] == far
