"""What runs inside executors: plain picklable tasks around `index_chunk`, `resolve` and `rewrite_chunk`.

A task never raises for what is wrong with its log: the error is its answer, so that other logs of the job go on.
"""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from cleanerd.errors import CleanerdError, JobFailed, guarded
from cleanerd.kernels.newest import look_up
from cleanerd.kernels.tables import KeySet
from cleanerd.policy.winner import FINGERPRINT_BYTES
from cleanerd.spark_runtime.channel import Reporter
from cleanerd.spark_runtime.messages import Phase
from cleanerd.spark_runtime.place import AskedPlace, Place

from .block_store import Shipped, block_writer
from .index import Blocks, LogContext, combine, holders_of_buckets, index_chunk, resolve
from .one_pass import LookedUp, PassedOnce, Unforeseen
from .rewrite import rewrite_chunk
from .values import Bits, ChunkSummary, ChunkWork, PackedBits, Part, Verdicts

_T = TypeVar("_T")

_WORTH_COMBINING = 0.25
"""If a larger share of a bucket is left, to write the rest and read it again costs less than to find what may go."""

_COMBINED_RECORDS = 1 << 22  # 64 MiB of fingerprints that one task holds until it ships what is left of them

TaskAnswer = tuple[int, int, object]
"""(log number, chunk number, result or CleanerdError)."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Which competing records of one bucket of one chunk are superseded."""

    bucket: int
    superseded: PackedBits


Indexed = tuple[ChunkSummary, Blocks] | CleanerdError
"""An indexed chunk: its summary and its blocks."""
Told = tuple[ChunkSummary, dict[int, Shipped]] | CleanerdError
"""The same, with what travels for its blocks."""


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Index one chunk. `first_bucket` is where the log's buckets start among those of the job."""

    log: int
    chunk: int
    work: ChunkWork
    first_bucket: int

    @property
    def size_bytes(self) -> int:
        """Of log."""
        return self.work.source.size_bytes

    def run(self, contexts: list[LogContext], reporter: Reporter) -> Indexed:
        """The answer, told by this chunk alone."""

        def index() -> Indexed:
            context = contexts[self.log]
            with reporter.advance(context.number, Phase.INDEX) as advance:
                return index_chunk(self.work, context, advance)

        return in_task(index, self.work.source.path)

    def look_up(
        self, contexts: list[LogContext], reporter: Reporter, keys: Mapping[int, KeySet]
    ) -> tuple[ChunkSummary, list[Resolved]] | CleanerdError:
        """For a clean chunk: summary, and whether the dirty section (`keys`, by log) has a newer record of each key."""
        found = self.run(contexts, reporter)
        if isinstance(found, CleanerdError):
            return found
        summary, blocks = found
        bits = []
        for bucket, block in blocks.items():
            assert block.clean == len(block.fingerprints), "a clean chunk has no dirty record"
            numbers = np.full(len(block.fingerprints), bucket, np.int32)
            answers = look_up(keys[self.log], block.fingerprints, numbers)
            bits.append(Resolved(bucket, PackedBits.of(block.answered(answers))))
        return summary, bits


def each(step: Callable[..., _T]) -> Callable[..., Iterator[_T]]:
    """`step` for every task of a Spark task, alone."""
    return lambda tasks, *shared: (step(task, *shared) for task in tasks)


def index_together(
    tasks: Iterable[IndexTask], contexts: list[LogContext], reporter: Reporter, directory: str | None
) -> Iterator[Told]:
    """The chunks of one Spark task, in order; duplicates between them are resolved here. `directory`: see `block_store`."""
    return (told for _, told in _index_together(tasks, contexts, reporter, directory))


def _index_together(
    tasks: Iterable[IndexTask], contexts: list[LogContext], reporter: Reporter, directory: str | None
) -> Iterator[tuple[IndexTask, Told]]:
    with block_writer(directory) as put:
        for chunks in _held(tasks, contexts, reporter):
            _combine([(task.log, found) for task, found in chunks])
            for task, found in chunks:
                if isinstance(found, CleanerdError):
                    yield task, found
                else:
                    summary, blocks = found
                    yield task, (summary, {bucket: put(block) for bucket, block in blocks.items()})


def loaded(told: Told) -> Indexed:
    """With the blocks themselves. Raises OSError."""
    if isinstance(told, CleanerdError):
        return told
    summary, blocks = told
    return summary, {bucket: block.load() for bucket, block in blocks.items()}


def _held(
    tasks: Iterable[IndexTask], contexts: list[LogContext], reporter: Reporter
) -> Iterator[list[tuple[IndexTask, Indexed]]]:
    """Task and answer of as many chunks in a row as are held together."""
    held: list[tuple[IndexTask, Indexed]] = []
    competing = 0
    for task in tasks:
        found = task.run(contexts, reporter)
        held.append((task, found))
        competing += 0 if isinstance(found, CleanerdError) else found[0].competing
        if competing >= _COMBINED_RECORDS:
            yield held
            held, competing = [], 0
    yield held


def _combine(held: list[tuple[int, Indexed]]) -> None:
    """Leave out fingerprints that are known to be superseded, where that is many of them.

    The fullest buckets of a log come first, so one that a hot key fills is always looked at.
    """
    logs: dict[int, list[Blocks]] = defaultdict(list)
    for log, found in held:
        if not isinstance(found, CleanerdError):
            logs[log].append(found[1])
    for chunks in logs.values():
        buckets = holders_of_buckets(chunks)
        sizes = {
            bucket: sum(chunks[i][bucket].records for i in holders) for bucket, holders in buckets.items()
        }
        for bucket in sorted(sizes, key=lambda bucket: sizes[bucket], reverse=True):
            combined = combine([chunks[i][bucket] for i in buckets[bucket]])
            for i, block in zip(buckets[bucket], combined, strict=True):
                chunks[i][bucket] = block
            left = sum(len(block.fingerprints) for block in combined)
            if left > _WORTH_COMBINING * sizes[bucket]:
                break


def rows(
    tasks: Iterable[IndexTask],
    contexts: list[LogContext],
    reporter: Reporter,
    layout: "Layout",
    directory: str | None,
) -> Iterator[tuple[int, TaskAnswer]]:
    """`index_together` for the shuffle: a row per partition with all its blocks; the summaries travel with the first."""
    for task, found in _index_together(tasks, contexts, reporter, directory):
        if isinstance(found, CleanerdError):
            yield 0, (task.log, task.chunk, found)
            continue
        summary, blocks = found
        yield 0, (task.log, task.chunk, summary)
        members: dict[int, list[tuple[int, Shipped]]] = defaultdict(list)
        for bucket, block in blocks.items():
            members[layout.partition_of(task.first_bucket + bucket)].append((bucket, block))
        for partition, mine in members.items():
            yield partition, (task.log, task.chunk, mine)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the buckets of a job lie in the partitions of its shuffle: each partition holds a run of buckets."""

    buckets: int
    partitions: int

    def partition_of(self, bucket: int) -> int:
        """Partition of a bucket of the job."""
        return bucket * self.partitions // self.buckets


def resolve_partition(rows: Iterable[tuple[int, TaskAnswer]], reporter: Reporter) -> Iterator[TaskAnswer]:
    """All blocks of some buckets -> their bits, bucket by bucket; summaries pass through."""
    buckets: dict[tuple[int, int], list[tuple[int, Shipped]]] = defaultdict(list)
    for _, (log, chunk, value) in rows:
        if isinstance(value, list):
            for bucket, block in value:
                buckets[log, bucket].append((chunk, block))
        else:
            yield log, chunk, value
    for log, bucket in list(buckets):
        members = sorted(buckets.pop((log, bucket)), key=lambda member: member[0])
        bits = _resolved([block for _, block in members], reporter, log)
        for (chunk, _), superseded in zip(members, bits, strict=True):
            yield log, chunk, Resolved(bucket, PackedBits.of(superseded))


def _resolved(blocks: Iterable[Shipped], reporter: Reporter, number: int) -> list[Bits]:
    """The answers to the blocks of one bucket; a sign of life of log `number`. Raises OSError, EOFError."""
    bits, _ = resolve([block.load() for block in blocks])
    reporter.live(number, Phase.INDEX)
    return bits


class BlocksGone(JobFailed):
    """Blocks that an earlier step left in files went with their session."""


@dataclass(frozen=True, slots=True)
class ResolveTask:
    """Resolve one bucket of a log, whose blocks, in offset order, are those of so many `chunks`."""

    log: int
    bucket: int
    chunks: tuple[int, ...]
    blocks: tuple[Shipped, ...]

    @property
    def size_bytes(self) -> int:
        """Of log, about: as many are indexed in the time that this takes."""
        return 2 * FINGERPRINT_BYTES * sum(block.records for block in self.blocks)

    def run(self, contexts: list[LogContext], reporter: Reporter, _: object) -> PackedBits | CleanerdError:
        """The answers to all records of the blocks, in their order."""
        try:
            bits = _resolved(self.blocks, reporter, contexts[self.log].number)
        except (OSError, EOFError) as error:
            return BlocksGone(str(error))
        return PackedBits.of(np.concatenate(bits))


def by_chunk(answers: Sequence[tuple[ResolveTask, PackedBits]], chunks: int) -> Iterator[dict[int, Bits]]:
    """What all buckets of a log answer to its first chunk, to its second, ...: bucket -> one answer for each record.

    Unpacked chunk by chunk: together they would take a byte a record.
    """
    at, starts = [0] * len(answers), [0] * len(answers)
    for chunk in range(chunks):
        of_chunk: dict[int, Bits] = {}
        for number, (task, bits) in enumerate(answers):
            if at[number] < len(task.chunks) and task.chunks[at[number]] == chunk:
                end = starts[number] + task.blocks[at[number]].records
                of_chunk[task.bucket] = bits.part(starts[number], end)
                at[number], starts[number] = at[number] + 1, end
        yield of_chunk


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Rewrite one chunk to `part_path`, or only count with None. `place`: where in the file, if others write to it, too.

    Without `verdicts` its keys are looked up as they come (`one_pass`).
    """

    log: int
    chunk: int
    work: ChunkWork
    verdicts: Verdicts | None
    part_path: str | None
    index_interval_bytes: int
    least_free_bytes: int
    place: Place | None = None

    @property
    def size_bytes(self) -> int:
        """Of log."""
        return self.work.source.size_bytes

    def run(
        self,
        contexts: list[LogContext],
        reporter: Reporter,
        shared: tuple[Reporter | None, Mapping[int, KeySet]],
    ) -> Part | PassedOnce | Unforeseen | CleanerdError:
        """The part. `shared`: who is asked for its place, and by log the dirty keys that are looked up."""
        places, keys = shared
        asked = None if self.place is None or places is None else AskedPlace(self.place, places)

        def rewrite() -> Part | PassedOnce | Unforeseen:
            context = contexts[self.log]
            with (
                reporter.advance(context.number, Phase.REWRITE) as advance,
                reporter.advance(context.number, Phase.VERIFY) as verified,
            ):
                contest: Verdicts | LookedUp | None = self.verdicts
                if contest is None:
                    contest = LookedUp(self.work, context, keys[self.log])
                try:
                    part = rewrite_chunk(
                        self.work, context, contest, self.part_path, self.index_interval_bytes,
                        advance, verified, self.least_free_bytes, asked,
                    )  # fmt: skip
                except Unforeseen as unforeseen:
                    return unforeseen
                return contest.passed(part) if isinstance(contest, LookedUp) else part

        return in_task(rewrite, self.work.source.path)


def in_task(step: Callable[[], _T], where: str) -> _T | CleanerdError:
    """`errors.guarded`, inside a Spark task."""
    gc.freeze()  # a Spark worker collects garbage after every task: spare it the modules, 30 ms a task
    return guarded(step, where)
