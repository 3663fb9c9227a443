"""Chunks of the clean section that are looked up and rewritten in one pass (architecture 4).

A clean record supersedes nothing (`policy.winner`): once the dirty section is resolved, its keys alone decide what a clean
chunk loses. Two kinds of chunks are looked up first all the same:

- those of a segment group that is not known to change: nothing is to be written of a group that stays as it is. It is known
  to as soon as a dirty chunk of it does, or a look at its first clean bytes finds a record that goes;
- those of which the whole log has to be known first: of transactions, and of old formats, which grow. They show when they
  are met: `NeedsWholeLog`. So do batches that get another codec.
"""

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from cleanerd.errors import Aborted
from cleanerd.format.head import CONTROL, TRANSACTIONAL
from cleanerd.kernels.fingerprint import fingerprint_records, spread
from cleanerd.kernels.judge import mark_aborted
from cleanerd.kernels.newest import look_up
from cleanerd.kernels.tables import EVENT, KeySet
from cleanerd.spark_runtime.channel import Advance

from .chunks import Piece, Slice, map_slices, read_pieces
from .index import ChunkTally, LogContext, beyond_segment, log_context
from .values import Bits, ChunkSummary, ChunkWork, IndexedLog, Part, Source

_WORTH_A_LOOK_BYTES = 16 << 20
"""Of clean chunks in a group: to look up fewer of them first takes no longer than to find out whether that is needed."""


class NeedsWholeLog(Exception):
    """A chunk holds something that can only be judged once its whole log is known."""


@dataclass(frozen=True, slots=True)
class PassedOnce:
    """The part of a chunk, and the summary that the index step would have made."""

    part: Part
    summary: ChunkSummary
    superseded: int


class LookedUp:
    """The contest of one clean chunk, decided as its records come."""

    is_read_before = False

    def __init__(self, work: ChunkWork, log: LogContext, keys: KeySet) -> None:
        self._work = work
        self._log = log
        self._keys = keys
        self._tally = ChunkTally(work)
        self._competing = 0
        self.superseded = 0

    def begin(self, piece: Piece) -> None:
        """Begin a piece, before its records. Raises NeedsWholeLog."""
        is_of_txn = piece.batches["attributes"] & (CONTROL | TRANSACTIONAL) != 0
        if bool((is_of_txn | (piece.batches["magic"] < 2)).any()):
            raise NeedsWholeLog
        self._tally.add_batches(piece, np.zeros(0, EVENT))

    def of(self, piece: Piece, part: Slice, aborted: Bits) -> Bits:
        """Superseded or not, one entry per record of the slice. Raises CorruptFile."""
        fingerprints, buckets, clean = fingerprint_records(
            piece.raw, part.expanded, piece.batches, part.records, aborted, self._log.first_dirty_offset,
            self._log.key, self._log.buckets,
        )  # fmt: skip
        if clean < len(fingerprints):
            raise beyond_segment(self._work.source, self._log)
        self._tally.add_records(piece, part)
        found = look_up(self._keys, fingerprints, buckets)
        self._competing += len(found)
        self.superseded += int(np.count_nonzero(found))
        return spread(piece.batches, part.records, aborted, found)

    def judged(self, changed: int) -> None:
        """Count the batches of a slice that change."""
        self._tally.changed += changed

    def check_exhausted(self, source: Source) -> None:
        """Nothing to check: no answer was known before."""

    def passed(self, part: Part) -> PassedOnce:
        """The result, once all slices have been judged."""
        summary = self._tally.summary(self._work.source, self._competing)
        return PassedOnce(part, summary, self.superseded)


def one_pass_chunks(
    log: IndexedLog, changes: Collection[int], keys: KeySet, advance: Advance
) -> Iterator[int]:
    """The clean chunks that need no look-up first, group by group. `changes`: groups that are known to change.

    No dirty chunk of the log holds what only the whole log decides. `advance` is called for what is read.
    """
    context = log_context(log, ())
    clean: dict[int, list[int]] = defaultdict(list)
    for number, chunk in enumerate(log.work.chunks):
        if not chunk.is_dirty:
            clean[chunk.group].append(number)
    for group, numbers in clean.items():
        chunks = [log.work.chunks[number] for number in numbers]
        if sum(chunk.source.size_bytes for chunk in chunks) < _WORTH_A_LOOK_BYTES:
            continue
        if group in changes or _is_seen_to_change(chunks[0], context, keys, advance):
            yield from numbers


def _is_seen_to_change(work: ChunkWork, log: LogContext, keys: KeySet, advance: Advance) -> bool:
    """Whether a record goes from the first piece of a clean chunk. Raises Aborted.

    Other damage is found when the whole chunk is read.
    """
    try:
        return _look_at_first_piece(work, log, keys, advance)
    except Aborted:
        raise
    except Exception:  # noqa: BLE001 - is met again, and reported, when all of it is read
        return False


def _look_at_first_piece(work: ChunkWork, log: LogContext, keys: KeySet, advance: Advance) -> bool:
    contest = LookedUp(work, log, keys)
    pieces = read_pieces(work.source)
    with contextlib.closing(pieces), contextlib.suppress(NeedsWholeLog):
        for piece in islice(pieces, 1):
            advance(len(piece.raw), 0, 0)
            contest.begin(piece)
            aborted = mark_aborted(piece.batches, log.aborted)

            def take(part: Slice, piece: Piece = piece, aborted: Bits = aborted) -> bool:
                return bool(contest.of(piece, part, aborted).any())

            return any(map_slices(piece, take))
    return False
