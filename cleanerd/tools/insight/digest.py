"""One number for the state of a log at an offset, which no right cleaning changes; `insight.md` has the proof.

The digest at offset O from offset S on is the sum, modulo 2^128, over all keys whose newest committed record below O lies at
or above S and has a value, of

    H(key, offset, timestamp, value, headers) + M(producer, offset, kind of the marker behind it)

M is 0 without a transaction, or if the marker lies at O or above. Both are SipHash with `Terms.seed` as key (values:
`kernels.digest`). The keys are divided into buckets, with a sum each, so that a difference can be traced.

Parts of logs are read from the newest to the oldest (`digest_rows`): so of a key that is cleaned meanwhile the newest record
is still met. A little work is done right here, without Spark.
"""

import math
import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from os.path import basename, dirname, join
from typing import Any

from cleanerd.errors import CleanerdError, each_log
from cleanerd.format.errors import FormatError
from cleanerd.format.meta_properties import MetaProperties, parse_meta_properties
from cleanerd.format.names import (
    MAX_OFFSET,
    META_PROPERTIES,
    REPLICATION_CHECKPOINT,
    FileKind,
    Suffix,
    TopicPartition,
    parse_partition_dir,
)
from cleanerd.kernels.tables import EventKind
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.tools.kernels.digest import marker_hash

from .digest_rows import (
    MODULUS,
    DigestTask,
    ListedKey,
    MergedBucket,
    PartSeen,
    Terms,
    merge,
    no_marker,
    read_parts,
)
from .live import open_parts, when_settled
from .processes import INLINE_BYTES, readers
from .records import LogRange
from .regular_files import CarefulFiles

_PART_BYTES = 64 << 20
_BUCKET_RECORDS = 1 << 21  # 64 MiB, and as much for their set
_BUCKETS_MAX = 1 << 12
_WRITES_DOWN_NS = 1_000_000_000
"""High watermarks are as old as the file that they are written to, or a little older."""


@dataclass(slots=True)
class LogDigest:
    """The digest of a log, and what bounds it.

    `cleaned_to`: no digest below that offset means anything, see `_cleaned_to`. `stable_end`: what lies there or above is
    not decided, as was written down at `stable_ns`. `start`, `at`: the bounds of this digest. `keys`: how many count.
    `no_key`: number and sum of the records without a key; `is_unkeyed`: none has one, not even a tombstone or an aborted
    record. None: nobody knows, for a cleaning may have taken records of both kinds.
    """

    directory: str
    topic_partition: TopicPartition
    log_start: int
    cleaned_to: int
    stable_end: int
    start: int
    at: int
    stable_ns: int = 0
    sums: dict[int, int] = field(default_factory=dict)  # by bucket
    keys: int = 0
    no_key: tuple[int, int] = (0, 0)
    is_unkeyed: bool | None = None
    listed: list[ListedKey] = field(default_factory=list)

    @property
    def digest(self) -> int:
        """The number."""
        return sum(self.sums.values()) % MODULUS

    def why_not(self) -> str | None:
        """Why there is no digest with these bounds, None if there is."""
        if self.at > self.stable_end:
            why = "above that lies the high watermark or an open transaction"
            return f"is decided up to offset {self.stable_end}, not to {self.at}: {why}"
        if self.stable_end < self.cleaned_to:
            last = f"what is decided was last written down for offset {self.stable_end}"
            why = f"{last}; ask again in a moment where its broker runs, and not of a copy"
            return f"may be cleaned up to offset {self.cleaned_to}: {why}"
        if self.at < self.cleaned_to:
            why = f"what was newest below {self.at} may be gone; ask --at {self.cleaned_to} or above"
            return f"may be cleaned up to offset {self.cleaned_to}: {why}"
        if self.start > self.at:
            return f"ends at offset {self.at} here, and --from {self.start} lies above it"
        if self.start < self.log_start:
            return f"begins at offset {self.log_start}, not at {self.start}; ask --from {self.log_start} or above"
        return None

    def why_not_now(self) -> str | None:
        """Why the digest is worthless after the log was read: a cleaning or retention may have changed it meanwhile."""
        cleaned_to = when_settled(self.directory, lambda: _cleaned_to(self))
        found = read_checkpoints(CarefulFiles(), dirname(self.directory))
        start = found.log_start.get(self.topic_partition, 0)
        if self.at < cleaned_to or start > self.start:
            return f"was cleaned up to offset {cleaned_to}, or cut at {start}, while it was read: try again"
        return None


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about logs. `at`, `start`: None for what all replicas that are given have in common, without offsets for
    all that each has; `wanted`: list the keys of these buckets. `bytes_per_s`: how much is read.
    """

    terms: Terms = field(default_factory=Terms)
    at: int | None = None
    start: int | None = None
    wanted: frozenset[int] = frozenset()
    bytes_per_s: float = math.inf


@dataclass(slots=True)
class Digests:
    """Answers: `logs`, and why others have none, by directory. `owners`: of log directories, as far as they have one."""

    logs: list[LogDigest] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    owners: dict[str, MetaProperties] = field(default_factory=dict)


def digest_logs(directories: Sequence[str], question: Question) -> Digests:
    """Digests of the logs in these partition directories. Replicas of one partition get common bounds.

    What cannot be read, or must not be compared, is in `failed`, with the reason.
    """
    found = Digests()
    for log_dir in dict.fromkeys(map(dirname, directories)):
        with suppress(OSError, FormatError):
            path = join(log_dir, META_PROPERTIES)
            found.owners[log_dir] = parse_meta_properties(CarefulFiles().read(path))
    opened: list[tuple[LogDigest, list[LogRange]]] = []
    for directory in directories:
        with each_log(directory) as opening:
            opened.append(_opened(directory))
        if opening.error is not None:
            found.failed[directory] = str(opening.error)
    _bound([log for log, _ in opened], question)
    tasks = _tasks([one for one in opened if one[0].why_not() is None], question)
    answers, merged = _run(tasks, question.terms)
    parts: dict[int, list[tuple[int, PartSeen | CleanerdError]]] = defaultdict(list)
    for task, answer in zip(tasks, answers, strict=True):
        parts[task.log].append((task.order, answer))
    number = 0
    for log, _ in opened:
        reason = log.why_not()
        if reason is None:
            mine = sorted(parts[number], key=lambda part: part[0])
            reason = _joined(log, mine, [one for one in merged if one.log == number], question.terms)
            number += 1
        if reason is None:
            found.logs.append(log)
        else:
            found.failed[log.directory] = reason
    return found


def _opened(directory: str) -> tuple[LogDigest, list[LogRange]]:
    """A log, and its parts in the order of their offsets. Raises as `open_parts`."""
    parsed = parse_partition_dir(basename(directory))
    assert parsed is not None, "listed by its name"
    stable_ns = _written_ns(join(dirname(directory), REPLICATION_CHECKPOINT))
    log, parts = open_parts(directory, _PART_BYTES, isolation="read_committed")
    start, end = log.start_offset, log.end_offset
    found = LogDigest(directory, parsed[0], start, start, end, start, end, stable_ns)
    return replace(found, cleaned_to=when_settled(directory, lambda: _cleaned_to(found))), parts


def _written_ns(path: str) -> int:
    """When a file was last written, 0 if it is not there."""
    with suppress(OSError):
        return os.stat(path).st_mtime_ns
    return 0


def _cleaned_to(log: LogDigest) -> int:
    """The offset up to which cleanings may have looked for newer records.

    That is the first dirty offset of the checkpoint; but for a cleaning that has not ended, or was killed, and only its new
    segments show it (`_rewritten`). A cleaning of the replica from which this one was fetched shows as gaps (`_gap_in`).
    Raises FileNotFoundError while files are exchanged.
    """
    checkpoint = read_checkpoints(CarefulFiles(), dirname(log.directory)).cleaner.get(log.topic_partition, 0)
    rewritten_ns, closed_to = _rewritten(log.directory)
    if (
        rewritten_ns + _WRITES_DOWN_NS < log.stable_ns
    ):  # that cleaning went no further than what was decided by then
        closed_to = min(closed_to, log.stable_end)
    return max(log.log_start, checkpoint, closed_to)


def _rewritten(directory: str) -> tuple[int, int]:
    """When a cleaning last put a segment in place, and up to which offset the log was closed by then; zeros if none has.

    A cleaning, Kafka's or ours, gives a new segment the modification time of its sources: it was changed after that, as no
    other is. A copy of a log that keeps modification times looks like that, too.
    """
    names = PartitionDir(CarefulFiles(), directory).names()
    live = [name for name in names if name.kind is FileKind.LOG and name.suffix is Suffix.LIVE]
    found = {name.base_offset: os.stat(join(directory, str(name))) for name in live}
    when_ns = max((one.st_ctime_ns for one in found.values() if one.st_ctime_ns > one.st_mtime_ns), default=0)
    if not when_ns:
        return 0, 0
    still_open = [offset for offset, one in found.items() if one.st_mtime_ns > when_ns]
    return when_ns, min(still_open, default=max(found))


def _bound(logs: Iterable[LogDigest], question: Question) -> None:
    replicas: dict[TopicPartition | str, list[LogDigest]] = defaultdict(list)
    for log in logs:  # those of several clusters have other offsets for the same
        replicas[log.topic_partition if question.terms.with_offsets else log.directory].append(log)
    for same in replicas.values():
        at = min(log.stable_end for log in same) if question.at is None else question.at
        common = min(max(log.log_start for log in same), at)
        for log in same:
            log.start, log.at = common if question.start is None else question.start, at


def _tasks(logs: Sequence[tuple[LogDigest, list[LogRange]]], question: Question) -> list[DigestTask]:
    """The newest parts of each log first."""
    tasks: list[DigestTask] = []
    first_bucket = 0
    for number, (log, of_log) in enumerate(logs):
        dense_from = MAX_OFFSET if log.at == log.stable_end else log.cleaned_to
        wanted = max(-(-(log.at - log.start) // _BUCKET_RECORDS), 1)
        exchanged = min(1 << (wanted - 1).bit_length(), _BUCKETS_MAX)
        parts = [
            (order, replace(part, start_offset=max(part.start_offset, log.start)))
            for order, part in enumerate(of_log)
            if part.end_offset > log.start
        ]
        tasks += [
            DigestTask(number, order, part, log.at, dense_from, first_bucket, exchanged, question.wanted)
            for order, part in reversed(parts)
        ]
        first_bucket += exchanged
    share = question.bytes_per_s / readers(tasks)
    return [replace(task, bytes_per_s=share) for task in tasks]


def _run(tasks: Sequence[DigestTask], terms: Terms) -> tuple[list[Any], list[MergedBucket]]:
    if sum(task.size_bytes for task in tasks) > INLINE_BYTES:
        from .digest_on_spark import run_on_spark  # noqa: PLC0415 - imports PySpark: a second

        return run_on_spark(tasks, terms)
    answers, values = [], defaultdict(list)
    for answer, mine in read_parts(tasks, terms, lambda data: data):
        answers.append(answer)
        for bucket, rows in mine.items():
            values[bucket].append(rows)
    return answers, [merge(rows, terms) for rows in values.values()]


def _joined(
    log: LogDigest,
    parts: Sequence[tuple[int, PartSeen | CleanerdError]],
    merged: Iterable[MergedBucket],
    terms: Terms,
) -> str | None:
    """Fill in the digest, from the parts in the order of their offsets; returns why there is none."""
    seen: list[tuple[int, PartSeen]] = []
    for order, answer in parts:
        if not isinstance(answer, PartSeen):
            return str(answer)
        seen.append((order, answer))
    gap = _gap_in([one for _, one in seen], max(log.cleaned_to, log.start))
    if gap is not None:
        why = "it comes from a replica that was cleaned, up to where is not known"
        return f"lacks offsets from {gap} on, which no cleaning here took: {why}; ask --at {log.stable_end}, its end"
    markers = _Markers(seen, log.at, terms)
    with each_log(log.directory) as checked:
        markers.check(seen)
    if checked.error is not None:
        return str(checked.error)
    for one in merged:
        log.keys += one.keys
        for bucket, value in one.sums.items():
            log.sums[bucket] = log.sums.get(bucket, 0) + value
        for (order, producer, bucket), count in one.open.items():
            log.sums[bucket] += count * markers.hash_behind(order, producer)
    log.sums = {bucket: value % MODULUS for bucket, value in log.sums.items()}
    numbers, sums = zip(*(one.no_key for _, one in seen), strict=True) if seen else ((), ())
    log.no_key = sum(numbers), sum(sums) % MODULUS
    if any(one.has_keys for _, one in seen):
        log.is_unkeyed = False
    elif any(one.no_key_from < log.cleaned_to for _, one in seen) or log.cleaned_to <= log.start:
        log.is_unkeyed = True  # no cleaning was here: it leaves no record without a key
    met: set[bytes] = set()
    for order, part in reversed(seen):
        for row, producer in part.listed:
            if row.key not in met and row.hash:
                value = row.hash + (markers.hash_behind(order, producer) if producer >= 0 else 0)
                log.listed.append(row._replace(hash=value % MODULUS))
        met |= {row.key for row, _ in part.listed}
    log.listed.sort()
    with each_log(log.directory) as asked:
        return log.why_not_now()
    return str(asked.error)


class _Markers:
    """The first marker of each producer in each part."""

    def __init__(self, seen: Iterable[tuple[int, PartSeen]], at: int, terms: Terms) -> None:
        self._at, self._terms = at, terms
        self._of: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for order, part in seen:
            for marker in part.markers:
                place = order, int(marker["offset"]), int(marker["kind"])
                self._of[int(marker["producer_id"])].append(place)

    def _behind(self, order: int, producer: int) -> tuple[int, int] | None:
        """Offset and kind of the first one in a part behind this one."""
        mine = self._of[producer]
        at = bisect_right(mine, (order, MAX_OFFSET, 0))
        return None if at == len(mine) else mine[at][1:]

    def hash_behind(self, order: int, producer: int) -> int:
        """The hash that the marker adds to each record that counts."""
        found = self._behind(order, producer)
        return 0 if found is None or found[0] >= self._at else marker_hash(producer, *found, self._terms.key)

    def check(self, seen: Iterable[tuple[int, PartSeen]]) -> None:
        """Raise LogUncleanable unless the marker behind aborted records aborts them."""
        for order, part in seen:
            for producer, offset in part.hidden.items():
                found = self._behind(order, producer)
                if found is not None and found[1] != EventKind.ABORT:
                    raise no_marker(producer, offset)


def _gap_in(seen: Iterable[PartSeen], dense_from: int) -> int | None:
    """The first gap from `dense_from` on in the offsets that the parts were looked through for, None without one."""
    expected = dense_from
    for part in seen:
        if part.ends is not None:
            first, last, gap = part.ends
            if first > expected:
                return first
            if gap >= 0:
                return gap
            expected = last + 1
    return None
