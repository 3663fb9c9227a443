"""The tasks that run inside executors: picklable, around `index_chunk`, `resolve` and `rewrite_chunk`.

A task never raises for what is wrong with its log: the error is its answer, so that other logs of the job go on.
"""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from cleanerd.errors import CleanerdError, ours, portable
from cleanerd.kernels.native import make_ready  # noqa: F401 - the runtime calls it, through `TASKS`
from cleanerd.kernels.newest import look_up
from cleanerd.kernels.tables import KeySet
from cleanerd.policy.winner import FINGERPRINT_BYTES
from cleanerd.spark_runtime.block_store import Put, Shipped, load
from cleanerd.spark_runtime.channel import Reporter
from cleanerd.spark_runtime.messages import Phase, Place
from cleanerd.spark_runtime.place import PlaceClient

from .index import Block, Blocks, LogContext, combine, holders_of_buckets, index_chunk, resolve
from .one_pass import LookedUp, NeedsWholeLog, PassedOnce
from .part_file import PartFile, gone_if_it_fails, path_of_attempt
from .rewrite import rewrite_chunk
from .values import Bits, ChunkSummary, ChunkWork, PackedBits, Part, Verdicts

_T = TypeVar("_T")

_WORTH_COMBINING = 0.25
"""If a larger share of a bucket is left, writing and reading it again costs less than finding duplicates."""


Indexed = tuple[ChunkSummary | CleanerdError, Blocks]
"""An indexed chunk: its summary and its blocks. One with an error has none."""


class ShippedBlock(NamedTuple):
    """A `Block` on its way from the index to the resolve step. A tuple: thousands of them are pickled."""

    log: int
    chunk: int
    bucket: int
    superseded: PackedBits | None
    fingerprints: Shipped
    clean: int

    @property
    def size_bytes(self) -> int:
        """Bytes of log whose indexing takes about as long as resolving this block."""
        known = self.superseded
        return 2 * (self.fingerprints.nbytes if known is None else known.count * FINGERPRINT_BYTES)

    def load(self) -> Block:
        """The block. Raises OSError, EOFError."""
        fingerprints = load(self.fingerprints).view(np.uint64).reshape(-1, 2)
        return Block(self.superseded, fingerprints, self.clean)


IndexAnswer = tuple[ChunkSummary | CleanerdError, dict[int, ShippedBlock]]
"""An indexed chunk, with references to its shipped blocks by bucket of the job."""
Common = tuple[list[LogContext], Reporter]
"""The values shared by all tasks of a step, and by some later steps."""


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Index one chunk. `first_bucket` is where the log's buckets start among those of the job."""

    log: int
    chunk: int
    work: ChunkWork
    first_bucket: int

    @property
    def size_bytes(self) -> int:
        """Bytes of log."""
        return self.work.source.size_bytes

    def run(self, contexts: list[LogContext], reporter: Reporter) -> Indexed:
        """The answer, from this chunk alone."""

        def index() -> Indexed:
            context = contexts[self.log]
            with reporter.advance(context.number, Phase.INDEX) as advance:
                return index_chunk(self.work, context, advance)

        found = in_task(index, self.work.source.path)
        return (found, {}) if isinstance(found, CleanerdError) else found

    def look_up(
        self, contexts: list[LogContext], reporter: Reporter, keys: Mapping[int, KeySet]
    ) -> tuple[ChunkSummary | CleanerdError, dict[int, PackedBits]]:
        """Look up a clean chunk: summary, and whether the dirty section (`keys`, by log) has a newer record of each key."""
        summary, blocks = self.run(contexts, reporter)
        bits: dict[int, PackedBits] = {}
        for bucket, block in blocks.items():
            assert block.clean == len(block.fingerprints), "a clean chunk has no dirty record"
            numbers = np.full(len(block.fingerprints), bucket, np.int32)
            answers = look_up(keys[self.log], block.fingerprints, numbers)
            bits[bucket] = PackedBits.of(block.answered(answers))
        return summary, bits


def each(step: Callable[..., _T]) -> Callable[[Iterable[Any], Sequence[Any], Put], Iterator[_T]]:
    """Apply `step` to every task by itself."""
    return lambda tasks, shared, _: (step(task, *shared) for task in tasks)


def index_together(
    held_records: int, tasks: Iterable[IndexTask], shared: Common, put: Put
) -> Iterator[IndexAnswer]:
    """The chunks of one process, in order; duplicates are resolved here between those with so many records together."""
    for chunks in _held(held_records, tasks, *shared):
        _combine([(task.log, found) for task, found in chunks])
        for task, (summary, blocks) in chunks:
            yield summary, {task.first_bucket + b: _ship(task, b, block, put) for b, block in blocks.items()}


def _ship(task: IndexTask, bucket: int, block: Block, put: Put) -> ShippedBlock:
    fingerprints = put(block.fingerprints.reshape(-1).view(np.uint8))
    return ShippedBlock(task.log, task.chunk, bucket, block.superseded, fingerprints, block.clean)


def loaded(answer: IndexAnswer) -> tuple[ChunkSummary | CleanerdError, Blocks]:
    """Load the blocks, by bucket of their log. Raises OSError."""
    summary, blocks = answer
    return summary, {block.bucket: block.load() for block in blocks.values()}


def _held(
    held_records: int, tasks: Iterable[IndexTask], contexts: list[LogContext], reporter: Reporter
) -> Iterator[list[tuple[IndexTask, Indexed]]]:
    """Tasks and answers, as many chunks at a time as are held together."""
    held: list[tuple[IndexTask, Indexed]] = []
    competing = 0
    for task in tasks:
        found = task.run(contexts, reporter)
        held.append((task, found))
        competing += sum(block.records for block in found[1].values())
        if competing >= held_records:
            yield held
            held, competing = [], 0
    yield held


def _combine(held: list[tuple[int, Indexed]]) -> None:
    """Leave out fingerprints that are known to be superseded, where there are many.

    The fullest buckets of a log come first, so one that a hot key fills is always looked at.
    """
    logs: dict[int, list[Blocks]] = defaultdict(list)
    for log, (_, blocks) in held:
        logs[log].append(blocks)
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


class ResolvedBucket(NamedTuple):
    """The answers to all records of a bucket: those of the first of `chunks`, then of the second, ..."""

    log: int
    bucket: int
    chunks: tuple[int, ...]
    counts: tuple[int, ...]
    superseded: PackedBits


def resolve_bucket(blocks: Iterable[ShippedBlock], shared: Common) -> ResolvedBucket:
    """All blocks of a bucket, from all chunks of a log. Raises OSError, EOFError."""
    contexts, reporter = shared
    ordered = sorted(blocks, key=lambda block: block.chunk)  # the order of offsets, which decides
    log, _, bucket, *_ = ordered[0]
    bits, _ = resolve([block.load() for block in ordered])
    reporter.live(contexts[log].number, Phase.INDEX)
    chunks, counts = tuple(block.chunk for block in ordered), tuple(map(len, bits))
    return ResolvedBucket(log, bucket, chunks, counts, PackedBits.of(np.concatenate(bits)))


def by_chunk(resolved: Sequence[ResolvedBucket], chunks: int) -> Iterator[dict[int, Bits]]:
    """The answers of a log by chunk, in order: bucket -> one answer for each record of the chunk.

    Unpacked chunk by chunk: together they would take a byte a record.
    """
    at, starts = [0] * len(resolved), [0] * len(resolved)
    for chunk in range(chunks):
        of_chunk: dict[int, Bits] = {}
        for number, one in enumerate(resolved):
            if at[number] < len(one.chunks) and one.chunks[at[number]] == chunk:
                end = starts[number] + one.counts[at[number]]
                of_chunk[one.bucket] = one.superseded.part(starts[number], end)
                at[number], starts[number] = at[number] + 1, end
        yield of_chunk


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Rewrite one chunk to `part_path`, or only count with None. `place`: where in the file, if others write to it, too.

    Else each attempt writes to a file of its own (`path_of_attempt`): on a cluster there may be two at a time.
    Without `verdicts` its keys are looked up as they come (`one_pass`).
    """

    log: int
    chunk: int
    work: ChunkWork
    verdicts: Verdicts | None
    part_path: str | None
    least_free_bytes: int
    held_bytes: int
    place: Place | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of log."""
        return self.work.source.size_bytes

    def run(
        self,
        contexts: list[LogContext],
        reporter: Reporter,
        places: Reporter | None,
        keys: Mapping[int, KeySet],
    ) -> Part | PassedOnce | NeedsWholeLog | CleanerdError:
        """Rewrite a chunk. `places`: the client to ask for its place; `keys`: by log, the dirty keys to look up."""
        asked = None if self.place is None or places is None else PlaceClient(self.place, places)
        out = own = None
        if self.part_path is not None:
            own = path_of_attempt(self.part_path) if self.place is None else None
            out = PartFile(
                own or self.part_path, self.work.source.path, self.least_free_bytes,
                asked=asked, held_bytes=self.held_bytes,
            )  # fmt: skip

        def rewrite() -> Part | PassedOnce | NeedsWholeLog:
            context = contexts[self.log]
            with (
                gone_if_it_fails(own),  # the last reports, too
                reporter.advance(context.number, Phase.REWRITE) as advance,
                reporter.advance(context.number, Phase.VERIFY) as verified,
            ):
                contest: Verdicts | LookedUp | None = self.verdicts
                if contest is None:
                    contest = LookedUp(self.work, context, keys[self.log])
                try:
                    part = rewrite_chunk(self.work, context, contest, out, advance, verified)
                except NeedsWholeLog as answer:
                    return answer
                return contest.passed(part) if isinstance(contest, LookedUp) else part

        return in_task(rewrite, self.work.source.path)


def in_task(step: Callable[[], _T], where: str) -> _T | CleanerdError:
    """Result of `step` inside a Spark task, or what went wrong: an answer that can be sent."""
    gc.freeze()  # a Spark worker collects garbage after every task: spare it the modules, 30 ms a task
    try:
        return step()
    except Exception as error:  # noqa: BLE001 - a defect, or a file that asks for all memory, ends one log
        return portable(ours(error, where))
