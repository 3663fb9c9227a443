"""Compressed blobs: what Kafka must be able to read, and what it writes (spec disk C4)."""

import gzip
import random
import resource
import struct
import threading
from functools import partial

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.format import codecs
from cleanerd.format.codecs import XERIAL_HEADER, Codec, ExpandsBeyond, compress, decompress
from cleanerd.format.errors import FormatError

SIZES = (0, 1, 32 * 1024, 65536, 65537, 10**6)
COMPRESSING = [codec for codec in Codec if codec != Codec.NONE]
LZ4_PREFIX = bytes.fromhex("04224d18604082")
XERIAL_PREFIX = bytes.fromhex("82534e4150505900 00000001 00000001")


def payload(size: int, *, dense: bool = False) -> bytes:
    """Reproducible bytes: text that compresses, or noise that does not."""
    source = random.Random(size)
    if dense:
        return source.randbytes(size)
    words = [source.randbytes(4).hex().encode() for _ in range(50)]
    return b" ".join(source.choices(words, k=size // 8 + 1))[:size]


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("codec", "magic"), [(c, m) for c in Codec for m in (0, 1, 2) if (c, m >= 2) != (Codec.ZSTD, False)]
)
def test_round_trip(codec, magic, size, dense):
    """Every codec of every magic, at the sizes where the libraries change their mind."""
    content = payload(size, dense=dense)
    blob = compress(codec, memoryview(content), magic)
    assert isinstance(blob, bytes)
    if codec is Codec.LZ4 and magic > 0:
        assert blob[:7] == LZ4_PREFIX, (
            "FLG bit 5: Kafka refuses linked blocks, which the library writes by default"
        )
    assert content == decompress(codec, blob, magic)
    assert content == decompress(codec, memoryview(blob), magic)


LEVELS = {Codec.GZIP: (-1, 1, 9), Codec.LZ4: (1, 2, 3, 9, 12, 17), Codec.ZSTD: (-131_072, -1, 0, 1, 22)}


@pytest.mark.parametrize(("codec", "level"), [(c, level) for c, levels in LEVELS.items() for level in levels])
def test_every_level_that_kafka_knows(codec, level):
    """Ends and middle of the ranges; the frames are those that Kafka reads."""
    for content in (b"", payload(300_000), payload(70_000, dense=True)):
        blob = compress(codec, content, level=level)
        assert content == decompress(codec, blob)
        if codec is Codec.LZ4:
            assert blob[:7] == LZ4_PREFIX


@pytest.mark.parametrize(
    ("codec", "fast", "small"), [(Codec.GZIP, 1, 9), (Codec.LZ4, 9, 12), (Codec.ZSTD, 1, 19)]
)
def test_a_level_reaches_the_library(codec, fast, small):
    """Kafka's default of lz4, 9, is the fast compressor; every other level is a slow one."""
    content = payload(300_000)
    assert len(compress(codec, content, level=small)) < 0.95 * len(compress(codec, content, level=fast))
    if codec is Codec.LZ4:
        assert compress(codec, content, level=9) == compress(codec, content)


@pytest.mark.parametrize("store_size", [False, True])
def test_lz4_magic_0_checksum_quirk(store_size):
    """Old producers computed the descriptor checksum over the frame magic too; only magic 0 lets it pass."""
    content = payload(70000)
    assert bytes.fromhex("04224d1860401a") == compress(Codec.LZ4, content, 0)[:7]
    right = lz4.frame.compress(content, block_linked=False, store_size=store_size)
    position = 14 if store_size else 6
    quirky = right[:position] + bytes((right[position] ^ 0xFF,)) + right[position + 1 :]
    assert content == decompress(Codec.LZ4, quirky, 0)
    assert content == decompress(Codec.LZ4, right, 0)
    with pytest.raises(FormatError):
        decompress(Codec.LZ4, quirky, 1)


@pytest.mark.parametrize(
    ("byte", "value", "expected"),
    [
        (0, 0x05, "an lz4 frame"),
        (4, 0xA0, "version 01"),
        (4, 0x61, "dictionary"),
        (4, 0x40, "independent"),  # linked blocks, which the library writes by default
        (5, 0x30, "block size"),
    ],
)
def test_lz4_descriptor_is_checked(byte, value, expected):
    """Spec disk C4: version, reserved bits, linked blocks, block size code."""
    blob = bytearray(compress(Codec.LZ4, b"abc"))
    blob[byte] = value
    with pytest.raises(FormatError, match=expected):
        decompress(Codec.LZ4, blob)


def test_snappy_is_written_in_xerial_frames_of_32_kib():
    content = payload(70000)
    blob = compress(Codec.SNAPPY, content)
    assert XERIAL_PREFIX == XERIAL_HEADER == blob[:16]
    position, sizes = 16, []
    while position < len(blob):
        (size,) = struct.unpack_from(">i", blob, position)
        sizes.append(cramjam.snappy.decompress_raw_len(blob[position + 4 : position + 4 + size]))
        position += 4 + size
    assert sizes == [32768, 32768, 4464]


@pytest.mark.parametrize("size", SIZES)
def test_bare_snappy_of_librdkafka_is_read(size):
    """Rule 10.6: no framing at all."""
    content = payload(size)
    assert content == decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(content)))


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        XERIAL_PREFIX[:12],
        XERIAL_PREFIX[:8] + bytes(4),
        XERIAL_PREFIX + XERIAL_PREFIX[:15],
        XERIAL_PREFIX + XERIAL_PREFIX[:8] + bytes(8),
        XERIAL_PREFIX + XERIAL_PREFIX[:7] + bytes(9) + struct.pack(">i", 1),
        XERIAL_PREFIX + bytes(4),
        XERIAL_PREFIX + struct.pack(">i", -1),
        XERIAL_PREFIX + struct.pack(">i", 2**31 - 1) + b"x",
        XERIAL_PREFIX + struct.pack(">i", 1) + b"\x05",
        b"\xff\xff\xff\xff\x0f",
    ],
)
def test_snappy_damage(damage):
    """Framing that ends early or lies about lengths; a bare block that promises 4 GiB."""
    with pytest.raises(FormatError):
        decompress(Codec.SNAPPY, damage)


def test_zstd_is_written_and_read_without_content_size():
    """As zstd-jni streams it; the library's own one-shot call cannot read that."""
    content = payload(300000)
    blob = compress(Codec.ZSTD, content)
    assert zstandard.frame_content_size(blob) == -1
    with pytest.raises(zstandard.ZstdError):
        zstandard.ZstdDecompressor().decompress(blob)
    assert content == decompress(Codec.ZSTD, blob)
    assert content == decompress(Codec.ZSTD, zstandard.compress(content))


def test_zstd_needs_magic_2():
    """Spec disk C4."""
    with pytest.raises(FormatError):
        decompress(Codec.ZSTD, compress(Codec.ZSTD, b"abc"), 1)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
@given(
    sizes=st.lists(st.sampled_from([0, 1, 200, 480, 511, 512, 513, 1024, 5000]), min_size=1, max_size=12),
    cut=st.integers(1, 8),  # an empty zstd frame has nine bytes
)
def test_members_of_any_size_are_all_read_or_named(codec, sizes, cut):
    """Wherever the ends of members fall; one that is cut off is named by its first byte. As for the JVM, what is left of a
    zstd frame behind the first is taken, and what is too short for a gzip member is none.
    """
    contents = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    blobs = [compress(codec, content) for content in contents]
    assert decompress(codec, b"".join(blobs)) == b"".join(contents)
    if len(blobs) > 1 and (codec is Codec.ZSTD or len(blobs[-1]) - cut <= codecs._GZIP_NO_MEMBER):
        found = decompress(codec, b"".join(blobs)[:-cut])
        assert b"".join(contents).startswith(found)
        assert found.startswith(b"".join(contents[:-1]))
        return
    with pytest.raises(FormatError) as raised:
        decompress(codec, b"".join(blobs)[:-cut])
    assert raised.value.position == sum(map(len, blobs[:-1]))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_members_behind_are_not_copied_for_every_member(codec, monkeypatch):
    """A blob of tiny members costs as much as they are: nothing is given that comes back in full."""
    given = []
    name = "_new_inflater" if codec is Codec.GZIP else "_new_zstd"
    new_member = getattr(codecs, name)

    class Counting:
        def __init__(self):
            self._member = new_member()

        def __getattr__(self, name):
            return getattr(self._member, name)

        def decompress(self, data, *room):
            given.append(len(data))
            return self._member.decompress(data, *room)

    monkeypatch.setattr(codecs, name, Counting)
    blob = compress(codec, b"a") * 5000
    assert decompress(codec, blob) == b"a" * 5000
    assert max(given[1:]) <= codecs._MEMBER_WINDOW_BYTES


def test_gzip_of_others_is_read_and_ours_is_deterministic():
    """No time stamp in the header: a rewrite gives the same bytes every time."""
    content = payload(100000)
    blob = compress(Codec.GZIP, content)
    assert bytes.fromhex("1f8b0800 00000000") == blob[:8]
    assert content == gzip.decompress(blob)
    assert content == decompress(Codec.GZIP, gzip.compress(content))


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("size", [1, 32 * 1024, 100_000])
def test_truncation_and_trailing_bytes(codec, size):
    """Cut at every early and late byte: `FormatError`, never part of the content. What the JVM passes over is no error."""
    blob = compress(codec, payload(size))
    cuts = {*range(min(40, len(blob))), *range(max(0, len(blob) - 40), len(blob))}
    # Xerial framing has no end mark: it ends where no length of a block is left, and only the record count tells.
    for cut in sorted(cuts - (set(range(16, 20)) if codec == Codec.SNAPPY else set())):
        with pytest.raises(FormatError):
            decompress(codec, blob[:cut])
    if codec is Codec.ZSTD:
        with pytest.raises(FormatError):
            decompress(codec, blob + b"x")
    else:
        assert decompress(codec, blob + b"x") == payload(size)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_what_expands_too_far_is_refused(codec):
    content = bytes(1 << 20)
    blob = compress(codec, content)
    assert decompress(codec, blob, expanded_bytes_max=1 << 20) == content
    more = [compress(codec, content + b"x" * (200 << 10))]
    if codec in (Codec.GZIP, Codec.ZSTD):
        more.append(blob + compress(codec, b"y"))
    if codec is Codec.SNAPPY:
        more.append(bytes(cramjam.snappy.compress_raw(content + b"x")))
    for bomb in more:
        with pytest.raises(ExpandsBeyond, match="expands to 1048576 bytes at most"):
            decompress(codec, bomb, expanded_bytes_max=1 << 20)


def zstd_bomb_of_runs():
    header = zstandard.ZstdCompressor(write_content_size=False).compress(b"")[:6]
    run = ((128 << 10) << 3 | 2).to_bytes(3, "little") + b"0"
    return header + 8191 * run + ((128 << 10) << 3 | 3).to_bytes(3, "little") + b"0"


def zstd_bomb():
    return zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 30))


def lz4_bomb(*, block_checksum):
    small = lz4.frame.compress(
        bytes(4 << 20), block_size=7, block_linked=False, block_checksum=block_checksum, store_size=False
    )
    assert decompress(Codec.LZ4, small) == bytes(4 << 20)
    return small[:7] + 256 * small[7:-4] + small[-4:]


@pytest.mark.parametrize(
    ("codec", "make"),
    [
        (Codec.ZSTD, zstd_bomb_of_runs),
        (Codec.ZSTD, zstd_bomb),
        (Codec.LZ4, partial(lz4_bomb, block_checksum=False)),
        (Codec.LZ4, partial(lz4_bomb, block_checksum=True)),
    ],
)
def test_a_bomb_is_refused_before_it_is_expanded(codec, make):
    """Of a GiB: no memory is taken for it. The headers of its blocks tell (RFC 8878)."""
    bomb = make()
    assert len(bomb) < 5 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FormatError, match="expands to 536870912 bytes at most, found 1073741824 or more"):
        decompress(codec, bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


def test_threads_do_not_share_engines():
    content = payload(65536)
    outcomes: list[bool] = []

    def work() -> None:
        good = all(decompress(Codec.ZSTD, compress(Codec.ZSTD, content)) == content for _ in range(50))
        outcomes.append(good)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 4


@pytest.mark.parametrize("claimed", [0, 1, 1 << 20, 2**63])
@pytest.mark.parametrize("magic", [0, 2])
def test_an_lz4_frame_is_not_believed_how_large_it_is(magic, claimed):
    """The library would allocate that much, whatever the frame holds; the JVM passes over it."""
    content = random.Random(1).randbytes(1 << 13)
    blob = bytearray(lz4.frame.compress(content, block_linked=False, store_size=True, content_checksum=True))
    blob[6:14] = claimed.to_bytes(8, "little")
    blob[14] = codecs._xxh32_of_short(bytes(blob[4:14])) >> 8 & 0xFF
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert decompress(Codec.LZ4, blob, magic, 10**6) == content
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB
    blob[-4:] = b"\1\2\3\4"
    assert decompress(Codec.LZ4, blob, magic) == content, "nor is the checksum of the content compared"


def test_a_large_lz4_frame_within_the_limit():
    """The look at its blocks, stored and compressed ones, refuses nothing that fits."""
    content = random.Random(1).randbytes(3 << 20) + bytes(64 << 20)
    assert decompress(Codec.LZ4, compress(Codec.LZ4, content)) == content
