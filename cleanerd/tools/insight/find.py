"""Every occurrence of some keys in log directories, what it is, and when it goes.

All batches of all files are read (`log_files`), in several processes, also what no consumer sees any more. What is no sound
batch is passed over and named.
"""

import math
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from cleanerd.env.clock import SystemClock
from cleanerd.env.files import open_regular
from cleanerd.errors import CleanerdError, DirOffline, each_log, ours
from cleanerd.format.head import CONTROL, DELETE_HORIZON, TRANSACTIONAL
from cleanerd.format.names import MAX_OFFSET
from cleanerd.kernels.fingerprint import fingerprint_records, siphash128
from cleanerd.kernels.judge import mark_aborted
from cleanerd.kernels.tables import AbortedTxns
from cleanerd.storage.lock import probe
from cleanerd.tools.kernels.columns import gather, key_fields
from cleanerd.tools.kernels.digest import Hashes
from cleanerd.units import utc

from .findings import KINDS
from .live import open_settled
from .log_files import LogFile, log_files
from .paced import PacedReads
from .processes import ReadProgress, answers, readers
from .regular_files import file_size
from .walk import Bounds, Sound, walk_log

_KEY = (0, 0)
_LISTED_AGAIN_MAX = 3


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A record with one of the keys. `horizon_ms`: from when its batch's tombstones may go, -1 for not known.

    `state`: `newest`, `superseded`, `tombstone` (the newest one), `aborted`, `open transaction`, `uncommitted` (above the
    high watermark), `below log start`, `leftover` (in a file that is no segment of the log), or `unknown`, where the log
    cannot be judged. `goes`: when it goes, in a compacted log. `clean_options`: of the `cleanerd clean` that makes it go
    now, beside those that name the directories; None if none does.
    """

    file: LogFile
    key: bytes
    offset: int
    timestamp_ms: int
    is_null: bool
    is_transactional: bool
    is_aborted: bool
    horizon_ms: int
    state: str = "unknown"
    goes: str | None = None
    clean_options: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """Offsets of a log. `closed_to`: up to where a cleaning may go, which takes whole segments below the last stable offset
    (rule 1.9); `aborted`: its transaction indexes.
    """

    log_start: int
    last_stable: int
    high_watermark: int
    closed_to: int
    active_base: int
    aborted: AbortedTxns

    def why_held(self) -> str:
        """From when on what lies at the last stable offset is committed."""
        if self.last_stable < self.high_watermark:
            return f"not before the transaction that is open at {self.last_stable} ends"
        return f"not before the high watermark ({self.high_watermark}) is above"


@dataclass(slots=True)
class Found:
    """Occurrences by file and offset; by path why something was not read, or not judged."""

    occurrences: list[Occurrence] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class FindTask:
    """Look through one file, at `bytes_per_s`. `wanted`: fingerprints of the keys, in order, which travel more easily than
    thousands of keys. `is_growing`: a process may be appending to it.
    """

    file: LogFile
    wanted: Hashes
    aborted: AbortedTxns
    is_growing: bool
    bytes_per_s: float = math.inf

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return self.file.size_bytes


@dataclass(slots=True)
class FileSeen:
    """`is_gone`: it was there when the directory was listed, and is no more."""

    occurrences: list[Occurrence] = field(default_factory=list)
    problem: str | None = None
    is_gone: bool = False


def find(
    log_dirs: Sequence[str],
    keys: Collection[bytes],
    topics: Collection[str] = (),
    partitions: Collection[int] = (),
    read: ReadProgress | None = None,
    bytes_per_s: float = math.inf,
) -> Found:
    """Look for keys, one or more. Changes nothing. What a cleaning exchanges meanwhile is listed again."""
    assert keys, "nothing is no key"
    for _ in range(_LISTED_AGAIN_MAX):
        found, gone = _find(log_dirs, frozenset(keys), topics, partitions, read, bytes_per_s)
        if not gone:
            return found
    found.failed |= dict.fromkeys(gone, "changed again and again while it was read")
    return found


def _find(
    log_dirs: Sequence[str],
    keys: frozenset[bytes],
    topics: Collection[str],
    partitions: Collection[int],
    read: ReadProgress | None,
    bytes_per_s: float,
) -> tuple[Found, list[str]]:
    found = Found()
    wanted = _fingerprints(keys)
    tasks: list[FindTask] = []
    facts: dict[str, Facts] = {}
    for log_dir in log_dirs:
        try:
            listed, unlisted = log_files(log_dir, topics, partitions)
        except (CleanerdError, OSError) as error:
            found.failed[log_dir] = str(ours(error, log_dir))
            continue
        found.failed |= unlisted
        bases: dict[str, list[int]] = defaultdict(list)
        for one in listed:
            if one.leftover is None:
                bases[one.directory].append(one.name.base_offset)
        for directory, of_log in bases.items():
            with each_log(directory) as log:
                facts[directory] = _facts(directory, of_log)
            if log.error is not None:
                found.failed[directory] = str(log.error)
        nothing, is_live = AbortedTxns.of(()), _is_live(log_dir)
        for one in listed:
            known = facts.get(os.path.join(log_dir, str(one.topic_partition)))
            aborted, active_base = (nothing, -1) if known is None else (known.aborted, known.active_base)
            is_growing = is_live and one.leftover is None and one.name.base_offset >= active_base >= 0
            tasks.append(FindTask(one, wanted, aborted, is_growing))
    share = bytes_per_s / readers(tasks)
    tasks = [replace(task, bytes_per_s=share) for task in tasks]
    seen = answers(look_through, tasks, _killed, read=read)
    occurrences: dict[str, list[Occurrence]] = defaultdict(list)
    for task, answer in seen.items():
        occurrences[task.file.directory] += [one for one in answer.occurrences if one.key in keys]
        if answer.problem is not None:
            found.failed[task.file.path] = answer.problem
    for directory, some in sorted(occurrences.items()):
        found.occurrences += _judged(some, facts.get(directory))
    return found, [task.file.path for task, answer in seen.items() if answer.is_gone]


def _is_live(log_dir: str) -> bool:
    """Whether a process holds the directory, as far as that is known."""
    with suppress(DirOffline):
        return probe(log_dir) is not None
    return False


def _facts(directory: str, bases: Collection[int]) -> Facts:
    stable = open_settled(directory, isolation="read_committed")
    last_stable, high_watermark = stable.readable_end, open_settled(directory).readable_end
    closed_to = max((base for base in bases if base <= last_stable), default=0)
    return Facts(stable.start_offset, last_stable, high_watermark, closed_to, max(bases), stable.aborted)


def _killed(task: FindTask) -> FileSeen:
    return FileSeen(problem=f"its reader was killed after {task.size_bytes} bytes at most")


def look_through(task: FindTask) -> FileSeen:
    """The occurrences of keys with these fingerprints in one file. Never raises for what is wrong with it."""
    seen = FileSeen()
    try:
        with open_regular(task.file.path, follow_links=True) as fd:
            bounds = Bounds(task.file.name.base_offset, MAX_OFFSET, MAX_OFFSET, 0, file_size(fd))
            read = PacedReads(SystemClock(), task.bytes_per_s).read_at
            for found in walk_log(fd, task.file.path, bounds, read):
                if isinstance(found, Sound):
                    seen.occurrences += _occurrences(task, found)
                elif not (found.at_end and (task.is_growing or found.code == "zeros")):
                    where = f"bytes {found.start} to {found.end} are no sound batch"
                    seen.problem = f"{where}: expected {found.expected}, found {found.found}"
    except FileNotFoundError:
        seen.is_gone = True
    except OSError as error:
        seen.problem = error.strerror
    return seen


def _fingerprints(keys: Iterable[bytes]) -> Hashes:
    """The low words of their fingerprints, as `fingerprint_records` has them, in order."""
    zero = np.uint64(0)
    arrays = ((np.frombuffer(key or b"\0", np.uint8).copy(), len(key)) for key in keys)
    return np.sort(
        np.array([siphash128(data, 0, length, zero, zero)[0] for data, length in arrays], np.uint64)
    )


def _occurrences(task: FindTask, found: Sound) -> list[Occurrence]:
    batches, records = found.piece.batches, found.part.records
    nothing = np.zeros(len(batches), np.bool_)
    fingerprints, _, _ = fingerprint_records(
        found.piece.raw, found.part.expanded, batches, records, nothing, 0, _KEY, 1
    )
    places = np.minimum(np.searchsorted(task.wanted, fingerprints[:, 0]), len(task.wanted) - 1)
    near = task.wanted[places] == fingerprints[:, 0]
    if not near.any():
        return []
    competes = (records["key_length"] >= 0) & (batches["attributes"] & CONTROL == 0)[records["batch"]]
    records = records[competes][near]
    aborted = mark_aborted(batches, task.aborted)
    ends, data = gather(found.piece.raw, found.part.expanded, batches, key_fields(records))
    some = []
    for row, record in enumerate(records):
        batch = batches[record["batch"]]
        has_horizon = batch["magic"] == 2 and batch["attributes"] & DELETE_HORIZON
        some.append(
            Occurrence(
                task.file, data[ends[row] : ends[row + 1]].tobytes(), int(record["offset"]), int(record["timestamp"]),
                bool(record["value_is_null"]), bool(batch["magic"] == 2 and batch["attributes"] & TRANSACTIONAL),
                bool(aborted[record["batch"]]), int(batch["base_timestamp"]) if has_horizon else -1,
            )
        )  # fmt: skip
    return some


def _judged(occurrences: Sequence[Occurrence], facts: Facts | None) -> list[Occurrence]:
    """The occurrences in one directory, with state and end, in the order of keys, files and offsets."""
    committed: Mapping[bytes, list[int]] = defaultdict(list)
    if facts is not None:
        for one in occurrences:
            if one.file.leftover is None and not one.is_aborted and one.offset < facts.last_stable:
                committed[one.key].append(one.offset)
    judged = [_with_state(one, sorted(committed[one.key]), facts) for one in occurrences]
    return sorted(judged, key=lambda one: (one.key, one.file.path, one.offset))


def _with_state(one: Occurrence, committed: Sequence[int], facts: Facts | None) -> Occurrence:
    leftover = one.file.leftover
    if leftover is not None:
        return replace(one, state="leftover", goes=f"{KINDS[leftover].meaning}: {KINDS[leftover].remedy}")
    if facts is None:
        return one
    if one.offset < facts.log_start:
        return replace(
            one, state="below log start", goes="with its segment, once all of it lies below the log start"
        )
    if one.is_aborted and one.offset < facts.last_stable:
        return _goes_cleaned(one, "aborted", one.offset, facts)
    if one.offset >= facts.high_watermark:
        return replace(
            one, state="uncommitted", goes=f"not before the high watermark ({facts.high_watermark}) is above"
        )
    if one.offset >= facts.last_stable:
        state = "open transaction" if one.is_transactional else "uncommitted"
        return replace(one, state="aborted" if one.is_aborted else state, goes=facts.why_held())
    newer = [offset for offset in committed if offset > one.offset]
    if newer:
        return _goes_cleaned(one, "superseded", newer[0], facts)
    if not one.is_null:
        return replace(one, state="newest", goes="when a newer record of its key is written, and cleaned")
    if one.horizon_ms < 0:
        return replace(
            one, state="tombstone", goes="delete.retention.ms after the first cleaning that meets it"
        )
    return replace(one, state="tombstone", goes=f"with a cleaning after {utc(one.horizon_ms)}")


def _goes_cleaned(one: Occurrence, state: str, met_at: int, facts: Facts) -> Occurrence:
    """What a cleaning takes once it may go as far as `met_at`."""
    if facts.closed_to <= met_at and facts.closed_to < facts.active_base:
        return replace(one, state=state, goes=facts.why_held())
    is_closed = met_at < facts.closed_to
    goes = "with the next cleaning" if is_closed else "with a cleaning after the active segment is rolled"
    tp = one.file.topic_partition
    roll = () if is_closed else ("--roll",)
    options = ("--topic", tp.topic, "--partition", str(tp.partition), "--force", *roll)
    return replace(one, state=state, goes=goes, clean_options=options)
