"""`inspect`: what is in a log and why it is so large, in one pass over its batches.

    found = inspect_partition("/data/kafka-logs/orders-3")
    found.superseded_bytes, found.hot_keys, found.prefixes, ...

Everything is counted in tables of fixed size (`kernels.tally`), so memory does not depend on the log. Up to `keys_max`
keys all numbers are exact; with more, those of keys are estimates from a sample of keys, each with its error. Nothing is
locked or changed; of a broker's directory nothing is read above the checkpointed high watermark.
"""

import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cleanerd.errors import CleanerdError, SourceChanged, attempt
from cleanerd.format.codecs import Codec
from cleanerd.format.head import CODEC_MASK
from cleanerd.format.names import TopicPartition
from cleanerd.kernels.judge import mark_aborted
from cleanerd.kernels.tables import EventKind, Table
from cleanerd.pipeline.values import TopicCodec
from cleanerd.tools.kernels.tally import DAY_MS, GROUPS, Tally, TopTable, Total

from .processes import ReadProgress, answers
from .recoding import Recoded, RecordSample
from .records import LogRange, open_log, read_slices
from .walk import Sound

KEYS_MAX = 1 << 20
"""By default; 84 MB of tables."""
AGES_DAYS = (1, 7, 30, 90, 365)
"""Upper bounds of the bands of age; the last band has none."""

_CONFIDENCE = 1.96  # 95 % of a normal distribution
_CONFIDENCE_OF_GROUPS = 2.13  # 95 % of Student's distribution, for as many groups
_ATTEMPTS_MAX = 3
_TOP = 20


class Estimate(NamedTuple):
    """A number, and how far it may be off (95 % confidence); 0: it is exact."""

    value: int
    error: int


class AgeBand(NamedTuple):
    """Records younger than `below_days` (None: any age) that are in no earlier band."""

    below_days: int | None
    records: int
    bytes: int


class HotKey(NamedTuple):
    """A key with the bytes and records that it has, all but the newest of them superseded; `key` is its first 64 bytes."""

    key: bytes
    key_length: int
    records: int
    bytes: int
    superseded_bytes: int


class Prefix(NamedTuple):
    """Keys that begin alike."""

    prefix: bytes
    records: int
    bytes: int
    superseded_bytes: int


class Day(NamedTuple):
    """A day (UTC, by timestamp; -1: none): what was written, of how many keys, and what was superseded by that."""

    day: int
    records: int
    bytes: int
    keys: int
    superseded_bytes: int


class LargeRecord(NamedTuple):
    """A record; `bytes` is its share of its batch as stored."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    expanded_bytes: int
    bytes: int


class CodecUse(NamedTuple):
    """Batches of one codec."""

    codec: str
    batches: int
    records: int
    bytes: int
    expanded_bytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is in a log. Bytes are as stored, in batches with their headers; `expanded_bytes` are those of the records.

    `hot_keys_error_bytes`, `prefixes_error_bytes`: by how much a row may be too small, and how much what is not listed
    may have. Superseded counts records of the whole log, also where a cleaning may not go yet.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    segments: int
    bytes: int
    expanded_bytes: int
    batches: int
    records: int
    keys: Estimate
    live_bytes: Estimate
    superseded_records: Estimate
    superseded_bytes: Estimate
    superseded_ages: tuple[AgeBand, ...]
    tombstones: int
    live_tombstones: int
    tombstone_ages: tuple[AgeBand, ...]
    no_key_records: int
    no_key_bytes: int
    commits: int
    aborts: int
    marker_bytes: int
    aborted_records: int
    aborted_bytes: int
    sampled_keys: float
    hot_keys: tuple[HotKey, ...]
    hot_keys_error_bytes: int
    prefixes: tuple[Prefix, ...]
    prefixes_error_bytes: int
    days: tuple[Day, ...]
    largest: tuple[LargeRecord, ...]
    codecs: tuple[CodecUse, ...]
    alternatives: tuple[Recoded, ...]


def inspect_partition(
    partition_dir: str,
    *,
    now_ms: int,
    keys_max: int = KEYS_MAX,
    prefix_bytes: int = 0,
    topic_codec: TopicCodec | None = None,
) -> Inspection:
    """Look at one partition. `prefix_bytes`: length of the prefixes; 0: up to a separator.

    `topic_codec`: what it would take with that is estimated, too.

    Raises: `BadUsage` for no partition directory; `CorruptFile` for damage; `SourceChanged` when segments keep changing;
    `OSError`.
    """
    for number in range(_ATTEMPTS_MAX):
        try:
            tally = Tally(keys_max, new_key(), prefix_bytes)
            return _inspect(committed_or_not(partition_dir), now_ms, tally, topic_codec)
        except SourceChanged:  # a live broker deletes and swaps segments
            if number == _ATTEMPTS_MAX - 1:
                raise
    raise AssertionError


def committed_or_not(partition_dir: str) -> LogRange:
    """All records up to the high watermark but the aborted ones. Raises as `open_log`."""
    committed = open_log(partition_dir, isolation="read_committed")
    return replace(open_log(partition_dir), aborted=committed.aborted)


def new_key() -> tuple[int, int]:
    """A key for fingerprints."""
    return secrets.randbits(64), secrets.randbits(64)


def tally_log(view: LogRange, keys_max: int, key: tuple[int, int] | None = None, now_ms: int = -1) -> Tally:
    """The counts of a log alone; `key`: of the fingerprints, a new one by default. Raises as `read_slices`."""
    tally = Tally(keys_max, key or new_key(), now_ms=now_ms)
    for sound in read_slices(view):
        _add(tally, view, sound)
    return tally


def _add(tally: Tally, view: LogRange, sound: Sound) -> None:
    aborted = mark_aborted(sound.piece.batches, view.aborted)
    tally.add(sound.piece.raw, sound.part.expanded, sound.piece.batches, sound.part.records, aborted)


def _inspect(view: LogRange, now_ms: int, tally: Tally, topic_codec: TopicCodec | None) -> Inspection:
    sample, batches = RecordSample(), _Batches()
    for sound in read_slices(view):
        _add(tally, view, sound)
        batches.add(sound)
        sample.add(sound)
    newest, totals = tally.newest(), tally.totals
    is_tombstone = newest["is_tombstone"] != 0
    today, weight = now_ms // DAY_MS, 1 << tally.level
    tombstone_ages = today - newest["timestamp"][is_tombstone] // DAY_MS
    tombstone_bytes = newest["bytes"][is_tombstone].astype(np.int64)
    expanded_bytes = int(totals[Total.EXPANDED_BYTES])
    return Inspection(
        topic=view.topic,
        partition=view.partition,
        start_offset=view.start_offset,
        end_offset=view.end_offset,
        segments=len(view.ranges),
        bytes=batches.bytes,
        expanded_bytes=expanded_bytes,
        batches=batches.count,
        records=int(totals[Total.RECORDS]),
        keys=count_estimate(len(newest), tally.level),
        live_bytes=_estimate(_by_group(newest)[:, 1] * weight, tally.level),
        superseded_records=_estimate(tally.waste[:, 0], tally.level),
        superseded_bytes=_estimate(tally.waste[:, 1], tally.level),
        superseded_ages=_superseded_ages(tally, today),
        tombstones=int(totals[Total.TOMBSTONES]),
        live_tombstones=int(np.count_nonzero(is_tombstone)) * weight,
        tombstone_ages=_ages(tombstone_ages, np.full(len(tombstone_ages), weight), tombstone_bytes * weight),
        no_key_records=int(totals[Total.NO_KEY]),
        no_key_bytes=int(totals[Total.NO_KEY_BYTES]),
        commits=batches.commits,
        aborts=batches.aborts,
        marker_bytes=int(totals[Total.MARKER_BYTES]),
        aborted_records=int(totals[Total.ABORTED]),
        aborted_bytes=int(totals[Total.ABORTED_BYTES]),
        sampled_keys=1 / weight,
        hot_keys=_hot_keys(tally.hot),
        hot_keys_error_bytes=tally.hot.error_bytes,
        prefixes=_prefixes(tally.prefixes),
        prefixes_error_bytes=tally.prefixes.error_bytes,
        days=_days(tally),
        largest=_largest(tally),
        codecs=batches.codecs(),
        alternatives=sample.alternatives(expanded_bytes, batches.bytes, batches.count, topic_codec),
    )


class _Batches:
    def __init__(self) -> None:
        self.count = self.bytes = self.commits = self.aborts = 0
        self._codecs = np.zeros((CODEC_MASK + 1, 4), np.int64)

    def add(self, sound: Sound) -> None:
        """Count the batches of a slice. Requires: its records were walked, so that legacy wrappers know their count."""
        rows = sound.batches
        sizes = rows["size"].astype(np.int64)
        self.count += len(rows)
        self.bytes += int(sizes.sum())
        codec = rows["attributes"] & CODEC_MASK
        columns = (np.ones_like(sizes), rows["count"], sizes, rows["payload_end"] - rows["payload_start"])
        for column, values in enumerate(columns):
            added = np.bincount(codec, weights=values, minlength=CODEC_MASK + 1)
            self._codecs[:, column] += added.astype(np.int64)
        kinds = sound.events()["kind"]
        self.commits += int(np.count_nonzero(kinds == int(EventKind.COMMIT)))
        self.aborts += int(np.count_nonzero(kinds == int(EventKind.ABORT)))

    def codecs(self) -> tuple[CodecUse, ...]:
        """The codecs that occur."""
        rows = [(codec, self._codecs[codec].tolist()) for codec in Codec]
        return tuple(CodecUse(codec.name.lower(), *row) for codec, row in rows if row[0])


def count_estimate(rows: int, level: int) -> Estimate:
    """How many there are if one in 2^level was looked at, and `rows` were seen."""
    kept = 1 / (1 << level)
    return Estimate(rows << level, round(_CONFIDENCE * (rows * (1 - kept)) ** 0.5 / kept))


def _estimate(groups: npt.NDArray[np.int64], level: int) -> Estimate:
    """A sum that was estimated in `GROUPS` independent parts."""
    spread = float(np.std(groups, ddof=1)) * GROUPS**0.5 * (1 - 1 / (1 << level)) ** 0.5
    return Estimate(int(groups.sum()), round(_CONFIDENCE_OF_GROUPS * spread))


def _by_group(newest: Table) -> npt.NDArray[np.int64]:
    """Records and bytes, as the columns, of each of the `GROUPS`."""
    groups = (newest["high"] >> np.uint64(40) & np.uint64(GROUPS - 1)).astype(np.int64)
    columns = (np.ones(len(newest)), newest["bytes"])
    sums = [np.bincount(groups, weights=column, minlength=GROUPS) for column in columns]
    return np.stack(sums, axis=1).astype(np.int64)


def _ages(
    days_ago: npt.NDArray[np.int64], records: npt.NDArray[np.int64], size: npt.NDArray[np.int64]
) -> tuple[AgeBand, ...]:
    band = np.searchsorted(np.array(AGES_DAYS), days_ago, side="right")
    return tuple(
        AgeBand(below, int(records[band == i].sum()), int(size[band == i].sum()))
        for i, below in enumerate((*AGES_DAYS, None))
    )


def _superseded_ages(tally: Tally, today: int) -> tuple[AgeBand, ...]:
    used = np.flatnonzero(tally.days["superseded_records"])
    rows = tally.days[used]
    return _ages(today - used, rows["superseded_records"], rows["superseded_bytes"])


def _hot_keys(table: TopTable) -> tuple[HotKey, ...]:
    names = ["name_length", "records", "bytes", "newest_bytes"]
    return tuple(
        HotKey(name, length, records, size, max(size - newest, 0))
        for name, (length, records, size, newest) in _top(table, names)
    )


def _prefixes(table: TopTable) -> tuple[Prefix, ...]:
    return tuple(Prefix(name, *row) for name, row in _top(table, ["records", "bytes", "wasted_bytes"]))


def _top(table: TopTable, names: list[str]) -> Iterator[tuple[bytes, tuple[int, ...]]]:
    """Names with the most bytes, and these columns of each."""
    for at in table.largest(_TOP, table.rows["bytes"]):
        yield table.name(at), table.rows[names][at].item()


def _days(tally: Tally) -> tuple[Day, ...]:
    used = np.flatnonzero(tally.days["records"])
    return tuple(
        Day(day or -1, *(int(tally.days[name][day]) for name in ("records", "bytes", "keys", "superseded_bytes")))
        for day in used.tolist()
    )  # fmt: skip


def _largest(tally: Tally) -> tuple[LargeRecord, ...]:
    rows = tally.largest[["offset", "timestamp", "expanded_bytes", "bytes"]]
    found = []
    for at in np.argsort(-rows["expanded_bytes"], kind="stable").tolist():
        offset, timestamp_ms, expanded_bytes, size = rows[at].item()
        if expanded_bytes:
            found.append(LargeRecord(offset, timestamp_ms, tally.large_name(at), expanded_bytes, size))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class InspectTask:
    """A log to look at, and how; see `inspect_partition`."""

    log_dir: str
    topic_partition: TopicPartition
    directory: str
    size_bytes: int
    now_ms: int
    keys_max: int
    prefix_bytes: int
    topic_codec: TopicCodec | None


def inspect_logs(
    tasks: Sequence[InspectTask], processes: int | None, read: ReadProgress
) -> dict[InspectTask, Inspection | CleanerdError]:
    """What is in some logs, or why one cannot be read; the largest first. Each is read in one of several processes.

    Memory is that of `keys_max` for each process. `processes`, `read`: as `answers` has them.
    """
    found = answers(inspect_task, tasks, _killed, processes, read)
    return {
        task: found[task]
        for task in sorted(tasks, key=lambda task: (-task.size_bytes, task.log_dir, task.topic_partition))
    }


def size_of_log(directory: str) -> int:
    """Bytes of its segments."""
    try:
        return sum(entry.stat().st_size for entry in os.scandir(directory) if entry.name.endswith(".log"))
    except OSError:  # it is gone, or cannot be read: opening it reports that
        return 0


def inspect_task(task: InspectTask) -> Inspection | CleanerdError:
    """Look at one log; what cannot be read is the answer."""
    look = partial(
        inspect_partition,
        task.directory,
        now_ms=task.now_ms,
        keys_max=task.keys_max,
        prefix_bytes=task.prefix_bytes,
        topic_codec=task.topic_codec,
    )
    return attempt(look, task.directory)


def _killed(_: InspectTask) -> Inspection | CleanerdError:
    return CleanerdError("the process that read it was killed")
