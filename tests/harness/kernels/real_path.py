"""The path that a cleaning takes, without Spark: index_chunk, resolve, join_chunks, rewrite_chunk, over real files."""

import contextlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cleanerd.env.files import FileStat
from cleanerd.format.batch import iterate_batches
from cleanerd.format.errors import FormatError
from cleanerd.format.names import TopicPartition
from cleanerd.format.offset_index import ENTRY
from cleanerd.kernels.newest import key_set, look_up
from cleanerd.kernels.tables import Producers
from cleanerd.pipeline import chunks
from cleanerd.pipeline.index import (
    Blocks,
    LogContext,
    combine,
    holders_of_buckets,
    index_chunk,
    log_context,
    resolve,
    resolve_all,
)
from cleanerd.pipeline.part_file import PartFile
from cleanerd.pipeline.rewrite import rewrite_chunk
from cleanerd.pipeline.values import (
    Bits,
    ChunkSummary,
    ChunkWork,
    IndexedLog,
    IndexPart,
    LogWork,
    Part,
    Source,
)
from cleanerd.pipeline.whole_log import join_chunks
from cleanerd.policy.grouping import MAX_RELATIVE_OFFSET
from cleanerd.policy.verdicts import RecordVerdict
from tests.harness.kernels.reference import Cleaned, Facts, LastBatch
from tests.harness.logs.random_log import LogSegment

KEY = (0x0706050403020100, 0x0F0E0D0C0B0A0908)


@dataclass(frozen=True)
class Layout:
    """How the work is cut. None of it may change the result."""

    chunk_bytes: int = 1 << 20
    buckets: int = 1
    map_side: bool = False
    piece_bytes: int = chunks.PIECE_BYTES
    slice_bytes: int = chunks.SLICE_BYTES
    segments_per_group: int = 1
    combined_chunks: int = 1  # so many dirty chunks, or clean ones through files, share a task


class RealPath:
    """One round over one log, its files in `directory`."""

    def __init__(
        self, directory: Path, segments: Sequence[LogSegment], facts: Facts, layout: Layout | None = None
    ) -> None:
        self.facts = facts
        self.layout = layout or Layout()
        self.segments = segments
        self.directory = directory
        self.work = self._work()

    def clean(self) -> Cleaned:
        saved = chunks.PIECE_BYTES, chunks.SLICE_BYTES
        chunks.PIECE_BYTES, chunks.SLICE_BYTES = self.layout.piece_bytes, self.layout.slice_bytes
        try:
            self.indexed = self._index()
            if self.indexed.error is not None:
                raise self.indexed.error
            return self._rewrite(self.indexed)
        finally:
            chunks.PIECE_BYTES, chunks.SLICE_BYTES = saved

    def _work(self) -> LogWork:
        facts, work = self.facts, []
        self.segment_of_chunk: list[int] = []
        bases = [segment.base_offset for segment in self.segments] + [facts.round_end]
        for number, segment in enumerate(self.segments):
            path = self.directory / f"{segment.base_offset:020}.log"
            path.write_bytes(segment.data)
            stat = path.stat()
            positions = _positions(segment.data)
            named = positions[1::2]
            index_path = path.with_suffix(".index")
            index_path.write_bytes(_index(named))
            for start, end in _cuts(positions, len(segment.data), self.layout.chunk_bytes):
                source = Source(str(path), FileStat.of(stat), start, end, segment.base_offset)
                inside = [p for p in named if start <= p < end]
                work.append(
                    ChunkWork(
                        source=source,
                        group=number // self.layout.segments_per_group,
                        is_dirty=bases[number + 1] > facts.first_dirty_offset,
                        retain_legacy_deletes=segment.retain_legacy_deletes,
                        index=IndexPart(str(index_path), len([p for p in named if p < start]), len(inside)),
                        records_max=end - start,
                        dirty_records_max=end - start,
                    )
                )
                self.segment_of_chunk.append(number)
        return LogWork(
            topic_partition=TopicPartition("topic", 0),
            directory=str(self.directory),
            chunks=tuple(work),
            groups=len(self.segments),
            first_dirty_offset=facts.first_dirty_offset,
            round_end=facts.round_end,
            expired_ms=facts.now_ms,
            new_horizon_ms=-1 if facts.new_horizon_ms is None else facts.new_horizon_ms,
            index_interval_bytes=200,
            producers=producer_columns(facts.producers),
            aborted_txns=tuple(facts.aborted),
        )

    def context(self, markers: Sequence[int] = ()) -> LogContext:
        """What its chunks share; `markers`: those that may go."""
        return log_context(IndexedLog(self.work, KEY, self.layout.buckets), markers)

    def _index(self) -> IndexedLog:
        context = self.context()
        found = [index_chunk(chunk, context, _go_on) for chunk in self.work.chunks]
        summaries: list[ChunkSummary] = [summary for summary, _ in found]
        blocks = [blocks for _, blocks in found]
        _combine_runs(self.work.chunks, blocks, self.layout.combined_chunks)
        bits = self._resolve_map_side(blocks) if self.layout.map_side else resolve_all(blocks)[0]
        return join_chunks(IndexedLog(self.work, KEY, self.layout.buckets), summaries, bits)

    def _resolve_map_side(self, blocks: list[Blocks]) -> list[dict[int, Bits]]:
        bits: list[dict[int, Bits]] = [{} for _ in blocks]
        for bucket, holders in holders_of_buckets(blocks).items():
            dirty = [number for number in holders if self.work.chunks[number].is_dirty]
            answers, table = resolve([blocks[number][bucket] for number in dirty])
            for number, answer in zip(dirty, answers, strict=True):
                bits[number][bucket] = answer
            for number in set(holders) - set(dirty):
                block = blocks[number][bucket]
                buckets = np.full(len(block.fingerprints), bucket, np.int32)
                keys = key_set({bucket: table}, self.layout.buckets)
                bits[number][bucket] = block.answered(look_up(keys, block.fingerprints, buckets))
        return bits

    def _rewrite(self, indexed: IndexedLog) -> Cleaned:
        context = self.context(indexed.discardable_markers)
        result = Cleaned(
            segments=[b"" for _ in self.segments],
            counts=Counter(),
            discardable_markers=indexed.discardable_markers,
            kept_aborted=indexed.kept_aborted,
        )
        self.parts: list[Part] = []
        for number, chunk in enumerate(self.work.chunks):
            path = self.directory / f"{number}.part"
            verdicts = indexed.verdicts[number]
            assert verdicts is not None
            part = rewrite_chunk(chunk, context, verdicts, part_of(chunk, path), _go_on, _go_on)
            counted = rewrite_chunk(chunk, context, verdicts, None, _go_on, _go_on)
            assert np.array_equal(part.removed, counted.removed), "a dry run counts the same"
            assert (part.size_bytes, part.last_offset) == (counted.size_bytes, counted.last_offset)
            assert part.records_read == int(part.removed.sum())
            result.segments[self.segment_of_chunk[number]] += path.read_bytes()
            result.batches_kept += part.batches_kept
            for verdict in RecordVerdict:
                if part.removed[verdict]:
                    result.counts[verdict] += int(part.removed[verdict])
            self.parts.append(part)
            os.unlink(path)
        return result


def part_of(chunk: ChunkWork, path: Path) -> PartFile:
    return PartFile(str(path), chunk.source.path, 0)


def producer_columns(producers: Mapping[int, LastBatch]) -> Producers:
    """Columns of the judge; -1 where only a marker is known."""
    rows = sorted(
        (n, p.epoch, -1 if p.last_data_offset is None else p.last_data_offset) for n, p in producers.items()
    )
    return Producers(*np.array(rows, np.int64).reshape(-1, 3).T.copy())


def _go_on(read_bytes: int, written_bytes: int, records: int) -> None:
    assert read_bytes >= 0
    assert written_bytes >= 0
    assert records >= 0


def _positions(data: bytes) -> list[int]:
    found = []
    with contextlib.suppress(FormatError):
        for position, _, _ in iterate_batches(data):
            found.append(position)
    return found


def _index(positions: Sequence[int]) -> bytes:
    """Names these positions, for offsets above all of the segment."""
    first = MAX_RELATIVE_OFFSET - len(positions)
    return b"".join(ENTRY.pack(first + number, position) for number, position in enumerate(positions))


def _cuts(positions: list[int], size: int, chunk_bytes: int) -> list[tuple[int, int]]:
    cuts = [0]
    for position in positions:
        if position - cuts[-1] >= chunk_bytes:
            cuts.append(position)
    return list(zip(cuts, [*cuts[1:], size], strict=True)) if size else []


def _combine_runs(chunks: Sequence[ChunkWork], blocks: list[Blocks], run: int) -> None:
    """What the tasks do: chunks that share one tell each other; clean and dirty ones of the map-side plan never do."""
    for kind in (True, False):
        numbers = [number for number, chunk in enumerate(chunks) if chunk.is_dirty == kind]
        for first in range(0, len(numbers), run):
            together = numbers[first : first + run]
            for bucket, holders in holders_of_buckets([blocks[n] for n in together]).items():
                mine = [together[i] for i in holders]
                for number, block in zip(mine, combine([blocks[n][bucket] for n in mine]), strict=True):
                    blocks[number][bucket] = block
