"""Step 4 of a cleaning, index: a chunk of log to fingerprints, events and counts (architecture 3, 4).

A Spark task calls `index_chunk` and ships its result as a block; nothing here knows Spark. Superseded records that can be
told inside the chunk are told here (the combiner of a map-reduce), so a hot key costs one fingerprint per chunk.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cleanerd.errors import CorruptFile
from cleanerd.kernels.fingerprint import Fingerprints, fingerprint_records
from cleanerd.kernels.judge import AbortedTxns, Context, judge, mark_aborted
from cleanerd.kernels.newest import bucket_counts, mark_recent, mark_superseded, new_set, split_by_bucket
from cleanerd.kernels.tables import DELETE_HORIZON, EVENT, Table
from cleanerd.kernels.transactions import collect_events
from cleanerd.policy.verdicts import RecordVerdict

from .chunks import ChunkWork, Piece, Source, check_index, read_pieces, size_bytes, slices

Bits = npt.NDArray[np.bool_]
Advance = Callable[[int, int, int], None]
"""Called with (read bytes, written bytes, records) since the last call; raises Aborted when the work is to stop."""


@dataclass(frozen=True, slots=True)
class LogContext:
    """What every chunk of a log shares."""

    context: Context
    aborted: AbortedTxns
    first_dirty_offset: int
    key: tuple[int, int]  # of the fingerprints, fresh for every cleaning
    buckets: int


@dataclass(frozen=True, slots=True)
class ChunkSummary:
    """What the driver keeps of an indexed chunk: a bit a record, not a fingerprint."""

    bytes: int
    records: int
    batches: int
    first_offset: int  # of the first batch, -1 without one
    last_offset: int
    changed_anyway: int  # batches that change whatever the other chunks hold
    removed_anyway: npt.NDArray[np.int64]  # per RecordVerdict, before any superseded record is known
    local: npt.NDArray[np.uint8]  # packed bits: superseded inside this chunk, one per competing record
    competing: int
    local_superseded: int
    events: Table
    next_horizon_ms: int  # the earliest delete horizon still to come that a batch carries already, -1 none


@dataclass(frozen=True, slots=True)
class Block:
    """Fingerprints of one bucket of one chunk in offset order; the first `clean` of them are only looked up."""

    fingerprints: Fingerprints
    clean: int


def index_chunk(work: ChunkWork, log: LogContext, advance: Advance) -> tuple[ChunkSummary, list[Block]]:
    """Index one chunk: its summary and one block per bucket. Raises CorruptFile, SourceChanged, Aborted, OSError."""
    tally = _Tally()
    parts: list[Fingerprints] = []
    clean = 0
    for piece in read_pieces(work.source):
        check_index(piece, work)
        aborted = mark_aborted(piece.batches, log.aborted)
        events = collect_events(piece.raw, piece.batches, aborted, log.context)
        for part in slices(piece):
            fingerprints, rows = fingerprint_records(
                piece.raw, part.expanded, piece.batches, part.records, aborted, log.key
            )
            parts.append(fingerprints)
            clean += int(np.count_nonzero(part.records["offset"][rows] < log.first_dirty_offset))
            nothing_superseded = np.zeros(len(part.records), np.bool_)
            tally.changed += judge(
                piece.batches, part.begin, part.end, part.records, nothing_superseded, aborted, log.context,
                work.retain_legacy_deletes, tally.removed,
            )[2]  # fmt: skip
            tally.records += len(part.records)
            advance(size_bytes(piece, part), 0, len(part.records))
        tally.add_batches(piece, events, log.context.now_ms)
    fingerprints = np.concatenate(parts) if parts else np.empty((0, 2), np.uint64)
    if clean < len(fingerprints) and not work.is_dirty:
        beyond = f"offsets of the dirty section ({log.first_dirty_offset} and above)"
        raise CorruptFile(work.source.path, work.source.start, "offsets below the next segment's", beyond)
    local, blocks = _combine(fingerprints, clean, log.buckets)
    return tally.summary(work.source, local), blocks


class _Tally:
    """What adds up over the pieces of a chunk."""

    def __init__(self) -> None:
        self.removed = np.zeros(len(RecordVerdict), np.int64)
        self.records = self.changed = self._batches = 0
        self._first_offset = self._last_offset = -1
        self._events: list[Table] = []
        self._next_horizon_ms = -1

    def add_batches(self, piece: Piece, events: Table, now_ms: int) -> None:
        """Count the batches of a piece whose records were walked: legacy wrappers have no base offset before that."""
        horizons = delete_horizons(piece.batches)
        self._next_horizon_ms = earliest(self._next_horizon_ms, horizons[horizons > now_ms])
        if self._batches == 0:
            self._first_offset = int(piece.batches["base_offset"][0])
        self._last_offset = int(piece.batches["last_offset"][-1])
        self._batches += len(piece.batches)
        self._events.append(events)

    def summary(self, source: Source, local: Bits) -> ChunkSummary:
        """The result."""
        return ChunkSummary(
            bytes=source.end - source.start,
            records=self.records,
            batches=self._batches,
            first_offset=self._first_offset,
            last_offset=self._last_offset,
            changed_anyway=self.changed,
            removed_anyway=self.removed,
            local=np.packbits(local),
            competing=len(local),
            local_superseded=int(np.count_nonzero(local)),
            events=np.concatenate(self._events) if self._events else np.zeros(0, EVENT),
            next_horizon_ms=self._next_horizon_ms,
        )


def delete_horizons(batches: Table) -> npt.NDArray[np.int64]:
    """Delete horizons, in ms, of those batches that have one (spec disk C1: it takes the place of the base timestamp)."""
    has_horizon = (batches["magic"] == 2) & (batches["attributes"] & DELETE_HORIZON != 0)
    horizons: npt.NDArray[np.int64] = batches["base_timestamp"][has_horizon]
    return horizons


def earliest(known_ms: int, horizons_ms: npt.NDArray[np.int64]) -> int:
    """The earlier of `known_ms` (-1 none) and all `horizons_ms`; -1 when there is none."""
    found = [*([known_ms] if known_ms >= 0 else []), *([int(horizons_ms.min())] if len(horizons_ms) else [])]
    return min(found, default=-1)


def _combine(fingerprints: Fingerprints, clean: int, buckets: int) -> tuple[Bits, list[Block]]:
    """Tell what the chunk alone can tell, and split the rest by bucket."""
    local = mark_recent(fingerprints, clean)
    clean_counts = bucket_counts(fingerprints[:clean], local[:clean], buckets)
    parts = split_by_bucket(fingerprints, local, buckets)
    return local, [Block(part, int(count)) for part, count in zip(parts, clean_counts, strict=True)]


def resolve(blocks: list[Block], table: Fingerprints | None = None) -> tuple[list[Bits], Fingerprints]:
    """Superseded bits of each block of one bucket; `blocks` come in offset order (step 5, resolve).

    Returns (bits per block, the set of dirty keys). A given `table` already holds the keys of newer blocks.
    """
    if table is None:
        table = new_set(sum(len(block.fingerprints) - block.clean for block in blocks))
    bits = [mark_superseded(block.fingerprints, block.clean, table) for block in reversed(blocks)]
    return bits[::-1], table
