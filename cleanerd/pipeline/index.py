"""Step 4 of a cleaning, index: a chunk of log to fingerprints, events and counts (architecture 3, 4).

A task indexes its chunks (`index_chunk`), resolves what they settle among each other (`combine`, the combiner of a
map-reduce: a key costs one fingerprint a task, however hot it is) and ships the rest, which `resolve` settles.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from cleanerd.errors import CorruptFile
from cleanerd.format.errors import FormatError
from cleanerd.format.offset_index import ENTRY_BYTES, NAMED_BATCH
from cleanerd.kernels.fingerprint import Fingerprints, fingerprint_records
from cleanerd.kernels.judge import Context, all_stay, judge, mark_aborted
from cleanerd.kernels.newest import answer_rest, mark_superseded, new_set, split_by_bucket, survivors
from cleanerd.kernels.scan import first_misplaced
from cleanerd.kernels.tables import EVENT, AbortedTxns, Table, joined
from cleanerd.kernels.transactions import collect_events
from cleanerd.policy.verdicts import RecordVerdict
from cleanerd.policy.winner import newest_first
from cleanerd.spark_runtime.channel import Advance
from cleanerd.storage.index_files import read_offset_entries

from .chunks import Piece, Slice, map_slices, read_pieces, size_bytes
from .values import Bits, ChunkSummary, ChunkWork, IndexedLog, PackedBits, Source, TopicCodec


@dataclass(frozen=True, slots=True)
class LogContext:
    """The values shared by all chunks of a log."""

    context: Context
    aborted: AbortedTxns
    first_dirty_offset: int
    key: tuple[int, int]  # of the fingerprints, fresh for every cleaning
    buckets: int
    index_interval_bytes: int
    number: int = 0  # of the log, in reports
    topic_codec: TopicCodec | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """The competing records of one bucket of one chunk, in offset order."""

    superseded: PackedBits | None  # one per record: what is known to be; None: nothing is known
    fingerprints: Fingerprints  # of the records that are not
    clean: int  # the first so many fingerprints are of the clean section: they are only looked up

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.fingerprints) if self.superseded is None else self.superseded.count

    def answered(self, answers: Bits) -> Bits:
        """Superseded or not, one entry per record, from the answers for its `fingerprints`."""
        if self.superseded is None:
            return answers
        bits = self.superseded.unpack()
        answer_rest(bits, answers)
        return bits


def log_context(log: IndexedLog, discardable_markers: Sequence[int]) -> LogContext:
    """The context for the chunks of a log. `discardable_markers`: as in `Context`, empty before they are known."""
    work = log.work
    return LogContext(
        context=Context(
            now_ms=work.expired_ms,
            new_horizon_ms=work.new_horizon_ms,
            round_end=work.round_end,
            producers=work.producers,
            discardable_markers=np.array(discardable_markers, np.int64),
        ),
        aborted=AbortedTxns.of(work.aborted_txns),
        first_dirty_offset=work.first_dirty_offset,
        key=log.key,
        buckets=log.buckets,
        index_interval_bytes=work.index_interval_bytes,
        number=work.number,
        topic_codec=work.topic_codec,
    )


Blocks = dict[int, Block]
"""Fingerprints that a chunk looks up, by bucket; buckets without a record of the chunk are absent and cost nothing."""


def holders_of_buckets(chunks: Sequence[Blocks]) -> dict[int, list[int]]:
    """Bucket -> the chunks that have a block of it, by their place in `chunks`, ascending."""
    holders: dict[int, list[int]] = defaultdict(list)
    for i, blocks in enumerate(chunks):
        for bucket in blocks:
            holders[bucket].append(i)
    return holders


def index_chunk(work: ChunkWork, log: LogContext, advance: Advance) -> tuple[ChunkSummary, Blocks]:
    """Index one chunk: its summary and its blocks. Raises CorruptFile, SourceChanged, Aborted, OSError."""
    tally = ChunkTally(work)
    parts = [np.empty((0, 2), np.uint64)]
    buckets = [np.empty(0, np.int32)]
    clean = 0
    for piece in read_pieces(work.source, is_first=True):
        aborted = mark_aborted(piece.batches, log.aborted)
        events = collect_events(piece.raw, piece.batches, aborted, log.context)

        def take(part: Slice, piece: Piece = piece, aborted: Bits = aborted) -> tuple[int, int]:
            nonlocal clean
            fingerprints, numbers, below = fingerprint_records(
                piece.raw, part.expanded, piece.batches, part.records, aborted, log.first_dirty_offset, log.key,
                log.buckets,
            )  # fmt: skip
            parts.append(fingerprints)
            buckets.append(numbers)
            clean += below
            tally.changed += _changed_anyway(piece, part, aborted, log.context, work)
            tally.add_records(piece, part)
            return size_bytes(piece, part), len(part.records)

        for read_bytes, records in map_slices(piece, take):
            advance(read_bytes, 0, records)
        tally.add_batches(piece, events)
    fingerprints, numbers = np.concatenate(parts), np.concatenate(buckets)
    if clean < len(fingerprints) and not work.is_dirty:
        raise beyond_segment(work.source, log)
    clean_counts = np.bincount(numbers[:clean], minlength=log.buckets)
    by_bucket = split_by_bucket(fingerprints, numbers, log.buckets)
    blocks = {bucket: Block(None, part, int(clean_counts[bucket])) for bucket, part in by_bucket.items()}
    return tally.summary(work.source, len(fingerprints)), blocks


def _changed_anyway(piece: Piece, part: Slice, aborted: Bits, context: Context, work: ChunkWork) -> int:
    """How many batches of a slice change although none of their records is superseded."""
    if all_stay(piece.batches, part.begin, part.end, part.records, aborted):
        return 0
    nothing_superseded, reasons = (
        np.zeros(len(part.records), np.bool_),
        np.zeros(len(RecordVerdict), np.int64),
    )
    return judge(
        piece.batches, part.begin, part.end, part.records, nothing_superseded, aborted, context,
        work.retain_legacy_deletes, reasons,
    )[2]  # fmt: skip


def beyond_segment(source: Source, log: LogContext) -> CorruptFile:
    """The error for a dirty record in a clean chunk."""
    beyond = f"offsets of the dirty section ({log.first_dirty_offset} and above)"
    return CorruptFile(source.path, source.start, "offsets below the next segment's", beyond)


class ChunkTally:
    """Sums over the pieces of a chunk. Raises OSError."""

    def __init__(self, work: ChunkWork) -> None:
        self._first_entry = work.index.first
        self._index = read_offset_entries(
            work.index.path, work.source.min_offset, work.index.first, work.index.count
        )
        self._index_flaw: FormatError | None = None
        self.changed = self._records = self._expanded_bytes = self._batches = self._legacy_batches = 0
        self._first_offset = self._last_offset = -1
        self._events: list[Table] = []

    def add_batches(self, piece: Piece, events: Table) -> None:
        """Count the batches of a piece whose records were walked: legacy wrappers have no base offset before that."""
        self._index_flaw = self._index_flaw or self._misplaced(piece)
        if self._batches == 0:
            self._first_offset = int(piece.batches["base_offset"][0])
        self._last_offset = int(piece.batches["last_offset"][-1])
        self._batches += len(piece.batches)
        self._legacy_batches += int(np.count_nonzero(piece.batches["magic"] < 2))
        self._events.append(events)

    def add_records(self, piece: Piece, part: Slice) -> None:
        """Count the records of a slice."""
        batches = piece.batches[part.begin : part.end]
        self._records += len(part.records)
        self._expanded_bytes += int((batches["payload_end"] - batches["payload_start"]).sum())

    def summary(self, source: Source, competing: int) -> ChunkSummary:
        """The result; `competing` records take part in the contest for their key."""
        return ChunkSummary(
            bytes=source.size_bytes,
            expanded_bytes=self._expanded_bytes,
            records=self._records,
            batches=self._batches,
            legacy_batches=self._legacy_batches,
            first_offset=self._first_offset,
            last_offset=self._last_offset,
            changed_anyway=self.changed,
            competing=competing,
            events=joined(self._events, EVENT),
            index_flaw=self._index_flaw,
        )

    def _misplaced(self, piece: Piece) -> FormatError | None:
        """The first entry of the offset index that does not lead to a batch of this piece."""
        slot = first_misplaced(piece.batches, piece.file_position, self._index)
        if slot < 0:
            return None
        return FormatError((self._first_entry + slot) * ENTRY_BYTES, NAMED_BATCH, self._index.entry(slot))


def resolve(blocks: list[Block]) -> tuple[list[Bits], Fingerprints]:
    """Superseded bits of each block of one bucket; `blocks` come in offset order (step 5, resolve).

    Returns (bits per block, the set of dirty keys).
    """
    table = new_set(sum(len(block.fingerprints) - block.clean for block in blocks))
    bits = [
        block.answered(mark_superseded(block.fingerprints, block.clean, table))
        for block in newest_first(blocks)
    ]
    return bits[::-1], table


def resolve_all(
    chunks: Sequence[Blocks], each: Callable[..., Iterable[tuple[list[Bits], Fingerprints]]] = map
) -> tuple[list[dict[int, Bits]], dict[int, Fingerprints]]:
    """`resolve` for every bucket of chunks in offset order: the answers of each chunk, and the dirty keys, by bucket.

    `each` is `map`, or one like it that works on several buckets at a time.
    """
    holders = holders_of_buckets(chunks)
    found = each(lambda bucket: resolve([chunks[i][bucket] for i in holders[bucket]]), holders)
    bits: list[dict[int, Bits]] = [{} for _ in chunks]
    keys: dict[int, Fingerprints] = {}
    for bucket, (answers, keys[bucket]) in zip(holders, found, strict=True):
        for i, answer in zip(holders[bucket], answers, strict=True):
            bits[i][bucket] = answer
    return bits, keys


def combine(blocks: list[Block]) -> list[Block]:
    """Drop from the blocks of one bucket, in offset order, the fingerprints that others in them supersede.

    Dropping them loses nothing: records of other blocks that they supersede are superseded by the newer one, too.
    """
    bits, _ = resolve(blocks)
    return [
        Block(
            PackedBits.of(superseded),
            survivors(block.fingerprints, superseded),
            block.clean - int(np.count_nonzero(superseded[: block.clean])),
        )
        for block, superseded in zip(blocks, bits, strict=True)
    ]
