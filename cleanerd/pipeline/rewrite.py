"""Steps 6 and 7 of a cleaning, rewrite and verify: a chunk and its verdicts to a part, written, read back and proved.

A part is what stays of one chunk; the parts of a segment group, one behind the other, are its new segment.
Every record that the verdicts keep must be met again, in order and with equal timestamp, key, value and headers, in batches
with equal offsets, producers and epochs, when the part is read back from the file; otherwise the part is worth nothing and
`VerificationFailed` says so.
"""

import contextlib
import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cleanerd.env.files import FileStat, open_regular
from cleanerd.errors import LogUncleanable
from cleanerd.format.codecs import Codec
from cleanerd.format.head import CODEC_MASK, CONTROL
from cleanerd.kernels.compressed import pack, pack_singly
from cleanerd.kernels.digest import digest_batches, digest_judged, digest_records
from cleanerd.kernels.fingerprint import look_up_answers
from cleanerd.kernels.judge import judge, mark_aborted
from cleanerd.kernels.rebuild import write_batches, write_bodies
from cleanerd.kernels.tables import WRITTEN, Action, Bytes, Table, joined
from cleanerd.policy.verdicts import RecordVerdict
from cleanerd.spark_runtime.channel import Advance

from .chunks import Piece, Slice, map_slices, pieces_of, read_pieces, size_bytes
from .index import LogContext
from .one_pass import LookedUp
from .part_file import PartFile
from .segment_indexes import index_entries
from .values import Bits, ChunkWork, IndexEntries, Part, Source, TopicCodec, Verdicts

_SAMPLE_BYTES = 256 << 10  # of records of a chunk: a dry run encodes them twice more, to compare codecs


class VerificationFailed(LogUncleanable):
    """The written part does not match the verdicts: a defect of cleanerd or of the machine. It is never committed."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Expected record count and digest of a part; the read-back must match them."""

    size_bytes: int
    batches: int
    records: int
    last_offset: int  # of the last batch, -1 none
    records_digest: int
    batches_digest: int


def rewrite_chunk(
    work: ChunkWork,
    log: LogContext,
    verdicts: Verdicts | LookedUp,
    out: PartFile | None,
    advance: Advance,
    verified: Advance,
) -> Part:
    """Write the remaining batches of a chunk to `out` and verify them; with None nothing is written (dry run).

    `verdicts`: those of the resolve step, or an object that looks keys up on the way. `advance` is called while rewriting,
    `verified` while reading back.

    Raises CorruptFile, SourceChanged, VerificationFailed, NoSpace, Aborted, OSError; NeedsWholeLog if keys are looked up.
    """
    with contextlib.nullcontext() if out is None else out:
        contest = verdicts if isinstance(verdicts, LookedUp) else _Known(verdicts, log)
        removed, tally = _rewrite(work, log, contest, out, advance)
        rows = tally.written()
        proof = tally.proof(rows, int(removed[RecordVerdict.KEEP]))
        entries = index_entries(rows, log.index_interval_bytes)
        if out is not None:
            out.finish()
            verify_part(out.path, work.source, proof, entries, verified, out.start, out.end)
    return Part(
        size_bytes=proof.size_bytes,
        records_read=tally.records_read,
        records_kept=proof.records,
        batches_kept=proof.batches,
        first_last_offset=int(rows["last_offset"][0]) if len(rows) else -1,
        last_offset=proof.last_offset,
        removed=removed,
        entries=entries,
        path=None if out is None else out.path,
        topic_codec_saves_bytes=tally.topic_codec_saves_bytes,
    )


def _rewrite(
    work: ChunkWork, log: LogContext, contest: "_Known | LookedUp", out: PartFile | None, advance: Advance
) -> "tuple[npt.NDArray[np.int64], _PartTally]":
    """Encode the remaining batches into `out`; returns records per `RecordVerdict`, and the sums over the chunk."""
    removed = np.zeros(len(RecordVerdict), np.int64)
    tally = _PartTally(log.topic_codec if out is None else None)
    codec = log.topic_codec if log.topic_codec is not None and log.topic_codec.is_taken else None
    for piece in read_pieces(work.source, is_first=not contest.is_read_before, is_last=True):
        contest.begin(piece)
        aborted = mark_aborted(piece.batches, log.aborted)

        def take(part: Slice, piece: Piece = piece, aborted: Bits = aborted) -> tuple[int, Bytes, int]:
            judged, kept, changed = judge(
                piece.batches, part.begin, part.end, part.records, contest.of(piece, part, aborted), aborted,
                log.context, work.retain_legacy_deletes, removed,
            )  # fmt: skip
            contest.judged(changed)
            encoded, rows = _encode(piece, part, judged, kept, codec)
            tally.add(piece, part, judged, kept, rows)
            return size_bytes(piece, part), encoded, len(part.records)

        for read_bytes, encoded, records in map_slices(piece, take):
            # Not in `take`: a write may wait for the parts before this one, and they for our turn.
            if out is not None:
                out.write(encoded)
            advance(read_bytes, 0 if out is None else len(encoded), records)
    contest.check_exhausted(work.source)
    return removed, tally


class _PartTally:
    """Sums over the slices of a chunk. With a `codec`, also what the topic's codec saves, by a sample."""

    def __init__(self, codec: TopicCodec | None) -> None:
        self.records_read = 0
        self._codec = codec
        self._rebuilt_bytes = self._sampled_bytes = self._sampled_in_codec_bytes = 0
        self._size_bytes = self._records_digest = self._batches_digest = 0
        self._written: list[Table] = []

    def add(self, piece: Piece, part: Slice, judged: Table, kept: Bytes, rows: Table) -> None:
        """Add a judged slice; its WRITTEN `rows` are moved behind those of earlier slices."""
        self._records_digest = digest_records(
            self._records_digest, piece.raw, part.expanded, piece.batches, part.records, kept
        )
        self._batches_digest = digest_judged(self._batches_digest, piece.batches, part.begin, judged)
        self.records_read += len(part.records)
        if self._codec is not None:
            self._sample(piece, part, judged, kept, rows, self._codec)
        rows["position"] += self._size_bytes
        self._size_bytes += int(rows["size"].sum())
        self._written.append(rows)

    def _sample(
        self, piece: Piece, part: Slice, judged: Table, kept: Bytes, rows: Table, codec: TopicCodec
    ) -> None:
        is_rebuilt = judged["action"] == int(Action.REBUILD)
        self._rebuilt_bytes += int(rows["size"][is_rebuilt[judged["action"] != int(Action.DROP)]].sum())
        if self._sampled_bytes or not is_rebuilt.any():
            return
        batches = piece.batches[part.begin : part.end]
        sizes = np.where(is_rebuilt, batches["payload_end"] - batches["payload_start"], 0)
        some = judged.copy()
        some["action"][~is_rebuilt | (np.cumsum(sizes) - sizes >= _SAMPLE_BYTES)] = int(Action.DROP)
        self._sampled_bytes = len(_encode(piece, part, some, kept, None)[0])
        self._sampled_in_codec_bytes = len(_encode(piece, part, some, kept, codec)[0])

    @property
    def topic_codec_saves_bytes(self) -> int:
        """Estimate of the bytes that the topic's codec saves, or would save, in the rebuilt batches."""
        if self._codec is None or not self._sampled_bytes:
            return 0
        made = self._sampled_in_codec_bytes if self._codec.is_taken else self._sampled_bytes
        return round(self._rebuilt_bytes * (self._sampled_bytes - self._sampled_in_codec_bytes) / made)

    def written(self) -> Table:
        """WRITTEN rows of all batches that stay."""
        return joined(self._written, WRITTEN)

    def proof(self, written: Table, records_kept: int) -> Proof:
        """The expectation that the read-back must match."""
        return Proof(
            size_bytes=self._size_bytes,
            batches=len(written),
            records=records_kept,
            last_offset=int(written["last_offset"][-1]) if len(written) else -1,
            records_digest=self._records_digest,
            batches_digest=self._batches_digest,
        )


class _Known:
    """Hands out, slice by slice, which records a newer one supersedes, as the resolve step found."""

    is_read_before = True

    def __init__(self, verdicts: Verdicts, log: LogContext) -> None:
        counts = np.zeros(log.buckets, np.int64)
        counts[verdicts.buckets] = verdicts.bucket_counts
        self._log = log
        self._answers = verdicts.superseded.unpack()
        self._cursors = np.cumsum(counts) - counts  # one per bucket
        self._ends = np.cumsum(counts)

    def begin(self, piece: Piece) -> None:
        """Nothing to do: all verdicts are known."""

    def judged(self, changed: int) -> None:
        """Nothing to count."""

    def of(self, piece: Piece, part: Slice, aborted: Bits) -> Bits:
        """The verdicts on the records of a slice, in order."""
        return look_up_answers(
            piece.raw, part.expanded, piece.batches, part.records, aborted, self._log.key, self._answers,
            self._cursors,
        )  # fmt: skip

    def check_exhausted(self, source: Source) -> None:
        """Every answer was used exactly once, or index and rewrite saw different records. Raises VerificationFailed."""
        if not np.array_equal(self._cursors, self._ends):
            place = f"{source.path}: bytes {source.start} to {source.end}"
            raise VerificationFailed(f"{place} hold other keys than when they were indexed")


def _encode(
    piece: Piece, part: Slice, judged: Table, kept: Bytes, codec: TopicCodec | None
) -> tuple[Bytes, Table]:
    """Bytes and WRITTEN rows of a judged slice; rebuilt batches get `codec` (not markers), or keep their own."""
    batches, begin = piece.batches, part.begin
    attributes, level = batches["attributes"][begin : part.end], None
    codecs = (attributes & CODEC_MASK).astype(np.uint8)
    if codec is not None:
        codecs, level = np.where(attributes & CONTROL, Codec.NONE, codec.codec).astype(np.uint8), codec.level
    is_packed = (judged["action"] == int(Action.REBUILD)) & (codecs != 0)
    bodies, spans = write_bodies(
        piece.raw, part.expanded, batches, begin, part.records, kept, judged, is_packed
    )
    if is_packed.any():
        bodies, spans = pack(bodies, codecs, is_packed, spans, level) or pack_singly(
            bodies, codecs, is_packed, spans, level
        )
    return write_batches(
        piece.raw, part.expanded, batches, begin, part.records, kept, judged, codecs, bodies, spans, is_packed
    )


def verify_part(
    path: str,
    source: Source,
    expected: Proof,
    entries: IndexEntries,
    verified: Advance,
    start: int = 0,
    end: int | None = None,
) -> None:
    """Read a part, bytes [start, end) of a file, as a reader would, and compare it with the verdicts.

    Raises: VerificationFailed; CorruptFile for bytes that are no log at all; SourceChanged for a shorter file; Aborted.
    """
    found, starts, last_offsets = read_back(path, source, verified, start, end)
    if found != expected:
        raise VerificationFailed(f"{path}: should be {expected}, read back {found}")
    rows = np.minimum(np.searchsorted(starts, entries.positions), len(starts) - 1)
    named = np.array_equal(starts[rows], entries.positions)
    if not named or not np.array_equal(last_offsets[rows], entries.offsets):
        raise VerificationFailed(f"{path}: an offset index entry does not point at the batch that it names")


def read_back(
    path: str, source: Source, verified: Advance, start: int = 0, end: int | None = None
) -> tuple[Proof, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Proof of bytes [start, end) of a file; position (from `start`) and last offset of every batch."""
    records, records_digest, batches_digest = 0, 0, 0
    starts, last_offsets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    with open_regular(path) as fd:
        written = FileStat.of(os.fstat(fd))
        end = written.size_bytes if end is None else end
        for piece in pieces_of(fd, Source(path, written, start, end, source.min_offset)):
            batches = piece.batches

            def take(part: Slice, piece: Piece = piece) -> tuple[int, int]:
                nonlocal records_digest
                all_kept = np.zeros(len(part.records), np.uint8)
                records_digest = digest_records(
                    records_digest, piece.raw, part.expanded, piece.batches, part.records, all_kept
                )
                return size_bytes(piece, part), len(part.records)

            for read_bytes, found in map_slices(piece, take):
                records += found
                verified(read_bytes, 0, found)
            batches_digest = digest_batches(batches_digest, batches)
            starts.append(batches["position"] + (piece.file_position - start))
            last_offsets.append(batches["last_offset"].copy())
    all_starts, all_last_offsets = np.concatenate(starts), np.concatenate(last_offsets)
    last_offset = int(all_last_offsets[-1]) if len(all_last_offsets) else -1
    proof = Proof(end - start, len(all_starts), records, last_offset, records_digest, batches_digest)
    return proof, all_starts, all_last_offsets
