"""Which logs exist: kept up to date by two `stat`s for each partition directory.

The set of closed segments of a log changes only together with the modification time of its directory, so a directory is
listed again only when that time, or the directory itself, is another one. Two writes in one tick of the file system's
clock have one time: what was changed a moment before it was listed is listed once more by the next scan. The second `stat`
is that of the active segment, whose growth changes no directory.

A missing partition directory is a log that is gone only if its log directory is the one that was scanned before, also after
that look. Else the log directory is offline until the next full scan, and nothing is forgotten: its disk may be unmounted.

Everything here may be lost at any time; a scan brings it back. Every method may be called by any thread; scans exclude each
other, and no lock is held while the disk is read.
"""

import contextlib
import errno
import functools
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.broker_agent.live_logs import LiveLog, live_checkpoints
from cleanerd.daemon.inventory.listed_log import (
    ClosedSegment,
    Contents,
    ListedLog,
    offsets_of,
    reaches,
    read_contents,
    with_active_size,
)
from cleanerd.daemon.inventory.urgency import FOREVER_MS, DirtyEstimate
from cleanerd.daemon.values.log_id import LogId
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files, FileStat
from cleanerd.errors import CorruptFile, ours
from cleanerd.format.names import (
    CLEANER_OFFSET_CHECKPOINT,
    CLUSTER_METADATA_TOPIC,
    DirKind,
    TopicPartition,
    parse_partition_dir,
)
from cleanerd.storage.checkpoints import LOG_DIR_CHECKPOINTS, read_offsets
from cleanerd.storage.log_dir import futures
from cleanerd.storage.partition_dir import PartitionDir, check_no_link
from cleanerd.storage.scan import Checkpoints, is_kafka_dir

_SETTLED_AFTER_MS = 2_000  # the coarsest clock of a file system in use


@dataclass(slots=True)
class ScanReport:
    """The differences between a scan and the one before, in order.

    `changed`: what may be cleaned is another, or a problem came or went. `offline`: all log directories that do not work
    now, with the reason; what is known of their logs is kept, none has vanished. A log that moved has vanished in one
    directory and appeared in another.
    """

    appeared: list[LogId] = field(default_factory=list)
    vanished: list[LogId] = field(default_factory=list)
    changed: list[LogId] = field(default_factory=list)
    offline: dict[str, str] = field(default_factory=dict)
    back_online: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Visits:
    """The memory of `due_logs` about a log, kept as long as its directory exists."""

    estimate: DirtyEstimate | None = None
    first_batches_ms: dict[ClosedSegment, int | None] = field(default_factory=dict)
    due_since_s: float | None = None
    offered: object = None  # what the last `Due` was based on
    examined: object = None  # what the last examination that found nothing to do was based on ...
    examined_until_ms: int = FOREVER_MS  # ... and until when it counts
    unrecorded: object = None  # the same of one with nothing to remove that no checkpoint has
    clean_section: frozenset[ClosedSegment] | None = None  # when it was last known; None: never
    horizon_ms: int = FOREVER_MS  # when to look there for delete horizons that have expired
    tombstones_stay: str | None = (
        None  # why those that had expired stayed when it was last cleaned or looked at
    )


@dataclass(slots=True)
class Entry:
    """A partition directory; `known` is None as long as no segment was seen in it. Only scans change it, and `visits`."""

    log: LogId
    identity: FileStat | None = None
    is_settled: bool = False  # listed when its times were old enough to show the next change
    checkpoints_read: int = -1  # those of its log directory that `known` was made with
    known: ListedLog | None = None
    error: str | None = None
    visits: Visits = field(default_factory=Visits)


@dataclass(slots=True)
class _LogDir:
    """A log directory."""

    path: str
    inode: int | None = None  # of the last scan
    offline: str | None = None
    is_kafka: bool = False
    identities: dict[str, FileStat | None] = field(default_factory=dict)
    offsets: dict[str, Mapping[TopicPartition, int]] = field(default_factory=dict)
    checkpoints_read: int = 0  # how often the files above, or what follows, were found to be others
    live: dict[str, LiveLog] | None = (
        None  # by name, as its broker reports them; None where none can be asked
    )
    entries: dict[str, Entry] = field(default_factory=dict)
    futures: frozenset[TopicPartition] = frozenset()  # replicas on their way here

    checkpoints: Checkpoints = field(default_factory=lambda: Checkpoints({}, {}, {}, {}))
    noted: Checkpoints | None = None  # those with which all entries were last looked at

    def concerned(self) -> list[Entry]:
        """Entries whose offsets may be others since then: a commit changes a file of all logs, and most are as they were.

        What a clock that was set back makes of them is found by the next full scan.
        """
        before, now = self.noted, self.checkpoints
        entries = list(self.entries.values())
        if before is None or before.cleaner_written_ms is None or now.cleaner_written_ms is None:
            return entries
        if now.cleaner_written_ms < before.cleaner_written_ms:
            return entries
        changed = before.changed(now)

        def is_concerned(entry: Entry) -> bool:
            # a checkpoint that was lowered because its file was older than a segment
            is_outdated = entry.known is not None and entry.known.offsets.is_outdated
            return is_outdated or entry.log.topic_partition in changed

        return list(filter(is_concerned, entries))

    def note_checkpoints(self) -> None:
        """`checkpoints` becomes what was last read, or reported."""
        cleaner = self.identities.get(CLEANER_OFFSET_CHECKPOINT)
        on_disk = Checkpoints(
            *(self.offsets.get(name, {}) for name in LOG_DIR_CHECKPOINTS),
            cleaner_written_ms=cleaner.mtime_ms if cleaner else None,
        )
        self.checkpoints = on_disk if self.live is None else live_checkpoints(self.live.values(), on_disk)


class Inventory:
    """See the head of this module. `brokers`: who is asked about the logs of live brokers."""

    def __init__(self, files: Files, clock: Clock, brokers: LiveBrokers | None = None) -> None:
        self._files = files
        self._clock = clock
        self._brokers = brokers
        self._dirs: dict[str, _LogDir] = {}
        self._touched: set[tuple[str, str]] = set()
        self.scanned_s = clock.monotonic_s()  # what is known was true then
        self._scanning = threading.Lock()
        self._mutex = threading.Lock()  # guards the two above, and which entries a log directory has

    def touch(self, log_dir: str, dir_name: str) -> None:
        """Have this directory listed again by the next scan, whatever its times are."""
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
        entries = self.entries()
        return sorted((e.log for e in entries if e.known or (e.error and e.identity)), key=_in_order)

    def staged(self) -> list[LogId]:
        """Logs whose results wait for their commit, in order."""
        known = (entry.known for entry in self.entries())
        return sorted((one.log for one in known if one is not None and one.contents.is_staged), key=_in_order)

    def staged_bytes(self, log: LogId) -> int:
        """Bytes of the result that waits in a log, 0 when none does."""
        known = self.facts(log)
        return known.contents.staged.bytes if known is not None and known.contents.staged is not None else 0

    def staged_bytes_in(self, log_dir: str) -> int:
        """Bytes that wait in a log directory, as the last scan found them."""
        return sum(self.staged_bytes(log) for log in self.staged() if log.log_dir == log_dir)

    def facts(self, log: LogId) -> ListedLog | None:
        """The files and offsets of a log as the last scan found them; None if it does not exist."""
        entry = self.entry(log)
        return entry.known if entry else None

    def live(self, log: LogId) -> LiveLog | None:
        """The answer of a live broker about a log at the last scan, None without an answer."""
        with self._mutex:
            place = self._dirs.get(log.log_dir)
            return (place.live or {}).get(str(log.topic_partition)) if place else None

    def error(self, log: LogId) -> str | None:
        """Why a partition directory cannot be read, None when it can."""
        entry = self.entry(log)
        return entry.error if entry else None

    def moving_to(self, log: LogId) -> str | None:
        """The log directory to which a broker moves a log, None for none; as the last full scan found it, also of one that
        has failed since: the broker may go on when that works again.
        """
        tp = log.topic_partition
        with self._mutex:
            found = (
                place.path
                for place in self._dirs.values()
                if place.path != log.log_dir and tp in place.futures
            )
            return next(found, None)

    def twins(self, log: LogId) -> list[LogId]:
        """The logs of this partition in other working log directories; they may be another broker's."""
        with self._mutex:
            return [
                place.entries[str(log.topic_partition)].log
                for place in self._dirs.values()
                if place.path != log.log_dir and place.offline is None
                if str(log.topic_partition) in place.entries
            ]

    def futures(self, log_dir: str) -> frozenset[TopicPartition]:
        """Replicas on their way to a log directory, as the last full scan of it found them."""
        with self._mutex:
            place = self._dirs.get(log_dir)
            return place.futures if place else frozenset()

    def remember_futures(self, log_dir: str, partitions: Iterable[TopicPartition]) -> None:
        """Set the answer of `futures` from an earlier process until the next scan, because the directory may fail now."""
        with self._mutex:
            self._dirs.setdefault(log_dir, _LogDir(log_dir)).futures = frozenset(partitions)

    def entries(self) -> list[Entry]:
        """An entry for each partition directory, also in log directories that are offline."""
        with self._mutex:
            return [entry for place in self._dirs.values() for entry in place.entries.values()]

    def online_entries(self) -> dict[str, list[Entry]]:
        """The entries of each log directory that is online."""
        with self._mutex:
            return {d.path: list(d.entries.values()) for d in self._dirs.values() if d.offline is None}

    def entry(self, log: LogId) -> Entry | None:
        """The entry of a log; None if its partition directory was never seen."""
        with self._mutex:
            place = self._dirs.get(log.log_dir)
            return place.entries.get(str(log.topic_partition)) if place else None

    def _scan(self, log_dirs: Sequence[str], *, only_touched: bool) -> ScanReport:
        found = ScanReport()
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
            found.offline = {place.path: place.offline for place in places if place.offline is not None}
        found.back_online = sorted(was_offline - found.offline.keys())
        for logs in (found.appeared, found.vanished, found.changed):
            logs.sort()
        self.scanned_s = self._clock.monotonic_s()
        return found

    def _scan_dir(self, place: _LogDir, marked: set[str] | None, found: ScanReport) -> None:
        """Look at the `marked` names or at all; offsets before names, as in any scan (spec disk G)."""
        try:
            self._check_same(place)
            self._read_root(place)
            self._ask_broker(place, marked)
            place.note_checkpoints()
            listed = sorted(marked) if marked is not None else self._files.list_names(place.path)
            # a move that begins, or ends: a directory that fails later can no longer be asked
            if marked is not None and any(futures(marked)):
                place.futures = frozenset(futures(self._files.list_names(place.path)))
        except (OSError, CorruptFile) as error:
            place.offline = str(ours(error, place.path))
            return
        place.offline = None
        gone = set() if marked is not None else place.entries.keys() - set(listed)
        for name in listed:
            entry = place.entries.get(name) or _new_entry(place.path, name)
            if entry is not None and self._look(place, name, entry, found):
                gone.add(name)
        if gone:
            try:
                self._check_same(place)
            except OSError as error:
                place.offline = str(ours(error, place.path))
                return
        for name in sorted(gone):
            self._drop(place, name, found)
        if marked is None:
            place.futures = frozenset(futures(listed))
        elif marked.intersection(LOG_DIR_CHECKPOINTS):
            for entry in place.concerned():
                self._note(place, entry, entry.known.contents if entry.known else None, entry.error, found)
        else:
            return
        place.noted = place.checkpoints

    def _check_same(self, place: _LogDir) -> None:
        """Raise OSError if a log directory is away, or another one than at the last check; the next one knows it then."""
        before, place.inode = place.inode, self._files.stat(place.path).inode
        if before not in (None, place.inode):
            raise OSError(errno.ESTALE, "another directory than before", place.path)

    def _read_root(self, place: _LogDir) -> None:
        """Read what has changed of the files of a log directory. Raises OSError, CorruptFile."""
        is_kafka = is_kafka_dir(self._files, place.path)
        if is_kafka != place.is_kafka:
            place.is_kafka = is_kafka
            place.checkpoints_read += 1
            place.noted = None
        for name in LOG_DIR_CHECKPOINTS:
            path = os.path.join(place.path, name)
            identity = self._identity(path)
            if name not in place.identities or identity != place.identities[name]:
                place.identities.pop(name, None)  # what cannot be read now is read by the next scan
                place.offsets[name] = read_offsets(self._files, path)
                place.identities[name] = identity
                place.checkpoints_read += 1

    def _ask_broker(self, place: _LogDir, marked: set[str] | None) -> None:
        """A live broker, if it can be asked, about the `marked` logs or all."""
        wanted, live = None, None
        if marked is not None and place.live is not None:
            parsed = filter(None, map(parse_partition_dir, marked))
            wanted, live = [tp for tp, kind in parsed if kind is DirKind.CURRENT], place.live
        found = (
            self._brokers.describe_if_live(place.path, wanted) if self._brokers and place.is_kafka else None
        )
        if found is not None:
            gone = set() if wanted is None else set(map(str, wanted))
            kept = {name: log for name, log in (live or {}).items() if name not in gone}
            live = kept | {log.directory: log for log in found if not log.is_future}
        else:
            live = None
        if live != place.live:
            place.live = live
            place.checkpoints_read += 1

    def _identity(self, path: str) -> FileStat | None:
        try:
            return self._files.stat(path)
        except FileNotFoundError:
            return None

    def _look(self, place: _LogDir, name: str, entry: Entry, found: ScanReport) -> bool:
        """One partition directory: its `stat`, its listing if that changed, and the difference into `found`.

        Returns whether nothing has this name.
        """
        before = entry.known.contents if entry.known is not None else None
        error = None
        try:
            contents = self._read_contents(entry, before)
        except FileNotFoundError:
            # The directory went away, or a file in it did while we looked. Then the next scan sees what that meant.
            entry.is_settled = False
            with contextlib.suppress(OSError):
                return not self._files.exists(entry.log.directory)
            return False
        except NotADirectoryError:
            contents = None
        except Exception as problem:  # noqa: BLE001  # the boundary of a log: the scan goes on with the others
            contents, entry.is_settled = before, False
            error = str(ours(problem, entry.log.directory))
        if name not in place.entries:
            with self._mutex:
                place.entries[name] = entry
        self._note(place, entry, contents, error, found)
        return False

    def _read_contents(self, entry: Entry, before: Contents | None) -> Contents | None:
        partition = PartitionDir(self._files, entry.log.directory)
        identity = self._files.stat(partition.path)
        if entry.is_settled and identity == entry.identity:
            return with_active_size(partition, before) if before is not None else None
        check_no_link(partition.path)
        now_ms = self._clock.now_ms()
        entry.identity, entry.is_settled = identity, False
        contents = read_contents(partition, before)
        entry.is_settled = now_ms - identity.mtime_ms >= _SETTLED_AFTER_MS
        return contents

    def _note(
        self, place: _LogDir, entry: Entry, contents: Contents | None, error: str | None, found: ScanReport
    ) -> None:
        """Take over what was read, and report what is new."""
        log, before, known = entry.log, entry.known, None
        is_same = contents is (before.contents if before else None) and error == entry.error
        if is_same and entry.checkpoints_read == place.checkpoints_read:
            return
        if contents is not None:
            offsets = offsets_of(
                log.topic_partition, contents, place.checkpoints,
                is_kafka=place.is_kafka, now_ms=self._clock.now_ms(),
                reaches=functools.partial(self._reaches, log, before, contents),
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

    def _drop(self, place: _LogDir, name: str, found: ScanReport) -> None:
        with self._mutex:
            entry = place.entries.pop(name, None)
        if entry is not None and entry.known is not None:
            found.vanished.append(entry.log)


def _in_order(log: LogId) -> tuple[str, str, int]:
    """Sort key in the order of `LogId`, faster than comparing two of them."""
    return log.log_dir, log.topic_partition.topic, log.topic_partition.partition


def _new_entry(log_dir: str, name: str) -> Entry | None:
    """An entry for a directory whose name may be a log's (spec disk A5), else None."""
    parsed = parse_partition_dir(name)
    if parsed is None or parsed[1] is not DirKind.CURRENT or parsed[0].topic == CLUSTER_METADATA_TOPIC:
        return None
    return Entry(LogId(log_dir, parsed[0]))
