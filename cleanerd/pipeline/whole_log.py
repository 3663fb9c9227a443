"""The driver's share of the resolve step: combines the answers of all chunks of a log."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from cleanerd.errors import CleanerdError, CorruptFile, LogUncleanable
from cleanerd.format.head import HEADER_SIZE
from cleanerd.format.names import SEGMENT_MAX_BYTES, FileKind, segment_path
from cleanerd.kernels.tables import EVENT, EventKind, Table, joined
from cleanerd.kernels.transactions import empty_transactions, unlisted_abort
from cleanerd.policy.grouping import MAX_RELATIVE_OFFSET

from .values import Bits, ChunkSummary, ChunkWork, IndexedLog, PackedBits, RewrittenLog, Verdicts


def join_chunks(
    log: IndexedLog,
    summaries: Sequence[ChunkSummary | CleanerdError],
    bits: Iterable[Mapping[int, Bits] | None],
) -> IndexedLog:
    """Combine the answers of all chunks. `bits`: for each chunk bucket -> answers (absent: none asked).

    None for a chunk that is read when it is rewritten, whose summary is a `foreseen` one: `join_rest` gets the real one.
    """
    for summary in summaries:
        if isinstance(summary, CleanerdError):
            log.error = summary
            return log
    log.summaries = [summary for summary in summaries if isinstance(summary, ChunkSummary)]
    log.error = _broken_bounds(log) if log.is_read else None
    if log.error is not None:
        return log
    nothing = np.zeros(0, np.bool_)
    for summary, by_bucket in zip(log.summaries, bits, strict=True):
        if by_bucket is None:
            log.verdicts.append(None)
            log.superseded.append(0)
            continue
        buckets = sorted(by_bucket)
        answers = [by_bucket[bucket] for bucket in buckets]
        counts = np.array([len(answer) for answer in answers], np.int32)
        assert counts.sum() == summary.competing
        together = np.concatenate([nothing, *answers])
        log.verdicts.append(Verdicts(PackedBits.of(together), np.array(buckets, np.int32), counts))
        log.superseded.append(int(np.count_nonzero(together)))
    events = joined([summary.events for summary in log.summaries], EVENT)
    _join_transactions(log, events)
    log.error = _unlisted_abort(log, events)
    log.changed_groups = _changed_groups(log)
    return log


def foreseen(work: ChunkWork) -> ChunkSummary:
    """Assumed summary of a chunk that is read during the rewrite: the most batches, none of old formats."""
    return ChunkSummary(
        work.source.size_bytes, expanded_bytes=0, records=0, batches=work.source.size_bytes // HEADER_SIZE, legacy_batches=0,
        first_offset=work.source.min_offset, last_offset=-1, changed_anyway=0, competing=0,
        events=np.zeros(0, EVENT),
    )  # fmt: skip


def join_rest(log: IndexedLog, found: Mapping[int, tuple[ChunkSummary, int]]) -> CleanerdError | None:
    """Add summary and superseded count of the chunks that were read during the rewrite.

    Returns an error that only shows when all chunks are known.
    """
    for chunk, (summary, superseded) in found.items():
        log.summaries[chunk], log.superseded[chunk] = summary, superseded
    unread = (number for number, one in enumerate(log.verdicts) if one is None and number not in found)
    return _broken_bounds(log, next(unread, len(log.verdicts)))


def too_large(log: RewrittenLog) -> LogUncleanable | None:
    """Error for a new segment too large for its indexes: magic 0 and 1 and another codec can enlarge it."""
    for group, parts in log.parts.items():
        size_bytes = sum(part.size_bytes for part in parts)
        if size_bytes > SEGMENT_MAX_BYTES:
            first = next(chunk.source for chunk in log.indexed.work.chunks if chunk.group == group)
            return LogUncleanable(
                f"{first.path}: expected at most {SEGMENT_MAX_BYTES} bytes in its new segment, found {size_bytes}"
            )
    return None


def _broken_bounds(log: IndexedLog, count: int | None = None) -> CleanerdError | None:
    """`count`: of the first chunks, which have been read; None: all have."""
    chunks = list(zip(log.work.chunks, log.summaries, strict=True))[:count]
    return _broken_order(chunks, log.work.round_end) or _overflow(chunks)


def _unlisted_abort(log: IndexedLog, events: Table) -> CorruptFile | None:
    """Error for an aborted transaction whose data counted as committed: its transaction index was lost.

    Below the log start all data counts as committed (rule 4.22), and no consumer gets any of that.
    """
    marker = unlisted_abort(events, log.work.log_start_offset)
    if marker is None:
        return None
    chunks = zip(log.work.chunks, log.summaries, strict=True)
    chunk = [chunk for chunk, found in chunks if found.batches and found.first_offset <= marker][-1]
    path = segment_path(log.work.directory, chunk.source.min_offset, FileKind.TXN_INDEX)
    return CorruptFile(path, 0, f"the transaction that was aborted at offset {marker}", "none")


def _broken_order(chunks: Sequence[tuple[ChunkWork, ChunkSummary]], round_end: int) -> CorruptFile | None:
    """Offsets must rise from chunk to chunk as they do inside one."""
    previous = -1
    for chunk, summary in chunks:
        if summary.batches and summary.first_offset <= previous:
            return CorruptFile(
                chunk.source.path, chunk.source.start, f"an offset above {previous}", summary.first_offset
            )
        previous = max(previous, summary.last_offset)
    if previous >= round_end:
        last = chunks[-1][0].source
        return CorruptFile(last.path, last.end, f"offsets below {round_end}", previous)
    return None


def _overflow(chunks: Sequence[tuple[ChunkWork, ChunkSummary]]) -> LogUncleanable | None:
    """A segment whose offsets do not fit its indexes: Kafka splits it, cleaning or loading the log (4.13, 5.20)."""
    for chunk, summary in chunks:
        last = chunk.source.min_offset + MAX_RELATIVE_OFFSET
        if summary.last_offset > last:
            return LogUncleanable(
                f"{chunk.source.path}: expected offsets up to {last}, found {summary.last_offset}: the segment has "
                "overflowed; start its broker once, which splits it, or use `cleanerd salvage`"
            )
    return None


def _join_transactions(log: IndexedLog, events: Table) -> None:
    """Markers of empty transactions and the aborted ones to keep (rule 4.20)."""
    discardable = empty_transactions(events)
    log.discardable_markers = events["offset"][discardable].tolist()
    kept_markers = set(events["offset"][~discardable & (events["kind"] == int(EventKind.ABORT))].tolist())
    log.kept_aborted = [txn for txn in log.work.aborted_txns if txn.last_offset in kept_markers]


def _changed_groups(log: IndexedLog) -> frozenset[int]:
    """Groups in which a record or batch goes, shrinks or gets a delete horizon, or a transaction index entry goes.

    And those with a damaged index: a broker would go on using it (spec disk E2). Those of chunks that have not been read are
    known to change (`one_pass`).
    """
    discardable = np.array(log.discardable_markers, np.int64)
    changed = set(log.work.renewed_groups)
    for number, (chunk, summary) in enumerate(zip(log.work.chunks, log.summaries, strict=True)):
        events = summary.events
        markers = events[np.isin(events["offset"], discardable) & (events["changes"] > 0)]
        is_unread = log.verdicts[number] is None
        is_damaged = summary.index_flaw is not None
        if is_unread or is_damaged or summary.changed_anyway or log.superseded[number] or len(markers):
            changed.add(chunk.group)
    return frozenset(changed)
