"""One number for the state of a log at an offset, which no right cleaning changes (`etc/reference/insight.md` has the proof).

The digest at offset O from offset S on is the sum, modulo 2^128, over all keys whose newest committed record below O lies at
or above S and has a value, of

    H(key, offset, timestamp, value, headers) + M(producer, offset, kind of the marker behind it)

M is 0 without a transaction, or if the marker lies at O or above. Both are SipHash with `Terms.seed` as key. The keys are
divided into buckets, with a sum each, so that a difference can be traced.

Parts of logs are read from the newest to the oldest: so a key that is cleaned away meanwhile is missed only where it should
be. A task keeps the newest record of each key of its part and ships 32 bytes for it; a bucket of the exchange is resolved by
another task (`merge`). Little work is done right here, without Spark.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from os.path import basename, dirname
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cleanerd.errors import CleanerdError, SourceChanged, guarded, portable
from cleanerd.format.head import CONTROL, TRANSACTIONAL
from cleanerd.format.names import MAX_OFFSET, FileKind, Suffix, TopicPartition, parse_partition_dir
from cleanerd.kernels.fingerprint import bucket_shift
from cleanerd.kernels.judge import mark_aborted
from cleanerd.kernels.newest import mark_superseded, new_set, split_by_bucket, survivors
from cleanerd.kernels.tables import EVENT, EventKind, Table, joined
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.tools.kernels.columns import gather, key_fields
from cleanerd.tools.kernels.digest import Hashes, add_markers, add_up, hash_records, marker_hash

from .live import open_settled, views
from .processes import INLINE_BYTES
from .records import LogRange, read_slices, split
from .regular_files import CarefulFiles
from .walk import Sound

_PART_BYTES = 64 << 20
_BUCKET_RECORDS = 1 << 21  # some 160 MiB with their set
_BUCKETS_MAX = 1 << 12
_MODULUS = 1 << 128
_SECOND_KEY = 0x636C65616E657264  # "cleanerd"
_READ = "read_committed"


@dataclass(frozen=True, slots=True)
class Terms:
    """What two digests must have in common to be compared. `buckets`: a power of two."""

    seed: int = 0
    buckets: int = 256
    with_offsets: bool = True

    @property
    def key(self) -> tuple[int, int]:
        """Of the hashes."""
        return self.seed, _SECOND_KEY


class ListedKey(NamedTuple):
    """A key that counts, with its newest record."""

    bucket: int
    key: bytes
    offset: int
    timestamp_ms: int
    hash: int


@dataclass(slots=True)
class LogDigest:
    """The digest of a log, and what bounds it.

    `cleaned_to`: no digest below that offset means anything, see `_cleaned_to`. `stable_end`: what lies there or above is
    not decided. `start`, `at`: the bounds of this digest. `no_key`: (number, sum) of the records without a key.
    """

    directory: str
    topic_partition: TopicPartition
    log_start: int
    cleaned_to: int
    stable_end: int
    start: int
    at: int
    sums: dict[int, int] = field(default_factory=dict)
    keys: int = 0
    no_key: tuple[int, int] = (0, 0)
    listed: list[ListedKey] = field(default_factory=list)

    @property
    def digest(self) -> int:
        """The number."""
        return sum(self.sums.values()) % _MODULUS

    def add(self, bucket: int, value: int) -> None:
        """Add to the sum of a bucket."""
        self.sums[bucket] = (self.sums.get(bucket, 0) + value) % _MODULUS


@dataclass(slots=True)
class Question:
    """What is asked about some logs. `at`, `start`: None for what all parts have in common; `wanted`: list the keys of
    these buckets.
    """

    terms: Terms = field(default_factory=Terms)
    at: int | None = None
    start: int | None = None
    wanted: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class PartSeen:
    """What a task tells of its part, beside the rows that it ships.

    `ends`: (first offset, last offset) of its batches from `dense_from` on, and the first gap in them, -1 for none.
    `markers`: the first one of each producer.
    """

    ends: tuple[int, int, int] | None
    markers: Table
    no_key: tuple[int, int]
    listed: list[tuple[ListedKey, int]] = field(default_factory=list)  # with the producer whose marker is not met


class BucketRows(NamedTuple):
    """The newest records of one part in one bucket of the exchange. A tuple: thousands of them are pickled."""

    log: int
    order: int  # of the part among those of its log
    rows: int
    shipped: Any  # `block_store.Shipped`

    @property
    def size_bytes(self) -> int:
        """Bytes of log whose reading takes about as long as resolving them."""
        return 2 * int(self.shipped.nbytes)

    def load(self) -> tuple[Hashes, Hashes, npt.NDArray[np.int64]]:
        """Fingerprints, hashes, producers whose marker is not met. Raises OSError, EOFError."""
        stored = self.shipped if isinstance(self.shipped, np.ndarray) else self.shipped.load()
        words = stored.view(np.uint64)
        parts = [words[2 * self.rows * i : 2 * self.rows * (i + 1)].reshape(-1, 2) for i in range(2)]
        open_producers = words[4 * self.rows :].view(np.int64)
        return parts[0], parts[1], open_producers


class MergedBucket(NamedTuple):
    """What counts of a bucket of the exchange: sums and numbers by bucket of the digest, and, by (part, producer, bucket),
    how many of these have their marker in a later part.
    """

    log: int
    sums: dict[int, int]
    keys: int
    open: dict[tuple[int, int, int], int]


@dataclass(frozen=True, slots=True, eq=False)
class DigestTask:
    """Read one part of a log; `order` rises with the offsets, `exchanged` buckets from `first_bucket` on are the log's."""

    log: int
    order: int
    part: LogRange
    at: int
    dense_from: int
    first_bucket: int
    exchanged: int
    wanted: frozenset[int]

    @property
    def size_bytes(self) -> int:
        """Of log."""
        return self.part.size_bytes

    def run(self, terms: Terms) -> "_Rows":
        """Raises CorruptFile, OSError; SourceChanged where records were deleted meanwhile."""
        for view in views(self.part, _READ):
            try:
                return self._read(view, terms)
            except SourceChanged:
                continue
        raise AssertionError("`views` raises")

    def _read(self, view: LogRange, terms: Terms) -> "_Rows":
        found = _Rows(self, terms)
        for sound in read_slices(view):
            found.add(sound, view)
        found.finish()
        return found


class _Rows:
    """The records of a part that may count."""

    def __init__(self, task: DigestTask, terms: Terms) -> None:
        self._task, self._terms = task, terms
        self._parts: list[tuple[Hashes, Hashes, npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        self._events: list[Table] = []
        self._no_key = np.zeros((1, 3), np.uint64)
        self._ends: tuple[int, int, int] | None = None
        self._listed: list[tuple[int, bytes, int]] = []  # number of the row, key, time
        self._count = 0

    def add(self, found: Sound, view: LogRange) -> None:
        """The records of a slice."""
        task, batches, records = self._task, found.piece.batches, found.part.records
        control = (batches["attributes"] & CONTROL).astype(np.bool_) & (batches["magic"] == 2)
        fingerprints, hashes, chosen = hash_records(
            found.piece.raw, found.part.expanded, batches, records, control | mark_aborted(batches, view.aborted),
            (task.part.start_offset, min(task.at, task.part.end_offset)), self._terms.key, self._no_key,
            with_place=self._terms.with_offsets,
        )  # fmt: skip
        is_open = (batches["attributes"] & TRANSACTIONAL).astype(np.bool_) & (batches["magic"] == 2)
        producers = np.where(is_open, batches["producer_id"], -1)[records["batch"][chosen]]
        if self._terms.with_offsets:
            self._events.append(found.events())
        else:
            producers[:] = -1
        self._parts.append((fingerprints, hashes, producers, records["offset"][chosen]))
        if task.wanted:
            self._list(found, fingerprints, chosen)
        self._count += len(chosen)
        self._look_for_gaps(found.batches)

    def _list(self, found: Sound, fingerprints: Hashes, chosen: npt.NDArray[np.int64]) -> None:
        buckets = _buckets_of(fingerprints, self._terms)
        here = np.flatnonzero(np.isin(buckets, list(self._task.wanted)))
        records = found.part.records[chosen[here]]
        ends, data = gather(
            found.piece.raw, found.part.expanded, found.piece.batches, key_fields(records)
        )
        for row, begin, end, time in zip(
            here.tolist(), ends[:-1].tolist(), ends[1:].tolist(), records["timestamp"].tolist(), strict=True
        ):
            self._listed.append((self._count + row, data[begin:end].tobytes(), time))

    def _look_for_gaps(self, batches: Table) -> None:
        batches = batches[batches["base_offset"] >= self._task.dense_from]
        if not len(batches):
            return
        first, last = batches["base_offset"], batches["last_offset"]
        start, previous, gap = self._ends or (int(first[0]), int(first[0]) - 1, -1)
        is_whole = (batches["count"] == last - first + 1) & (np.append(previous, last[:-1]) + 1 == first)
        if gap < 0 and not is_whole.all():
            gap = int(first[np.argmin(is_whole)])
        self._ends = start, int(last[-1]), gap

    def finish(self) -> None:
        """Keep the newest record of each key."""
        empty = np.empty((0, 2), np.uint64)
        none = np.empty(0, np.int64)
        parts = [(empty, empty, none, none), *self._parts]
        self._parts.clear()
        fingerprints, hashes, producers, offsets = (
            np.concatenate([part[i] for part in parts]) for i in range(4)
        )
        events = joined(self._events, EVENT)
        is_marker = np.isin(events["kind"], [EventKind.ABORT, EventKind.COMMIT])
        events = events[is_marker & (events["offset"] < self._task.at)]
        self._markers = events[np.lexsort((events["offset"], events["producer_id"]))]
        add_markers(hashes, producers, offsets, self._markers, self._terms.key)
        superseded = mark_superseded(fingerprints, 0, new_set(len(fingerprints)))
        self._named = [
            (
                ListedKey(_bucket(fingerprints[row], self._terms), key, int(offsets[row]), time, _number(hashes[row])),
                int(producers[row]),
            )
            for row, key, time in self._listed
            if not superseded[row]
        ]
        self._fingerprints, self._hashes = survivors(fingerprints, superseded), survivors(hashes, superseded)
        self._producers = producers[~superseded]

    def seen(self) -> PartSeen:
        """What the driver keeps."""
        _, first = np.unique(self._markers["producer_id"], return_index=True)
        count, no_key = int(self._no_key[0, 2]), _number(self._no_key[0])
        return PartSeen(self._ends, self._markers[first], (count, no_key), self._named)

    def shipped(self, put: Callable[[Any], Any]) -> dict[int, BucketRows]:
        """The rows by bucket of the exchange."""
        task = self._task
        shift = bucket_shift(task.exchanged)
        numbers = (
            (self._fingerprints[:, 1] >> shift).astype(np.int32)
            if task.exchanged > 1
            else np.zeros(len(self._fingerprints), np.int32)
        )
        columns = [self._fingerprints, self._hashes]
        if (self._producers >= 0).any():
            pairs = np.zeros((len(numbers), 2), np.uint64)
            pairs[:, 0] = self._producers.view(np.uint64)
            columns.append(pairs)
        split_columns = [split_by_bucket(column, numbers, task.exchanged) for column in columns]
        rows = {}
        for bucket, fingerprints in split_columns[0].items():
            words = [fingerprints.reshape(-1), split_columns[1][bucket].reshape(-1)]
            words += [column[bucket][:, 0] for column in split_columns[2:]]
            rows[task.first_bucket + bucket] = BucketRows(
                task.log, task.order, len(fingerprints), put(np.concatenate(words).view(np.uint8))
            )
        return rows


def _buckets_of(fingerprints: Hashes, terms: Terms) -> npt.NDArray[np.int64]:
    if terms.buckets == 1:
        return np.zeros(len(fingerprints), np.int64)
    return (fingerprints[:, 0] >> bucket_shift(terms.buckets)).astype(np.int64)


def _bucket(fingerprint: Hashes, terms: Terms) -> int:
    return int(_buckets_of(fingerprint.reshape(1, -1), terms)[0])


def _number(words: Hashes) -> int:
    return int(words[1]) << 64 | int(words[0])


def read_parts(
    tasks: Iterable[DigestTask], terms: Terms, put: Callable[[Any], Any]
) -> Iterator[tuple[PartSeen | CleanerdError, dict[int, BucketRows]]]:
    """The first step: an answer for each task."""
    for task in tasks:
        found = portable(guarded(partial(task.run, terms), task.part.ranges[0].path))
        if isinstance(found, CleanerdError):
            yield found, {}
        else:
            yield found.seen(), {} if task.wanted else found.shipped(put)


def merge(values: Sequence[BucketRows], terms: Terms) -> MergedBucket:
    """The second step: all rows of a bucket of the exchange. Raises OSError, EOFError."""
    table = new_set(sum(one.rows for one in values))
    sums, counts = np.zeros((terms.buckets, 2), np.uint64), np.zeros(terms.buckets, np.int64)
    still_open: dict[tuple[int, int, int], int] = {}
    for one in sorted(values, key=lambda one: -one.order):
        fingerprints, hashes, producers = one.load()
        superseded = mark_superseded(fingerprints, 0, table)
        add_up(fingerprints, hashes, superseded, bucket_shift(terms.buckets), sums, counts)
        if len(producers):
            alive = ~superseded & (producers >= 0)
            pairs = np.stack([producers[alive], _buckets_of(fingerprints[alive], terms)], axis=1)
            for pair, count in zip(*np.unique(pairs, axis=0, return_counts=True), strict=True):
                still_open[one.order, int(pair[0]), int(pair[1])] = int(count)
    used = np.flatnonzero(counts).tolist()
    return MergedBucket(
        values[0].log, {bucket: _number(sums[bucket]) for bucket in used}, int(counts.sum()), still_open
    )


@dataclass(slots=True)
class Digests:
    """Answers: `logs`, and why others have none, by directory."""

    logs: list[LogDigest] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def digest_logs(directories: Sequence[str], question: Question) -> Digests:
    """Digests of the logs in these partition directories. Those of one partition get common bounds.

    What cannot be read, or must not be compared, is in `failed`, with the reason.
    """
    found = Digests()
    opened: dict[str, tuple[LogDigest, LogRange]] = {}
    for directory in directories:
        one = guarded(partial(_opened, directory), directory)
        if isinstance(one, CleanerdError):
            found.failed[directory] = str(one)
        else:
            opened[directory] = one
    _bound([log for log, _ in opened.values()], question)
    for directory, (log, _) in list(opened.items()):
        reason = _why_not(log)
        if reason is not None:
            found.failed[directory] = reason
            del opened[directory]
    logs = list(opened.values())
    answers, merged, tasks = _run(logs, question)
    by_log: dict[int, list[tuple[DigestTask, PartSeen | CleanerdError]]] = defaultdict(list)
    for task, answer in zip(tasks, answers, strict=True):
        by_log[task.log].append((task, answer))
    for number, (log, _) in enumerate(logs):
        log_merged = [one for one in merged if one.log == number]
        reason = _joined(log, sorted(by_log[number], key=lambda one: one[0].order), log_merged, question.terms)
        reason = reason or _why_not_now(log)
        if reason is None:
            found.logs.append(log)
        else:
            found.failed[log.directory] = reason
    return found


def _opened(directory: str) -> tuple[LogDigest, LogRange]:
    parsed = parse_partition_dir(basename(directory))
    assert parsed is not None
    log = open_settled(directory, isolation=_READ)
    cleaned_to = _cleaned_to(directory, parsed[0], log)
    bounds = (log.start_offset, cleaned_to, log.end_offset)
    return LogDigest(directory, parsed[0], *bounds, log.start_offset, log.end_offset), log


def _cleaned_to(directory: str, tp: TopicPartition, log: LogRange) -> int:
    """The offset up to which cleanings have looked for newer records.

    That is the first dirty offset of the checkpoint. If files show that a cleaning is under way, or has just ended, it is the
    active segment at most. A cleaning of another replica, from which this one was fetched, shows as gaps (`_gap_in`).
    """
    files = CarefulFiles()
    checkpoint = read_checkpoints(files, dirname(directory)).cleaner.get(tp, 0)
    names = PartitionDir(files, directory).names()
    exchanged = {name.suffix for name in names if name.kind is FileKind.LOG} - {Suffix.LIVE, Suffix.STAGED}
    if exchanged and log.ranges:
        checkpoint = max(checkpoint, log.ranges[-1].base_offset)
    return max(log.start_offset, checkpoint if checkpoint <= log.end_offset else 0)


def _bound(logs: Iterable[LogDigest], question: Question) -> None:
    replicas: dict[TopicPartition, list[LogDigest]] = defaultdict(list)
    for log in logs:
        replicas[log.topic_partition].append(log)
    for same in replicas.values():
        at = min(log.stable_end for log in same) if question.at is None else question.at
        start = max(log.log_start for log in same) if question.start is None else question.start
        for log in same:
            log.start, log.at = min(start, at), at


def _why_not(log: LogDigest) -> str | None:
    """Why a log has no digest with these bounds, None if it has."""
    if log.at > log.stable_end:
        return f"its records are decided up to offset {log.stable_end} (high watermark, open transactions), not up to {log.at}"
    if log.at < log.cleaned_to:
        return f"it is cleaned up to offset {log.cleaned_to}: what was newest below {log.at} may be gone; ask --at {log.cleaned_to} or above"
    if log.start < log.log_start:
        return f"it begins at offset {log.log_start}: what was newest from {log.start} on may be gone; ask --from {log.log_start} or above"
    return None


def _why_not_now(log: LogDigest) -> str | None:
    """The same after it was read: a cleaning may have gone beyond, retention may have taken what was read."""

    def look() -> str | None:
        found = read_checkpoints(CarefulFiles(), dirname(log.directory))
        cleaned_to = found.cleaner.get(log.topic_partition, 0)
        start = found.log_start.get(log.topic_partition, 0)
        is_cleaned = log.at < cleaned_to <= log.stable_end
        if not is_cleaned and start <= log.start:
            return None
        return f"it was cleaned up to offset {cleaned_to}, or cut at {start}, while it was read: try again"

    found = guarded(look, log.directory)
    return str(found) if isinstance(found, CleanerdError) else found


def _run(
    logs: Sequence[tuple[LogDigest, LogRange]], question: Question
) -> tuple[list[PartSeen | CleanerdError], list[MergedBucket], list[DigestTask]]:
    tasks: list[DigestTask] = []
    first_bucket = 0
    for number, (log, view) in enumerate(logs):
        is_whole = log.at == log.stable_end
        exchanged = _exchanged(log.at - log.start)
        parts = split(replace(view, start_offset=log.start), _PART_BYTES)
        tasks += [
            DigestTask(
                number, order, part, log.at, MAX_OFFSET if is_whole else log.cleaned_to, first_bucket, exchanged,
                question.wanted,
            )
            for order, part in enumerate(parts)
        ]  # fmt: skip
        first_bucket += exchanged
    tasks.sort(key=lambda task: (task.log, -task.order))
    if not tasks:
        return [], [], tasks
    if sum(task.size_bytes for task in tasks) <= INLINE_BYTES:
        return (*_here(tasks, question.terms), tasks)
    return (*_on_spark(tasks, question.terms), tasks)


def _exchanged(records_max: int) -> int:
    """Buckets of the exchange: a power of two."""
    wanted = max(-(-records_max // _BUCKET_RECORDS), 1)
    return min(1 << (wanted - 1).bit_length(), _BUCKETS_MAX)


def _here(tasks: Sequence[DigestTask], terms: Terms) -> tuple[list[Any], list[MergedBucket]]:
    answers, values = [], defaultdict(list)
    for answer, mine in read_parts(tasks, terms, lambda data: data):
        answers.append(answer)
        for bucket, rows in mine.items():
            values[bucket].append(rows)
    return answers, [merge(rows, terms) for rows in values.values()]


def _on_spark(tasks: Sequence[DigestTask], terms: Terms) -> tuple[list[Any], list[MergedBucket]]:
    from cleanerd.env.cores import usable_cores  # noqa: PLC0415
    from cleanerd.spark_runtime.lazy_spark import LazySpark  # noqa: PLC0415 - takes a second
    from cleanerd.spark_runtime.resident_job import TaskStep  # noqa: PLC0415

    spark = LazySpark(f"local[{usable_cores()}]")
    try:
        return spark.executor().exchange(TaskStep(tasks, read_parts, lambda: nullcontext(terms)), merge)
    finally:
        spark.stop()


def _joined(
    log: LogDigest,
    parts: Sequence[tuple[DigestTask, PartSeen | CleanerdError]],
    merged: Iterable[MergedBucket],
    terms: Terms,
) -> str | None:
    """Fill in the digest; returns why there is none."""
    seen: list[tuple[int, PartSeen]] = []
    for task, answer in parts:
        if isinstance(answer, CleanerdError):
            return str(answer)
        seen.append((task.order, answer))
    gap = _gap_in(log, [one for _, one in seen])
    if gap is not None:
        return (
            f"offsets are missing from {gap} on, where its broker has cleaned nothing: it was fetched from a replica that had "
            f"been cleaned, up to which offset is not known; only --at {log.stable_end} (its end) can be compared"
        )
    markers = _Markers(seen, terms)
    for one in merged:
        log.keys += one.keys
        for bucket, value in one.sums.items():
            log.add(bucket, value)
        for (order, producer, bucket), count in one.open.items():
            log.add(bucket, count * markers.hash_behind(order, producer))
    log.no_key = (
        sum(one.no_key[0] for _, one in seen),
        sum(one.no_key[1] for _, one in seen) % _MODULUS,
    )
    met: set[bytes] = set()
    for order, part in reversed(seen):
        for row, producer in part.listed:
            if row.key not in met and row.hash:
                value = row.hash + (markers.hash_behind(order, producer) if producer >= 0 else 0)
                log.listed.append(row._replace(hash=value % _MODULUS))
        met |= {row.key for row, _ in part.listed}
    log.listed.sort()
    return None


class _Markers:
    """The first marker of each producer in each part."""

    def __init__(self, seen: Iterable[tuple[int, PartSeen]], terms: Terms) -> None:
        self._terms = terms
        self._of: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for order, part in seen:
            for marker in part.markers:
                self._of[int(marker["producer_id"])].append((order, int(marker["offset"]), int(marker["kind"])))

    def hash_behind(self, order: int, producer: int) -> int:
        """Of the first marker in a part behind this one; 0 without one."""
        mine = self._of[producer]
        at = bisect_right(mine, (order, MAX_OFFSET, 0))
        return 0 if at == len(mine) else marker_hash(producer, *mine[at][1:], self._terms.key)


def _gap_in(log: LogDigest, seen: Sequence[PartSeen]) -> int | None:
    """The first gap in the offsets from `cleaned_to` on, where there is one that a cleaning may have left."""
    previous = None
    for part in seen:
        if part.ends is not None:
            first, last, gap = part.ends
            if previous is not None and first != previous + 1:
                return first
            if gap >= 0:
                return gap
            previous = last
    return None
