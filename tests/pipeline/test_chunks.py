"""Chunks of real files: what is refused before anything is written, and what the read-back of a part would notice."""

import fcntl
import os
import random
import struct
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from cleanerd.env.files import FileStat
from cleanerd.env.turns import machine_turn
from cleanerd.errors import CorruptFile, SourceChanged
from cleanerd.format.batch import Record, encode_batch
from cleanerd.format.codecs import Codec, compress
from cleanerd.format.errors import FormatError
from cleanerd.format.head import LENGTH_AT
from cleanerd.format.legacy import encode_wrapper
from cleanerd.format.offset_index import ENTRY, ENTRY_BYTES, NAMED_BATCH
from cleanerd.pipeline import chunks
from cleanerd.pipeline.chunks import map_slices, read_pieces, slices
from cleanerd.pipeline.index import index_chunk
from cleanerd.pipeline.part_file import PartFile
from cleanerd.pipeline.rewrite import Proof, VerificationFailed, read_back, rewrite_chunk, verify_part
from cleanerd.pipeline.values import IndexPart, PackedBits, Part, Source, Verdicts
from cleanerd.spark_runtime.channel import Advance
from cleanerd.storage import file_bytes
from tests.harness.damage.batches import sealed
from tests.harness.kernels.real_path import Layout, RealPath, part_of
from tests.harness.kernels.reference import Facts
from tests.harness.logs.random_log import LogSegment, RandomLog, random_facts

FACTS = Facts(now_ms=0, new_horizon_ms=1000, first_dirty_offset=0, round_end=1000, producers={}, aborted=())


def go_on(read_bytes: int, written_bytes: int, records: int) -> None:
    """An `Advance` that never stops."""


def batch(offset: int, key: bytes = b"k", codec: Codec = Codec.NONE) -> bytes:
    return encode_batch([Record(offset, 5, key, b"v" * 50)], base_offset=offset, codec=codec)


def source_of(path: Path, data: bytes, min_offset: int = 0) -> Source:
    path.write_bytes(data)
    stat = path.stat()
    return Source(str(path), FileStat.of(stat), 0, len(data), min_offset)


def read_all(source: Source) -> list[int]:
    return [
        offset
        for piece in read_pieces(source)
        for part in slices(piece)
        for offset in part.records["offset"].tolist()
    ]


def test_only_what_is_not_in_the_page_cache_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To ask for what is there takes a tenth of the time to read it."""
    monkeypatch.setattr(chunks, "PIECE_BYTES", 64 << 10)
    monkeypatch.setattr(chunks, "_AHEAD_BYTES", 128 << 10)
    asked: list[int] = []
    ask = os.posix_fadvise

    def spy(fd: int, position: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        asked.append(position)
        ask(fd, position, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", spy)
    source = source_of(tmp_path / "0.log", b"".join(batch(n) for n in range(10_000)))
    for cold, expected in (
        ((), []),
        (((0, source.end),), list(range(64 << 10, source.end, 128 << 10))),
        (((0, 64 << 10), (200 << 10, 500 << 10)), [192 << 10, 320 << 10, 448 << 10]),
    ):
        asked.clear()
        for _ in read_pieces(replace(source, cold=cold), is_first=True):
            pass
        assert asked == expected


CHANGES: dict[str, Callable[[Path], None]] = {
    "grew": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "touched": lambda path: os.utime(path, ns=(1, 1)),
    "replaced": lambda path: (os.rename(path, path.with_suffix(".old")), path.write_bytes(batch(0)))[0],
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_source_that_changed_since_it_was_planned(change: Callable[[Path], None], tmp_path: Path) -> None:
    """The generation check of KAFKA-631."""
    path = tmp_path / "0.log"
    source = source_of(path, batch(0))
    change(path)
    with pytest.raises(SourceChanged, match=r"0\.log"):
        read_all(source)


@pytest.mark.parametrize("missing", [1, 30, 200])
def test_a_file_that_ends_early_ends_the_work(missing: int, tmp_path: Path) -> None:
    """Rule 4.44: Kafka's copy loop spins there for ever."""
    source = source_of(tmp_path / "0.log", batch(0) + batch(1))
    with pytest.raises(SourceChanged, match=r"ends at byte \d+, before"):
        read_all(replace(source, end=source.end + missing))


def test_a_wrapper_that_goes_back_behind_the_piece_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its header does not tell; the records do, also across pieces, and below the base of the segment."""
    wrapper = encode_wrapper([Record(o, 5, b"k", b"v") for o in (3, 9)], magic=1, codec=Codec.GZIP)
    for piece_bytes in (17, 1000):
        monkeypatch.setattr(chunks, "PIECE_BYTES", piece_bytes)
        assert read_all(source_of(tmp_path / "0.log", batch(2) + wrapper)) == [2, 3, 9]
        for data, base in ((batch(3) + wrapper, 0), (wrapper, 4)):
            with pytest.raises(CorruptFile, match="offsets that rise"):
                read_all(source_of(tmp_path / "0.log", data, base))


@pytest.mark.parametrize("value_length", [-1, 0, 5, 2**31 - 1])
def test_a_wrapper_whose_value_is_not_its_rest(value_length: int, tmp_path: Path) -> None:
    """The compressed bytes are what the length says, or the wrapper is refused."""
    wrapper = encode_wrapper([Record(3, 5, b"k", b"v")], magic=1, codec=Codec.GZIP)
    data = sealed(wrapper[:30] + struct.pack(">i", value_length) + wrapper[34:])
    with pytest.raises(CorruptFile, match="at byte 0"):
        read_all(source_of(tmp_path / "0.log", data))


def test_an_lz4_frame_that_claims_an_exabyte(tmp_path: Path) -> None:
    """Nobody writes a content size for Kafka, anybody may: no memory is taken on its word."""
    plain = batch(0)
    packed = compress(Codec.LZ4, plain[61:])
    frame = packed[:4] + b"\x68\x40" + struct.pack("<Q", 1 << 60) + b"\x33" + packed[7:]
    lz4_batch = sealed(plain[:21] + b"\0\x03" + plain[23:61] + frame)
    with pytest.raises(CorruptFile, match="codec 3"):
        read_all(source_of(tmp_path / "0.log", lz4_batch))


def test_index_entries_inside_batches(tmp_path: Path) -> None:
    """An offset index that points into a batch belongs to another file: it is told, and its group is written anew."""
    size = len(batch(0))
    path = RealPath(tmp_path, [LogSegment(0, batch(0) + batch(1) + batch(2))], FACTS)
    (chunk,), context, index = path.work.chunks, path.context(), tmp_path / "other.index"

    def flaw(*entries: tuple[int, int]) -> FormatError | None:
        before = bytes(7 * ENTRY_BYTES)  # of chunks before it
        index.write_bytes(before + b"".join(ENTRY.pack(*entry) for entry in entries))
        work = replace(chunk, index=IndexPart(str(index), 7, len(entries)))
        return index_chunk(work, context, go_on)[0].index_flaw

    for entries in ([(1, size)], [(1, size), (2, 2 * size)], []):
        assert flaw(*entries) is None
    bad = ([(0, 1)], [(1, size), (2, 2 * size + 1)], [(0, size)], [(1, size), (3, 2 * size - 1)])
    for slot, entries in zip((0, 1, 0, 1), bad, strict=True):
        found = flaw(*entries)
        assert found is not None
        assert (found.position, found.expected) == (8 * (7 + slot), NAMED_BATCH)


def test_segments_whose_offsets_overlap(tmp_path: Path) -> None:
    """Across segments order is known only when all of them are indexed."""
    segments = [LogSegment(0, batch(0) + batch(7)), LogSegment(5, batch(6))]
    with pytest.raises(CorruptFile, match="an offset above 7, found 6"):
        RealPath(tmp_path, segments, FACTS).clean()
    with pytest.raises(CorruptFile, match="offsets below 7, found 7"):
        RealPath(tmp_path, segments[:1], replace(FACTS, round_end=7)).clean()


def test_a_clean_segment_that_reaches_into_the_dirty_section(tmp_path: Path) -> None:
    """Its keys would have to be put into a set that is already closed."""
    segments = [LogSegment(0, batch(0) + batch(7)), LogSegment(5, batch(8))]
    facts = replace(FACTS, first_dirty_offset=5)
    for map_side in (False, True):
        with pytest.raises(CorruptFile, match="below the next segment's"):
            RealPath(tmp_path, segments, facts, Layout(map_side=map_side)).clean()


class Indexed:
    """A log of one chunk, and what is known of it when it is rewritten."""

    def __init__(self, directory: Path) -> None:
        rng = random.Random(5)
        log = RandomLog(rng).append(30)
        path = RealPath(directory, [LogSegment(0, log.data)], random_facts(rng, log))
        path.clean()
        (self.chunk,), (self.verdicts,) = path.work.chunks, path.indexed.verdicts
        self.context = path.context(path.indexed.discardable_markers)
        self.part_path = directory / "part"

    def rewrite(self, *, write: bool = True, advance: Advance = go_on, verified: Advance = go_on) -> Part:
        out = part_of(self.chunk, self.part_path) if write else None
        return rewrite_chunk(self.chunk, self.context, self.verdicts, out, advance, verified)


def test_a_part_that_is_not_what_it_should_be(tmp_path: Path) -> None:
    """Every number of the proof counts, and every byte of the file: also those outside of a CRC."""
    indexed = Indexed(tmp_path)
    source, part_path = indexed.chunk.source, indexed.part_path
    part = indexed.rewrite()
    proof, starts, last_offsets = read_back(str(part_path), source, go_on)
    verify_part(str(part_path), source, proof, part.entries, go_on)
    for field in fields(Proof):
        wrong = replace(proof, **{field.name: getattr(proof, field.name) ^ 1})
        with pytest.raises(VerificationFailed, match="should be"):
            verify_part(str(part_path), source, wrong, part.entries, go_on)
    for column, shift in (("positions", 1), ("offsets", 1), ("positions", int(starts[-1]))):
        entries = replace(part.entries, **{column: getattr(part.entries, column) + shift})
        with pytest.raises(VerificationFailed, match="does not point"):
            verify_part(str(part_path), source, proof, entries, go_on)
    assert set(part.entries.offsets) < set(last_offsets)
    whole = part_path.read_bytes()
    for at in range(0, len(whole), 7):
        part_path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises((VerificationFailed, CorruptFile)):
            verify_part(str(part_path), source, proof, part.entries, go_on)


HEADER_FIELDS = {  # name: (position, bytes)
    "leader epoch": (12, 4),
    "transactional": (22, 1),
    "base offset": (0, 8),
    "last offset delta": (23, 4),
    "delete horizon": (27, 8),
    "producer id": (43, 8),
    "producer epoch": (51, 2),
    "base sequence": (53, 4),
}


@pytest.mark.parametrize(("at", "size"), HEADER_FIELDS.values(), ids=HEADER_FIELDS.keys())
def test_every_field_of_a_batch_is_proved(at: int, size: int, tmp_path: Path) -> None:
    """With a right CRC: what no rewrite may change, and the delete horizon."""
    source_of(tmp_path / "0.log", b"")
    data = encode_batch(
        [Record(6, 5, b"k", None)],
        base_offset=5,
        last_offset=8,
        producer_id=1 << 40,
        producer_epoch=2,
        base_sequence=3,
        delete_horizon_ms=77,
    )
    source = source_of(tmp_path / "0.log", data)
    proof, _, _ = read_back(source.path, source, go_on)
    number = int.from_bytes(data[at : at + size]) ^ 16
    changed = source_of(tmp_path / "0.log", sealed(data[:at] + number.to_bytes(size) + data[at + size :]))
    assert read_back(changed.path, changed, go_on)[0] != proof


@pytest.mark.parametrize("more", [-1, 1])
def test_verdicts_of_another_chunk(tmp_path: Path, more: int) -> None:
    """Too few or too many answers: the part is worth nothing, and no kernel reads beyond them."""
    indexed = Indexed(tmp_path)
    answers = int(indexed.verdicts.bucket_counts.sum())
    assert answers > 1
    indexed.verdicts = Verdicts(
        PackedBits.of(np.zeros(answers + max(more, 0), np.bool_)),
        indexed.verdicts.buckets,
        np.array([answers + more], np.int64),
    )
    with pytest.raises(VerificationFailed, match="other keys than when they were indexed"):
        indexed.rewrite(write=False)


@pytest.mark.parametrize("write", [True, False])
def test_what_a_rewrite_reports(write: bool, tmp_path: Path) -> None:
    """Read, written and read again: each byte once; a dry run writes nothing and has nothing to verify."""
    indexed, rewritten, verified = Indexed(tmp_path), [(0, 0, 0)], [(0, 0, 0)]
    part = indexed.rewrite(
        write=write,
        advance=lambda *done: rewritten.append(done),
        verified=lambda *done: verified.append(done),
    )
    read_bytes = indexed.chunk.source.size_bytes
    assert np.sum(rewritten, 0).tolist() == [read_bytes, part.size_bytes * write, part.records_read]
    assert np.sum(verified, 0).tolist() == [part.size_bytes * write, 0, part.records_kept * write]


class Turn:
    """That of large batches, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.lock = directory / f"cleanerd-{os.geteuid()}-large-batch.lock"

    @property
    def is_taken(self) -> bool:
        if not self.lock.exists():
            return False
        with self.lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


@pytest.fixture
def turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Turn:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return Turn(tmp_path)


@pytest.fixture
def reads(turn: Turn, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Bytes of each read, and whether the turn was had."""
    found: list[tuple[int, bool]] = []

    def read_at(fd: int, position: int, size: int) -> np.ndarray:
        found.append((size, turn.is_taken))
        return file_bytes.read_at(fd, position, size)

    monkeypatch.setattr(chunks, "read_at", read_at)
    return found


def test_no_part_is_written_in_the_turn_of_large_batches(
    tmp_path: Path, turn: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write may wait for the parts before it, whose tasks may wait for the turn: none of them would ever end."""
    indexed = Indexed(tmp_path)
    monkeypatch.setattr(chunks, "LARGE_BATCH_BYTES", 40)
    seen, write = [], PartFile.write
    monkeypatch.setattr(
        PartFile, "write", lambda self, data: (seen.append(turn.is_taken), write(self, data))[1]
    )
    indexed.rewrite()
    assert turn.lock.exists(), "there are large batches"
    assert seen
    assert not any(seen)


@pytest.mark.parametrize("records", [1, 5000])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_of_large_batches_one_at_a_time_is_taken_on_a_machine(
    tmp_path: Path, turn: Turn, monkeypatch: pytest.MonkeyPatch, codec: Codec, records: int
) -> None:
    """The turn is had while a large batch is expanded, not before, not after; nothing waits for it in between.

    One is large by the bytes of its records, one by their number: a row of a tiny record is larger than the record.
    """
    monkeypatch.setattr(chunks, "LARGE_BATCH_BYTES", 200_000)
    value, end = bytes(300_000 if records == 1 else 0), 1 + records
    large = encode_batch([Record(n, 5, b"k", value) for n in range(1, end)], base_offset=1, codec=codec)
    source = source_of(tmp_path / "1.log", batch(0, codec=codec) + large + batch(end, codec=codec))
    seen: list[tuple[int, bool]] = []
    for piece in read_pieces(source):
        for offsets, was_taken in map_slices(
            piece, lambda part: (part.records["offset"].tolist(), turn.is_taken)
        ):
            seen += [(offset, was_taken) for offset in offsets]
            assert not turn.is_taken
    assert [offset for offset, _ in seen] == list(range(end + 1))
    assert (0, False) in seen
    assert (1, True) in seen
    assert turn.lock.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_large_batch_is_read_in_the_turn_until_its_crc_is_known(
    tmp_path: Path, turn: Turn, reads: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch, is_sound: bool
) -> None:
    """Any header may claim so much. It is read at once, without a batch behind it, and nobody is kept waiting afterwards."""
    monkeypatch.setattr(chunks, "LARGE_BATCH_BYTES", 3 << 20)
    large = bytearray(encode_batch([Record(1, 5, b"k", bytes(4 << 20))], base_offset=1))
    large[-1] ^= not is_sound
    source = source_of(tmp_path / "0.log", batch(0) + large + batch(2))
    with nullcontext() if is_sound else pytest.raises(CorruptFile, match="CRC"):
        pieces = [(len(piece.raw), turn.is_taken) for piece in read_pieces(source)]
        assert pieces == [(len(one), False) for one in (batch(0), large, batch(2))]
    assert reads[:3] == [(chunks.PIECE_BYTES, False), (chunks.PIECE_BYTES, False), (len(large), True)]
    assert not turn.is_taken


def test_a_size_beyond_the_end_of_the_chunk_is_refused_unread(
    tmp_path: Path, reads: list[tuple[int, bool]]
) -> None:
    """However many bytes follow."""
    claim = bytearray(batch(1))
    claim[LENGTH_AT : LENGTH_AT + 4] = (1 << 30).to_bytes(4)
    source = source_of(tmp_path / "0.log", batch(0) + claim + bytes(16 << 20))
    with pytest.raises(CorruptFile, match=f"at byte {len(batch(0))}: expected a whole batch"):
        read_all(source)
    assert reads == [(chunks.PIECE_BYTES, False)] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_lock_file_of_another_user_keeps_no_cleaning_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / f"cleanerd-{os.geteuid()}-mine.lock"
    path.touch()
    os.chown(path, 65534, 65534)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with machine_turn("mine"):
            pass
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with machine_turn("mine"):
        assert not (tmp_path / "elsewhere").exists()
