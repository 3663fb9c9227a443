"""The tasks that run inside executors: picklable, around `index_chunk`, `resolve` and `rewrite_chunk`.

A task never raises for what is wrong with its log: the error is its answer, so that other logs of the job go on.
"""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

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
Numbers = npt.NDArray[np.int32]

_WORTH_COMBINING = 0.25
"""If a larger share of a bucket is left, writing and reading it again costs less than finding duplicates."""

_ROW_BYTES = 16  # chunk, records, fingerprints, those of the clean section

Indexed = tuple[ChunkSummary | CleanerdError, Blocks]
"""An indexed chunk: its summary and its blocks. One with an error has none."""


class ShippedBlocks(NamedTuple):
    """The blocks of one bucket of the chunks that a process held together, on their way from the index to the resolve step.

    All that grows with chunks or records lies in `data`: fingerprints, then a row a chunk, then packed bits of each chunk of
    which some are known to be superseded. A tuple: thousands of them are pickled.
    """

    log: int
    bucket: int
    chunks: int
    records: int
    fingerprints: int
    data: Shipped

    @staticmethod
    def of(log: int, bucket: int, blocks: Mapping[int, Block], put: Put) -> "ShippedBlocks":
        """Ship blocks, by chunk. Raises OSError."""
        rows = np.array(
            [(chunk, one.records, len(one.fingerprints), one.clean) for chunk, one in blocks.items()],
            np.uint32,
        )
        bits = (one.superseded for one in blocks.values() if len(one.fingerprints) < one.records)
        known = [one.packed for one in bits if one is not None]
        fingerprints = [one.fingerprints.reshape(-1).view(np.uint8) for one in blocks.values()]
        _, records, left, _ = rows.sum(axis=0, dtype=np.int64).tolist()
        data = put(np.concatenate([*fingerprints, rows.reshape(-1).view(np.uint8), *known]))
        return ShippedBlocks(log, bucket, len(blocks), records, left, data)

    @property
    def size_bytes(self) -> int:
        """Bytes of log whose indexing takes about as long as resolving these blocks."""
        return 2 * self.records * FINGERPRINT_BYTES

    def load(self) -> Iterator[tuple[int, Block]]:
        """The blocks, with their chunks. Raises OSError, EOFError."""
        data = load(self.data)
        at = self.fingerprints * FINGERPRINT_BYTES
        fingerprints = data[:at].view(np.uint64).reshape(-1, 2)
        bits_at = at + self.chunks * _ROW_BYTES
        first = 0
        for chunk, records, left, clean in data[at:bits_at].view(np.uint32).reshape(-1, 4).tolist():
            known = None
            if left < records:
                bits_end = bits_at + (records + 7) // 8
                known, bits_at = PackedBits(records, data[bits_at:bits_end]), bits_end
            yield chunk, Block(known, fingerprints[first : first + left], clean)
            first += left


IndexAnswer = tuple[ChunkSummary | CleanerdError, dict[int, ShippedBlocks]]
"""An indexed chunk. With the first of those that were held together come their blocks, by bucket of the job."""
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
    """The chunks of one process, as they come; duplicates are resolved here between those with so many records together."""
    for chunks in _held(held_records, tasks, *shared):
        # Tasks that come back from a lost process follow later ones; the order of offsets decides.
        in_order = sorted(chunks, key=lambda one: (one[0].log, one[0].chunk))
        _combine([(task.log, found) for task, found in in_order])
        shipped = _ship(chunks, put)
        for _, (summary, _) in chunks:
            yield summary, shipped
            shipped = {}


def _ship(held: list[tuple[IndexTask, Indexed]], put: Put) -> dict[int, ShippedBlocks]:
    found: dict[tuple[int, int, int], dict[int, Block]] = defaultdict(dict)
    for task, (_, blocks) in held:
        for bucket, block in blocks.items():
            found[task.first_bucket + bucket, task.log, bucket][task.chunk] = block
    return {
        of_job: ShippedBlocks.of(log, bucket, blocks, put) for (of_job, log, bucket), blocks in found.items()
    }


def loaded(answer: IndexAnswer) -> tuple[ChunkSummary | CleanerdError, dict[tuple[int, int], Blocks]]:
    """Load the blocks: (log, chunk) -> bucket of the log -> block. Raises OSError, EOFError."""
    summary, shipped = answer
    found: dict[tuple[int, int], Blocks] = defaultdict(dict)
    for one in shipped.values():
        for chunk, block in one.load():
            found[one.log, chunk][one.bucket] = block
    return summary, found


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
    chunks: Numbers
    counts: Numbers
    superseded: PackedBits


def resolve_bucket(shipped: Sequence[ShippedBlocks], shared: Common) -> ResolvedBucket:
    """All blocks of a bucket, from all chunks of a log. Raises OSError, EOFError."""
    contexts, reporter = shared
    log, bucket, *_ = shipped[0]
    blocks = {chunk: block for one in shipped for chunk, block in one.load()}
    assert len(blocks) == sum(one.chunks for one in shipped), "every chunk was indexed once"
    chunks = sorted(blocks)  # the order of offsets, which decides
    bits, _ = resolve([blocks[chunk] for chunk in chunks])
    reporter.live(contexts[log].number, Phase.INDEX)
    counts = np.array([len(one) for one in bits], np.int32)
    return ResolvedBucket(
        log, bucket, np.array(chunks, np.int32), counts, PackedBits.of(np.concatenate(bits))
    )


def by_chunk(resolved: Sequence[ResolvedBucket], chunks: int) -> Iterator[dict[int, Bits]]:
    """The answers of a log by chunk, in order: bucket -> one answer for each record of the chunk.

    Unpacked chunk by chunk: together they would take a byte a record.
    """
    at, starts = [0] * len(resolved), [0] * len(resolved)
    for chunk in range(chunks):
        of_chunk: dict[int, Bits] = {}
        for number, one in enumerate(resolved):
            if at[number] < len(one.chunks) and one.chunks[at[number]] == chunk:
                end = starts[number] + int(one.counts[at[number]])
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
