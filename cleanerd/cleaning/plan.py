"""A candidate to the work of the pipeline: segments to rewrite, groups, chunks (step 3 of a cleaning)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cleanerd.cleaning.choose import Candidate
from cleanerd.cleaning.cuts import Uncut, cut_all
from cleanerd.env.files import Files
from cleanerd.env.pace import Pace
from cleanerd.errors import CorruptFile
from cleanerd.format.names import FileKind
from cleanerd.format.offset_index import ENTRY_BYTES, OffsetIndex
from cleanerd.format.txn_index import AbortedTxn
from cleanerd.kernels.heads import Heads
from cleanerd.kernels.tables import AbortedTxns
from cleanerd.pipeline.values import ChunkWork, LogWork, Source, TopicCodec
from cleanerd.policy.cleanable import range_query
from cleanerd.policy.grouping import group_segments
from cleanerd.policy.winner import may_supersede
from cleanerd.storage.scan import SegmentOnDisk, read_aborted_txns, read_offset_index
from cleanerd.storage.stability import check_aborted

_MAX_MS = 2**63 - 1
_NO_POSITIONS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Group:
    """Source segments of one new segment, and the base offset of what follows them."""

    sources: tuple[SegmentOnDisk, ...]
    next_base_offset: int


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """What to do to one log."""

    candidate: Candidate
    groups: tuple[Group, ...]
    work: LogWork


def plan_cleaning(
    files: Files,
    candidate: Candidate,
    *,
    now_ms: int,
    chunk_bytes: int,
    pace: Pace,
    least_free_bytes: int = 0,
    in_place: bool = False,
) -> CleaningPlan:
    """Plan one log. Reads its offset and transaction indexes, and what `cuts` does. Raises CorruptFile, OSError, Aborted.

    `least_free_bytes` of the file system are left free by what is written; `in_place`: see `LogWork`.
    """
    snapshot, found, config = candidate.snapshot, candidate.range, candidate.config
    end = found.first_uncleanable_offset
    by_base = {segment.base_offset: segment for segment in snapshot.segments}
    to_rewrite = range_query(
        [s.facts for s in snapshot.segments], 0, end
    )  # rule 4.4: from the very beginning
    grouped = group_segments(
        to_rewrite,
        segment_bytes=config.segment_bytes,
        index_bytes=config.segment_index_bytes,
        first_uncleanable_offset=end,
    )
    following = [
        *(facts[0].base_offset for facts in grouped[1:]),
        end,
    ]  # `end` is the base of a segment (1.13)
    groups = [
        Group(tuple(by_base[f.base_offset] for f in facts), next_base)
        for facts, next_base in zip(grouped, following, strict=True)
    ]
    horizon_ms = _legacy_horizon_ms(candidate)
    chunks = _plan_chunks(files, groups, found.first_dirty_offset, horizon_ms, chunk_bytes, pace)
    horizon = now_ms + config.delete_retention_ms
    aborted = read_aborted_txns(files, snapshot)
    check_aborted(snapshot, candidate.stability, aborted)
    work = LogWork(
        topic_partition=snapshot.topic_partition,
        directory=snapshot.directory,
        chunks=tuple(chunks),
        groups=len(groups),
        first_dirty_offset=found.first_dirty_offset,
        round_end=end,
        now_ms=now_ms,
        new_horizon_ms=horizon if horizon <= _MAX_MS else -1,
        index_interval_bytes=config.index_interval_bytes,
        producers=candidate.stability.producers,
        aborted=_columns(aborted),
        aborted_txns=aborted,
        least_free_bytes=least_free_bytes,
        log_start_offset=snapshot.log_start_offset,
        in_place=in_place,
        topic_codec=TopicCodec.of(config),
    )
    return CleaningPlan(candidate, tuple(groups), work)


def _plan_chunks(
    files: Files,
    groups: Sequence[Group],
    first_dirty_offset: int,
    legacy_horizon_ms: int,
    chunk_bytes: int,
    pace: Pace,
) -> list[ChunkWork]:
    """The chunks of all groups in offset order, with the records that they can hold."""
    places = [
        (number, Uncut(segment, segment_end, _read_index(files, segment)))
        for number, group in enumerate(groups)
        for segment, segment_end in zip(
            group.sources, [*(s.base_offset for s in group.sources[1:]), group.next_base_offset], strict=True
        )
        if segment.size_bytes
    ]
    uncut = [one for _, one in places]
    cut = cut_all(uncut, chunk_bytes=chunk_bytes, first_dirty_offset=first_dirty_offset, pace=pace)
    chunks = []
    for (number, one), heads in zip(places, cut, strict=True):
        segment, positions = one.segment, _NO_POSITIONS if one.index is None else one.index.positions
        chunks += [
            ChunkWork(
                source=source,
                group=number,
                is_dirty=may_supersede(one.end_offset - 1, first_dirty_offset),
                retain_legacy_deletes=segment.identity.mtime_ms > legacy_horizon_ms,
                index_path=segment.sibling(FileKind.OFFSET_INDEX),
                index_positions=positions[(positions >= source.start) & (positions < source.end)],
                index_first_entry=int(np.searchsorted(positions, source.start)),
                records_max=records,
                dirty_records_max=dirty_records,
            )
            for source, records, dirty_records in _chunks(segment, heads)
        ]
    return chunks


def _legacy_horizon_ms(candidate: Candidate) -> int:
    """Rule 4.2: tombstones of magic 0 and 1 go by the age of their segment."""
    segments = candidate.snapshot.segments
    clean = range_query([s.facts for s in segments], 0, candidate.range.first_dirty_offset)
    if not clean:
        return 0
    last = next(s for s in segments if s.base_offset == clean[-1].base_offset)
    return last.identity.mtime_ms - candidate.config.delete_retention_ms


def _columns(aborted: tuple[AbortedTxn, ...]) -> AbortedTxns:
    rows = sorted((txn.producer_id, txn.first_offset, txn.last_offset) for txn in aborted)
    columns = np.array(rows, np.int64).reshape(-1, 3)
    return AbortedTxns(*(np.ascontiguousarray(columns[:, i]) for i in range(3)))


def _chunks(segment: SegmentOnDisk, heads: Heads) -> Iterator[tuple[Source, int, int]]:
    """A segment cut at batch starts: (source, records, dirty records), the last two upper bounds."""
    starts = heads.starts.tolist()
    for start, end, records, dirty_records in zip(
        starts,
        [*starts[1:], segment.size_bytes],
        heads.records.tolist(),
        heads.dirty_records.tolist(),
        strict=True,
    ):
        source = Source(
            path=segment.path,
            identity=segment.identity,
            start=start,
            end=end,
            min_offset=segment.base_offset,
        )
        yield source, records, dirty_records


def _read_index(files: Files, segment: SegmentOnDisk) -> OffsetIndex | None:
    """The offset index of a segment, None without one; all its positions lie in the log. Raises CorruptFile."""
    index = read_offset_index(files, segment)
    if index is not None and len(index.positions) and index.positions[-1] >= segment.size_bytes:
        row = int(np.searchsorted(index.positions, segment.size_bytes))
        raise CorruptFile(
            segment.sibling(FileKind.OFFSET_INDEX),
            row * ENTRY_BYTES,
            f"a position below the {segment.size_bytes} bytes of the log",
            int(index.positions[row]),
        )
    return index
