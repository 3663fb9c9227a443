"""Steps 6 and 7 of a cleaning, rewrite and verify: a chunk and its verdicts to a part file, read back and proved.

A part file holds what stays of one chunk; the parts of a segment group, put one behind the other, are its new segment.
Every record that the verdicts keep must be met again, in order and with equal timestamp, key, value and headers, when the
part is read back from the file; otherwise the part is worth nothing and `VerificationFailed` says so.
"""

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cleanerd.errors import LogUncleanable
from cleanerd.format.codecs import Codec, compress
from cleanerd.format.legacy import wrap_messages
from cleanerd.kernels.digest import add_to_digest
from cleanerd.kernels.fingerprint import fingerprint_records
from cleanerd.kernels.index_marks import index_marks
from cleanerd.kernels.judge import judge, mark_aborted
from cleanerd.kernels.newest import gather_bits
from cleanerd.kernels.rebuild import assemble, write_bodies
from cleanerd.kernels.tables import CODEC_MASK, LOG_APPEND_TIME, WRITTEN, Action, Bytes, Table
from cleanerd.policy.verdicts import RecordVerdict

from .chunks import ChunkWork, Piece, Slice, Source, read_pieces, slices
from .index import Advance, Bits, LogContext


class VerificationFailed(LogUncleanable):
    """What was written is not what the verdicts ask for: a defect of cleanerd or of the machine, never committed."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What the driver knows of a chunk's records after the resolve step."""

    local: npt.NDArray[np.uint8]  # packed, as `ChunkSummary.local`
    competing: int
    bits: npt.NDArray[np.uint8]  # packed: answers of bucket 0, 1, ... for the records that `local` leaves
    bucket_counts: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class IndexEntries:
    """Index entries of a part: positions count from the start of the part (spec disk B2, B3)."""

    offsets: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64]
    timestamp_offsets: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """What became of a chunk."""

    size_bytes: int
    records_read: int
    records_kept: int
    batches_kept: int
    last_offset: int  # of the last batch that stays, -1 none
    removed: npt.NDArray[np.int64]  # per RecordVerdict
    entries: IndexEntries


def rewrite_chunk(
    work: ChunkWork,
    log: LogContext,
    verdicts: Verdicts,
    part_path: str | None,
    index_interval_bytes: int,
    advance: Advance,
) -> Part:
    """Write what stays of a chunk to `part_path` and prove it; with None nothing is written (dry run).

    Raises CorruptFile, SourceChanged, VerificationFailed, Aborted, OSError.
    """
    superseded = _Superseded(verdicts, log)
    removed = np.zeros(len(RecordVerdict), np.int64)
    written: list[Table] = []
    position, records_read, digest = 0, 0, 0
    fd = os.open(part_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) if part_path is not None else None
    try:
        for piece in read_pieces(work.source):
            aborted = mark_aborted(piece.batches, log.aborted)
            for part in slices(piece):
                judged, kept, _ = judge(
                    piece.batches, part.begin, part.end, part.records, superseded.of(piece, part, aborted), aborted,
                    log.context, work.retain_legacy_deletes, removed,
                )  # fmt: skip
                digest = add_to_digest(digest, piece.raw, part.expanded, piece.batches, part.records, kept)
                out, rows = _encode(piece, part, judged, kept)
                rows["position"] += position
                written.append(rows)
                position += len(out)
                records_read += len(part.records)
                if fd is not None:
                    _write_all(fd, out)
                done = piece.batches["size"][part.begin : part.end].sum(dtype=np.int64)
                advance(int(done) + len(out), len(part.records))
        superseded.check_exhausted(work.source)
    finally:
        if fd is not None:
            os.close(fd)
    rows = np.concatenate(written) if written else np.zeros(0, WRITTEN)
    result = Part(
        size_bytes=position,
        records_read=records_read,
        records_kept=int(removed[RecordVerdict.KEEP]),
        batches_kept=len(rows),
        last_offset=int(rows["last_offset"][-1]) if len(rows) else -1,
        removed=removed,
        entries=index_entries(rows, index_interval_bytes),
    )
    if part_path is not None:
        verify_part(part_path, work.source, result, digest)
    return result


class _Superseded:
    """Hands out, slice by slice, which records a newer one supersedes."""

    def __init__(self, verdicts: Verdicts, log: LogContext) -> None:
        counts = verdicts.bucket_counts
        self._log = log
        self._local = np.unpackbits(verdicts.local, count=verdicts.competing).view(np.bool_)
        self._bits = np.unpackbits(verdicts.bits, count=int(counts.sum())).view(np.bool_)
        self._cursors = np.cumsum(counts) - counts  # one per bucket
        self._ends = np.cumsum(counts)
        self._used = 0

    def of(self, piece: Piece, part: Slice, aborted: Bits) -> Bits:
        """One entry per record of the slice."""
        fingerprints, rows = fingerprint_records(
            piece.raw, part.expanded, piece.batches, part.records, aborted, self._log.key
        )
        local = self._local[self._used : self._used + len(rows)]
        self._used += len(rows)
        if self._used > len(self._local):
            raise self._mismatch(piece.source)
        superseded = np.zeros(len(part.records), np.bool_)
        superseded[rows] = gather_bits(fingerprints, local, self._bits, self._cursors)
        return superseded

    def check_exhausted(self, source: Source) -> None:
        """Every answer was used exactly once, or index and rewrite saw different records. Raises VerificationFailed."""
        if self._used != len(self._local) or not np.array_equal(self._cursors, self._ends):
            raise self._mismatch(source)

    def _mismatch(self, source: Source) -> VerificationFailed:
        return VerificationFailed(
            f"{source.path}: bytes {source.start} to {source.end} hold other keys than when they were indexed"
        )


def _encode(piece: Piece, part: Slice, judged: Table, kept: npt.NDArray[np.uint8]) -> tuple[Bytes, Table]:
    """Bytes and WRITTEN rows of a judged slice."""
    batches, begin = piece.batches, part.begin
    bodies, spans = write_bodies(piece.raw, part.expanded, batches, begin, part.records, kept, judged)
    codecs = batches["attributes"][begin : part.end] & CODEC_MASK
    is_packed = (judged["action"] == int(Action.REBUILD)) & (codecs != 0)
    packed = []
    filled = 0
    for j in np.flatnonzero(is_packed):
        body = _pack(batches[begin + j], judged[j], bodies[spans[j, 0] : spans[j, 1]].tobytes())
        spans[j] = filled, filled + len(body)
        filled += len(body)
        packed.append(body)
    packed_bytes = np.frombuffer(bytearray(b"".join(packed)), np.uint8)
    return assemble(piece.raw, bodies, packed_bytes, batches, begin, judged, spans, is_packed)


def _pack(batch: np.void, row: np.void, body: bytes) -> bytes:
    """Compressed records of a batch, or a whole legacy wrapper around them (rules 4.27, 4.33)."""
    attributes, magic = int(batch["attributes"]), int(batch["magic"])
    codec = Codec(attributes & CODEC_MASK)
    if magic == 2:
        return compress(codec, body)
    return wrap_messages(
        body,
        magic=magic,
        codec=codec,
        last_offset=int(row["last_kept"]),
        timestamp_ms=int(row["max_timestamp"]),
        log_append_time=bool(attributes & LOG_APPEND_TIME),
    )


def _write_all(fd: int, data: Bytes) -> None:
    view = data.data
    while view:
        view = view[os.write(fd, view) :]


def index_entries(written: Table, interval_bytes: int) -> IndexEntries:
    """Entries for batches laid end to end: one batch start per `interval_bytes`, as an appending broker sets them (B4)."""
    marks = index_marks(written, interval_bytes)
    running = np.maximum.accumulate(written["max_timestamp"]) if len(written) else written["max_timestamp"]
    rises = np.ones(len(written), np.bool_)
    rises[1:] = running[1:] > running[:-1]
    first_with = np.maximum.accumulate(np.where(rises, np.arange(len(written)), 0))
    at = np.flatnonzero(marks)
    at_time = np.union1d(at, [len(written) - 1]) if len(written) else at
    return IndexEntries(
        offsets=written["last_offset"][at].copy(),
        positions=written["position"][at].copy(),
        timestamps=running[at_time].copy(),
        timestamp_offsets=written["last_offset"][first_with[at_time]].copy(),
    )


def verify_part(path: str, source: Source, result: Part, digest: int) -> None:
    """Read a part file as a reader would and compare with what the verdicts ask for. Raises VerificationFailed."""
    found = os.stat(path)
    whole = Source(path, found.st_ino, found.st_size, found.st_mtime_ns, 0, found.st_size, source.min_offset)
    size, batches, records, last_offset, seen = 0, 0, 0, -1, 0
    starts: list[npt.NDArray[np.int64]] = []
    last_offsets: list[npt.NDArray[np.int64]] = []
    for piece in read_pieces(whole):
        for part in slices(piece):
            all_kept = np.zeros(len(part.records), np.uint8)
            seen = add_to_digest(seen, piece.raw, part.expanded, piece.batches, part.records, all_kept)
            records += len(part.records)
        size += len(piece.raw)
        batches += len(piece.batches)
        last_offset = int(piece.batches["last_offset"][-1])
        starts.append(piece.batches["position"] + piece.file_position)
        last_offsets.append(piece.batches["last_offset"].copy())
    expected = (result.size_bytes, result.batches_kept, result.records_kept, result.last_offset, digest)
    read_back = (size, batches, records, last_offset, seen)
    if expected != read_back:
        raise VerificationFailed(
            f"{path}: (bytes, batches, records, last offset, digest) should be {expected}, read back {read_back}"
        )
    _verify_entries(path, result.entries, starts, last_offsets)


def _verify_entries(
    path: str,
    entries: IndexEntries,
    starts: list[npt.NDArray[np.int64]],
    last_offsets: list[npt.NDArray[np.int64]],
) -> None:
    """Every offset index entry points at the start of the batch whose last offset it names."""
    if not len(entries.positions):
        return
    all_starts, all_last_offsets = np.concatenate(starts), np.concatenate(last_offsets)
    rows = np.searchsorted(all_starts, entries.positions)
    named = np.array_equal(all_starts[rows], entries.positions)
    if not named or not np.array_equal(all_last_offsets[rows], entries.offsets):
        raise VerificationFailed(f"{path}: an offset index entry does not point at the batch that it names")
