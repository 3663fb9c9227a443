"""A chunk of a segment, read piece by piece: checked, cut into slices that fit the caches, and walked.

A chunk is a run of whole batches of one `.log` file (some tens of MiB); it is what one Spark row stands for. A piece is
what one read brings in; a slice is a run of batches of a piece whose records, decompressed, take a few MiB. So memory
depends on the size of a batch, not on the size of a chunk or on how well it compresses. A batch may stand for half a
gigabyte, and its records for a multiple of that: of such batches, one at a time is taken on a machine. (Only by cleanings:
other readers of `slices` may keep a slice for as long as they like, and must not hold up a cleaning.) One at a time is read,
too, until its CRC is right: a header may claim any size, and a claim beyond the end of the chunk is refused unread.
"""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from cleanerd.env.files import FileStat, check_unchanged, regular_fd
from cleanerd.env.page_cache import drop, within
from cleanerd.env.turns import machine_turn
from cleanerd.errors import CorruptFile, SourceChanged
from cleanerd.format.codecs import MAX_EXPANDED_BYTES, Codec, ExpandsBeyond, decompress
from cleanerd.format.errors import FormatError
from cleanerd.format.head import CODEC_MASK, HEADER_SIZE, V0_KEY_AT, V1_KEY_AT, peek_batch
from cleanerd.kernels.compressed import expand
from cleanerd.kernels.records import count_records, walk_records
from cleanerd.kernels.scan import (
    crcs,
    first_bad_crc,
    first_bad_order,
    first_with_more,
    is_plain,
    scan_batches,
)
from cleanerd.kernels.tables import RECORD, Bytes, ReadStatus, Table
from cleanerd.storage.file_bytes import read_at

from .values import Source

PIECE_BYTES = 2 << 20
SLICE_BYTES = 2 << 20
LARGE_BATCH_BYTES = 64 << 20
"""Expanded, or as rows of its records, of which one may take eight times what the record does. From here on the memory of
a batch is that of the machine: workers take turns."""
_LARGE_BATCH = "large-batch"
_AHEAD_BYTES = 4 << 20  # the system is asked to read so far ahead
_T = TypeVar("_T")
_NOTHING = np.empty(0, np.uint8)

_EXPECTED = {
    ReadStatus.TORN: ("a whole batch", "the end of the range inside a batch"),
    ReadStatus.BAD_SIZE: ("a batch size that a batch can have", "a smaller or negative one"),
    ReadStatus.BAD_MAGIC: ("magic 0, 1 or 2", "another magic byte"),
    ReadStatus.BAD_RECORD: ("a record that ends inside its batch", "a length that leads out of it"),
    ReadStatus.BAD_COUNT: ("as many records as the batch header counts", "more or fewer"),
    ReadStatus.BAD_OFFSET: ("offsets that rise within the bounds of batch and segment", "one that does not"),
    ReadStatus.BAD_CONTROL: ("a control record with version and type in its key", "a shorter key"),
}


@dataclass(frozen=True, slots=True)
class Piece:
    """Some batches of a source: their bytes, their rows, and where `raw[0]` lies in the file."""

    source: Source
    file_position: int
    previous_offset: int  # every offset of the piece is above it
    raw: Bytes
    batches: Table


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows [begin, end) of a piece's batches with their records."""

    begin: int
    end: int
    expanded: Bytes
    records: Table


def corrupt(path: str, position: int, status: ReadStatus) -> CorruptFile:
    """The error for the status of a kernel that stopped at byte `position` of the file."""
    expected, found = _EXPECTED[status]
    return CorruptFile(path, position, expected, found)


def _open_unchanged(source: Source) -> int:
    """Open the file. Raises SourceChanged if it is no longer the one that was planned for."""
    try:
        fd = regular_fd(source.path)
    except FileNotFoundError:
        raise SourceChanged(f"{source.path}: was planned for and is gone") from None
    try:
        check_unchanged(source.path, source.identity, FileStat.of(os.fstat(fd)))
    except SourceChanged:
        os.close(fd)
        raise
    return fd


def read_pieces(source: Source, *, is_first: bool = False, is_last: bool = False) -> Generator[Piece]:
    """Read a source and check structure, CRC of every batch and order of offsets. Raises CorruptFile, SourceChanged.

    `is_first`: the first read by this cleaning, so cold pages are still cold. `is_last`: its last read.
    """
    fd = _open_unchanged(source)
    try:
        yield from pieces_of(fd, source, is_first=is_first)
    finally:
        if is_last or not source.keeps_cold:
            drop(fd, source.cold)
        os.close(fd)


def pieces_of(fd: int, source: Source, *, is_first: bool = False) -> Iterator[Piece]:
    """`read_pieces` of a file that is open already, and may change elsewhere: its identity is not compared."""
    position, size, previous_offset = source.start, PIECE_BYTES, source.min_offset - 1
    advised = position + PIECE_BYTES if is_first else None
    while position < source.end:
        if advised is not None and advised < min(position + _AHEAD_BYTES, source.end):
            if within(
                source.cold, advised, advised + _AHEAD_BYTES
            ):  # advice about cached pages would only take time
                with suppress(OSError):  # no more than advice
                    os.posix_fadvise(fd, advised, _AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
            advised += _AHEAD_BYTES
        wanted = min(size, source.end - position)
        # Until its CRC is checked, a large batch is only the claim of a header.
        with machine_turn(_LARGE_BATCH) if wanted > LARGE_BATCH_BYTES else nullcontext():
            piece = _piece(fd, source, position, wanted, previous_offset)
        if not len(piece.batches):
            size = peek_batch(piece.raw.data).size_bytes  # one batch that is larger than the piece
            if size > source.end - position:
                raise corrupt(source.path, position, ReadStatus.TORN)
            continue
        yield piece
        size, previous_offset = PIECE_BYTES, int(piece.batches["last_offset"][-1])
        position += len(piece.raw)


def _piece(fd: int, source: Source, position: int, size: int, previous_offset: int) -> Piece:
    """Read the batches that end within `size` bytes from `position`; if none does, the bytes of the first one."""
    raw = read_at(fd, position, size)
    if len(raw) < size:
        raise SourceChanged(f"{source.path}: ends at byte {position + len(raw)}, before {source.end}")
    batches, stop, status = scan_batches(raw, 0, size)
    at_end = position + size == source.end
    if status is not ReadStatus.OK and (status is not ReadStatus.TORN or at_end):
        raise corrupt(source.path, position + stop, status)
    piece = Piece(source, position, previous_offset, raw[: stop or size], batches)
    _check(piece)
    return piece


def _check(piece: Piece) -> None:
    bad = first_bad_crc(piece.raw, piece.batches)
    if bad >= 0:
        carried, computed = crcs(piece.raw, piece.batches, bad)
        at = piece.file_position + int(piece.batches["position"][bad])
        raise CorruptFile(
            piece.source.path, at, f"a batch with CRC {carried:08x}", f"bytes with CRC {computed:08x}"
        )
    bad = first_bad_order(piece.batches, piece.previous_offset)
    if bad >= 0:
        at = piece.file_position + int(piece.batches["position"][bad])
        raise corrupt(piece.source.path, at, ReadStatus.BAD_OFFSET)


def _first_large(batches: Table, begin: int) -> int:
    """Row of the first batch from `begin` on whose record rows, counted by its header, exceed `LARGE_BATCH_BYTES`."""
    return first_with_more(batches, begin, LARGE_BATCH_BYTES // RECORD.itemsize)


def _expand(piece: Piece, begin: int, *, stops_at_large: bool = False) -> tuple[int, Bytes]:
    """Decompress batches from row `begin` until a slice is full; returns (end row, expanded buffer)."""
    batches = piece.batches
    if stops_at_large:
        batches = batches[: _first_large(batches, begin)]
    row, expanded_here = expand(piece.raw, batches, begin, SLICE_BYTES, LARGE_BATCH_BYTES)
    if row > begin:
        return row, expanded_here
    parts, row, plain, expanded = [], begin, 0, 0
    while row < len(batches) and plain + expanded < SLICE_BYTES:
        batch = batches[row]
        codec = int(batch["attributes"]) & CODEC_MASK
        if stops_at_large and int(batch["size"]) > LARGE_BATCH_BYTES:
            break
        if codec == 0 or int(batch["count"]) == 0:
            plain += int(batch["size"])
        else:
            part = _decompress(piece, row, codec, LARGE_BATCH_BYTES if stops_at_large else MAX_EXPANDED_BYTES)
            if part is None:
                break
            parts.append(part)
            batch["payload_start"], batch["payload_end"] = expanded, expanded + len(part)
            batch["expanded"] = 1
            expanded += len(part)
        row += 1
    return row, _joined(parts, expanded)


def _joined(parts: list[bytes], size: int) -> Bytes:
    """Join the parts in one buffer: a large batch is in memory twice then, never three times."""
    joined = np.empty(size, np.uint8)
    view, at = joined.data, 0
    for part in parts:
        view[at : at + len(part)] = part
        at += len(part)
    return joined


def _decompress(piece: Piece, row: int, codec: int, bytes_max: int) -> bytes | None:
    """Decompress the records of a batch; None if they take more than `bytes_max`, which is no damage."""
    batch = piece.batches[row]
    start, end = _compressed_span(piece, row)
    try:
        return decompress(Codec(codec), piece.raw.data[start:end], int(batch["magic"]), bytes_max)
    except (FormatError, ValueError, MemoryError) as error:  # a frame may claim any size
        if isinstance(error, ExpandsBeyond) and bytes_max < MAX_EXPANDED_BYTES:
            return None
        at = piece.file_position + int(batch["position"])
        raise CorruptFile(piece.source.path, at, f"records compressed with codec {codec}", error) from error


def _compressed_span(piece: Piece, row: int) -> tuple[int, int]:
    """Start and end of the compressed bytes of a batch in `raw`; in a legacy wrapper they are the message's value."""
    batch = piece.batches[row]
    position, end = int(batch["position"]), int(batch["position"]) + int(batch["size"])
    if batch["magic"] == 2:
        return position + HEADER_SIZE, end
    key_at = position + (V1_KEY_AT if batch["magic"] == 1 else V0_KEY_AT)
    key_length = _int32(piece.raw, key_at)
    value_at = key_at + 4 + max(key_length, 0)
    start = value_at + 4
    if key_length < -1 or start > end or _int32(piece.raw, value_at) != end - start:
        raise corrupt(piece.source.path, piece.file_position + position, ReadStatus.BAD_RECORD)
    return start, end


def _int32(raw: Bytes, at: int) -> int:
    return int.from_bytes(raw[at : at + 4].tobytes(), "big", signed=True)


def slices(piece: Piece) -> Iterator[Slice]:
    """Walk a piece slice by slice. Raises CorruptFile naming the byte of the batch that does not parse."""
    rows = len(piece.batches)
    if is_plain(piece.batches):
        yield _walk(piece, 0, rows, _NOTHING)
        return
    begin = 0
    while begin < rows:
        end, expanded = _expand(piece, begin)
        yield _walk(piece, begin, end, expanded)
        begin = end


def map_slices(piece: Piece, take: Callable[[Slice], _T]) -> Iterator[_T]:
    """Yield the results of `take` for slice after slice; it must neither keep a slice nor wait for anything.

    While one with a large batch is made and taken, no other process of the machine does so. Raises like `slices`.
    """
    begin, rows = 0, len(piece.batches)
    is_small = len(piece.raw) <= LARGE_BATCH_BYTES and _first_large(piece.batches, 0) == rows
    if is_small and is_plain(piece.batches):
        yield take(_walk(piece, 0, rows, _NOTHING))
        return
    while begin < rows:
        end, taken = _take(piece, begin, take, stops_at_large=True)
        if taken is None:
            with machine_turn(_LARGE_BATCH):
                end, taken = _take(piece, begin, take, stops_at_large=False)
        assert taken is not None
        begin = end
        yield taken[0]


def _take(
    piece: Piece, begin: int, take: Callable[[Slice], _T], *, stops_at_large: bool
) -> tuple[int, tuple[_T] | None]:
    """Return (end row, result of `take`), None for a slice that begins with a large batch. Nothing of the slice stays."""
    end, expanded = _expand(piece, begin, stops_at_large=stops_at_large)
    if end == begin:
        return end, None
    return end, (take(_walk(piece, begin, end, expanded)),)


def size_bytes(piece: Piece, part: Slice) -> int:
    """Size of a slice in the file."""
    position, last = piece.batches["position"], part.end - 1
    return int(position[last] + piece.batches["size"][last] - position[part.begin])


def _walk(piece: Piece, begin: int, end: int, expanded: Bytes) -> Slice:
    batches = piece.batches
    rows, impossible = count_records(expanded, batches, begin, end)
    if impossible >= 0:
        at = piece.file_position + int(batches["position"][impossible])
        raise corrupt(piece.source.path, at, ReadStatus.BAD_COUNT)
    records, status, stopped, _ = walk_records(
        piece.raw, expanded, batches, begin, end, rows, piece.previous_offset
    )
    if status is not ReadStatus.OK:
        at = piece.file_position + int(batches["position"][stopped])
        raise corrupt(piece.source.path, at, status)
    return Slice(begin, end, expanded, records)
