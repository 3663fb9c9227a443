"""Damage to what no CRC covers costs the batch that it is in, and no other."""

from pathlib import Path

import pytest

from cleanerd.format.batch import encode_batch
from cleanerd.format.legacy import encode_message
from cleanerd.format.record import Record
from cleanerd.tools.insight import walk
from cleanerd.tools.insight.walk import Bounds, Damage, walk_log

PIECE_BYTES = 4096


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "PIECE_BYTES", PIECE_BYTES)


def batch(offset: int, value: bytes = b"v" * 200) -> bytes:
    return encode_batch([Record(offset, 1000, b"k", value)], base_offset=offset)


def walked(path: Path, data: bytes, stop_offset: int = 1 << 62) -> tuple[list[int], list[Damage]]:
    """Last offsets of the sound batches, and the damage."""
    path.write_bytes(data)
    offsets, damage = [], []
    with path.open("rb") as file:
        for found in walk_log(file.fileno(), str(path), Bounds(0, 1 << 31, stop_offset, 0, len(data))):
            if isinstance(found, Damage):
                damage.append(found)
            else:
                offsets += found.batches["last_offset"].tolist()
    return offsets, damage


def with_size(batch: bytes, size: int) -> bytes:
    """One that claims so many bytes."""
    return batch[:8] + (size - 12).to_bytes(4) + batch[12:]


def test_an_inflated_size_that_ends_at_what_looks_like_a_head(tmp_path: Path) -> None:
    """The head claims more than the piece: nothing in the piece is sound, but what the size claims is looked through."""
    head = bytes(8) + (1 << 20).to_bytes(4) + bytes(4) + b"\x02" + bytes(60)
    batches = [
        batch(0),
        *(batch(n) for n in range(1, 5)),
        batch(5, head),
        *(batch(n) for n in range(6, 6000)),
    ]
    end = sum(map(len, batches[:5])) + batches[5].index(head)
    batches[0] = with_size(batches[0], end)
    offsets, damage = walked(tmp_path / "log", b"".join(batches))
    assert offsets == list(range(1, 6000))
    assert [(found.code, found.start, found.end) for found in damage] == [("bad_batch", 0, len(batches[0]))]


@pytest.mark.parametrize("harmed", [0, 3, 9])
def test_an_inflated_size_that_claims_the_rest_of_the_log(harmed: int, tmp_path: Path) -> None:
    batches = [batch(n) for n in range(10)]
    batches[harmed] = with_size(batches[harmed], sum(map(len, batches[harmed:])))
    assert walked(tmp_path / "log", b"".join(batches))[0] == [
        n for n in range(10) if n != harmed or harmed == 9
    ]


@pytest.mark.parametrize("intact", [0, 3])
def test_wrong_crcs_up_to_the_end_of_the_log(intact: int, tmp_path: Path) -> None:
    """Each is reported."""
    batches = [batch(n) for n in range(10)]
    harmed = [one[:100] + b"x" + one[101:] if n >= intact else one for n, one in enumerate(batches)]
    offsets, damage = walked(tmp_path / "log", b"".join(harmed))
    assert offsets == list(range(intact))
    assert [found.code for found in damage] == ["bad_crc"] * (10 - intact)


def test_a_bad_crc_that_is_alone_in_its_piece(tmp_path: Path) -> None:
    """Its size is right: it is that batch, and its CRC, that is reported."""
    batches = [batch(n, b"v" * 3000) for n in range(5)]
    batches[2] = batches[2][:100] + b"x" + batches[2][101:]
    offsets, damage = walked(tmp_path / "log", b"".join(batches))
    start = 2 * len(batches[0])
    assert offsets == [0, 1, 3, 4]
    assert [(found.code, found.start, found.end) for found in damage] == [
        ("bad_crc", start, start + len(batches[2]))
    ]


@pytest.mark.parametrize("rotted", [0, 3, 17, 18])
@pytest.mark.parametrize("at", [7, 23, 26])
def test_a_wrong_crc_whose_head_claims_what_is_not_to_be_read(rotted: int, at: int, tmp_path: Path) -> None:
    """As beside a live broker: below the high watermark a head that rotted, in base offset or last offset delta, is damage.

    Of the last batch below it a base offset says nothing against being above it.
    """
    batches = [batch(n) for n in range(40)]
    one = batches[rotted]
    batches[rotted] = one[:at] + b"\x7f" + one[at + 1 : 100] + b"x" + one[101:]
    offsets, damage = walked(tmp_path / "log", b"".join(batches), 19)
    assert offsets == [n for n in range(19) if n != rotted]
    assert [found.code for found in damage] == ([] if (rotted, at) == (18, 7) else ["bad_crc"])


def test_wrong_crcs_above_what_is_to_be_read(tmp_path: Path) -> None:
    """They may be in writing, whatever precedes or follows them."""
    batches = [one if n < 19 else one[:100] + b"x" + one[101:] for n, one in enumerate(map(batch, range(40)))]
    assert walked(tmp_path / "log", b"".join(batches), 19) == (list(range(19)), [])
    assert walked(tmp_path / "log", b"".join([*batches[:9], *batches[19:], batch(50)]), 19) == (
        list(range(9)),
        [],
    )


@pytest.mark.parametrize("magic", [0, 1])
def test_the_size_of_a_large_legacy_message_is_not_believed(magic: int, tmp_path: Path) -> None:
    """Only with a right CRC: here it claims the rest of the log."""
    messages = [encode_message(Record(n, 1000, b"k", b"v" * 99), magic=magic) for n in range(100)]
    messages[50] = with_size(messages[50], sum(map(len, messages[50:])))
    offsets, damage = walked(tmp_path / "log", b"".join(messages))
    assert offsets == [n for n in range(100) if n != 50]
    assert [found.code for found in damage] == ["bad_batch"]


@pytest.mark.parametrize("magic", [0, 1])
def test_a_large_legacy_message_is_read(magic: int, tmp_path: Path) -> None:
    messages = [encode_message(Record(n, 1000, b"k", b"v" * 9999), magic=magic) for n in range(3)]
    assert walked(tmp_path / "log", b"".join(messages)) == ([0, 1, 2], [])


@pytest.mark.parametrize("lost", range(28))
def test_a_base_offset_that_is_too_high(lost: int, tmp_path: Path) -> None:
    """Whatever follows: a batch of the same piece, of the next one, or damage."""
    batches = [batch(n) for n in range(40)]
    batches[lost] = (1 << 20).to_bytes(8) + batches[lost][8:]
    sound = [n for n in range(40) if n != lost]
    offsets, damage = walked(tmp_path / "log", b"".join(batches))
    assert offsets == sound
    assert [found.code for found in damage] == ["offset_order"]
    for bad in (batches[lost + 1][:100] + b"x" + batches[lost + 1][101:], b"\x7f" * 100):
        harmed = b"".join([*batches[: lost + 1], bad, *batches[lost + 2 :]])
        offsets, _ = walked(tmp_path / "log", harmed)
        assert offsets == [n for n in sound if n != lost + 1]


def test_large_batches_with_a_base_offset_that_is_too_high(tmp_path: Path) -> None:
    """One of them is more than a piece."""
    batches = [batch(n, b"v" * 3 * PIECE_BYTES) for n in range(5)]
    batches[2] = (1 << 20).to_bytes(8) + batches[2][8:]
    assert walked(tmp_path / "log", b"".join(batches))[0] == [0, 1, 3, 4]
