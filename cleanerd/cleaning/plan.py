"""A candidate to the work of the pipeline: segments to rewrite, groups, chunks (step 3 of a cleaning)."""

import itertools
from dataclasses import dataclass

import numpy as np

from cleanerd.cleaning.choose import Candidate
from cleanerd.env.files import Files
from cleanerd.errors import CorruptFile
from cleanerd.format.names import FileKind
from cleanerd.format.offset_index import ENTRY_BYTES
from cleanerd.format.txn_index import AbortedTxn
from cleanerd.kernels.judge import AbortedTxns
from cleanerd.pipeline.chunks import ChunkWork, Source
from cleanerd.pipeline.work import LogWork
from cleanerd.policy.cleanable import range_query
from cleanerd.policy.grouping import group_segments
from cleanerd.storage.scan import SegmentOnDisk, read_aborted_txns, read_offset_index

_MAX_MS = 2**63 - 1


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


def plan_cleaning(files: Files, candidate: Candidate, *, now_ms: int, chunk_bytes: int) -> CleaningPlan:
    """Plan one log. Reads the offset and transaction indexes. Raises CorruptFile, OSError."""
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
    chunks = [
        ChunkWork(
            source=source,
            group=number,
            is_dirty=segment_end > found.first_dirty_offset,
            retain_legacy_deletes=segment.mtime_ns // 1_000_000 > horizon_ms,
            index_path=segment.sibling(FileKind.OFFSET_INDEX),
            index_positions=positions[(positions >= source.start) & (positions < source.end)],
            index_first_entry=int(np.searchsorted(positions, source.start)),
        )
        for number, group in enumerate(groups)
        for segment, segment_end in zip(
            group.sources, [*(s.base_offset for s in group.sources[1:]), group.next_base_offset], strict=True
        )
        for source, positions in _cut(files, segment, chunk_bytes)
    ]
    horizon = now_ms + config.delete_retention_ms
    aborted = read_aborted_txns(files, snapshot)
    work = LogWork(
        topic_partition=snapshot.topic_partition,
        directory=snapshot.directory,
        chunks=tuple(chunks),
        groups=len(groups),
        log_start_offset=snapshot.segments[0].base_offset,
        first_dirty_offset=found.first_dirty_offset,
        round_end=end,
        now_ms=now_ms,
        new_horizon_ms=horizon if horizon <= _MAX_MS else -1,
        index_interval_bytes=config.index_interval_bytes,
        producers=candidate.stability.producers,
        aborted=_columns(aborted),
        aborted_txns=aborted,
    )
    return CleaningPlan(candidate, tuple(groups), work)


def _legacy_horizon_ms(candidate: Candidate) -> int:
    """Rule 4.2: tombstones of magic 0 and 1 go by the age of their segment."""
    segments = candidate.snapshot.segments
    clean = range_query([s.facts for s in segments], 0, candidate.range.first_dirty_offset)
    if not clean:
        return 0
    last = next(s for s in segments if s.base_offset == clean[-1].base_offset)
    return last.mtime_ns // 1_000_000 - candidate.config.delete_retention_ms


def _columns(aborted: tuple[AbortedTxn, ...]) -> AbortedTxns:
    rows = sorted((txn.producer_id, txn.first_offset, txn.last_offset) for txn in aborted)
    columns = np.array(rows, np.int64).reshape(-1, 3)
    return AbortedTxns(*(np.ascontiguousarray(columns[:, i]) for i in range(3)))


def _cut(files: Files, segment: SegmentOnDisk, chunk_bytes: int) -> list[tuple[Source, np.ndarray]]:
    """Cut a segment at batch starts that its offset index names; each with all positions of that index."""
    if segment.size_bytes == 0:
        return []
    index = read_offset_index(files, segment)
    positions = index.positions if index is not None else np.zeros(0, np.int64)
    beyond = np.flatnonzero(positions >= segment.size_bytes)
    if len(beyond):
        raise CorruptFile(
            segment.sibling(FileKind.OFFSET_INDEX),
            int(beyond[0]) * ENTRY_BYTES,
            f"a position below the {segment.size_bytes} bytes of the log",
            int(positions[beyond[0]]),
        )
    wanted = np.arange(chunk_bytes, segment.size_bytes, chunk_bytes)
    at = np.unique(np.searchsorted(positions, wanted))
    cuts = [0, *positions[at[at < len(positions)]].tolist(), segment.size_bytes]
    for cut in cuts[1:-1]:
        _check_cut(segment, cut, int(np.searchsorted(positions, cut)))
    return [
        (
            Source(
                path=segment.path,
                inode=segment.inode,
                size_bytes=segment.size_bytes,
                mtime_ns=segment.mtime_ns,
                start=start,
                end=end,
                min_offset=segment.base_offset,
            ),
            positions,
        )
        for start, end in itertools.pairwise(cuts)
    ]


def _check_cut(segment: SegmentOnDisk, position: int, entry: int) -> None:
    """A cut in the middle of a batch would be taken for a damaged log: the index is what is wrong then."""
    with open(segment.path, "rb") as file:
        file.seek(position)
        head = file.read(17)
    size = int.from_bytes(head[8:12], "big", signed=True) + 12
    offset = int.from_bytes(head[:8], "big", signed=True)
    plausible = len(head) == 17 and head[16] <= 2 and 26 <= size <= segment.size_bytes - position
    if not plausible or not 0 <= offset - segment.base_offset < 2**31:
        raise CorruptFile(
            segment.sibling(FileKind.OFFSET_INDEX),
            entry * ENTRY_BYTES,
            "the position of a batch start",
            f"{position}, inside a batch",
        )
