"""Steps 4 to 7 for a small log: all of its groups in one task, which resolves and goes on (architecture 4).

Where Spark repeats it on another machine, or at the same time, each writes a file of its own.
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from cleanerd.errors import CleanerdError, raising_ours
from cleanerd.format.names import FileKind, Suffix, segment_path
from cleanerd.policy.schedule import SMALL_LOG_BYTES
from cleanerd.policy.winner import KEY_BYTES
from cleanerd.spark_runtime.channel import Advance, Reporter
from cleanerd.spark_runtime.messages import Phase

from .index import index_chunk, log_context, resolve_all
from .part_file import PartFile, gone_if_it_fails, path_of_attempt
from .rewrite import rewrite_chunk
from .tasks import in_task
from .values import ChunkWork, IndexedLog, LogWork, Part, RewrittenLog, Verdicts
from .whole_log import join_chunks


def is_small(work: LogWork, budget_bytes: int) -> bool:
    """Whether one task may take the log: little to read, and its keys within the budget."""
    is_little = 0 < work.size_bytes <= SMALL_LOG_BYTES
    fits = work.records_max * KEY_BYTES <= budget_bytes
    return is_little and fits and not work.recodes  # such a log may grow, and no room is reserved for that


@dataclass(frozen=True, slots=True)
class SmallLogTask:
    """Index, resolve, rewrite and verify one log; `indexed` is empty yet."""

    indexed: IndexedLog

    @property
    def size_bytes(self) -> int:
        """Bytes of log."""
        return self.indexed.work.size_bytes

    def run(self, reporter: Reporter) -> tuple[IndexedLog, RewrittenLog | None]:
        """Index and rewrite. None after an error, or if the driver has to decide something first.

        That is a log in which nothing changes, or not a group whose segments may be merged, and one with batches of old
        formats: they grow, and no room has been reserved for that.
        """
        indexed = self.indexed
        found = in_task(partial(self._clean, reporter), indexed.work.directory)
        if isinstance(found, CleanerdError):
            indexed.error = found
            return indexed, None
        return indexed, found

    def _clean(self, reporter: Reporter) -> RewrittenLog | None:
        indexed, number = self.indexed, self.indexed.work.number
        with reporter.advance(number, Phase.INDEX) as advance:
            _index(indexed, advance)
        is_legacy = any(summary.legacy_batches for summary in indexed.summaries)
        work, changed = indexed.work, indexed.changed_groups
        if indexed.error is not None or not changed or is_legacy or work.mergeable_groups - changed:
            return None
        groups = defaultdict[int, list[tuple[ChunkWork, Verdicts]]](list)
        for chunk, verdicts in zip(work.chunks, indexed.verdicts, strict=True):
            if chunk.group in changed:
                assert verdicts is not None
                groups[chunk.group].append((chunk, verdicts))
        paths = {group: _path(work, chunks[0][0]) for group, chunks in groups.items()}
        with ExitStack() as stack:
            for path in paths.values():
                stack.enter_context(gone_if_it_fails(path))  # the last reports, too
            advance = stack.enter_context(reporter.advance(number, Phase.REWRITE))
            verified = stack.enter_context(reporter.advance(number, Phase.VERIFY))
            parts = {
                group: _rewrite(indexed, chunks, paths[group], advance, verified)
                for group, chunks in groups.items()
            }
        indexed.verdicts = []  # have been used
        return RewrittenLog(indexed, None, parts)


def _index(indexed: IndexedLog, advance: Advance) -> None:
    """Fill in the results that need all chunks. Raises the error of a chunk."""
    work, context = indexed.work, log_context(indexed, ())
    found = []
    for chunk in work.chunks:
        with raising_ours(chunk.source.path):
            found.append(index_chunk(chunk, context, advance))
    bits, _ = resolve_all([blocks for _, blocks in found])
    join_chunks(indexed, [summary for summary, _ in found], bits)


def _path(work: LogWork, first: ChunkWork) -> str:
    """Of the new segment of a group, of this attempt."""
    path = segment_path(work.directory, first.source.min_offset, FileKind.PART, Suffix.STAGED)
    return path_of_attempt(path)


def _rewrite(
    indexed: IndexedLog,
    chunks: Sequence[tuple[ChunkWork, Verdicts]],
    path: str,
    advance: Advance,
    verified: Advance,
) -> list[Part]:
    """Write the parts of the chunks of a group, one behind the other, to `path`. Raises the error of a chunk."""
    work, context = indexed.work, log_context(indexed, indexed.discardable_markers)
    parts: list[Part] = []
    position = 0
    for chunk, verdicts in chunks:
        out = PartFile(path, chunk.source.path, work.least_free_bytes, position)
        with raising_ours(chunk.source.path):
            part = rewrite_chunk(chunk, context, verdicts, out, advance, verified)
        parts.append(part)
        position += part.size_bytes
    return parts
