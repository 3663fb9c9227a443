"""What runs inside executors: plain picklable tasks around `index_chunk`, `resolve` and `rewrite_chunk`.

A task never raises for what is wrong with its log: the error is its answer, so that other logs of the job go on.
"""

import gc
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from cleanerd.errors import CleanerdError, LogUncleanable, from_os_error
from cleanerd.kernels.fingerprint import Fingerprints
from cleanerd.kernels.newest import mark_superseded

from .channel import Phase, Reporter
from .chunks import ChunkWork
from .index import Bits, Block, ChunkSummary, LogContext, index_chunk, resolve
from .rewrite import Part, Verdicts, rewrite_chunk

_T = TypeVar("_T")

Answer = tuple[int, int, object]
"""(log number, chunk number, result or CleanerdError)."""


@dataclass(frozen=True, slots=True)
class PackedBits:
    """Answers of one bucket for one chunk, eight to a byte."""

    bucket: int
    count: int
    packed: npt.NDArray[np.uint8]

    def unpack(self) -> Bits:
        """The bits."""
        return np.unpackbits(self.packed, count=self.count).view(np.bool_)


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Index one chunk. `first_bucket` is where the log's buckets start among those of the job."""

    log: int
    chunk: int
    work: ChunkWork
    first_bucket: int

    def run(
        self, contexts: list[LogContext], reporter: Reporter
    ) -> tuple[ChunkSummary, list[Block]] | CleanerdError:
        """Summary and one block per bucket."""
        advance = reporter.advance(self.log, Phase.INDEX)
        return guarded(lambda: index_chunk(self.work, contexts[self.log], advance), self.work.source.path)

    def look_up(
        self, contexts: list[LogContext], reporter: Reporter, tables: dict[tuple[int, int], Fingerprints]
    ) -> tuple[ChunkSummary, list[PackedBits]] | CleanerdError:
        """For a clean chunk: summary, and whether the dirty section (`tables`) has a newer record of each key."""
        found = self.run(contexts, reporter)
        if isinstance(found, CleanerdError):
            return found
        summary, blocks = found
        bits = []
        for bucket, block in enumerate(blocks):
            assert block.clean == len(block.fingerprints), "a clean chunk has no dirty record"
            superseded = mark_superseded(block.fingerprints, block.clean, tables[self.log, bucket])
            bits.append(PackedBits(bucket, len(superseded), np.packbits(superseded)))
        return summary, bits

    def rows(
        self, contexts: list[LogContext], reporter: Reporter, layout: "Layout"
    ) -> Iterator[tuple[int, Answer]]:
        """The same for the shuffle: a row per partition with all its blocks; the summary travels with the first."""
        found = self.run(contexts, reporter)
        if isinstance(found, CleanerdError):
            yield 0, (self.log, self.chunk, found)
            return
        summary, blocks = found
        yield 0, (self.log, self.chunk, summary)
        rows: dict[int, list[tuple[int, Block]]] = defaultdict(list)
        for bucket, block in enumerate(blocks):
            if len(block.fingerprints):
                rows[layout.partition_of(self.first_bucket + bucket)].append((bucket, block))
        for partition, members in rows.items():
            yield partition, (self.log, self.chunk, members)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the buckets of a job lie in the partitions of its shuffle: each partition holds a run of buckets."""

    buckets: int
    partitions: int

    def partition_of(self, bucket: int) -> int:
        """Partition of a bucket of the job."""
        return bucket * self.partitions // self.buckets


def resolve_partition(rows: Iterable[tuple[int, Answer]]) -> Iterator[Answer]:
    """All blocks of some buckets -> their bits, bucket by bucket; summaries pass through."""
    buckets: dict[tuple[int, int], list[tuple[int, Block]]] = defaultdict(list)
    for _, (log, chunk, value) in rows:
        if isinstance(value, list):
            for bucket, block in value:
                buckets[log, bucket].append((chunk, block))
        else:
            yield log, chunk, value
    for log, bucket in list(buckets):
        members = sorted(buckets.pop((log, bucket)), key=lambda member: member[0])
        bits, _ = resolve([block for _, block in members])
        for (chunk, _), superseded in zip(members, bits, strict=True):
            yield log, chunk, PackedBits(bucket, len(superseded), np.packbits(superseded))


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Rewrite one chunk to `part_path`, or only count with None."""

    log: int
    chunk: int
    work: ChunkWork
    verdicts: Verdicts
    part_path: str | None
    index_interval_bytes: int

    def run(self, contexts: list[LogContext], reporter: Reporter) -> Part | CleanerdError:
        """The part."""
        return guarded(
            lambda: rewrite_chunk(
                self.work,
                contexts[self.log],
                self.verdicts,
                self.part_path,
                self.index_interval_bytes,
                reporter.advance(self.log, Phase.REWRITE),
                reporter.advance(self.log, Phase.VERIFY),
            ),
            self.work.source.path,
        )


def guarded(step: Callable[[], _T], where: str) -> _T | CleanerdError:
    """Result of `step`, or what went wrong with this log as a value; `where` is the file it is about."""
    gc.freeze()  # a Spark worker collects garbage after every task: spare it the modules, 30 ms a task
    try:
        return step()
    except CleanerdError as error:
        return error
    except OSError as error:
        return from_os_error(error, where)
    except Exception as error:  # noqa: BLE001  # the failure boundary of a task: a defect parks one log, not the job
        line = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error}"
        return LogUncleanable(f"{where}: internal error at {line.name}:{line.lineno}: {what}")
