"""What batch headers say of a file: cuts at batch starts, and no more records than bytes and offsets have room for."""

import os
import random
import struct
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from cleanerd.env.pace import Pace, unpaced
from cleanerd.errors import Aborted
from cleanerd.format.batch import Record, encode_batch, iterate_batches
from cleanerd.format.codecs import Codec
from cleanerd.format.legacy import encode_wrapper
from cleanerd.kernels import heads
from cleanerd.kernels.heads import Heads, walk_heads
from tests.harness.damage.batches import sealed
from tests.harness.kernels.reference import read_batches
from tests.harness.logs.random_log import RandomLog


def walk(
    path: Path,
    data: bytes,
    chunk_bytes: int = 1 << 20,
    first_dirty_offset: int = 0,
    pace: Pace = unpaced,
) -> Heads:
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        return walk_heads(fd, len(data), chunk_bytes, first_dirty_offset, pace)
    finally:
        os.close(fd)


def batch(offset: int, count: int, value_bytes: int = 50, codec: Codec = Codec.NONE) -> bytes:
    records = [Record(offset + i, 5, b"k", b"v" * value_bytes) for i in range(count)]
    return encode_batch(records, base_offset=offset, codec=codec)


def expected_starts(data: bytes, chunk_bytes: int) -> Sequence[int]:
    """The first batch at or behind every multiple of `chunk_bytes`."""
    starts = [position for position, _, _ in iterate_batches(data)]
    grid = range(0, len(data), chunk_bytes)
    return sorted({next(s for s in starts if s >= mark) for mark in grid if mark <= starts[-1]})


@pytest.mark.parametrize("chunk_bytes", [1, 300, 5000, 1 << 20])
@pytest.mark.parametrize("seed", range(8))
def test_every_chunk_begins_at_a_batch_and_holds_its_records(
    tmp_path: Path, seed: int, chunk_bytes: int
) -> None:
    """All formats, codecs, transactions and markers; batches below and above what is read at a time."""
    log = RandomLog(random.Random(seed)).append(60)
    large = batch(log.next_offset, 100, value_bytes=200)
    data = log.data + large + batch(log.next_offset + 100, 2)
    found = walk(tmp_path / "0.log", data, chunk_bytes)
    assert found.starts.tolist() == expected_starts(data, chunk_bytes)
    ends = [*found.starts.tolist()[1:], len(data)]
    for start, end, records in zip(found.starts.tolist(), ends, found.records.tolist(), strict=True):
        assert records >= sum(len(found.records) for found in read_batches(data[start:end]))


@pytest.mark.parametrize("step_bytes", [1, 1000, 1 << 20])
def test_a_walk_goes_on_where_it_waited(
    tmp_path: Path, step_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells all that it passes over, and stops where it is told to."""
    log = RandomLog(random.Random(1)).append(60)
    data = log.data
    expected = walk(tmp_path / "0.log", data, 5000, log.next_offset // 2)
    monkeypatch.setattr(heads, "_STEP_BYTES", step_bytes)
    passed: list[int] = []
    found = walk(tmp_path / "0.log", data, 5000, log.next_offset // 2, passed.append)
    for column in fields(Heads):
        assert (getattr(found, column.name) == getattr(expected, column.name)).all()
    largest = max(len(placed.data) for placed in log.batches)
    assert sum(passed) == len(data)
    assert max(passed) < step_bytes + largest

    def stop(_: int) -> None:
        raise Aborted

    with pytest.raises(Aborted):
        walk(tmp_path / "0.log", data, pace=stop)


def test_records_of_plain_and_compressed_batches_are_counted_exactly(tmp_path: Path) -> None:
    """And apart from them those of batches that reach into the dirty section."""
    data = b"".join(batch(100 * n, 10 + n, codec=codec) for n, codec in enumerate(Codec))
    found = walk(tmp_path / "0.log", data, chunk_bytes=1)
    assert found.records.tolist() == [10, 11, 12, 13, 14]
    for first_dirty_offset, dirty_records in ((212, [0, 0, 0, 13, 14]), (211, [0, 0, 12, 13, 14])):
        assert walk(tmp_path / "0.log", data, 1, first_dirty_offset).dirty_records.tolist() == dirty_records


LIE = 400_000_000


@pytest.mark.parametrize(
    ("codec", "claimed", "least", "most"),
    [
        (Codec.NONE, LIE, 1, 9),
        (Codec.LZ4, LIE, 1, 6000),
        (Codec.ZSTD, LIE, 1, 700_000),
        (Codec.NONE, -1, 0, 0),
        (Codec.NONE, -(2**31), 0, 0),
    ],
)
def test_a_header_that_claims_an_impossible_count(
    tmp_path: Path, codec: Codec, claimed: int, least: int, most: int
) -> None:
    """A record takes seven bytes at least, and no codec makes more of a byte than it can."""
    honest = batch(0, 1, codec=codec)
    delta, count = (struct.pack(">i", number) for number in (max(claimed, 0), claimed))
    data = sealed(honest[:23] + delta + honest[27:57] + count + honest[61:])
    assert least <= int(walk(tmp_path / "0.log", data).records.sum()) <= most


def test_wrappers_are_bounded_by_their_offsets_and_by_their_bytes(tmp_path: Path) -> None:
    """Their headers tell no count."""
    near = encode_wrapper([Record(o, 5, b"k", b"v" * 90) for o in range(5)], magic=1, codec=Codec.GZIP)
    far = encode_wrapper([Record(2**40, 5, b"k", b"v")], magic=1, codec=Codec.GZIP)
    found = walk(tmp_path / "0.log", near + far, chunk_bytes=1)
    assert found.records[0] == 5
    assert 1 <= found.records[1] <= len(far)


@pytest.mark.parametrize("cut", [1, 16, 17, 60, 61, 100])
def test_a_file_that_ends_inside_a_batch(tmp_path: Path, cut: int) -> None:
    """What cannot be walked belongs to the last chunk, whose reader will tell."""
    whole = batch(0, 3) + batch(3, 3)
    found = walk(tmp_path / "0.log", whole + batch(6, 3)[:cut], chunk_bytes=1)
    assert found.starts.tolist() == [0, len(whole) // 2]
    assert found.records.tolist() == [3, 3]


def test_a_walk_ends_where_nothing_can_be_read(tmp_path: Path) -> None:
    """Truncated since it was looked at, or a disk that fails: the task that reads the chunk will tell."""
    (tmp_path / "0.log").write_bytes(batch(0, 3))
    for path, records in ((tmp_path / "0.log", 3), (tmp_path, 0)):
        fd = os.open(path, os.O_RDONLY)
        found = walk_heads(fd, 10_000, 1000, 0, unpaced)
        os.close(fd)
        assert (found.starts.tolist(), found.records.tolist()) == ([0], [records])
