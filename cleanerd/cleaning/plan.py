"""A candidate to the work of the pipeline: segments to rewrite, groups, chunks (step 3 of a cleaning)."""

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from cleanerd.cleaning.choose import Candidate
from cleanerd.cleaning.cuts import Uncut, cut_all
from cleanerd.config.model import TopicConfig
from cleanerd.env.files import Files, open_regular
from cleanerd.env.pace import Pace
from cleanerd.env.page_cache import Ranges, cold_ranges, size_bytes, within
from cleanerd.errors import CorruptFile
from cleanerd.format.errors import FormatError
from cleanerd.format.names import FileKind
from cleanerd.format.offset_index import OffsetIndex, parse_offset_index
from cleanerd.pipeline.values import ChunkWork, IndexedLog, IndexPart, LogWork, Source, TopicCodec
from cleanerd.policy.cleanable import range_query
from cleanerd.policy.grouping import group_segments
from cleanerd.policy.merging import merge_runs
from cleanerd.policy.staging import WAIT_MS, commit_within_ms
from cleanerd.policy.winner import may_supersede
from cleanerd.storage.index_files import read_offset_index
from cleanerd.storage.scan import SegmentOnDisk, read_aborted_txns
from cleanerd.storage.stability import check_aborted

_MAX_MS = 2**63 - 1
_NONE_EXPIRED_MS = -1
_COLD_PER_MEMORY = 8
"""Up to an eighth of the memory, what is cold of a log stays cached between the passes, else it is read again."""


@dataclass(frozen=True, slots=True)
class Group:
    """Source segments of one new segment, and the base offset of the segment after them."""

    sources: tuple[SegmentOnDisk, ...]
    next_base_offset: int


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """The plan for one log. `commit_within_ms`: the result may be committed so long after its staging. `waits`: until its
    broker stops, so that no committed group makes room for the next one.

    `damaged_indexes`: of its segments, which are read without them and get new ones.
    """

    candidate: Candidate
    groups: tuple[Group, ...]
    work: LogWork
    commit_within_ms: int
    waits: bool = False
    damaged_indexes: tuple[CorruptFile, ...] = ()

    def damage_met(self, indexed: IndexedLog) -> tuple[str, ...]:
        """Damage of indexes, found before their segments were read or while; one line for each index."""
        segments = {segment.path: segment for group in self.groups for segment in group.sources}
        met = [
            _damaged_index(segments[chunk.source.path], FileKind.OFFSET_INDEX, summary.index_flaw)
            for chunk, summary in zip(indexed.work.chunks, indexed.summaries, strict=True)
            if summary.index_flaw is not None
        ]
        first = {flaw.path: str(flaw) for flaw in reversed((*self.damaged_indexes, *met))}
        return tuple(first[path] for path in sorted(first))


def _damaged_index(segment: SegmentOnDisk, kind: FileKind, flaw: FormatError) -> CorruptFile:
    """The error for a damaged index of a segment."""
    return CorruptFile(segment.sibling(kind), flaw.position, flaw.expected, flaw.found)


def plan_cleaning(
    files: Files,
    candidate: Candidate,
    *,
    now_ms: int,
    chunk_bytes: int,
    pace: Pace,
    least_free_bytes: int = 0,
    in_place: bool = False,
    waits: bool = False,
    in_any_order: bool = False,
    in_rounds: bool = False,
    directory: str | None = None,
) -> CleaningPlan:
    """Plan one log. Reads its offset and transaction indexes, and what `cuts` does. Raises CorruptFile, OSError, Aborted.

    A damaged offset or time index stops nothing (`storage.index_files`): its group is written again in any case.

    `least_free_bytes` of the file system are left free by what is written; `in_place`: see `LogWork`; `waits`: the result
    will, and its delete horizons are later by that (`policy.staging`). `in_any_order`: some groups may wait for another
    cleaning, and so do new horizons: who reads a value there, then, must still meet its tombstone. `in_rounds`: some groups
    may be committed before others are written. `directory`: where new files go, None for beside the old ones.
    """
    snapshot, found, config = candidate.snapshot, candidate.range, candidate.config
    end = found.first_uncleanable_offset
    aborted = read_aborted_txns(files, snapshot)
    check_aborted(snapshot, candidate.stability, aborted)
    # Between two rounds a broker's cleaner may take over at the first dirty offset. In the middle of a new segment it would
    # meet aborted transactions there whose markers lie before it (rule 10.1).
    groups = _groups(candidate, found.first_dirty_offset if in_rounds and aborted else None)
    horizon_ms = _legacy_horizon_ms(candidate)
    places = [(number, uncut) for number, group in enumerate(groups) for uncut in _uncut(files, group)]
    damaged = [(number, flaw) for number, uncut in places for flaw in _damaged_indexes(uncut)]
    chunks = _plan_chunks(places, found.first_dirty_offset, horizon_ms, chunk_bytes, pace)
    # A bitmap of verdicts is found by the place of its chunk, and a staged group must not reach behind its successor.
    assert all(one.group <= other.group for one, other in pairwise(chunks)), (
        "chunks lie in the order of their groups"
    )
    work = LogWork(
        topic_partition=snapshot.topic_partition,
        directory=directory or snapshot.directory,
        chunks=tuple(chunks),
        groups=len(groups),
        first_dirty_offset=found.first_dirty_offset,
        round_end=end,
        expired_ms=_NONE_EXPIRED_MS if candidate.stay is not None else now_ms,
        new_horizon_ms=-1 if in_any_order else new_horizon_ms(now_ms, config, waits=waits),
        index_interval_bytes=config.index_interval_bytes,
        producers=candidate.stability.producers,
        aborted_txns=aborted,
        least_free_bytes=least_free_bytes,
        log_start_offset=snapshot.log_start_offset,
        in_place=in_place,
        topic_codec=TopicCodec.of(config),
        renewed_groups=frozenset(number for number, _ in damaged),
        mergeable_groups=frozenset(number for number, group in enumerate(groups) if _merge_runs(group)),
    )
    within_ms = commit_within_ms(config.delete_retention_ms, waits=waits)
    return CleaningPlan(candidate, tuple(groups), work, within_ms, waits, tuple(flaw for _, flaw in damaged))


def new_horizon_ms(now_ms: int, config: TopicConfig, *, waits: bool) -> int:
    """Delete horizon of what begins to expire now; -1 if there is no such time."""
    horizon_ms = now_ms + config.delete_retention_ms + (WAIT_MS if waits else 0)
    return horizon_ms if horizon_ms <= _MAX_MS else -1


def _groups(candidate: Candidate, cut_at: int | None) -> list[Group]:
    """The segments to rewrite, in groups; one begins at `cut_at`, if a segment does."""
    segments, config, end = (
        candidate.snapshot.segments,
        candidate.config,
        candidate.range.first_uncleanable_offset,
    )
    by_base = {segment.base_offset: segment for segment in segments}
    grouped = group_segments(
        range_query([segment.facts for segment in segments], 0, end),  # rule 4.4: from the very beginning
        segment_bytes=config.segment_bytes,
        index_bytes=config.segment_index_bytes,
        first_uncleanable_offset=end,
        cut_at=cut_at,
    )
    following = [
        *(facts[0].base_offset for facts in grouped[1:]),
        end,
    ]  # `end` is the base of a segment (1.13)
    groups = [
        Group(tuple(by_base[one.base_offset] for one in facts), next_base)
        for facts, next_base in zip(grouped, following, strict=True)
    ]
    assert end in by_base or not groups, "a round ends at the base of a segment, which stays (1.13)"
    assert all(group.sources[-1].base_offset < group.next_base_offset for group in groups), (
        "groups are contiguous"
    )
    return groups


def _uncut(files: Files, group: Group) -> list[Uncut]:
    """The segments of a group that are not empty, with the usable entries of their offset indexes. Raises OSError."""
    ends = [*(segment.base_offset for segment in group.sources[1:]), group.next_base_offset]
    return [
        Uncut(segment, end, _read_index(files, segment, end))
        for segment, end in zip(group.sources, ends, strict=True)
        if segment.size_bytes
    ]


def _read_index(files: Files, segment: SegmentOnDisk, end_offset: int) -> OffsetIndex:
    """The entries of an offset index that can be of its segment, none without one; what else it holds is its flaw."""
    if FileKind.OFFSET_INDEX not in segment.kinds:
        return parse_offset_index(b"", segment.base_offset)
    index = read_offset_index(files, segment.sibling(FileKind.OFFSET_INDEX), segment.base_offset)
    return index.within(segment.size_bytes, end_offset)


def _damaged_indexes(uncut: Uncut) -> list[CorruptFile]:
    """Damage of a segment's indexes, as far as the indexes themselves show it."""
    flaws = {FileKind.OFFSET_INDEX: uncut.index.flaw, FileKind.TIME_INDEX: uncut.segment.time_index_flaw}
    return [_damaged_index(uncut.segment, kind, flaw) for kind, flaw in flaws.items() if flaw is not None]


def _plan_chunks(
    places: Sequence[tuple[int, Uncut]],
    first_dirty_offset: int,
    legacy_horizon_ms: int,
    chunk_bytes: int,
    pace: Pace,
) -> list[ChunkWork]:
    """The chunks of segments, each with the number of its group, in offset order, with the records that they can hold."""
    uncut = [one for _, one in places]
    cold = [_cold_ranges(one.segment) for one in uncut]  # before anything is read
    keeps_cold = sum(map(size_bytes, cold)) <= os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // _COLD_PER_MEMORY
    cut = cut_all(uncut, chunk_bytes=chunk_bytes, first_dirty_offset=first_dirty_offset, pace=pace)
    chunks = []
    for (number, one), heads, own in zip(places, cut, cold, strict=True):
        segment, starts = one.segment, heads.starts.tolist()
        index = segment.sibling(FileKind.OFFSET_INDEX)
        columns = (
            starts,
            [*starts[1:], segment.size_bytes],
            heads.records.tolist(),
            heads.dirty_records.tolist(),
        )
        for start, end, records, dirty_records in zip(*columns, strict=True):
            low, high = np.searchsorted(one.index.positions, [start, end])
            chunks.append(
                ChunkWork(
                    source=Source(
                        path=segment.path,
                        identity=segment.identity,
                        start=start,
                        end=end,
                        min_offset=segment.base_offset,
                        cold=within(own, start, end),
                        keeps_cold=keeps_cold,
                    ),
                    group=number,
                    is_dirty=may_supersede(one.end_offset - 1, first_dirty_offset),
                    retain_legacy_deletes=segment.identity.mtime_ms > legacy_horizon_ms,
                    index=IndexPart(index, int(low), int(high - low)),
                    records_max=records,
                    dirty_records_max=dirty_records,
                )
            )
    return chunks


def _legacy_horizon_ms(candidate: Candidate) -> int:
    """Rule 4.2: tombstones of magic 0 and 1 go by the age of their segment."""
    if candidate.stay is not None:
        return -_MAX_MS
    segments = candidate.snapshot.segments
    clean = range_query([s.facts for s in segments], 0, candidate.range.first_dirty_offset)
    if not clean:
        return 0
    last = next(s for s in segments if s.base_offset == clean[-1].base_offset)
    return last.identity.mtime_ms - candidate.config.delete_retention_ms


def _cold_ranges(segment: SegmentOnDisk) -> Ranges:
    with open_regular(segment.path) as fd:
        return cold_ranges(fd, segment.size_bytes)


def _merge_runs(group: Group) -> list[range]:
    return merge_runs([segment.size_bytes for segment in group.sources])


def merge_neighbours(plan: CleaningPlan, indexed: IndexedLog) -> CleaningPlan:
    """Step 5, second half: cut groups in which nothing changes where small neighbours are worth merging.

    Each run is a group of its own then, which changes: every batch of it is copied as it is. `indexed` is brought in
    line with the plan that is returned.
    """
    groups: list[Group] = []
    changed = set()
    for number, group in enumerate(plan.groups):
        if number in indexed.changed_groups:
            changed.add(len(groups))
            groups.append(group)
            continue
        runs = set(_merge_runs(group))
        count = len(group.sources)
        cuts = sorted({0, count, *(run.start for run in runs), *(run.stop for run in runs)})
        for begin, stop in pairwise(cuts):  # the runs and the segments between them
            part = range(begin, stop)
            if part in runs:
                changed.add(len(groups))
            rest = group.sources[part.stop :]
            groups.append(
                Group(
                    group.sources[part.start : part.stop],
                    rest[0].base_offset if rest else group.next_base_offset,
                )
            )
    # A group that is lost here would be a hole in the log; one out of order would let a tombstone go before its values.
    assert [s for group in groups for s in group.sources] == [
        s for group in plan.groups for s in group.sources
    ]
    assert all(one.next_base_offset == other.sources[0].base_offset for one, other in pairwise(groups))
    number_of = {s.base_offset: number for number, group in enumerate(groups) for s in group.sources}
    chunks = tuple(replace(chunk, group=number_of[chunk.source.min_offset]) for chunk in plan.work.chunks)
    # What `renewed_groups` names is in `changed`, and what `mergeable_groups` does.
    nothing = frozenset[int]()
    work = replace(
        plan.work, chunks=chunks, groups=len(groups), renewed_groups=nothing, mergeable_groups=nothing
    )
    indexed.work, indexed.changed_groups = work, frozenset(changed)
    return replace(plan, groups=tuple(groups), work=work)
