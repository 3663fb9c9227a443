"""The records of one part of a log that may count in its digest, and which of them do: steps of `insight.digest`.

A task ships 32 bytes for each record of its part, by bucket; of a hot key, which fills its bucket, only the newest. `merge`
resolves a bucket. Where the marker of a transaction lies in a later part, the driver adds what it adds.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cleanerd.env.clock import SystemClock
from cleanerd.errors import CleanerdError, LogUncleanable, SourceChanged, ours, portable
from cleanerd.format.head import CONTROL, TRANSACTIONAL
from cleanerd.format.names import MAX_OFFSET
from cleanerd.kernels.fingerprint import bucket_shift
from cleanerd.kernels.judge import mark_aborted
from cleanerd.kernels.newest import mark_superseded, new_set, split_by_bucket, survivors
from cleanerd.kernels.tables import EVENT, EventKind, Table, joined
from cleanerd.tools.kernels.columns import gather, key_fields
from cleanerd.tools.kernels.digest import Hashes, add_markers, add_up, hash_records

from .live import views
from .paced import PacedReads
from .records import LogRange, read_slices
from .walk import Sound

MODULUS = 1 << 128
_SECOND_KEY = 0x636C65616E657264  # "cleanerd"
_NO_HASH, _NO_NUMBER = np.empty((0, 2), np.uint64), np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Terms:
    """Parameters that two digests must share to be comparable. `buckets`: a power of two."""

    seed: int = 0
    buckets: int = 256
    with_offsets: bool = True

    @property
    def key(self) -> tuple[int, int]:
        """The key of the hashes."""
        return self.seed, _SECOND_KEY

    def buckets_of(self, fingerprints: Hashes) -> npt.NDArray[np.int64]:
        """The bucket of each key."""
        if self.buckets == 1:
            return np.zeros(len(fingerprints), np.int64)
        return (fingerprints[:, 0] >> bucket_shift(self.buckets)).astype(np.int64)


class ListedKey(NamedTuple):
    """A key that counts, with its newest record."""

    bucket: int
    key: bytes
    offset: int
    timestamp_ms: int
    hash: int


@dataclass(frozen=True, slots=True, eq=False)
class PartSeen:
    """A task's report about its part, beside the rows that it ships.

    `ends`: (first offset, last offset) of its batches from that with `dense_from` on, and the first gap in them, -1 for
    none; None without any. `markers`: the first one of each producer. `hidden`: producers with aborted records behind which
    it has no marker. `no_key`: number and sum of the records without a key, the first of them at `no_key_from` (MAX_OFFSET:
    none); `has_keys`: others are there, be they tombstones or aborted.
    """

    ends: tuple[int, int, int] | None
    markers: Table
    hidden: dict[int, int]  # to the offset of such a record
    no_key: tuple[int, int]
    no_key_from: int
    has_keys: bool
    listed: list[tuple[ListedKey, int]]  # with the producer whose marker is not met, -1 for none


class BucketRows(NamedTuple):
    """The records of one part in one bucket of the exchange. A tuple: thousands of them are pickled."""

    log: int
    order: int  # of the part among those of its log
    rows: int
    shipped: tuple[Any, ...]  # `block_store.Shipped` of fingerprints, hashes, and producers if any is not -1

    @property
    def size_bytes(self) -> int:
        """Bytes of log whose reading takes about as long as resolving them."""
        return 2 * sum(int(one.nbytes) for one in self.shipped)

    def load(self) -> list[Hashes]:
        """Load the shipped rows. Raises OSError, EOFError."""
        stored = (one if isinstance(one, np.ndarray) else one.load() for one in self.shipped)
        return [one.view(np.uint64).reshape(-1, 2) for one in stored]


class MergedBucket(NamedTuple):
    """What counts of a bucket of the exchange: sums by bucket of the digest, and, by (part, producer, bucket), how many of
    these have their marker in a later part.
    """

    log: int
    sums: dict[int, int]
    keys: int
    open: dict[tuple[int, int, int], int]


@dataclass(frozen=True, slots=True, eq=False)
class DigestTask:
    """Read one part of a log; `order` rises with the offsets. `exchanged` buckets from `first_bucket` on are the log's.

    Records from `at` on do not count. Gaps are looked for from `dense_from` on. `wanted`: list the keys of these buckets.
    `bytes_per_s`: how quickly it is read.
    """

    log: int
    order: int
    part: LogRange
    at: int
    dense_from: int
    first_bucket: int
    exchanged: int
    wanted: frozenset[int]
    bytes_per_s: float = math.inf

    @property
    def size_bytes(self) -> int:
        """Bytes of log."""
        return self.part.size_bytes

    def run(self, terms: Terms) -> "_Rows":
        """Raises CorruptFile, LogUncleanable, OSError; SourceChanged where records were deleted meanwhile."""
        reads = PacedReads(SystemClock(), self.bytes_per_s)
        for view in views(self.part, "read_committed"):
            try:
                found = _Rows(self, terms)
                for sound in read_slices(view, read=reads.read_at):
                    found.add(sound, view)
            except SourceChanged:
                continue
            found.finish()
            return found
        raise AssertionError("`views` raises")


class _Rows:
    """The records of a part that may count."""

    def __init__(self, task: DigestTask, terms: Terms) -> None:
        self._task, self._terms = task, terms
        self._pairs: list[tuple[Hashes, Hashes]] = [(_NO_HASH, _NO_HASH)]
        self._places: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = [(_NO_NUMBER, _NO_NUMBER)]
        self._events: list[Table] = []
        self._aborted: list[Table] = []
        self._no_key = np.zeros((1, 3), np.uint64)
        self._no_key_from, self._has_keys = MAX_OFFSET, False
        self._ends: tuple[int, int, int] | None = None
        self._named: list[tuple[int, bytes, int]] = []  # row, key, time
        self._rows = 0
        self._has_places = False  # else nothing asks for producers and offsets

    def add(self, found: Sound, view: LogRange) -> None:
        """The records of a slice."""
        task, terms, batches, records = self._task, self._terms, found.piece.batches, found.part.records
        is_new, attributes = batches["magic"] == 2, batches["attributes"]
        aborted, is_control = mark_aborted(batches, view.aborted), is_new & (attributes & CONTROL != 0)
        hidden = aborted | is_control
        offsets = task.part.start_offset, min(task.at, task.part.end_offset)
        fingerprints, hashes, chosen = hash_records(
            found.piece.raw, found.part.expanded, batches, records, hidden, offsets, terms.key, self._no_key,
            with_place=terms.with_offsets,
        )  # fmt: skip
        if not self._has_keys:  # only then it matters which lack one
            some = records[(records["offset"] >= offsets[0]) & (records["offset"] < offsets[1])]
            has_key = some["key_length"] >= 0
            self._has_keys = bool((has_key & ~is_control[some["batch"]]).any())
            first = some["offset"][~has_key & ~hidden[some["batch"]]].min(initial=MAX_OFFSET)
            self._no_key_from = min(self._no_key_from, int(first))
        in_transaction = is_new & (attributes & TRANSACTIONAL != 0)
        if in_transaction.any():
            self._events.append(found.events())
            mine = slice(found.part.begin, found.part.end)
            self._aborted.append(batches[mine][aborted[mine] & (batches["count"][mine] > 0)])
        in_transaction &= (
            terms.with_offsets
        )  # markers are part of the place of a record: else they are checked alone
        producers = places = np.broadcast_to(np.int64(-1), len(chosen))  # takes no memory
        if task.wanted or in_transaction.any():
            producers = np.where(in_transaction, batches["producer_id"], -1)[records["batch"][chosen]]
            places = records["offset"][chosen]
            self._has_places = True
        if task.wanted:
            here = np.flatnonzero(np.isin(terms.buckets_of(fingerprints), list(task.wanted)))
            self._name(found, here, records[chosen[here]])
        self._pairs.append((fingerprints, hashes))
        self._places.append((producers, places))
        self._rows += len(chosen)
        self._look_for_gaps(found)

    def _name(self, found: Sound, rows: npt.NDArray[np.int64], records: Table) -> None:
        ends, data = gather(found.piece.raw, found.part.expanded, found.piece.batches, key_fields(records))
        bounds = ends.tolist()
        for i, row in enumerate(rows.tolist()):
            key = data[bounds[i] : bounds[i + 1]].tobytes()
            self._named.append((self._rows + row, key, int(records["timestamp"][i])))

    def _look_for_gaps(self, found: Sound) -> None:
        dense_from, batches, records = self._task.dense_from, found.batches, found.part.records
        if not len(batches) or batches["last_offset"][-1] < dense_from:
            return
        first, last, count = batches["base_offset"], batches["last_offset"], batches["count"]
        if (first < 0).any():  # legacy wrappers do not say where they begin, nor how many they hold
            of, lowest = records["batch"] - found.part.begin, last.copy()
            np.minimum.at(lowest, of, records["offset"])
            count = np.where(first < 0, np.bincount(of, minlength=len(first)), count)
            first = np.where(first < 0, lowest, first)
        near = last >= dense_from
        first, last, count = first[near], last[near], count[near]
        start, previous, gap = self._ends or (int(first[0]), int(first[0]) - 1, -1)
        is_whole = (count == last - first + 1) | (first < dense_from)
        is_whole &= np.append(previous, last[:-1]) + 1 == first
        if gap < 0 and not is_whole.all():
            gap = int(first[np.argmin(is_whole)])
        self._ends = start, int(last[-1]), gap

    def finish(self) -> None:
        """Add what markers here add. Raises LogUncleanable for aborted records without their marker."""
        self._fingerprints, self._hashes = map(np.concatenate, zip(*self._pairs, strict=True))
        self._producers = offsets = np.broadcast_to(np.int64(-1), len(self._hashes))
        if self._has_places:
            self._producers, offsets = map(np.concatenate, zip(*self._places, strict=True))
        self._pairs.clear()
        self._places.clear()
        events = joined(self._events, EVENT)
        events = events[np.isin(events["kind"], [EventKind.ABORT, EventKind.COMMIT])]
        self._markers = events[np.lexsort((events["offset"], events["producer_id"]))]
        self._hidden = self._check_aborted()
        if self._has_places:
            add_markers(self._hashes, self._producers, offsets, self._markers, self._task.at, self._terms.key)
        buckets = self._terms.buckets_of(self._fingerprints[[row for row, _, _ in self._named]])
        self._listed: dict[bytes, tuple[ListedKey, int]] = {}
        for bucket, (row, key, time_ms) in zip(buckets.tolist(), self._named, strict=True):
            one = ListedKey(bucket, key, int(offsets[row]), time_ms, number_of(self._hashes[row]))
            self._listed[key] = one, int(self._producers[row])

    def _check_aborted(self) -> dict[int, int]:
        """Producers with aborted records behind which no marker lies here, with the offset of one. Raises as `finish`."""
        open_here: dict[int, int] = {}
        for batches in self._aborted:
            for producer in np.unique(batches["producer_id"]).tolist():
                markers = self._markers[self._markers["producer_id"] == producer]
                offsets = batches["last_offset"][batches["producer_id"] == producer]
                behind = np.searchsorted(markers["offset"], offsets)
                met = behind < len(markers)
                is_wrong = markers["kind"][behind[met]] != EventKind.ABORT
                if is_wrong.any():
                    raise no_marker(producer, int(offsets[met][np.argmax(is_wrong)]))
                if not met.all():
                    open_here[producer] = int(offsets[-1])
        return open_here

    def seen(self) -> PartSeen:
        """The facts that the driver keeps."""
        _, first = np.unique(self._markers["producer_id"], return_index=True)
        no_key = int(self._no_key[0, 2]), number_of(self._no_key[0])
        listed = list(self._listed.values())
        return PartSeen(
            self._ends, self._markers[first], self._hidden, no_key, self._no_key_from, self._has_keys, listed
        )

    def shipped(self, put: Callable[[Any], Any]) -> dict[int, BucketRows]:
        """The rows by bucket of the exchange."""
        task, columns = self._task, [self._fingerprints, self._hashes]
        numbers = np.zeros(len(self._fingerprints), np.int32)
        if task.exchanged > 1:  # no bit that names a bucket of the digest
            numbers = (self._fingerprints[:, 1] >> bucket_shift(task.exchanged)).astype(np.int32)
        if self._has_places and (self._producers >= 0).any():
            columns.append(np.repeat(self._producers.view(np.uint64), 2).reshape(-1, 2))
        by_bucket = [split_by_bucket(column, numbers, task.exchanged) for column in columns]
        hot = 2 * len(numbers) // task.exchanged
        rows = {}
        for bucket, fingerprints in by_bucket[0].items():
            mine = [column[bucket] for column in by_bucket]
            if len(fingerprints) > hot:
                superseded = mark_superseded(fingerprints, 0, new_set(len(fingerprints)))
                mine = [survivors(column, superseded) for column in mine]
            shipped = tuple(put(column.reshape(-1).view(np.uint8)) for column in mine)
            rows[task.first_bucket + bucket] = BucketRows(task.log, task.order, len(mine[0]), shipped)
        return rows


def no_marker(producer_id: int, offset: int) -> LogUncleanable:
    """The error for aborted records whose marker is gone."""
    return LogUncleanable(
        f"the record of producer {producer_id} at offset {offset} is aborted, and the marker that says so is gone: "
        "consumers leave out what this producer wrote later"
    )


def number_of(words: Hashes) -> int:
    """128 bits as a number."""
    return int(words[1]) << 64 | int(words[0])


def read_parts(
    tasks: Iterable[DigestTask], terms: Terms, put: Callable[[Any], Any]
) -> Iterator[tuple[PartSeen | CleanerdError, dict[int, BucketRows]]]:
    """The first step: an answer for each task."""
    for task in tasks:
        try:
            found = task.run(terms)
        except Exception as error:  # noqa: BLE001 - a defect, or a file that asks for all memory, ends one log
            yield portable(ours(error, task.part.ranges[0].path)), {}
        else:
            yield found.seen(), found.shipped(put)


def merge(values: Sequence[BucketRows], terms: Terms) -> MergedBucket:
    """The second step: all rows of a bucket of the exchange. Raises OSError, EOFError."""
    table = new_set(sum(one.rows for one in values))
    sums, counts = np.zeros((terms.buckets, 2), np.uint64), np.zeros(terms.buckets, np.int64)
    still_open: dict[tuple[int, int, int], int] = {}
    for one in sorted(values, key=lambda one: -one.order):
        fingerprints, hashes, *of_producers = one.load()
        superseded = mark_superseded(fingerprints, 0, table)
        add_up(fingerprints, hashes, superseded, bucket_shift(terms.buckets), sums, counts)
        for column in of_producers:
            producers = column[:, 0].view(np.int64)
            alive = ~superseded & (producers >= 0)
            pairs = np.stack([producers[alive], terms.buckets_of(fingerprints[alive])], axis=1)
            for pair, count in zip(*np.unique(pairs, axis=0, return_counts=True), strict=True):
                still_open[one.order, int(pair[0]), int(pair[1])] = int(count)
    found = {bucket: number_of(sums[bucket]) for bucket in np.flatnonzero(counts).tolist()}
    return MergedBucket(values[0].log, found, int(counts.sum()), still_open)
