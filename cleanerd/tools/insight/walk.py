"""A `.log` file from end to end, whatever it holds: sound batches with their records, and the damage between them.

A batch is sound when its bytes are whole, its CRC is right, its offsets rise and lie in the bounds of the segment, and
its records match its header. What is no sound batch is `Damage`, a byte range with what is wrong with it.

After bytes that cannot be a batch the next one is looked for byte by byte (`kernels.resync`), and so it is inside a batch
whose CRC is wrong unless a sound one follows it: the size in its head may be wrong too. Time is linear in the bytes that
are stored, holes of sparse files cost nothing, and memory depends on the largest batch with a right CRC.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from cleanerd.env.files import FileStat
from cleanerd.env.page_cache import borrowed
from cleanerd.errors import CorruptFile
from cleanerd.format.errors import FormatError
from cleanerd.format.head import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEAD_BYTES,
    HEADER_SIZE,
    LEGACY_CRC_AT,
    MAGIC_AT,
    peek_batch,
)
from cleanerd.format.names import MAX_OFFSET
from cleanerd.kernels.judge import Context
from cleanerd.kernels.scan import crcs, first_bad_crc, first_bad_order, scan_batches
from cleanerd.kernels.tables import Bytes, Producers, ReadStatus, Table
from cleanerd.kernels.transactions import collect_events
from cleanerd.pipeline.chunks import PIECE_BYTES, Piece, Slice, slices
from cleanerd.pipeline.values import Source
from cleanerd.storage.file_bytes import read_at
from cleanerd.tools.kernels.resync import FOUND, OUTSIDE, find_batch

from .regular_files import next_data

BATCH_BYTES_MAX = 512 << 20
"""A larger batch counts as damage: no broker takes one, and it would have to be held in memory."""

ReadAt = Callable[[int, int, int], Bytes]
"""Called with (descriptor, position, size): that many bytes, fewer at the end of the file."""

_NOTHING = np.empty(0, np.int64)
_CONTEXT = Context(0, -1, MAX_OFFSET, Producers(_NOTHING, _NOTHING, _NOTHING), _NOTHING)
_CREDIT_BYTES = 1 << 30  # for CRCs that turn out wrong
_WINDOW_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a walk: bytes to read, and valid offsets.

    Bytes [`start`, `end`) of the file; offsets in [`base_offset`, `limit_offset`); batches that reach `stop_offset` are
    not looked at, and the walk ends before them. The last offset of a head with a wrong CRC is not believed.
    """

    base_offset: int
    limit_offset: int
    stop_offset: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Sound:
    """Sound batches that follow each other in the file: rows [begin, end) of `piece.batches`, and their records."""

    piece: Piece
    part: Slice

    @property
    def batches(self) -> Table:
        """The rows of these batches; `position` counts from `piece.file_position`."""
        return self.piece.batches[self.part.begin : self.part.end]

    def events(self) -> Table:
        """`EVENT` rows: of every transaction the first batch of a run, whatever became of it, and the markers."""
        return collect_events(self.piece.raw, self.batches, np.zeros(len(self.batches), np.bool_), _CONTEXT)


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes [`start`, `end`) hold no sound batch. `code` is one of `findings`; `at_end`: nothing sound follows."""

    code: str
    start: int
    end: int
    expected: str
    found: str
    at_end: bool = False

    def error(self, path: str) -> CorruptFile:
        """The damage as an error of the file at `path`."""
        return CorruptFile(path, self.start, self.expected, self.found)


def walk_log(fd: int, path: str, bounds: Bounds, read: ReadAt = read_at) -> Iterator[Sound | Damage]:
    """Everything in a `.log` file, in order: ranges and batches are disjoint and cover what is read.

    What was not in the page cache before is not there afterwards. Raises `OSError`.
    """
    with borrowed(fd, bounds.end):
        yield from _Walk(fd, path, bounds, read).run()


class _Walk:
    """A walk through a file; `_previous`: last offset of the last sound batch, `_behind`: the end of its piece."""

    def __init__(self, fd: int, path: str, bounds: Bounds, read: ReadAt) -> None:
        self._fd = fd
        self._read = read
        self._bounds = bounds
        self._source = Source(path, FileStat.of(os.fstat(fd)), bounds.start, bounds.end, bounds.base_offset)
        self._position = bounds.start
        self._previous = bounds.base_offset - 1
        self._behind = bounds.start
        self._credit = _CREDIT_BYTES
        self._stopped = False
        self._wanted_to = 0  # the walk ends here, even if a head claims more

    def run(self) -> Iterator[Sound | Damage]:
        size = PIECE_BYTES
        while self._position < self._bounds.end and not self._is_done:
            raw = self._read(self._fd, self._position, min(size, self._bounds.end - self._position))
            if not len(raw):
                return  # it was truncated since it was listed
            rows, stop, status = scan_batches(raw, 0, len(raw))
            at_end = self._position + len(raw) == self._bounds.end
            broken = status is not ReadStatus.OK and (status is not ReadStatus.TORN or at_end)
            if not len(rows) and not broken:
                size = self._size_of_batch(self._position)
                self._credit += size
                if not size:
                    yield self._resynced(self._position, status)
                    size = PIECE_BYTES
                continue
            size = PIECE_BYTES
            yield from self._piece(raw[:stop], rows, status, broken=broken)

    @property
    def _is_done(self) -> bool:
        return self._stopped or self._previous + 1 >= self._bounds.stop_offset

    def _piece(
        self, raw: Bytes, rows: Table, status: ReadStatus, *, broken: bool
    ) -> Iterator[Sound | Damage]:
        start = self._position
        bad = _bad_crcs(raw, rows)
        trailing = len(rows)
        while trailing and bad[trailing - 1]:
            trailing -= 1
        end = start + len(raw)
        unsure = rows[trailing:]
        if len(unsure):
            # The sizes of the last batches may be wrong: look at them again from the first of them on.
            rows, end = rows[:trailing], start + int(unsure["position"][0])
        self._behind = end
        yield from self._rows(Piece(self._source, start, self._previous, raw, rows), bad[: len(rows)])
        self._position = end
        if self._is_done:
            return
        if broken:
            yield self._resynced(end, status)
        elif len(unsure) and (not trailing or start + len(raw) == self._bounds.end):
            yield from self._unsound(Piece(self._source, start, self._previous, raw, unsure))

    def _unsound(self, piece: Piece) -> Iterator[Sound | Damage]:
        """Batches with wrong CRCs up to the end of a piece: sound ones may lie in what the size of the first one claims."""
        if self._stops_at(piece, 0):
            return
        first = _bad_crc(piece, 0)
        damage = self._resynced(first.start, ReadStatus.OK)
        if damage.at_end and piece.file_position + len(piece.raw) == damage.end:
            yield from self._rows(piece, np.ones(len(piece.batches), np.bool_))
        else:
            yield first if first.end == damage.end else damage

    def _rows(self, piece: Piece, bad: npt.NDArray[np.bool_]) -> Iterator[Sound | Damage]:
        edges = np.flatnonzero(np.diff(bad.astype(np.int8))) + 1
        for begin, end, following in zip(
            [0, *edges], [*edges, len(bad)], [*edges, len(bad), len(bad)][1:], strict=True
        ):
            if self._is_done or begin == end:
                return
            if bad[begin]:
                for row in range(begin, end):
                    if self._stops_at(piece, row):
                        return
                    yield _bad_crc(piece, row)
            else:
                yield from self._ordered(piece, int(begin), int(end), int(following))

    def _stops_at(self, piece: Piece, row: int) -> bool:
        """Whether the walk ends before a batch with a wrong CRC: by its base offset, and no sound batch behind it
        that is to be read contradicts it.
        """
        stop_offset, start = (
            self._bounds.stop_offset,
            piece.file_position + int(piece.batches["position"][row]),
        )
        if _first_offset(piece.batches[row]) >= stop_offset and start >= self._wanted_to:
            found = self._next_batch(start + 1, self._previous)
            self._stopped = found is None or self._base_offset_at(found) >= stop_offset
            self._wanted_to = found or 0
        return self._stopped

    def _ordered(self, piece: Piece, begin: int, end: int, following: int) -> Iterator[Sound | Damage]:
        """Rows with a right CRC: those whose offsets rise within the bounds go on. `following`: the next such row."""
        while begin < end and not self._stopped:
            stop = self._first_misplaced(piece.batches, begin, end, following)
            outside = np.flatnonzero(piece.batches["last_offset"][begin:stop] >= self._edge)
            if len(outside):
                stop = begin + int(outside[0])
            if stop > begin:
                self._previous, before = int(piece.batches["last_offset"][stop - 1]), self._previous
                yield from self._parsed(piece, begin, stop, before)
            if stop < end:
                last_offset = int(piece.batches["last_offset"][stop])
                if len(outside) and last_offset >= self._bounds.stop_offset:
                    self._stopped = True
                    return
                yield _damage(
                    piece, stop, "offset_order", self._offsets_wanted(), f"last offset {last_offset}"
                )
            begin = stop + 1

    def _first_misplaced(self, batches: Table, begin: int, end: int, following: int) -> int:
        """Row in [begin, end) whose offsets do not fit between its neighbours', `end` if all do.

        No CRC covers a base offset. Of two batches that do not rise the first is wrong when the second rises above what
        was before, and the third does not contradict it.
        """
        wrong = first_bad_order(batches[begin:end], self._previous)
        if wrong == 0:
            return begin
        if wrong < 0:
            before = int(batches["last_offset"][end - 2]) if end - begin > 1 else self._previous
            last_offset = int(batches["last_offset"][end - 1])
            is_too_high = before < self._offset_of(batches, following, before, last_offset) <= last_offset
            return end - 1 if is_too_high else end
        second = begin + wrong
        before = int(batches["last_offset"][second - 2]) if wrong > 1 else self._previous
        fits_before = _first_offset(batches[second]) > before
        agrees = second + 1 < end and _first_offset(batches[second + 1]) > batches["last_offset"][second - 1]
        return second - 1 if fits_before and not agrees else second

    def _offset_of(self, batches: Table, row: int, before: int, last_offset: int) -> int:
        """First offset of a row, or of the next batch with a right CRC behind all of them.

        -1 if there is none above `before`, or if one that lies above `last_offset` seems to begin right there.
        """
        if row < len(batches):
            return _first_offset(batches[row])
        head = self._read(self._fd, self._behind, min(HEAD_BYTES, self._bounds.end - self._behind))
        if len(head) < HEAD_BYTES:
            return -1
        if head[MAGIC_AT] <= 2 and int.from_bytes(head[:8].tobytes(), signed=True) > last_offset:
            return -1
        found = self._next_batch(self._behind, before)
        return -1 if found is None else self._base_offset_at(found)

    def _base_offset_at(self, position: int) -> int:
        return int.from_bytes(self._read(self._fd, position, 8).tobytes(), signed=True)

    @property
    def _edge(self) -> int:
        return min(self._bounds.limit_offset, self._bounds.stop_offset)

    def _offsets_wanted(self) -> str:
        limit = self._bounds.limit_offset
        below = f" and below {limit}" if limit < MAX_OFFSET else ""
        return f"offsets above {self._previous}{below}"

    def _parsed(self, piece: Piece, begin: int, end: int, previous: int) -> Iterator[Sound | Damage]:
        """Rows in order: those whose records match their header are sound.

        After a batch that is not, few batches at a time are tried, so that it does not cost more than a few of its like.
        """
        window = end - begin
        while begin < end:
            stop = min(begin + window, end)
            part = Piece(self._source, piece.file_position, previous, piece.raw, piece.batches[begin:stop])
            done = 0
            try:
                for found in slices(part):
                    yield Sound(part, found)
                    done = found.end
                window *= 2
            except CorruptFile as error:
                failed = int(np.searchsorted(part.batches["position"], error.position - part.file_position))
                if failed == done:
                    yield _damage(part, failed, "bad_records", str(error.expected), str(error.found))
                    done, window = done + 1, 1
                else:
                    window = failed - done
            if done:
                previous = int(part.batches["last_offset"][done - 1])
            begin += done

    def _size_of_batch(self, position: int) -> int:
        """Size of the batch with a right CRC that begins there, else 0; it may be larger than a piece."""
        head = self._read(self._fd, position, HEADER_SIZE)
        try:
            _, size, magic = peek_batch(head.data)
        except FormatError:
            return 0
        if size > self._bounds.end - position or not self._affords(size):
            return 0
        crc_at, covered_at, crc = (
            (CRC_AT, ATTRIBUTES_AT, crc32c) if magic == 2 else (LEGACY_CRC_AT, MAGIC_AT, crc32)
        )
        carried = int.from_bytes(head[crc_at : crc_at + 4].tobytes())
        return size if self._crc_of(position + covered_at, position + size, crc) == carried else 0

    def _affords(self, size: int) -> bool:
        """Whether so many bytes may be read although they may be no batch."""
        if size > min(self._credit, BATCH_BYTES_MAX):
            return False
        self._credit -= size
        return True

    def _crc_of(self, start: int, end: int, update: Callable[[Any, int], int] = crc32c) -> int:
        crc = 0
        while start < end:
            data = self._read(self._fd, start, min(_WINDOW_BYTES, end - start))
            if not len(data):
                return -1
            crc = update(data.data, crc)
            start += len(data)
        return crc

    def _resynced(self, start: int, status: ReadStatus) -> Damage:
        """The damage that begins at `start`; the walk goes on behind it."""
        found = self._next_batch(start + 1, self._previous)
        end = self._bounds.end if found is None else found
        code = "bad_batch"
        if found is None:
            code = "torn_batch" if status is ReadStatus.TORN else "bad_batch"
            if self._is_zero(start, end):
                code = "zeros"
        self._position = end
        words = _WORDS[status if code != "zeros" else ReadStatus.BAD_SIZE]
        return Damage(code, start, end, *words, at_end=found is None)

    def _next_batch(self, start: int, before: int) -> int | None:
        """Position of the next batch with a right CRC and possible offsets above `before`."""
        end = self._bounds.end
        while True:
            start = max(start, next_data(self._fd, start, end) - HEAD_BYTES)
            buffer = self._read(self._fd, start, min(_WINDOW_BYTES + HEADER_SIZE, end - start))
            last = len(buffer) - (HEAD_BYTES if start + len(buffer) >= end else HEADER_SIZE)
            if last <= 0:
                return None
            at, outcome, self._credit = find_batch(
                buffer, 0, last, end - start, before + 1, self._edge, self._credit
            )
            if outcome == FOUND or (outcome == OUTSIDE and self._size_of_batch(start + at)):
                return start + at
            start += at + (outcome == OUTSIDE)

    def _is_zero(self, start: int, end: int) -> bool:
        while start < end:
            start = next_data(self._fd, start, end)
            data = self._read(self._fd, start, min(_WINDOW_BYTES, end - start))
            if data.any() or not len(data):
                return start >= end
            start += len(data)
        return True


_WORDS = {
    ReadStatus.TORN: ("a whole batch", "the end of the log inside of one"),
    ReadStatus.BAD_SIZE: ("a batch size that a batch can have", "a smaller or negative one"),
    ReadStatus.BAD_MAGIC: ("magic 0, 1 or 2", "another magic byte"),
    ReadStatus.OK: ("a batch", "bytes that are no batch"),
}


def _damage(piece: Piece, row: int, code: str, expected: str, found: str) -> Damage:
    batch = piece.batches[row]
    start = piece.file_position + int(batch["position"])
    return Damage(code, start, start + int(batch["size"]), expected, found)


def _bad_crc(piece: Piece, row: int) -> Damage:
    carried, computed = crcs(piece.raw, piece.batches, row)
    return _damage(piece, row, "bad_crc", f"CRC {carried:08x}", f"{computed:08x}")


def _first_offset(batch: Any) -> int:
    """Base offset; the last one of a legacy wrapper, which does not name its first."""
    return int(batch["base_offset"]) if batch["base_offset"] >= 0 else int(batch["last_offset"])


def _bad_crcs(raw: Bytes, rows: Table) -> npt.NDArray[np.bool_]:
    bad = np.zeros(len(rows), np.bool_)
    row = 0
    while row < len(rows):
        found = first_bad_crc(raw, rows[row:])
        if found < 0:
            break
        bad[row + found] = True
        row += found + 1
    return bad
