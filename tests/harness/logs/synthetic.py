"""Large logs in an instant: batches of equal shape, written as arrays (closed segments, indexes, an empty active one)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit

from cleanerd.format.batch import encode_batch
from cleanerd.format.codecs import Codec, compress
from cleanerd.format.head import HEADER_SIZE, LOG_OVERHEAD
from cleanerd.format.names import FileKind, SegmentFileName
from cleanerd.format.offset_index import INDEX_INTERVAL_BYTES, OffsetIndex, render_offset_index
from cleanerd.format.producer_snapshot import render_producer_snapshot
from cleanerd.format.record import Record
from cleanerd.format.time_index import TimeIndex, render_time_index
from cleanerd.kernels.crc import crc32c

_KEY_DIGITS = 9
_TIMESTAMP_MS = 1_700_000_000_000
_BATCHES_AT_ONCE = 2000
_KEY_MARK, _VALUE_MARK = 0xFF, 0xFE  # in the template: what each record has of its own
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)
_COPRIME = 1_000_003  # a prime: counting in its steps meets every number once


@njit
def _write_digits(data, marks, chosen):
    for row in range(len(data)):
        for j in range(len(marks)):
            rest = chosen[row, j]
            for at in range(marks[j] + _KEY_DIGITS - 1, marks[j] - 1, -1):
                data[row, at] = np.uint8(48 + rest % 10)
                rest //= 10


@njit
def _seal(data, ends):
    start = 0
    for end in ends:
        crc = crc32c(data, start + 21, end)
        for j in range(4):
            data[start + 17 + j] = np.uint8(crc >> np.uint32(24 - 8 * j))
        start = end


@dataclass(frozen=True)
class Shape:
    """What every batch looks like. Keys end in nine digits, drawn from `keys` numbers, which the first `distinct_records`
    records (whole batches, in segments of their own) meet one after the other instead, so that none of them comes twice:
    a section that is clean; values begin with `random_bytes` random
    hexadecimal digits (an even number), on which it depends how well they compress.
    """

    keys: int
    records_per_batch: int = 128
    value_bytes: int = 100
    segment_bytes: int = 1 << 30
    key_bytes: int = 10
    random_bytes: int = 0
    distinct_records: int = 0
    codec: Codec = Codec.NONE

    def template(self) -> np.ndarray:
        """One batch at offset 0, not compressed, with marks where its records differ."""
        assert self.distinct_records <= self.keys
        assert math.gcd(self.keys, _COPRIME) == 1
        key = b"k" * (self.key_bytes - _KEY_DIGITS) + bytes([_KEY_MARK]) * _KEY_DIGITS
        random = bytes([_VALUE_MARK]) * self.random_bytes
        records = [
            Record(
                i, _TIMESTAMP_MS + i, key, random + bytes([65 + i % 26]) * (self.value_bytes - len(random))
            )
            for i in range(self.records_per_batch)
        ]
        return np.frombuffer(encode_batch(records, base_offset=0), np.uint8)

    def marks(self, template: np.ndarray, mark: int, length: int) -> np.ndarray:
        """Where runs of `length` marks begin in the template: one for each record."""
        if not length:
            return np.zeros(0, np.int64)
        windows = np.lib.stride_tricks.sliding_window_view(template[HEADER_SIZE:] == mark, length)
        found = HEADER_SIZE + np.flatnonzero(windows.all(axis=1))
        assert len(found) == self.records_per_batch
        return found


def write_log(directory: Path, records: int, shape: Shape, seed: int = 1) -> np.ndarray:
    """Write about `records` records; returns the key number at every offset of the closed segments."""
    directory.mkdir(parents=True)
    batches = records // shape.records_per_batch
    keys, segment = [], _Segment(directory, 0)
    for first, data, sizes, chosen in _blocks(batches, shape, np.random.default_rng(seed)):
        keys.append(chosen)
        ends, done = np.cumsum(sizes), 0
        while done < len(sizes):
            room = int(ends[done] - sizes[done]) + shape.segment_bytes - segment.size_bytes
            fitting = int(np.searchsorted(ends, room, "right"))
            boundary = shape.distinct_records // shape.records_per_batch - first
            if segment.size_bytes and (fitting <= done or done == boundary):
                segment.close(shape)
                segment = _Segment(directory, (first + done) * shape.records_per_batch)
                continue
            upto = max(fitting, done + 1)
            if done < boundary < upto:
                upto = boundary
            segment.append(data[ends[done] - sizes[done] : ends[upto - 1]], sizes[done:upto])
            done = upto
    segment.close(shape)
    _write_active(directory, batches * shape.records_per_batch)
    return np.concatenate(keys)


def _blocks(
    batches: int, shape: Shape, rng: np.random.Generator
) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """(first batch, bytes, sizes of the batches, key numbers) of some batches at a time."""
    template, per_batch = shape.template(), shape.records_per_batch
    key_marks = shape.marks(template, _KEY_MARK, _KEY_DIGITS)
    value_marks = shape.marks(template, _VALUE_MARK, shape.random_bytes)
    for first in range(0, batches, _BATCHES_AT_ONCE):
        rows = min(_BATCHES_AT_ONCE, batches - first)
        data = np.tile(template, (rows, 1))
        data[:, :8] = _big_endian((first + np.arange(rows)) * per_batch, ">i8")
        chosen = _keys(first * per_batch, rows * per_batch, shape, rng).reshape(rows, per_batch)
        _write_digits(data, key_marks, chosen)
        if len(value_marks):
            random = _HEX[rng.integers(0, 256, (rows, per_batch, shape.random_bytes // 2), np.uint8)]
            places = value_marks[:, None] + np.arange(shape.random_bytes)
            data[:, places] = random.view(np.uint8)
        flat, sizes = _compressed(data, shape.codec)
        _seal(flat, np.cumsum(sizes))
        yield first, flat, sizes, chosen.reshape(-1)


def _keys(first: int, count: int, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    offsets = first + np.arange(count)
    distinct = offsets * _COPRIME % shape.keys
    return np.where(offsets < shape.distinct_records, distinct, rng.integers(0, shape.keys, count))


def _compressed(data: np.ndarray, codec: Codec) -> tuple[np.ndarray, np.ndarray]:
    """All batches in one array, and their sizes; their CRCs are still to be set."""
    if codec == Codec.NONE:
        return data.reshape(-1), np.full(len(data), data.shape[1])
    bodies = [compress(codec, row[HEADER_SIZE:].tobytes()) for row in data]
    sizes = np.array([HEADER_SIZE + len(body) for body in bodies])
    headers = data[:, :HEADER_SIZE].copy()
    headers[:, 8:12] = _big_endian(sizes - LOG_OVERHEAD, ">i4")
    headers[:, 22] = int(codec)
    pairs = zip(headers, bodies, strict=True)
    return np.frombuffer(bytearray(b"".join(part for pair in pairs for part in pair)), np.uint8), sizes


def _big_endian(numbers: np.ndarray, kind: str) -> np.ndarray:
    """The bytes of each number, one row for each."""
    return numbers.astype(kind).view(np.uint8).reshape(len(numbers), -1)


class _Segment:
    """A segment that is being written."""

    def __init__(self, directory: Path, base: int) -> None:
        self.size_bytes = 0
        self._base = base
        self._path = directory / str(SegmentFileName(self._base, FileKind.LOG))
        self._file = self._path.open("wb")
        self._sizes: list[np.ndarray] = []

    def append(self, data: np.ndarray, sizes: np.ndarray) -> None:
        """Some more batches."""
        self._file.write(data.data)
        self._sizes.append(sizes)
        self.size_bytes += len(data)

    def close(self, shape: Shape) -> None:
        """No more: write the indexes."""
        self._file.close()
        base, path = self._base, self._path
        sizes = np.concatenate(self._sizes)
        positions = np.cumsum(sizes) - sizes
        rows = 1 + np.flatnonzero(np.diff(positions // INDEX_INTERVAL_BYTES))
        last_offsets = base + (rows + 1) * shape.records_per_batch - 1
        index = OffsetIndex(last_offsets, positions[rows])
        path.with_suffix(FileKind.OFFSET_INDEX.value).write_bytes(render_offset_index(index, base))
        last = shape.records_per_batch - 1
        times = TimeIndex(np.array([_TIMESTAMP_MS + last]), np.array([base + last]))
        path.with_suffix(FileKind.TIME_INDEX.value).write_bytes(render_time_index(times, base))


def _write_active(directory: Path, base: int) -> None:
    active = directory / str(SegmentFileName(base, FileKind.LOG))
    for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
        active.with_suffix(kind.value).touch()
    snapshot = directory / str(SegmentFileName(base, FileKind.PRODUCER_SNAPSHOT))
    snapshot.write_bytes(render_producer_snapshot([]))  # as the broker writes with every roll


def newest_offsets(keys: np.ndarray) -> np.ndarray:
    """Offsets that survive a compaction of everything: the last one of each key."""
    reversed_unique = np.unique(keys[::-1], return_index=True)[1]
    return np.sort(len(keys) - 1 - reversed_unique)
