"""Which logs exist, and which of them is due: kept up to date by two `stat`s for each partition directory.

The set of closed segments of a log changes only together with the modification time of its directory, so a directory is
listed again only when that time, or the directory itself, is another one. Two writes in one tick of the file system's
clock have one time: who was changed a moment before it was listed is listed once more by the next scan. The second `stat`
is that of the active segment, whose growth changes no directory.

What is offered as due is an upper bound (`listed_log`): the exact examination decides. One that found nothing to do is
remembered with the facts it was based on, so that no log is examined twice for the same reason. Everything here may be
lost at any time; a scan brings it back.

Every method may be called by any thread; scans exclude each other, and no lock is held while the disk is read.
"""

import functools
import math
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cleanerd.config.model import TopicConfig
from cleanerd.daemon.inventory.installed import InstalledLogs
from cleanerd.daemon.inventory.listed_log import (
    ClosedSegment,
    Contents,
    ListedLog,
    offsets_of,
    reaches,
    read_contents,
    with_active_size,
)
from cleanerd.daemon.inventory.totals import Totals, sum_up
from cleanerd.daemon.inventory.urgency import FOREVER_MS, Due, DueReason, Estimate, estimate
from cleanerd.daemon.values.log_id import LogId
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files, FileStat
from cleanerd.errors import CleanerdError, CorruptFile
from cleanerd.format import names
from cleanerd.format.names import (
    DirKind,
    FileKind,
    TopicPartition,
    parse_partition_dir,
    segment_path,
)
from cleanerd.storage.checkpoints import read_offsets
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import Checkpoints, first_batch_timestamp_ms

TopicConfigs = Callable[[str], TopicConfig]
IsFree = Callable[[LogId], bool]

_SETTLED_AFTER_MS = 2_000  # the coarsest clock of a file system in use
_CHECKPOINT_NAMES = (
    names.CLEANER_OFFSET_CHECKPOINT,
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_CHECKPOINT,
    names.REPLICATION_CHECKPOINT,
)


@dataclass(frozen=True, slots=True)
class ScanReport:
    """What a scan found to be different from the one before.

    `changed`: what may be cleaned is another, or a problem came or went. `offline`: all log directories that do not work
    now, with the reason; what is known of their logs is kept, none has vanished. A log that moved has vanished in one
    directory and appeared in another.
    """

    appeared: tuple[LogId, ...]
    vanished: tuple[LogId, ...]
    changed: tuple[LogId, ...]
    offline: Mapping[str, str]
    back_online: tuple[str, ...]


@dataclass(slots=True)
class _Entry:
    """A partition directory; `known` is None as long as no segment was seen in it."""

    log: LogId
    identity: FileStat | None = None
    is_settled: bool = False  # listed when its times were old enough to tell of the next change
    checkpoints_read: int = -1  # those of `_LogDir` that `known` was made with
    known: ListedLog | None = None
    error: str | None = None
    estimate: Estimate | None = None
    first_batches_ms: dict[ClosedSegment, int | None] = field(default_factory=dict)
    due_since_s: float | None = None
    offered: object = None  # what the last `Due` was based on
    examined: object = None  # what the last examination that found nothing to do was based on ...
    examined_until_ms: int = FOREVER_MS  # ... and until when it counts
    horizon_ms: int = FOREVER_MS


@dataclass(slots=True)
class _LogDir:
    """A log directory."""

    path: str
    offline: str | None = None
    is_kafka: bool = False
    identities: dict[str, FileStat | None] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    checkpoints_read: int = 0  # how often the files above were found to be others
    entries: dict[str, _Entry] = field(default_factory=dict)

    def checkpoints(self) -> Checkpoints:
        """As they were last read."""
        return Checkpoints(*(self.offsets.get(name, {}) for name in _CHECKPOINT_NAMES))


@dataclass(slots=True)
class _Findings:
    appeared: list[LogId] = field(default_factory=list)
    vanished: list[LogId] = field(default_factory=list)
    changed: list[LogId] = field(default_factory=list)


class Inventory:
    """See the head of this module."""

    def __init__(self, files: Files, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self.installed = InstalledLogs(files)
        self._reserved_topics: frozenset[str] = frozenset()
        self._reserved_max_wait_s = 0.0
        self._dirs: dict[str, _LogDir] = {}
        self._touched: set[tuple[str, str]] = set()
        self._scanning = threading.Lock()
        self._mutex = threading.Lock()  # guards the two above, and which entries a log directory has

    # -- what exists ------------------------------------------------------------------------------------------

    def touch(self, log_dir: str, dir_name: str) -> None:
        """Have this directory listed again by the next scan, whatever its times say."""
        with self._mutex:
            self._touched.add((log_dir, dir_name))

    def touch_log(self, log: LogId) -> None:
        """Have the directory of a log listed again."""
        self.touch(log.log_dir, str(log.topic_partition))

    def scan(self, log_dirs: Sequence[str]) -> ScanReport:
        """Look at all partition directories of these log directories; raises nothing that a disk can do.

        A log directory that is left out counts as offline, until it is named again.
        """
        return self._scan(log_dirs, only_touched=False)

    def scan_touched(self, log_dirs: Sequence[str]) -> ScanReport:
        """Look only at what was touched since the last scan, with the checkpoint files as they are now."""
        return self._scan(log_dirs, only_touched=True)

    def logs(self) -> list[LogId]:
        """Every log that exists, or existed when its log directory went offline, in order.

        Also one whose files could not be looked at; a link in the place of a directory is none.
        """
        entries = self._entries()
        return sorted((e.log for e in entries if e.known or (e.error and e.identity)), key=_in_order)

    def staged(self) -> list[LogId]:
        """Logs whose results wait for their commit, in order."""
        known = (entry.known for entry in self._entries())
        return sorted((one.log for one in known if one is not None and one.contents.is_staged), key=_in_order)

    def staged_bytes(self, log: LogId) -> int:
        """Bytes of the result that waits in a log, 0 when none does."""
        known = self.facts(log)
        return known.contents.staged.bytes if known is not None and known.contents.staged is not None else 0

    def errors(self) -> dict[LogId, str]:
        """Partition directories that cannot be read, and why."""
        return {entry.log: entry.error for entry in self._entries() if entry.error is not None}

    def facts(self, log: LogId) -> ListedLog | None:
        """What is known of a log, None if it does not exist."""
        entry = self._entry(log)
        return entry.known if entry else None

    def error(self, log: LogId) -> str | None:
        """Why a partition directory cannot be read, None when it can."""
        entry = self._entry(log)
        return entry.error if entry else None

    def due_for_s(self, log: LogId) -> float:
        """For how long a log has been found due without a break, in seconds; 0 for one that is not due."""
        entry = self._entry(log)
        if entry is None or entry.due_since_s is None:
            return 0.0
        return self._clock.monotonic_s() - entry.due_since_s

    def estimate(self, log: LogId, now_ms: int, topic_config: TopicConfigs) -> Estimate | None:
        """The most that may be cleanable of a log; None if it is not compacted, does not exist or cannot be read."""
        entry = self._entry(log)
        return self._estimate(entry, now_ms, topic_config) if entry else None

    def totals(self, now_ms: int, topic_config: TopicConfigs) -> dict[str, Totals]:
        """Numbers of each log directory that works."""
        config_of = functools.cache(topic_config)
        with self._mutex:
            online = {d.path: list(d.entries.values()) for d in self._dirs.values() if d.offline is None}
        return {path: self._totals(entries, now_ms, config_of) for path, entries in online.items()}

    def _scan(self, log_dirs: Sequence[str], *, only_touched: bool) -> ScanReport:
        found = _Findings()
        with self._scanning:
            with self._mutex:
                touched, self._touched = self._touched, set()
                places = [self._dirs.setdefault(path, _LogDir(path)) for path in log_dirs]
                if not only_touched:
                    for path in self._dirs.keys() - set(log_dirs):
                        self._dirs[path].offline = "left out"
            was_offline = {place.path for place in places if place.offline is not None}
            for place in places:
                marked = {name for path, name in touched if path == place.path}
                for name in marked & place.entries.keys():
                    place.entries[name].is_settled = False
                if not only_touched:
                    self._scan_dir(place, None, found)
                elif marked and place.offline is None:
                    self._scan_dir(place, marked, found)
            offline = {place.path: place.offline for place in places if place.offline is not None}
        return ScanReport(
            appeared=tuple(sorted(found.appeared)),
            vanished=tuple(sorted(found.vanished)),
            changed=tuple(sorted(found.changed)),
            offline=offline,
            back_online=tuple(sorted(was_offline - offline.keys())),
        )

    def _scan_dir(self, place: _LogDir, marked: set[str] | None, found: _Findings) -> None:
        """Look at the `marked` names or at all; offsets before names, as in any scan (spec disk G)."""
        try:
            self._read_root(place)
            present = marked if marked is not None else set(self._files.list_names(place.path))
        except (OSError, CorruptFile) as error:
            place.offline = _reason(error)
            return
        place.offline = None
        for name in present:
            entry = place.entries.get(name) or _new_entry(place.path, name)
            if entry is not None:
                self._look(place, name, entry, found)
        if marked is None:
            for name in place.entries.keys() - present:
                self._drop(place, name, found)
        elif marked.intersection(_CHECKPOINT_NAMES):
            for entry in place.entries.values():
                self._note(place, entry, entry.known.contents if entry.known else None, entry.error, found)

    def _read_root(self, place: _LogDir) -> None:
        """Read what has changed of the files of a log directory. Raises OSError, CorruptFile."""
        is_kafka = self._files.exists(os.path.join(place.path, names.META_PROPERTIES))
        if is_kafka != place.is_kafka:
            place.is_kafka = is_kafka
            place.checkpoints_read += 1
        for name in _CHECKPOINT_NAMES:
            path = os.path.join(place.path, name)
            identity = self._identity(path)
            if name not in place.identities or identity != place.identities[name]:
                place.identities.pop(name, None)  # what cannot be read now is read by the next scan
                place.offsets[name] = read_offsets(self._files, path)
                place.identities[name] = identity
                place.checkpoints_read += 1

    def _identity(self, path: str) -> FileStat | None:
        try:
            return self._files.stat(path)
        except FileNotFoundError:
            return None

    def _look(self, place: _LogDir, name: str, entry: _Entry, found: _Findings) -> None:
        """One partition directory: its `stat`, its listing if that says so, and the difference into `found`."""
        before = entry.known.contents if entry.known is not None else None
        error = None
        try:
            contents = self._read_contents(entry, before)
        except FileNotFoundError:
            # The directory went away, or a file in it did while we looked. Then the next scan sees what that meant.
            entry.is_settled = False
            if not self._files.exists(entry.log.directory):
                self._drop(place, name, found)
            return
        except NotADirectoryError:
            contents = None
        except Exception as problem:  # noqa: BLE001  # the boundary of a log: the scan goes on with the others
            contents, error, entry.is_settled = before, _reason(problem), False
        if name not in place.entries:
            with self._mutex:
                place.entries[name] = entry
        self._note(place, entry, contents, error, found)

    def _read_contents(self, entry: _Entry, before: Contents | None) -> Contents | None:
        partition = PartitionDir(self._files, entry.log.directory)
        identity = self._files.stat(partition.path)
        if entry.is_settled and identity == entry.identity:
            return with_active_size(partition, before) if before is not None else None
        if os.path.islink(partition.path):
            raise OSError(0, "a symbolic link is not a partition directory", partition.path)
        now_ms = self._clock.now_ms()
        entry.identity, entry.is_settled = identity, False
        contents = read_contents(partition, before)
        entry.is_settled = now_ms - identity.mtime_ns // 1_000_000 >= _SETTLED_AFTER_MS
        return contents

    def _note(
        self, place: _LogDir, entry: _Entry, contents: Contents | None, error: str | None, found: _Findings
    ) -> None:
        """Take over what was read, and report what is new."""
        log, before, known = entry.log, entry.known, None
        is_same = contents is (before.contents if before else None) and error == entry.error
        if is_same and entry.checkpoints_read == place.checkpoints_read:
            return
        if contents is not None:
            offsets = offsets_of(
                log.topic_partition, contents, self.installed.complete(place.checkpoints(), log),
                is_kafka=place.is_kafka, reaches=functools.partial(self._reaches, log, before, contents),
            )  # fmt: skip
            known = ListedLog(log, contents, offsets)
        if before is None and known is not None:
            found.appeared.append(log)
        elif before is not None and known is None:
            found.vanished.append(log)
        elif known != before or error != entry.error:
            found.changed.append(log)
        entry.known, entry.error, entry.checkpoints_read = known, error, place.checkpoints_read

    def _reaches(self, log: LogId, before: ListedLog | None, contents: Contents, checkpoint: int) -> bool:
        if before is not None and (before.contents, before.offsets.checkpoint) == (contents, checkpoint):
            return checkpoint <= before.offsets.log_end
        return reaches(PartitionDir(self._files, log.directory), contents, checkpoint)

    def _drop(self, place: _LogDir, name: str, found: _Findings) -> None:
        with self._mutex:
            entry = place.entries.pop(name, None)
        if entry is not None and entry.known is not None:
            found.vanished.append(entry.log)

    def _entries(self, *, online: bool = False) -> list[_Entry]:
        with self._mutex:
            places = [place for place in self._dirs.values() if not online or place.offline is None]
            return [entry for place in places for entry in place.entries.values()]

    def _entry(self, log: LogId) -> _Entry | None:
        with self._mutex:
            place = self._dirs.get(log.log_dir)
            return place.entries.get(str(log.topic_partition)) if place else None

    def _totals(self, entries: Sequence[_Entry], now_ms: int, config_of: TopicConfigs) -> Totals:
        known = [entry.known for entry in entries if entry.known is not None]
        found = (self._estimate(entry, now_ms, config_of) for entry in entries)
        unreadable = sum(entry.error is not None for entry in entries)
        estimates = [estimate for estimate in found if estimate is not None]
        return sum_up(known, estimates, unreadable=unreadable, now_ms=now_ms)

    # -- what is due ------------------------------------------------------------------------------------------

    def reserve(self, topics: Collection[str], max_wait_ms: int) -> None:
        """From now on logs of these topics that have been due for so long go before all others."""
        self._reserved_topics, self._reserved_max_wait_s = frozenset(topics), max_wait_ms / 1000

    def due(self, now_ms: int, topic_config: TopicConfigs, is_free: IsFree) -> list[Due]:
        """Compacted logs that may be worth a visit, most urgent first.

        Reserved topics that waited too long; logs past max.compaction.lag.ms, earliest deadline first; the highest dirty
        ratio (1.21, 1.23 with cleanerd's deviation); expired delete horizons. Logs that `is_free` refuses are left out.
        """
        config_of = functools.cache(topic_config)
        now_s = self._clock.monotonic_s()
        found = []
        for entry in self._entries(online=True):
            due, basis = self._due(entry, now_ms, config_of)
            if due is None:
                entry.due_since_s = None
                continue
            if entry.due_since_s is None:
                entry.due_since_s = now_s
            if is_free(entry.log):
                entry.offered = basis
                left_s = self._left_s(entry, now_s)
                found.append(due if left_s > 0 else replace(due, late_s=-left_s))
        return sorted(found, key=lambda due: due.urgency)

    def next_due_ms(self, now_ms: int, topic_config: TopicConfigs, is_free: IsFree) -> int | None:
        """When time alone may make `due` return a log that it does not return now, or call one late; None if it will not.

        It may be early (the log is not due after all, ask again), never late.
        """
        config_of = functools.cache(topic_config)
        instants = [FOREVER_MS]
        for entry in self._entries(online=True):
            found = self._estimate(entry, now_ms, config_of)
            if found is None:
                continue
            own = [FOREVER_MS]
            if self._due(entry, now_ms, config_of)[0] is None:
                own = [found.next_change_ms(now_ms), entry.horizon_ms, entry.examined_until_ms]
            elif entry.due_since_s is not None:
                left_s = self._left_s(entry, self._clock.monotonic_s())
                own = [now_ms + math.ceil(min(left_s * 1000, FOREVER_MS))]
            if min(own) < FOREVER_MS and is_free(entry.log):
                instants += own
        earliest_ms = min(at for at in instants if at > now_ms)
        return earliest_ms if earliest_ms < FOREVER_MS else None

    def note_examined(self, log: LogId, until_ms: int | None) -> None:
        """An exact examination of what `due` offered found nothing to do.

        The log is offered again when its files, its checkpoint, its configuration or the reason are others, and at
        `until_ms`: give one when what held it back cannot be seen from here, as an open transaction.
        """
        entry = self._entry(log)
        if entry is not None:
            entry.examined_until_ms = FOREVER_MS if until_ms is None else until_ms
            entry.examined = entry.offered

    def note_horizon(self, log: LogId, due_ms: int | None) -> None:
        """From `due_ms` on a visit is due even if nothing is dirty (rule 0.6); None: there is nothing to wait for."""
        entry = self._entry(log)
        if entry is not None:
            entry.horizon_ms = FOREVER_MS if due_ms is None else due_ms

    def _due(self, entry: _Entry, now_ms: int, config_of: TopicConfigs) -> tuple[Due | None, object]:
        """What makes this log due, and what that is based on."""
        found = self._estimate(entry, now_ms, config_of)
        if found is None or found.known.contents.in_transition:
            return None, None
        reason = found.reason(now_ms)
        if reason is None and now_ms >= entry.horizon_ms:
            reason = DueReason.HORIZON
        if reason is None:
            return None, None
        limits = (found.range.first_dirty_offset, found.range.first_uncleanable_offset)
        basis = (found.known.contents, limits, found.config, reason, entry.horizon_ms)
        if now_ms < entry.examined_until_ms and basis == entry.examined:
            return None, None
        at_ms = {DueReason.MAX_LAG: found.deadline_ms, DueReason.HORIZON: entry.horizon_ms}.get(reason)
        return Due(entry.log, reason, found.range, at_ms), basis

    def _left_s(self, entry: _Entry, now_s: float) -> float:
        """How long a log that is due may go on waiting; from 0 on it is late. Forever, if not reserved."""
        if entry.due_since_s is None or entry.log.topic_partition.topic not in self._reserved_topics:
            return math.inf
        return entry.due_since_s + self._reserved_max_wait_s - now_s

    def _estimate(self, entry: _Entry, now_ms: int, config_of: TopicConfigs) -> Estimate | None:
        """None for a log that is not compacted, or cannot be read."""
        known = entry.known
        config = config_of(entry.log.topic_partition.topic)
        if known is None or entry.error is not None or not config.compact:
            return None
        current = entry.estimate
        if current is not None and current.holds(known, config, now_ms):
            return current
        try:
            first_batches_ms = self._first_batches_ms(entry, known, config)
        except OSError:  # it changes under our hands; if it cannot be read at all, the scan says so
            self.touch_log(entry.log)
            return None
        entry.estimate = estimate(known, config, now_ms, first_batches_ms)
        return entry.estimate

    def _first_batches_ms(
        self, entry: _Entry, known: ListedLog, config: TopicConfig
    ) -> dict[int, int | None]:
        """Rule 1.19, read once for each closed segment of a topic that has max.compaction.lag.ms."""
        if config.max_compaction_lag_ms >= FOREVER_MS:
            return {}
        read = entry.first_batches_ms
        entry.first_batches_ms = {
            segment: read[segment] if segment in read else first_batch_timestamp_ms(_log_path(entry, segment))
            for segment in known.contents.closed
        }
        return {segment.facts.base_offset: at for segment, at in entry.first_batches_ms.items()}


def _in_order(log: LogId) -> tuple[str, str, int]:
    """As logs compare with each other, in less time."""
    return log.log_dir, log.topic_partition.topic, log.topic_partition.partition


def _new_entry(log_dir: str, name: str) -> _Entry | None:
    """For the name of a directory that may be a log's (spec disk A5), else None."""
    parsed = parse_partition_dir(name)
    if parsed is None or parsed[1] is not DirKind.CURRENT or parsed[0].topic == names.CLUSTER_METADATA_TOPIC:
        return None
    return _Entry(LogId(log_dir, parsed[0]))


def _log_path(entry: _Entry, segment: ClosedSegment) -> str:
    return segment_path(entry.log.directory, segment.facts.base_offset, FileKind.LOG)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(error) if isinstance(error, CleanerdError) else f"internal error: {error!r}"
