"""A log directory: whose it is, its lock, its checkpoints, its partitions, and the other directories of the same broker.

A broker that moves a replica from one of its directories to another fills a `-future` directory from the log as it is, from
its beginning on, and goes on with that after a restart. What was copied before a cleaning and what is copied after it do not
fit together: a tombstone may be gone from the log before it is copied, while the value that it deleted has been. So such a
log is not cleaned, as Kafka's own cleaner is paused for it, and what was staged before is dropped (rule 2.10).

A partition lies in two directories when a disk that failed comes back after its replica was created again on another one,
or when a move ended halfway. A broker does not start with both, and only its operator knows which one to keep, so neither
is touched (`copies`).
"""

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from cleanerd.config.model import CleanerdConfig
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.env.pace import Pace, unpaced
from cleanerd.env.space import floor_bytes, space_for
from cleanerd.errors import MAKE_ROOM, CleanerdError, DirOffline, LockHeld, LogUncleanable, NoSpace, each_log
from cleanerd.format import names
from cleanerd.format.errors import FormatError, corruption_in
from cleanerd.format.meta_properties import parse_meta_properties
from cleanerd.format.names import DirKind, TopicPartition, parse_partition_dir
from cleanerd.policy.cleanable import usable_checkpoint
from cleanerd.units import size

from .checkpoints import (
    clean_up_to,
    is_still_clean,
    read_checkpoints,
    read_offsets,
    update_cleaner_checkpoint,
)
from .generation import check_generation
from .lock import HOLD_S, LogDirLock, other_holder, pause_after
from .partition_dir import PartitionDir
from .recover import recover
from .scan import Checkpoints, PartitionSnapshot, read_bounds, scan_partition
from .staged import StagedGroup
from .whose import Whose, whose

_WRITER_LOCK_WAIT_S = 30.0
_OWN_LOCK_WAIT_S = 2.0
_LET_COMMIT = (
    "set cleanerd.commit.live=auto, with which the broker swaps results in at once, or stop the broker, so that what waits "
    "is committed"
)


class Owner(Enum):
    """The current owner of a log directory (architecture 2)."""

    NOBODY = "nobody"
    WRITER = "a writer"
    """A cooperating writer, or another program that keeps to the rule, holds `.lock`."""
    STOPPED_BROKER = "a stopped broker"
    LIVE_BROKER = "a live broker"
    BROKER_COMING = "a broker that is about to start"
    """Only a daemon knows (`daemon.work.ownership`): it was announced, or has opened `.lock`."""

    @property
    def is_free(self) -> bool:
        """Whether `.lock` can be had, and nobody is expected to take it."""
        return self in (Owner.NOBODY, Owner.STOPPED_BROKER)

    @property
    def has_lock(self) -> bool:
        """Whether another process holds `.lock`."""
        return self in (Owner.WRITER, Owner.LIVE_BROKER)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What `recover` made of a partition directory: why its log must be left alone, None if it need not be, and what was
    done.

    `actions`: roll_forward or roll_back for each commit that was completed or undone, and delete_leftover.
    """

    name: str
    error: CleanerdError | None
    actions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """Facts about logs for their commit: why some must be left alone (`LogDir.elsewhere`), and the high watermarks that a
    stopped broker has left. A live broker compares with its own, so there are none then.
    """

    elsewhere: Mapping[TopicPartition, str]
    high_watermarks: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory as it is now, to be made afresh for each piece of work: `at`.

    `is_kafka`: it is a broker's, whether that runs or not. `log_dirs`: all directories that may belong to the same broker.
    `damage`: why nothing may be done to it (`storage.whose`). Every method raises OSError, and LockHeld or DirOffline where
    it takes `.lock`.
    """

    files: Files
    path: str
    clock: Clock
    is_kafka: bool
    log_dirs: tuple[str, ...] = ()
    damage: str | None = None

    @classmethod
    def at(
        cls, files: Files, path: str, clock: Clock, log_dirs: Sequence[str] = (), found: Whose | None = None
    ) -> "LogDir":
        """The directory at a path; `found`: whose it is, if that is known. Raises OSError when it cannot be looked at."""
        found = found or whose(files, path)
        return cls(files, path, clock, found.is_kafka, tuple(log_dirs), found.damage)

    @property
    def is_known(self) -> bool:
        """Whether `meta.properties` says whose it is."""
        return self.is_kafka and self.damage is None

    # -- whose it is --------------------------------------------------------------------------------------------

    @property
    def owner(self) -> Owner:
        """The owner by `.lock`; our own process counts as nobody. Raises DirOffline."""
        is_held = other_holder(self.path) is not None
        if self.is_kafka:
            return Owner.LIVE_BROKER if is_held else Owner.STOPPED_BROKER
        return Owner.WRITER if is_held else Owner.NOBODY

    def lock(self) -> LogDirLock:
        """The `.lock` of the directory, to be used in a `with` block.

        A cooperating writer holds it for the moment of a roll, so it is waited for; a broker for its life, so it is not.
        Another thread of this process lets go in a moment, too.
        """
        wait_s, wait = 0.0 if self.is_kafka else _WRITER_LOCK_WAIT_S, threading.Event().wait
        return LogDirLock(self.path, wait_s=wait_s, own_wait_s=_OWN_LOCK_WAIT_S, wait=wait)

    # -- what lies in it ----------------------------------------------------------------------------------------

    def partition(self, tp: TopicPartition) -> PartitionDir:
        """The directory of a partition."""
        return PartitionDir.of(self.files, self.path, tp)

    def scan(
        self,
        tp: TopicPartition,
        checkpoints: Checkpoints,
        *,
        first_batch_timestamps: bool = False,
        pace: Pace = unpaced,
        staged: Sequence[StagedGroup] = (),
        directory: str | None = None,
        beside_cleaning: bool = False,
    ) -> PartitionSnapshot | None:
        """`scan_partition` of a partition that lies here; `directory`: its path where its name is another one."""
        partition = self.partition(tp) if directory is None else PartitionDir(self.files, directory)
        return scan_partition(
            partition, tp, checkpoints, is_kafka=self.is_kafka,
            first_batch_timestamps=first_batch_timestamps, pace=pace, staged=staged, beside_cleaning=beside_cleaning,
        )  # fmt: skip

    def checkpoints(self) -> Checkpoints:
        """The four offset checkpoints of the directory. Raises CorruptFile."""
        return read_checkpoints(self.files, self.path)

    def first_dirty_offset(self, tp: TopicPartition) -> int | None:
        """The entry of `cleaner-offset-checkpoint`. Raises CorruptFile."""
        return self._cleaner_offsets().get(tp)

    def _cleaner_offsets(self) -> Mapping[TopicPartition, int]:
        return read_offsets(self.files, os.path.join(self.path, names.CLEANER_OFFSET_CHECKPOINT))

    def why_full(self, config: CleanerdConfig, *, waits: bool) -> NoSpace | None:
        """Why nothing more may be staged, None when something may: the disk of a live broker is not ours to fill.

        `waits`: results do, until the broker stops, and cleanerd.staged.min.free.ratio stays free meanwhile. One that is
        swapped takes its room for a moment only, and a cleaning that makes room is needed most where there is little
        (`floor_bytes`).
        """
        ratio = config.staged_min_free_ratio if waits else 0.0
        space = space_for(self.path, lambda space: space.free_bytes >= floor_bytes(space, ratio))
        least_bytes = floor_bytes(space, ratio)
        if space.free_bytes >= least_bytes:
            return None
        why = f", for cleanerd.staged.min.free.ratio is {ratio}" if waits else ""
        return NoSpace(
            f"{size(space.free_bytes)} ({space.free_ratio:.1%}) of the file system of {self.path} are free, and "
            f"{size(least_bytes)} stay free{why}",
            remedy=f"{MAKE_ROOM}; or {_LET_COMMIT}" if waits else MAKE_ROOM,
        )

    # -- its broker's other directories -------------------------------------------------------------------------

    def siblings(self, *, or_damaged: bool = False) -> Iterator["LogDir"]:
        """The other directories of the same broker, without any that fails.

        `or_damaged`: those, too, of which it is not known whose they are. They may be this broker's.
        """
        if not self.is_kafka:
            return
        broker, inode = self._broker(), self.files.stat(self.path).inode

        def is_sibling(other: LogDir) -> bool:
            with contextlib.suppress(CleanerdError, OSError):  # what cannot be looked at is none
                is_other = self.files.exists(other.path) and self.files.stat(other.path).inode != inode
                if not is_other or other._broker() == broker:
                    return is_other
                return or_damaged and whose(self.files, other.path, thorough=True).damage is not None
            return False

        for path in self.log_dirs:
            other = LogDir(self.files, path, self.clock, is_kafka=True, log_dirs=self.log_dirs)
            if path != self.path and is_sibling(other):
                yield other

    def node_id(self) -> int | None:
        """Id of the node that owns it, by `meta.properties`; None if that is not known. Raises OSError."""
        broker = self._broker()
        return None if broker is None else broker[1]

    def _broker(self) -> tuple[str | None, int | None] | None:
        try:
            found = parse_meta_properties(self.files.read(f"{self.path}/{names.META_PROPERTIES}"))
        except (FileNotFoundError, FormatError):
            return None
        return found.cluster_id, found.node_id

    def is_zookeepers(self) -> bool:
        """Whether its broker keeps the settings of its topics in ZooKeeper. Raises CorruptFile, OSError."""
        path = os.path.join(self.path, names.META_PROPERTIES)
        with corruption_in(path):
            found = parse_meta_properties(self.files.read(path))
        return found.version == 0 and found.node_id is not None

    def elsewhere(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """Why some of these partitions, which lie here, must be left alone: they are on their way to another directory of
        the same broker (rule 2.10), or lie there as well.

        To be asked with `.lock` held: only a live broker begins to move one.
        """
        found = {tp: why_two_copies(other) for tp, other in self.copies(partitions).items()}
        for other, listed in self._listed_siblings():
            for tp in futures(listed):
                found.setdefault(tp, f"its broker moves it to {other.path}")
        return found

    def commit_facts(self, partitions: Collection[TopicPartition], *, is_live: bool) -> CommitFacts:
        """Facts for a commit of these partitions; `is_live`: a live broker commits them. Raises CorruptFile."""
        path = os.path.join(self.path, names.REPLICATION_CHECKPOINT)
        is_left = self.is_kafka and not is_live
        return CommitFacts(self.elsewhere(partitions), read_offsets(self.files, path) if is_left else {})

    def copies(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """Partitions, of those given, that also lie in another directory of the same broker, with that directory.

        One that is going to be deleted, or is the target of a move, is no copy.
        """
        found: dict[TopicPartition, str] = {}
        for other, listed in self._listed_siblings():
            for tp in partitions:
                if str(tp) in listed and _is_directory(self.files, other.partition(tp).path):
                    found.setdefault(tp, other.path)
        return found

    def _listed_siblings(self) -> Iterator[tuple["LogDir", frozenset[str]]]:
        for other in self.siblings(or_damaged=True) if len(self.log_dirs) > 1 else ():
            try:
                listed = frozenset(self.files.list_names(other.path))
            except OSError:
                continue
            yield other, listed

    # -- its first dirty offsets --------------------------------------------------------------------------------

    def kept_checkpoint(self, tp: TopicPartition, *, is_live: bool = False) -> int | None:
        """The first dirty offset of a log, if it would stay when another is written; None without one.

        Between two rounds of a cleaning it is written again: a group that joins clean and dirty segments is as new as the
        last of them, and the log would pass for one that was truncated. To be asked before the commit, after which nothing
        would tell it from one that was. `is_live`: as `update_cleaner_checkpoint` has it. Raises CorruptFile, OSError.
        """
        offset = self.first_dirty_offset(tp)
        if offset is None or not is_still_clean(self.files, self.path, tp, offset, is_live=is_live):
            return None
        return offset

    def record_cleaned(self, ends: Mapping[TopicPartition, int]) -> None:
        """Write first dirty offsets; no other directory of the same broker keeps an entry of these partitions.

        A partition whose topic was created again, or whose replica was moved, leaves an entry in the directory where it was,
        and a broker's cleaner dies of two. The old one goes first: a crash in between costs the entry, so that the log is
        cleaned from its start. Where it cannot go, because another process has that directory or it fails, no new one is
        written. What else is wrong with another directory is no reason not to write in this one: a broker reads none that
        fails.

        Needs `.lock`; or a live broker whose cleaner is off, which does not write this file. Raises CorruptFile, before
        anything is written if it is about this directory.
        """
        self._cleaner_offsets()
        kept: set[TopicPartition] = set()
        broker = None
        with contextlib.suppress(DirOffline):  # what fails has none
            broker = other_holder(self.path)
        for other in self.siblings():
            stale = other._entries() & ends.keys()
            if stale and not other._forget(stale, broker):
                kept |= stale
        ours = {tp: end for tp, end in ends.items() if tp not in kept}
        if ours:
            update_cleaner_checkpoint(self.files, self.path, ours, is_live=broker is not None)

    def _entries(self) -> set[TopicPartition]:
        """Partitions with an entry. A checkpoint that cannot be read has none: a broker takes its directory offline."""
        try:
            return set(self._cleaner_offsets())
        except (CleanerdError, OSError):
            return set()

    def _forget(self, stale: set[TopicPartition], broker: int | None) -> bool:
        """`broker`: pid of the live one without a cleaner, which writes this file in none of its directories."""
        try:
            with contextlib.ExitStack() as held:
                if broker is None or other_holder(self.path) != broker:
                    held.enter_context(self.lock())
                update_cleaner_checkpoint(self.files, self.path, dict.fromkeys(stale))
        except (LockHeld, DirOffline, OSError):
            return False
        return True

    def reset_checkpoint(self, tp: TopicPartition, checkpoints: Checkpoints) -> int | None:
        """Write where a log is dirty from over a first dirty offset that no cleaning of it can have written (1.5, 1.7).

        None where it is usable. One above the log end is what a log leaves that lost its end, or was restored from an older
        copy: it goes back to the log start. One that is older than segments below it is what a broker without a cleaner
        leaves of a log that it truncated, or of a topic that was created again: it goes back to the first of them
        (`policy.cleanable.lowered_checkpoint`). Ignoring it is not enough: the log grows past it, or another entry of the
        same file is written. Then what lies below would count as clean although no cleaning has seen it, and tombstones
        among it would go before the values that they delete.

        Requires: the log is not cleaned meanwhile, and no result of it waits, for that names the old checkpoint.
        `checkpoints` were read before. Raises LockHeld (a broker does this for itself), SourceChanged, CorruptFile.
        """
        checkpoint = checkpoints.cleaner.get(tp)
        bounds = None if checkpoint is None else read_bounds(self.files, self.path, tp, checkpoints)
        if checkpoint is None or bounds is None:
            return None
        partition, first_dirty = self.partition(tp), bounds.start
        if usable_checkpoint(checkpoint, bounds.start, bounds.end):
            written_ms, now_ms = checkpoints.cleaner_written_ms, self.clock.now_ms()
            first_dirty = max(clean_up_to(partition, checkpoint, written_ms, now_ms=now_ms), bounds.start)
        if first_dirty == checkpoint:
            return None
        with self.lock():
            check_generation(partition, bounds.generation)
            if self.first_dirty_offset(tp) != checkpoint:
                return None  # it was moved since
            update_cleaner_checkpoint(self.files, self.path, {tp: first_dirty})
        return first_dirty

    # -- what an interrupted commit left ------------------------------------------------------------------------

    def recover(
        self, names: Iterable[str], is_under_way: Callable[[str], bool] = lambda _: False
    ) -> Iterator[Recovered]:
        """Finish or undo what was interrupted in partition directories; a broker that waits for the lock goes first.

        Those that are `is_under_way` are left out: a cleaning writes there, and has dropped what it found.
        Raises LockHeld when another process owns the directory, DirOffline. What goes wrong with one log is its own.
        """
        left = list(names)
        while True:
            done = []
            with self.lock() as lock:
                ends_s = self.clock.monotonic_s() + HOLD_S
                while left and self.clock.monotonic_s() < ends_s and not lock.is_wanted:
                    name = left.pop(0)
                    if not is_under_way(name):
                        done.append(self._recovered(name))
                pause_s = pause_after(lock, HOLD_S)
            yield from done
            if not left:
                return
            threading.Event().wait(pause_s)

    def recover_log(self, tp: TopicPartition) -> Recovered:
        """Finish a commit that went wrong or take it back; `error` is what keeps us from it: then the next start will."""
        with each_log(self.partition(tp).path) as log, self.lock():
            return self._recovered(str(tp))
        return Recovered(str(tp), log.error)

    def _recovered(self, name: str) -> Recovered:
        partition, actions = PartitionDir(self.files, os.path.join(self.path, name)), list[str]()
        with each_log(partition.path) as log:
            reason = recover(partition, is_kafka=self.is_kafka, acted=actions.append)
            if reason is not None:
                raise LogUncleanable(reason)
        return Recovered(name, log.error, tuple(actions))

    # -- the other cleanerd -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def cleaned_by_us(self) -> Iterator[None]:
        """Keep a second cleanerd out of the directory. Raises CleanedByAnother if one works there, or DirOffline."""
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(LogDirLock(self.path, names.CLEANERD_LOCK))
            except LockHeld as error:
                raise CleanedByAnother(
                    f"another cleanerd works in {self.path} (process {error.pid})"
                ) from error
            yield


class CleanedByAnother(DirOffline):
    """Another cleanerd works in the directory."""


def why_two_copies(other: str) -> str:
    """The reason for leaving both copies of a partition alone, given for the one that does not lie in `other`."""
    return f"it lies in {other} as well, and no broker starts with both: keep one, remove the other"


def _is_directory(files: Files, path: str) -> bool:
    with contextlib.suppress(OSError):
        return not files.stat(path).is_regular
    return False


def futures(listed: Iterable[str]) -> Iterator[TopicPartition]:
    """Partitions that are on their way to a log directory with these names in it."""
    for name in listed:
        parsed = parse_partition_dir(name) if name.endswith(DirKind.FUTURE.value) else None
        if parsed is not None:
            yield parsed[0]
