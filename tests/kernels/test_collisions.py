"""Keys that collide in a hash of 64 bits: a cleaner that compares no more takes one for another, and loses a value."""

from pathlib import Path

import pytest

from cleanerd.format.batch import Record, decode_batch, encode_batch, iterate_batches
from tests.harness.kernels.real_path import KEY, Layout, RealPath
from tests.harness.kernels.reference import Facts
from tests.harness.logs.random_log import NOW_MS, LogSegment
from tests.kernels.test_oracles import plain_bucket_hash

_MASK = (1 << 64) - 1


def _first_block(block: int) -> int:
    """State of the hash that chooses a bucket, after the first eight of sixteen bytes."""
    mixed = (KEY[0] ^ 16 ^ block) * (KEY[1] | 1) & _MASK
    return mixed ^ mixed >> 32


def _colliding(count: int) -> list[bytes]:
    """Keys that all have one hash: who knows the key of the hash chooses the second half of each."""
    common = _first_block(1) ^ 2
    halves = [(first, _first_block(first) ^ common) for first in range(1, count + 1)]
    return [first.to_bytes(8, "little") + second.to_bytes(8, "little") for first, second in halves]


@pytest.mark.trap("keys compared by a bare hash of 64 bits")
def test_keys_that_share_all_64_bits_of_the_bucket_hash_keep_their_values(tmp_path: Path) -> None:
    """They meet in one bucket; who is who is decided by 128 bits of another hash, whose key is new for each cleaning."""
    keys = _colliding(50)
    assert len({plain_bucket_hash(key, *KEY) for key in keys}) == 1
    assert len(set(keys)) == 50
    records = [Record(offset, NOW_MS, keys[offset % 50], b"%d" % offset) for offset in range(100)]
    data = b"".join(encode_batch([record], base_offset=record.offset) for record in records)
    facts = Facts(NOW_MS, None, 0, 100, {}, ())
    cleaned = RealPath(tmp_path, [LogSegment(0, data)], facts, Layout(buckets=4)).clean()
    (segment,) = cleaned.segments
    kept = [decode_batch(segment, at)[1][0] for at, _, _ in iterate_batches(segment)]
    assert {record.key: record.value for record in kept} == {keys[n % 50]: b"%d" % n for n in range(50, 100)}
    assert len(kept) == 50
