"""Segments are cut by their index as they are by their headers, and by their headers where the index says too little."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cleanerd.cleaning import cuts
from cleanerd.cleaning.cuts import Uncut, cut_all
from cleanerd.env.files import FileStat
from cleanerd.env.pace import unpaced
from cleanerd.format.batch import Record, encode_batch
from cleanerd.format.codecs import Codec
from cleanerd.format.names import FileKind
from cleanerd.format.offset_index import OffsetIndex, parse_offset_index
from cleanerd.kernels.heads import Heads
from cleanerd.policy.cleanable import SegmentFacts
from cleanerd.storage.scan import SegmentOnDisk

NO_INDEX = parse_offset_index(b"", 0)


CHUNK_BYTES = 2000
BASE = 1000


def batch(offset: int, count: int, value_bytes: int = 60, codec: Codec = Codec.NONE, gap: int = 1) -> bytes:
    records = [Record(offset + i * gap, 5, b"k", b"v" * value_bytes) for i in range(count)]
    return encode_batch(records, base_offset=offset, codec=codec)


def segment(
    path: Path, batches: list[tuple[int, bytes]], end_offset: int, *, indexed: bool = True, base: int = BASE
) -> Uncut:
    """A file of batches (last offset, bytes); but for the first, each has an entry."""
    path.write_bytes(b"".join(data for _, data in batches))
    positions = np.cumsum([0, *(len(data) for _, data in batches)])[1:-1]
    index = OffsetIndex(np.array([last for last, _ in batches[1:]], np.int64), positions.astype(np.int64))
    found = FileStat.of(path.stat())
    facts = SegmentFacts(base, found.size_bytes, 0, 0, 5, None)
    on_disk = SegmentOnDisk(path.as_posix(), found, frozenset({FileKind.LOG, FileKind.OFFSET_INDEX}), facts)
    return Uncut(on_disk, end_offset, index if indexed else NO_INDEX)


def dense(path: Path, batches: int = 40, *, indexed: bool = True) -> Uncut:
    """Ten records a batch, no offset left out."""
    made = [(BASE + 10 * i + 9, batch(BASE + 10 * i, 10)) for i in range(batches)]
    return segment(path, made, BASE + 10 * batches, indexed=indexed)


def cut(uncut: Uncut, first_dirty_offset: int = 0) -> Heads:
    (heads,) = cut_all([uncut], chunk_bytes=CHUNK_BYTES, first_dirty_offset=first_dirty_offset, pace=unpaced)
    return heads


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose headers are walked."""
    paths: list[str] = []
    walk_all = cuts._walk_all

    def walk(segments: list[SegmentOnDisk], *rest: object) -> list[Heads]:
        paths.extend(one.path for one in segments)
        return walk_all(segments, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(cuts, "_walk_all", walk)
    return paths


@pytest.mark.parametrize("first_dirty_offset", [0, BASE, BASE + 133, BASE + 399, BASE + 400, 10**6])
def test_an_index_cuts_where_the_headers_do(
    tmp_path: Path, walked: list[str], first_dirty_offset: int
) -> None:
    """Dirty records: exactly those from the first dirty offset on; by headers whole batches count."""
    uncut = dense(tmp_path / "0.log")
    found = cut(uncut, first_dirty_offset)
    assert not walked
    expected = cut(replace(uncut, index=NO_INDEX), first_dirty_offset)
    assert walked
    assert len(found.starts) > 5
    assert found.starts.tolist() == expected.starts.tolist()
    assert found.records.tolist() == expected.records.tolist()
    assert found.dirty_records.sum() == min(max(BASE + 400 - first_dirty_offset, 0), 400)
    assert (found.dirty_records <= expected.dirty_records).all()


def test_a_small_segment_needs_no_index(tmp_path: Path, walked: list[str]) -> None:
    found = cut(dense(tmp_path / "0.log", 3, indexed=False))
    assert (found.starts.tolist(), found.records.tolist()) == ([0], [30])
    assert not walked


def test_a_clean_segment_may_have_gaps(tmp_path: Path, walked: list[str]) -> None:
    """Its number of records only spreads its records over buckets: an upper bound does. That of a dirty one decides more."""
    made = [(BASE + 30 * i + 27, batch(BASE + 30 * i, 10, 150, gap=3)) for i in range(20)]
    uncut = segment(tmp_path / "0.log", made, BASE + 600)
    found = cut(uncut, first_dirty_offset=BASE + 600)
    assert not walked
    assert found.records.sum() == 600
    assert not found.dirty_records.any()
    assert cut(uncut, first_dirty_offset=BASE + 599).records.sum() == 200
    assert walked


def lying(uncut: Uncut, change: Callable[[OffsetIndex], None]) -> Uncut:
    index = OffsetIndex(uncut.index.offsets.copy(), uncut.index.positions.copy())
    change(index)
    return replace(uncut, index=index)


def inside_a_batch(index: OffsetIndex) -> None:
    index.positions[:] += 30


def offsets_too_low(index: OffsetIndex) -> None:
    index.offsets[:] -= 50


@pytest.mark.parametrize("change", [inside_a_batch, offsets_too_low])
def test_an_index_that_lies_is_not_followed(
    tmp_path: Path, walked: list[str], change: Callable[[OffsetIndex], None]
) -> None:
    uncut = dense(tmp_path / "0.log")
    found = cut(lying(uncut, change))
    assert walked
    assert found.starts.tolist() == cut(uncut).starts.tolist()


def damaged(path: Path) -> Uncut:
    """A bit of the batch that an entry names has flipped."""
    uncut = dense(path)
    data = bytearray(path.read_bytes())
    for position in cut(uncut).starts.tolist():
        data[position + 80] ^= 1
    path.write_bytes(data)
    return uncut


def sparse_index(path: Path) -> Uncut:
    """One entry for all of it."""
    uncut = dense(path)
    return replace(uncut, index=OffsetIndex(uncut.index.offsets[:1], uncut.index.positions[:1]))


def gaps_between_batches(path: Path) -> Uncut:
    """As compaction leaves it: more offsets than bytes / 32."""
    made = [(BASE + 10_000 * i + 9, batch(BASE + 10_000 * i, 10)) for i in range(40)]
    return segment(path, made, BASE + 400_000)


def hardly_any_bytes(path: Path) -> Uncut:
    """The same value a thousand times, compressed."""
    made = [(BASE + 1000 * i + 999, batch(BASE + 1000 * i, 1000, 60, Codec.ZSTD)) for i in range(40)]
    return segment(path, made, BASE + 40_000)


def offsets_that_fall(path: Path) -> Uncut:
    made = [(BASE + 10 * i + 9, batch(BASE + 10 * i, 10)) for i in range(40)]
    return segment(path, made, BASE + 200)


@pytest.mark.parametrize(
    "make", [damaged, sparse_index, gaps_between_batches, hardly_any_bytes, offsets_that_fall]
)
def test_where_an_index_says_too_little_headers_are_walked(
    tmp_path: Path, walked: list[str], make: Callable[[Path], Uncut]
) -> None:
    uncut = make(tmp_path / "0.log")
    walked.clear()
    found = cut(uncut)
    assert walked == [uncut.segment.path]
    assert found.starts.tolist() == cut(replace(uncut, index=NO_INDEX)).starts.tolist()


def test_each_segment_gets_its_own(tmp_path: Path, walked: list[str]) -> None:
    """Those that are walked come back to their places."""
    segments = [dense(tmp_path / f"{i}.log", random.Random(i).randrange(20, 60)) for i in range(6)]
    mixed = [replace(one, index=NO_INDEX) if i % 2 else one for i, one in enumerate(segments)]
    found = cut_all(mixed, chunk_bytes=CHUNK_BYTES, first_dirty_offset=0, pace=unpaced)
    assert walked == [one.segment.path for one in mixed[1::2]]
    walked_alone = [replace(one, index=NO_INDEX) for one in segments]
    expected = cut_all(walked_alone, chunk_bytes=CHUNK_BYTES, first_dirty_offset=0, pace=unpaced)
    assert [heads.starts.tolist() for heads in found] == [heads.starts.tolist() for heads in expected]


def test_the_end_of_a_log_is_cut_finer(tmp_path: Path) -> None:
    """A core that finds nothing more to do waits for the last chunk of another: one or two at the end are cut in four."""
    segments = [dense(tmp_path / f"{i}.log", 60) for i in range(2)]
    first, last = cut_all(segments, chunk_bytes=CHUNK_BYTES, first_dirty_offset=0, pace=unpaced)
    assert np.diff(first.starts).min() > CHUNK_BYTES / 2
    assert np.diff(last.starts[-4:]).max() < CHUNK_BYTES / 2
    assert len(last.starts) > len(first.starts)
    assert first.starts.tolist()[:10] == last.starts.tolist()[:10]
    assert last.records.sum() == first.records.sum() == 600
