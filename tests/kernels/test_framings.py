"""Compressed batches in odd forms: a broker's own classes, the compiled readers and those in plain Python read the same.

A batch that a broker stored, and whose log its own cleaner cleans, must not make a log uncleanable; nor may anything be read
that a broker would not give to a consumer.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest

from cleanerd.env.files import FileStat
from cleanerd.errors import CorruptFile
from cleanerd.format.batch import decode_batch, parse_header
from cleanerd.format.errors import FormatError
from cleanerd.format.legacy import decode_entry
from cleanerd.format.record import Record
from cleanerd.pipeline.chunks import Piece, Slice, map_slices, pieces_of, slices
from cleanerd.pipeline.values import Source
from cleanerd.tools.kernels.columns import header_fields, key_fields, value_fields
from tests.harness.broker.releases import current_release, java_command, run_tool
from tests.harness.kernels.framings import Framing, framing

PROGRAM = Path(__file__).parent.parent / "kafka" / "ReadBatches.java"
NOT_IN_ORDER = "offsets that rise within the bounds of batch and segment"
REFUSED_BY_US = (
    "a wrapper offset of ",
    "a length of -1 to ",
    "the end of the message",
    "a message of at least ",
    "a record that ends inside its batch",
)
"""Architecture 1: offsets out of order, which no broker stores; and of magic 0 and 1 messages with odd lengths."""


def by_python(one: Framing) -> list[Record] | str:
    """The records, or why there are none."""
    try:
        return list(decode_batch(one.batch)[1] if one.magic == 2 else decode_entry(one.batch).records)
    except FormatError as error:
        return str(error)


def by_kernels(one: Framing, path: Path, *, is_cleaning: bool) -> list[Record] | str:
    """As a cleaning reads a segment, or as `verify`, `inspect` and the data source do."""
    path.write_bytes(one.batch)
    fd = os.open(path, os.O_RDONLY)
    source = Source(str(path), FileStat.of(os.fstat(fd)), 0, len(one.batch), 0)
    found: list[Record] = []
    try:
        for piece in pieces_of(fd, source):
            for part in map_slices(piece, lambda part: part) if is_cleaning else slices(piece):
                found += records_of(piece, part)
    except CorruptFile as error:
        return str(error)
    finally:
        os.close(fd)
    return found


def records_of(piece: Piece, part: Slice) -> Iterator[Record]:
    """The records of a slice, as the data source takes its columns."""
    where = piece.raw, part.expanded, piece.batches

    def content(field: np.void) -> bytes | None:
        start, size = int(field["start"]), int(field["length"])
        buffer = part.expanded if piece.batches[field["batch"]]["expanded"] else piece.raw
        return None if size < 0 else buffer[start : start + size].tobytes()

    values, starts, counts, headers = value_fields(*where, part.records)
    names, contents = header_fields(*where, part.records, starts, counts, headers)
    of_header = zip(names, contents, strict=True)
    for row, key, value, count in zip(part.records, key_fields(part.records), values, counts, strict=True):
        assert (content(value) is None) == bool(row["value_is_null"])
        pairs = tuple(
            ((content(name) or b"").decode(), content(of_name))
            for name, of_name in islice(of_header, int(count))
        )
        yield Record(int(row["offset"]), int(row["timestamp"]), content(key), content(value), pairs)


def in_order(records: Sequence[Record], one: Framing) -> bool:
    """Whether offsets rise, and within the bounds that the batch names."""
    last = parse_header(one.batch).last_offset if one.magic == 2 else struct.unpack_from(">q", one.batch)[0]
    offsets = [-1, *(record.offset for record in records), last + 1]
    return all(before < after for before, after in pairwise(offsets))


def test_compiled_readers_and_plain_python_read_the_same(tmp_path: Path) -> None:
    """Nothing at all, or the same records; but for offsets out of order, which the plain one leaves to its callers."""
    read = 0
    for one in map(framing, range(400)):
        plain = by_python(one)
        for is_cleaning in (False, True):
            compiled = by_kernels(one, tmp_path / "batch.log", is_cleaning=is_cleaning)
            if isinstance(plain, str) or not in_order(plain, one):
                assert isinstance(compiled, str), one.what
            else:
                assert compiled == plain, one.what
                read += 1
    assert read > 320


@pytest.mark.broker
@pytest.mark.timeout(300)
def test_a_broker_and_its_cleaner_read_the_same(tmp_path: Path) -> None:
    """Spec disk C3, C4: what the classes of Kafka take is taken, with the same records; what they refuse is refused."""
    framings = [framing(seed) for seed in range(4000)]
    read = 0
    for one, theirs in zip(framings, by_jvm(framings, tmp_path), strict=True):
        ours, compiled = by_python(one), by_kernels(one, tmp_path / "batch.log", is_cleaning=True)
        if isinstance(theirs, str):
            if one.magic == 2 and parse_header(one.batch).record_count == 0:
                assert compiled == [], f"{one.what}: without records there is nothing to be read"
            else:
                assert isinstance(ours, str), f"{one.what}: {theirs}"
                assert isinstance(compiled, str), f"{one.what}: {theirs}"
        elif not in_order(theirs, one):
            assert NOT_IN_ORDER in compiled, one.what
        elif isinstance(compiled, str) and one.magic < 2:
            assert any(reason in compiled for reason in REFUSED_BY_US), f"{one.what}: {compiled}"
        else:
            assert ours == compiled == theirs, one.what
            read += 1
    assert read > 1500


def by_jvm(framings: Sequence[Framing], tmp_path: Path) -> Iterator[list[Record] | str]:
    """What `ReadBatches.java` reads, or why it reads nothing."""
    source, given = tmp_path / PROGRAM.name, tmp_path / "given"
    source.write_text(_of_release(PROGRAM.read_text(encoding="utf-8")), encoding="utf-8")
    given.write_bytes(b"".join(struct.pack(">i", len(one.batch)) + one.batch for one in framings))
    found = tmp_path / "found"
    run_tool(java_command(str(source), str(given), str(found), heap="1g"))
    answers = Answers(found.read_bytes())
    for _ in framings:
        yield answers.next()


def _of_release(program: str) -> str:
    """Packages that are called internal since 4.4."""
    major, minor, _ = map(int, current_release().version.split("."))
    if (major, minor) >= (4, 4):
        return program
    return program.replace("record.internal.", "record.").replace("utils.internals.", "utils.")


class Answers:
    """What the program wrote."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def next(self) -> list[Record] | str:
        count = self._number(">i")
        if count < 0:
            return self._take(self._number(">H")).decode(errors="replace")
        return [self._record() for _ in range(count)]

    def _record(self) -> Record:
        offset, timestamp_ms = self._number(">q"), self._number(">q")
        key, value = self._bytes(), self._bytes()
        headers = []
        for _ in range(self._number(">i")):
            name = self._bytes()
            assert name is not None
            headers.append((name.decode(), self._bytes()))
        return Record(offset, timestamp_ms, key, value, tuple(headers))

    def _bytes(self) -> bytes | None:
        size = self._number(">i")
        return None if size < 0 else self._take(size)

    def _number(self, layout: str) -> int:
        return int(struct.unpack(layout, self._take(struct.calcsize(layout)))[0])

    def _take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]
