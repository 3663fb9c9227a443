"""Steps 4 to 7 of a cleaning as steps of an executor: which block goes where (architecture 4).

Four physical plans for one logical plan:

small log      Up to 16 MiB: one task does all of it (`small_log`).
map-side       The dirty records of the job fit the dedupe budget, and there are clean ones. Fingerprints of the dirty ones
               come to this process, which resolves them; the sets of keys are shared, and clean chunks look their keys up:
               nothing there supersedes (`policy.winner`).
in one pass    The same, but clean chunks are looked up when they are rewritten, and read once (`one_pass`).
through files  Else blocks lie in files of the hosts that made them, and a bucket is a task of a step of its own: it reads
               all of its blocks, within the budget, and one bit a record comes back (`Executor.exchange`). Any number of
               keys, one pass.

All plans answer with the same bits in the same order, so what follows the resolve step is common. One log's damaged chunk or
failing disk is an answer, not an exception: other logs of the job go on.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain, count
from typing import Any

import numpy as np

from cleanerd.env.files import RealFiles
from cleanerd.errors import Aborted, CleanerdError, LogUncleanable
from cleanerd.format.names import FileKind, Suffix, segment_path
from cleanerd.kernels.fingerprint import MAX_BUCKETS
from cleanerd.kernels.newest import key_set
from cleanerd.kernels.tables import KeySet
from cleanerd.policy.winner import FINGERPRINT_BYTES, KEY_BYTES
from cleanerd.spark_runtime.channel import Reporter
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.messages import Phase, Place
from cleanerd.spark_runtime.place import places
from cleanerd.spark_runtime.resident_job import TaskStep
from cleanerd.spark_runtime.task_queue import TURN_BYTES

from .chunks import PIECE_BYTES
from .index import Blocks, LogContext, log_context, resolve_all
from .one_pass import NeedsWholeLog, PassedOnce, one_pass_chunks
from .small_log import SmallLogTask, is_small
from .tasks import (
    IndexTask,
    ResolvedBucket,
    RewriteTask,
    by_chunk,
    each,
    index_together,
    loaded,
    resolve_bucket,
)
from .values import Bits, ChunkSummary, IndexedLog, LogWork, PackedBits, Part, RewrittenLog
from .whole_log import foreseen, join_chunks, join_rest, too_large

BUCKET_RECORDS = 1 << 18
"""A set of this many keys stays in the caches, which makes it ten times as fast as one large set."""
_BLOCKS_MAX = 1 << 17
"""Of a log, one for each bucket of the chunks that a process holds together: each costs this process half a kilobyte. Where
there would be more, buckets are larger, as far as the budget allows all cores together."""
_BLOCKS_MANY = 1 << 20
"""To stay below half a GiB of them, a bucket takes all of the budget, on each core."""
_BLOCKS_LIMIT = 1 << 22
"""With more than 2 GiB of them a log is refused: a larger budget makes fewer, by its square."""
_RECORD_BYTES_MIN = 7  # no block is empty

_HELD_RECORDS_MAX = 1 << 22  # more find few duplicates more

ChunkOf = tuple[int, int]
"""(log number, chunk number)"""


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory for keys (log.cleaner.dedupe.buffer.size x log.cleaner.io.buffer.load.factor), and for what is written.

    `bytes`: of the keys of one bucket, and of all that tasks hold while they index. `io_bytes`: log.cleaner.io.buffer.size.
    `part_bytes`: what a task may hold of a part in any case; more than an ordinary chunk keeps.
    """

    bytes: int
    io_bytes: int = 0
    part_bytes: int = 80 << 20

    @property
    def records(self) -> int:
        """Number of records with distinct keys that fit, with their fingerprints and the set for these."""
        return max(int(self.bytes / KEY_BYTES), 1)

    def held_records(self, cores: int) -> int:
        """Records whose fingerprints a task holds before it ships those that are left; a chunk is held whole."""
        return max(min(self.bytes // cores // FINGERPRINT_BYTES, _HELD_RECORDS_MAX), 1)

    def held_bytes(self, cores: int) -> int:
        """Bytes of a part that its task holds."""
        return max(self.io_bytes // cores - PIECE_BYTES, self.part_bytes)


class Pipeline:
    """Runs the steps of one or several logs as common Spark jobs."""

    def __init__(
        self,
        session: LazySpark,
        budget: Budget,
        reporter: Reporter,
        begun: Callable[[], object] = lambda: None,
    ) -> None:
        """`begun` is called whenever all is prepared for tasks to run: for a while there is little to do in this process."""
        self._executor = session.executor()
        self._budget = budget
        self._reporter = reporter
        self._begun = begun

    def together(self, logs: Sequence[LogWork]) -> AbstractContextManager[None]:
        """Let the steps on these logs share one Spark job inside the block, where that pays."""
        size_bytes = sum(log.size_bytes for log in logs)
        return self._executor.together(size_bytes, sum(len(log.chunks) for log in logs))

    def release(self) -> None:
        """Release the common job, if there is one; later steps are jobs of their own."""
        self._executor.release()

    def index(self, logs: Sequence[LogWork], keys: Sequence[tuple[int, int]]) -> list[IndexedLog]:
        """Index and resolve. `keys[i]` is the fingerprint key of log i, fresh for every cleaning."""
        fits = sum(log.dirty_records_max for log in logs) <= self._budget.records
        # Without a clean section nothing is looked up: then files bring the blocks together on all cores, and not on one.
        if fits and not all(chunk.is_dirty for log in logs for chunk in log.chunks):
            return self._index_map_side(logs, keys, in_one_pass=True)
        return self._index_by_bucket(logs, keys)

    def is_small(self, work: LogWork) -> bool:
        """Whether `clean_small` may take a log."""
        return is_small(work, self._budget.bytes // self._executor.cores)

    def clean_small(
        self, logs: Sequence[LogWork], keys: Sequence[tuple[int, int]]
    ) -> list[tuple[IndexedLog, RewrittenLog | None]]:
        """Index and rewrite logs that `is_small`, each in one task. None: it has still to be rewritten (`small_log`)."""
        tasks = [
            SmallLogTask(IndexedLog(log, key, _buckets(log.records_max, BUCKET_RECORDS)))
            for log, key in zip(logs, keys, strict=True)
        ]
        run = each(lambda task, _, reporter: task.run(reporter))
        cleaned: list[tuple[IndexedLog, RewrittenLog | None]] = []
        for task, (indexed, rewritten) in self._run(tasks, [], run):
            indexed.work = task.indexed.work
            cleaned.append((indexed, rewritten))
        return cleaned

    def rewrite(self, logs: Sequence[IndexedLog], *, write: bool) -> list[RewrittenLog]:
        """Rewrite the changed groups and verify what was written; with `write` False only count (dry run).

        A log whose new segment would be too large with the codec of its topic keeps those of its batches.
        """
        rewritten, needs_whole_log = self._rewrite(logs, write=write)
        if needs_whole_log:
            self._read_rest([logs[number] for number in needs_whole_log])
        overgrown = [n for n, log in enumerate(rewritten) if log.indexed.work.recodes and too_large(log)]
        for number in overgrown:
            logs[number].work = replace(logs[number].work, topic_codec=None)
        again = [*needs_whole_log, *overgrown]
        for number in again:
            _drop_parts(rewritten[number])
        done, _ = self._rewrite([logs[number] for number in again], write=write)
        for number, log in zip(again, done, strict=True):
            rewritten[number] = log
        return rewritten

    def _rewrite(self, logs: Sequence[IndexedLog], *, write: bool) -> tuple[list[RewrittenLog], list[int]]:
        """Rewrite; returns the logs, and the numbers of those that have to be read as a whole first (`one_pass`)."""
        held_bytes = self._budget.held_bytes(self._executor.cores)
        tasks = [
            task
            for number, log in enumerate(logs)
            if log.error is None
            for task in _rewrite_tasks(log, number, held_bytes, write)
        ]
        contexts = [log_context(log, log.discardable_markers) for log in logs]
        keys = {number: log.dirty_keys for number, log in enumerate(logs) if log.dirty_keys is not None}
        result = [RewrittenLog(log, log.error) for log in logs]
        found: dict[int, dict[int, tuple[ChunkSummary, int]]] = defaultdict(dict)
        needs_whole_log: set[int] = set()
        step = TaskStep(
            tasks, each(RewriteTask.run), lambda: self._common(tasks, contexts, keys), self._begun
        )
        for task, answer in zip(tasks, self._executor.run(step), strict=True):
            log = result[task.log]
            if isinstance(answer, NeedsWholeLog):
                needs_whole_log.add(task.log)
            elif isinstance(answer, CleanerdError):
                log.error = log.error or answer
            else:
                part = answer
                if isinstance(answer, PassedOnce):
                    found[task.log][task.chunk] = answer.summary, answer.superseded
                    part = answer.part
                assert isinstance(part, Part)
                log.parts.setdefault(task.work.group, []).append(part)
        for number, log in enumerate(result):
            log.error = log.error or join_rest(log.indexed, found[number]) or too_large(log)
            if write and not log.indexed.later_groups:
                log.indexed.dirty_keys = None
        return result, sorted(needs_whole_log)

    @contextmanager
    def _common(
        self, tasks: Sequence[RewriteTask], contexts: list[LogContext], keys: Mapping[int, KeySet]
    ) -> Iterator[tuple[list[LogContext], Reporter, Reporter | None, Mapping[int, KeySet]]]:
        """Values shared by rewrite tasks: addresses to ask for places, and the keys of logs that are read in one pass."""
        is_placed = any(task.place is not None for task in tasks)
        with places() if is_placed else nullcontext() as asked:
            yield contexts, self._reporter, asked, keys

    def _read_rest(self, logs: Sequence[IndexedLog]) -> None:
        """Index all chunks of these logs again. Groups that were to be rewritten still are."""
        whole = self._index_map_side([log.work for log in logs], [log.key for log in logs], in_one_pass=False)
        for log, read in zip(logs, whole, strict=True):
            # Those before the last of this round are part of it: nothing goes from a group before it has from earlier ones.
            changed, later, last = (
                log.changed_groups | read.changed_groups,
                log.later_groups,
                max(log.groups_now),
            )
            later |= {group for group in changed if later and group > last}
            for field in fields(IndexedLog):
                setattr(log, field.name, getattr(read, field.name))
            log.changed_groups, log.later_groups = changed, later

    def _index_map_side(
        self, logs: Sequence[LogWork], keys: Sequence[tuple[int, int]], *, in_one_pass: bool
    ) -> list[IndexedLog]:
        indexed = [
            IndexedLog(log, key, _buckets(log.dirty_records_max, BUCKET_RECORDS))
            for log, key in zip(logs, keys, strict=True)
        ]
        contexts = [log_context(log, ()) for log in indexed]
        summaries: dict[ChunkOf, ChunkSummary | CleanerdError] = {}
        bits: dict[ChunkOf, dict[int, Bits]] = {}
        # Of clean chunks, for which a byte a record would be too many. None: of one that is read when it is rewritten.
        packed: dict[ChunkOf, Mapping[int, PackedBits] | None] = {}
        blocks: dict[ChunkOf, Blocks] = {}
        # The dirty section first: nothing in the clean one supersedes, so its keys alone decide there.
        dirty = _index_tasks(indexed, dirty=True)
        for task, (summary, found) in self._run(dirty, contexts, self._index_together(), take=loaded):
            summaries[task.log, task.chunk] = summary
            blocks.setdefault((task.log, task.chunk), {})
            blocks.update(found)
        clean = _index_tasks(indexed, dirty=False)
        with ThreadPoolExecutor(self._executor.cores, "cleanerd-resolve") as threads:
            dirty_keys = _resolve_here(indexed, blocks, bits, threads, {task.log for task in clean})
        chosen: set[ChunkOf] = set()  # looked up and rewritten in one pass
        if in_one_pass:
            # A log with a damaged dirty chunk, or with transactions there, is read as a whole before any of it is rewritten.
            whole = {log for (log, _), summary in summaries.items() if _is_of_whole_log(summary)}
            for number in dirty_keys.keys() - whole:
                changes = indexed[number].work.renewed_groups | {
                    work.group
                    for chunk, work in enumerate(indexed[number].work.chunks)
                    if work.is_dirty and _is_changed(summaries[number, chunk], bits[number, chunk])
                }
                together = self._in_one_pass(indexed[number], changes, dirty_keys[number])
                chosen |= {(number, chunk) for chunk in together}

        def look_up(tasks: list[IndexTask]) -> None:
            for task, found in self._run(tasks, contexts, each(IndexTask.look_up), dirty_keys):
                summaries[task.log, task.chunk], packed[task.log, task.chunk] = found

        look_up([task for task in clean if (task.log, task.chunk) not in chosen])
        # Clean chunks that have been read now may show the same of their log: then none of it is left for one pass.
        whole = {log for (log, _), summary in summaries.items() if _is_of_whole_log(summary)}
        look_up([task for task in clean if (task.log, task.chunk) in chosen and task.log in whole])
        for log, chunk in sorted(chosen - packed.keys()):
            indexed[log].dirty_keys = dirty_keys[log]
            summaries[log, chunk], packed[log, chunk] = foreseen(indexed[log].work.chunks[chunk]), None
        assert summaries.keys() == bits.keys() | packed.keys(), (
            "every chunk is indexed, and every record of it has an answer"
        )
        return _join_all(
            indexed, summaries, (_of_log(number, log, bits, packed) for number, log in enumerate(indexed))
        )

    def _in_one_pass(self, log: IndexedLog, changes: Collection[int], keys: KeySet) -> list[int]:
        """The clean chunks of a log to look up during the rewrite. `changes`: groups that are known to change."""
        chosen: list[int] = []
        if log.work.in_place and not (log.work.aborted_txns or log.work.recodes):
            with (
                suppress(Aborted),  # its next task gets the same answer
                self._reporter.advance(log.work.number, Phase.INDEX) as advance,
            ):
                chosen += one_pass_chunks(log, changes, keys, advance)
        return chosen

    def _index_by_bucket(self, logs: Sequence[LogWork], keys: Sequence[tuple[int, int]]) -> list[IndexedLog]:
        cores = self._executor.cores
        indexed = [
            IndexedLog(
                log, key, _buckets_of_files(log, self._budget, cores), _too_many(log, self._budget, cores)
            )
            for log, key in zip(logs, keys, strict=True)
        ]
        contexts, tasks = [log_context(log, ()) for log in indexed], _index_tasks(indexed, dirty=None)
        step = TaskStep(
            tasks, self._index_together(), lambda: nullcontext((contexts, self._reporter)), self._begun
        )
        found, resolved = self._executor.exchange(step, resolve_bucket)
        summaries = {(task.log, task.chunk): one for task, one in zip(tasks, found, strict=True)}
        of_log: dict[int, list[ResolvedBucket]] = defaultdict(list)
        for one in resolved:
            assert one.counts.sum(dtype=np.int64) == one.superseded.count, (
                "every record of a bucket has an answer"
            )
            of_log[one.log].append(one)
        bits = [by_chunk(of_log[number], len(log.work.chunks)) for number, log in enumerate(indexed)]
        return _join_all(indexed, summaries, bits)

    def _index_together(self) -> Callable[..., Any]:
        return partial(index_together, self._budget.held_records(self._executor.cores))

    def _run(
        self,
        tasks: list[Any],
        contexts: list[LogContext],
        do: Callable[..., Any],
        *more: object,
        take: Callable[[Any], Any] = lambda answer: answer,
    ) -> Iterator[tuple[Any, Any]]:
        """Run a step; returns (task, answer) in order. `more`: shared values beside contexts and reporter."""
        step = TaskStep(tasks, do, lambda: nullcontext((contexts, self._reporter, *more)), self._begun, take)
        return zip(tasks, self._executor.run(step), strict=True)


def _buckets(records: int, per_bucket: int) -> int:
    """A power of two, so that a bucket holds `per_bucket` records at most on average."""
    wanted = max(-(-records // per_bucket), 1)
    return min(1 << (wanted - 1).bit_length(), MAX_BUCKETS)


def _buckets_of_files(log: LogWork, budget: Budget, cores: int) -> int:
    held = _held_together(log, budget, cores)
    wanted = min(log.records_max * held // _BLOCKS_MAX, budget.records // cores)
    buckets = _buckets(log.records_max, min(max(BUCKET_RECORDS, wanted), budget.records))
    return buckets if buckets * held <= _BLOCKS_MANY else _buckets(log.records_max, budget.records)


def _held_together(log: LogWork, budget: Budget, cores: int) -> int:
    """How many times, at most, a process ships the chunks that it holds: when it has enough, or its Spark task ends."""
    enough = log.records_max // budget.held_records(cores)
    return min(enough + log.size_bytes // TURN_BYTES + cores, len(log.chunks))


def _too_many(log: LogWork, budget: Budget, cores: int) -> LogUncleanable | None:
    """The error for a log whose blocks would take more memory of this process than they are worth."""

    def blocks(times: int) -> int:
        larger = replace(budget, bytes=budget.bytes * times)
        found = _buckets_of_files(log, larger, cores) * _held_together(log, larger, cores)
        return min(found, log.size_bytes // _RECORD_BYTES_MIN)

    times = next(times for times in (1 << shift for shift in count()) if blocks(times) <= _BLOCKS_LIMIT)
    if times == 1:
        return None
    return LogUncleanable(
        f"{log.directory}: up to {log.records_max} records need a log.cleaner.dedupe.buffer.size of {times} times what it is"
    )


def _index_tasks(logs: Sequence[IndexedLog], *, dirty: bool | None) -> list[IndexTask]:
    """Tasks for the dirty chunks, the clean ones, or all (None)."""
    tasks, first_bucket = [], 0
    for number, log in enumerate(logs):
        tasks += [
            IndexTask(number, chunk, work, first_bucket)
            for chunk, work in enumerate(log.work.chunks)
            if log.error is None and (dirty is None or work.is_dirty == dirty)
        ]
        first_bucket += log.buckets
    return tasks


def _rewrite_tasks(log: IndexedLog, number: int, held_bytes: int, write: bool) -> Iterator[RewriteTask]:
    work = log.work
    groups: dict[int, list[int]] = defaultdict(list)
    now = set(log.groups_now)
    for chunk, one in enumerate(work.chunks):
        if one.group in now:
            groups[one.group].append(chunk)
    for group, chunks in groups.items():
        together = work.in_place and write
        for at, chunk in enumerate(chunks):
            first = (
                work.chunks[chunks[0]].source.min_offset if together else log.summaries[chunk].first_offset
            )
            path = segment_path(work.directory, first, FileKind.PART, Suffix.STAGED)
            yield RewriteTask(
                number, chunk, work.chunks[chunk], log.verdicts[chunk], path if write else None,
                work.least_free_bytes, held_bytes, Place(number, group, at) if together and len(chunks) > 1 else None,
            )  # fmt: skip


def _drop_parts(log: RewrittenLog) -> None:
    for part in chain.from_iterable(log.parts.values()):
        with suppress(FileNotFoundError):  # those of a group may share a file
            if part.path is not None:
                RealFiles().unlink(part.path)


def _resolve_here(
    logs: Sequence[IndexedLog],
    blocks: dict[ChunkOf, Blocks],
    bits: dict[ChunkOf, dict[int, Bits]],
    threads: ThreadPoolExecutor,
    asked: Collection[int],
) -> dict[int, KeySet]:
    """Resolve every bucket in this process; fills `bits`, frees `blocks`; returns the dirty keys of the logs `asked`."""
    keys: dict[int, KeySet] = {}
    for number, log in enumerate(logs):
        places = sorted(place for place in blocks if place[0] == number)
        answers, of_log = resolve_all([blocks.pop(place) for place in places], threads.map)
        bits.update(zip(places, answers, strict=True))
        if number in asked:
            keys[number] = key_set(of_log, log.buckets)
    return keys


def _is_changed(summary: ChunkSummary | CleanerdError, bits: Mapping[int, Bits]) -> bool:
    assert isinstance(summary, ChunkSummary)
    return summary.changed_anyway > 0 or any(answers.any() for answers in bits.values())


def _is_of_whole_log(summary: ChunkSummary | CleanerdError) -> bool:
    """Whether such a chunk makes it necessary to read the whole log before anything is decided."""
    return not isinstance(summary, ChunkSummary) or len(summary.events) > 0


def _of_log(
    number: int,
    log: IndexedLog,
    bits: Mapping[ChunkOf, Mapping[int, Bits]],
    packed: Mapping[ChunkOf, Mapping[int, PackedBits] | None],
) -> Iterator[Mapping[int, Bits] | None]:
    for chunk in range(len(log.work.chunks)):
        if (number, chunk) in bits:
            yield bits[number, chunk]
        else:
            found = packed[number, chunk]
            yield None if found is None else {bucket: one.unpack() for bucket, one in found.items()}


def _join_all(
    logs: Sequence[IndexedLog],
    summaries: Mapping[ChunkOf, ChunkSummary | CleanerdError],
    bits: Iterable[Iterable[Mapping[int, Bits] | None]],
) -> list[IndexedLog]:
    return [
        join_chunks(log, [summaries[number, chunk] for chunk in range(len(log.work.chunks))], of_log)
        if log.error is None
        else log
        for number, (log, of_log) in enumerate(zip(logs, bits, strict=True))
    ]
