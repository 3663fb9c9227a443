"""Compressed batches by the C libraries: the bytes of `format.codecs`, or nothing at all."""

import random
from collections import Counter

import lz4.frame
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.format.codecs import Codec, compress, decompress
from cleanerd.format.errors import FormatError
from cleanerd.kernels import compressed
from cleanerd.kernels.compressed import expand, pack
from cleanerd.kernels.libraries import Addresses, addresses
from cleanerd.kernels.tables import BATCH, Table
from tests.harness.damage.batches import damage, guarded

WANTED_BYTES = 1 << 20
LARGE_BYTES = 8 << 20
CODECS = st.sampled_from([Codec.LZ4, Codec.ZSTD])
CONTENTS = st.builds(
    lambda seed, size, spread: bytes(random.Random(seed).choices(range(spread), k=size)),
    st.integers(0, 99), st.sampled_from([0, 1, 5, 13, 300, 65535, 65536, 65537, 200_000]), st.sampled_from([1, 4, 256]),
)  # fmt: skip


def rows_of(codecs: list[Codec], frames: list[bytes], magic: int = 2) -> Table:
    """Batches whose records are these frames, one behind the other from byte 0."""
    rows, ends = np.zeros(len(frames), BATCH), np.cumsum([len(frame) for frame in frames])
    rows["magic"], rows["attributes"], rows["count"] = magic, codecs, 1
    rows["size"] = rows["payload_end"] = ends
    rows["payload_start"] = ends - [len(frame) for frame in frames]
    return rows


@given(st.lists(st.tuples(CODECS, CONTENTS), min_size=1, max_size=6))
def test_expands_what_the_codecs_write_and_packs_the_same_bytes(batches: list[tuple[Codec, bytes]]) -> None:
    """None of it is left to Python."""
    codecs, contents = [codec for codec, _ in batches], [content for _, content in batches]
    frames = [compress(codec, content) for codec, content in batches]
    rows = rows_of(codecs, frames)
    end, out = expand(guarded(b"".join(frames)), rows, 0, 2 * WANTED_BYTES, LARGE_BYTES)
    assert end == len(frames)
    found = [out[row["payload_start"] : row["payload_end"]].tobytes() for row in rows]
    assert found == contents
    assert rows["expanded"].all()

    ends = np.cumsum([len(content) for content in contents])
    spans = np.stack([ends - [len(content) for content in contents], ends], axis=1)
    is_packed = np.ones(len(frames), np.bool_)
    is_packed[::3] = False
    packed = pack(guarded(b"".join(contents)), np.array(codecs, np.uint8), is_packed, spans)
    assert packed is not None
    buffer, moved = packed
    for j, frame in enumerate(frames):
        if is_packed[j]:
            assert buffer[slice(*moved[j])].tobytes() == frame
        else:
            assert (moved[j] == spans[j]).all()


@pytest.mark.parametrize(
    ("codec", "level"),
    [(Codec.ZSTD, 19), (Codec.ZSTD, -5), (Codec.ZSTD, None), (Codec.LZ4, 9), (Codec.LZ4, 12)],
)
def test_packs_at_a_level_and_then_at_its_own_again(codec: Codec, level: int | None) -> None:
    """The context of zstd is kept from call to call. Slow lz4 is left to Python."""
    content = bytes(random.Random(1).choices(range(20), k=50_000))
    spans, is_packed = np.array([(0, len(content))]), np.ones(1, np.bool_)
    for wanted in (level, None):
        packed = pack(guarded(content), np.array([codec]), is_packed, spans, wanted)
        assert (packed is None) == (codec is Codec.LZ4 and wanted == 12)
        if packed is not None:
            assert packed[0].tobytes() == compress(codec, content, level=wanted)


def lz4_forms(content: bytes) -> list[bytes]:
    """Frames that clients and other tools write."""
    sizes = (lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB)
    return [
        lz4.frame.compress(content, block_size=size, block_linked=linked, content_checksum=check, store_size=store)
        for size in sizes
        for linked in (False, True)
        for check in (False, True)
        for store in (False, True)
    ] + [compress(Codec.LZ4, content, magic=0), compress(Codec.LZ4, content) * 2]  # fmt: skip


def zstd_forms(content: bytes) -> list[bytes]:
    """Frames that clients and other tools write, and one with a window that streams refuse."""
    wide = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=False)
    return [
        zstandard.ZstdCompressor(write_content_size=size, write_checksum=check).compress(content)
        for size in (False, True)
        for check in (False, True)
    ] + [
        zstandard.ZstdCompressor(compression_params=wide).compressobj().compress(content),
        (0x184D2A50).to_bytes(4, "little") + bytes((2, 0, 0, 0)) + b"xy" + compress(Codec.ZSTD, content),
        compress(Codec.ZSTD, content) * 2,
    ]


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_hostile_frames_are_expanded_as_the_codecs_do_or_left_to_them(codec: Codec) -> None:
    """Never other bytes, never a frame that the codecs refuse; a read outside of the frame ends the process."""
    outcomes: Counter[str] = Counter()
    for seed in range(400):
        rng = random.Random(f"{codec} {seed}")
        content = bytes(rng.choices(range(rng.choice((1, 5, 256))), k=rng.choice((0, 1, 20, 3000, 70_000))))
        frame = rng.choice((lz4_forms if codec is Codec.LZ4 else zstd_forms)(content))
        if seed % 4:
            frame = damage(rng, frame)
        rows = rows_of([codec], [frame])
        end, out = expand(guarded(frame, at_start=rng.random() < 0.3), rows, 0, WANTED_BYTES, LARGE_BYTES)
        if end:
            assert out.tobytes() == decompress(codec, frame), seed
            outcomes["expanded"] += 1
            continue
        assert not rows["expanded"].any()
        try:
            decompress(codec, frame)
        except FormatError:
            outcomes["refused"] += 1
        else:
            outcomes["left"] += 1
    assert min(outcomes[kind] for kind in ("expanded", "refused", "left")) > 10, outcomes


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_stops_before_the_batch_that_does_not_fit(codec: Codec) -> None:
    """The buffer holds twice what was wanted, whatever a frame expands to; what did not fit is not touched."""
    content = random.Random(1).randbytes(700)
    frames = [compress(codec, content), compress(codec, content + bytes(1 << 20)), compress(codec, content)]
    rows = rows_of([codec] * 3, frames)
    raw = guarded(b"".join(frames))
    before = rows[1:].copy()
    end, out = expand(raw, rows, 0, 1000, LARGE_BYTES)
    assert (end, out.tobytes()) == (1, content)
    assert (rows[1:] == before).all()
    assert expand(raw, rows, 1, 1000, LARGE_BYTES)[0] == 1
    assert expand(raw, rows, 2, 1000, LARGE_BYTES)[0] == 3
    assert expand(raw, rows[:1], 0, 1000, large=100)[0] == 0


def test_what_it_does_not_know_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other codecs, wrappers of magic 0 and 1, and everything where there is no library."""
    frames = {codec: compress(codec, b"abc" * 50) for codec in Codec}
    for codec, magic in [(Codec.GZIP, 2), (Codec.SNAPPY, 2), (Codec.LZ4, 1)]:
        raw = np.frombuffer(frames[codec], np.uint8)
        assert expand(raw, rows_of([codec], [frames[codec]], magic), 0, WANTED_BYTES, LARGE_BYTES)[0] == 0
    spans, is_packed = np.array([(0, 3)]), np.ones(1, np.bool_)
    bodies = np.frombuffer(b"abc", np.uint8)
    assert pack(bodies, np.array([Codec.SNAPPY]), is_packed, spans) is None
    monkeypatch.setattr(compressed, "addresses", Addresses)
    for codec in (Codec.LZ4, Codec.ZSTD):
        raw = np.frombuffer(frames[codec], np.uint8)
        assert expand(raw, rows_of([codec], [frames[codec]]), 0, WANTED_BYTES, LARGE_BYTES)[0] == 0
        assert pack(bodies, np.array([codec]), is_packed, spans) is None


def test_the_packages_bring_the_libraries() -> None:
    """Otherwise compressed logs take several times as long, and no other test would show it."""
    found = addresses()
    assert all(getattr(found, name) for name in found.__slots__)
    assert addresses() == found
