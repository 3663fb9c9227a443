"""Large logs in an instant: batches of equal shape, written as arrays (closed segments, indexes, an empty active one)."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit

from cleanerd.format.batch import HEADER_SIZE, encode_batch
from cleanerd.format.names import FileKind, SegmentFileName
from cleanerd.format.offset_index import OffsetIndex, render_offset_index
from cleanerd.format.producer_snapshot import render_producer_snapshot
from cleanerd.format.record import Record
from cleanerd.format.time_index import TimeIndex, render_time_index
from cleanerd.kernels.native import crc32c

_KEY_DIGITS = 9
_TIMESTAMP_MS = 1_700_000_000_000
_BATCHES_AT_ONCE = 2000


@njit
def _seal(data, size):
    for start in range(0, len(data), size):
        crc = crc32c(data, start + 21, start + size)
        for j in range(4):
            data[start + 17 + j] = np.uint8(crc >> np.uint32(24 - 8 * j))


@dataclass(frozen=True)
class Shape:
    """What every batch looks like; keys are `k` and nine digits, drawn from `keys` numbers."""

    keys: int
    records_per_batch: int = 128
    value_bytes: int = 100
    segment_bytes: int = 1 << 30

    def template(self) -> tuple[np.ndarray, list[int]]:
        """One batch at offset 0 and where the digits of its keys are."""
        records = [
            Record(
                i, _TIMESTAMP_MS + i, b"k" + b"\xff" * _KEY_DIGITS, bytes([65 + i % 26]) * self.value_bytes
            )
            for i in range(self.records_per_batch)
        ]
        batch = np.frombuffer(encode_batch(records, base_offset=0), np.uint8)
        marks = np.flatnonzero(
            np.convolve(batch == 0xFF, np.ones(_KEY_DIGITS, int))[_KEY_DIGITS - 1 :] == _KEY_DIGITS
        )
        marks = marks[(marks >= HEADER_SIZE) & (batch[marks - 1] == ord("k"))]
        assert len(marks) == self.records_per_batch
        return batch, marks.tolist()


def write_log(directory: Path, records: int, shape: Shape, seed: int = 1) -> np.ndarray:
    """Write about `records` records; returns the key number at every offset of the closed segments."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    template, marks = shape.template()
    batches = records // shape.records_per_batch
    per_segment = max(shape.segment_bytes // len(template), 1)
    keys = []
    for first in range(0, batches, per_segment):
        count = min(per_segment, batches - first)
        path = directory / str(SegmentFileName(first * shape.records_per_batch, FileKind.LOG))
        with path.open("wb") as file:
            for data, chosen in _blocks(template, marks, first, count, shape, rng):
                file.write(data.tobytes())
                keys.append(chosen)
        _write_indexes(path, first, count, len(template), shape)
    active = directory / str(SegmentFileName(batches * shape.records_per_batch, FileKind.LOG))
    for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
        active.with_suffix(kind.value).touch()
    snapshot = directory / str(SegmentFileName(batches * shape.records_per_batch, FileKind.PRODUCER_SNAPSHOT))
    snapshot.write_bytes(render_producer_snapshot([]))  # as the broker writes with every roll
    return np.concatenate(keys)


def _blocks(
    template: np.ndarray, marks: list[int], first: int, count: int, shape: Shape, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    size, per_batch = len(template), shape.records_per_batch
    for start in range(first, first + count, _BATCHES_AT_ONCE):
        rows = min(_BATCHES_AT_ONCE, first + count - start)
        data = np.tile(template, (rows, 1))
        offsets = ((start + np.arange(rows)) * per_batch).astype(">i8")
        data[:, :8] = offsets.view(np.uint8).reshape(rows, 8)
        chosen = rng.integers(0, shape.keys, (rows, per_batch))
        rest = chosen.copy()
        for digit in range(_KEY_DIGITS - 1, -1, -1):
            data[:, np.array(marks) + digit] = 48 + rest % 10
            rest //= 10
        flat = data.reshape(-1)
        _seal(flat, size)
        yield flat, chosen.reshape(-1)


def _write_indexes(log: Path, first: int, count: int, size: int, shape: Shape) -> None:
    base = first * shape.records_per_batch
    every = max(4096 // size + 1, 1)
    rows = np.arange(every, count, every)
    last_offsets = base + (rows + 1) * shape.records_per_batch - 1
    log.with_suffix(".index").write_bytes(render_offset_index(OffsetIndex(last_offsets, rows * size), base))
    times = TimeIndex(
        np.array([_TIMESTAMP_MS + shape.records_per_batch - 1]),
        np.array([base + shape.records_per_batch - 1]),
    )
    log.with_suffix(".timeindex").write_bytes(render_time_index(times, base))
    os.utime(log)


def newest_offsets(keys: np.ndarray) -> np.ndarray:
    """Offsets that survive a compaction of everything: the last one of each key."""
    reversed_unique = np.unique(keys[::-1], return_index=True)[1]
    return np.sort(len(keys) - 1 - reversed_unique)
