"""Which log directories this daemon may work in: one cleanerd at a time, and recovered before anything else.

The `.cleanerd.lock` of a directory is held as long as the daemon works in it. Leftovers of interrupted commits are recovered
as soon as no other process holds `.lock`: at the start, or when a broker that lived then has stopped.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import structlog

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.config.model import CleanerdConfig
from cleanerd.daemon.inventory.due_logs import DueLogs
from cleanerd.daemon.telemetry.event_log import EventLog
from cleanerd.daemon.telemetry.metrics import Metrics
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.deletions import PendingDeletions
from cleanerd.daemon.work.jobs import Jobs
from cleanerd.daemon.work.kept_holds import HoldsOfDirectories
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.env.space import make_room
from cleanerd.errors import MAKE_ROOM, CleanerdError, DirOffline, Fatal, LockHeld, ours
from cleanerd.format import names
from cleanerd.format.names import DirKind, parse_partition_dir
from cleanerd.policy.broker_start import BrokerStart
from cleanerd.storage.lock import LogDirLock, may_lease, other_holder
from cleanerd.storage.log_dir import LogDir, Owner, Recovered
from cleanerd.storage.metadata_log import why_other_node
from cleanerd.storage.no_log_dir import why_no_log_dir
from cleanerd.storage.whose import Onlooker

_NAMING_S = 5.0
_log = structlog.get_logger("cleanerd")


@dataclass(frozen=True, slots=True)
class Way:
    """How results take effect in a log directory now, for display: `cleaning.commit` acts on it.

    lock: it is free, or a writer lets go of it in a moment; swap: by the live broker; restart: when that broker, which
    cannot be asked for this `reason`, has stopped. `pid`: of who holds the lock, 0 where the kernel does not name it.
    """

    committed_by: Literal["lock", "swap", "restart"]
    pid: int | None = None
    reason: str | None = None

    @property
    def waits(self) -> bool:
        """Whether a result waits for the stop of a broker."""
        return self.committed_by == "restart"

    def __str__(self) -> str:
        """The way in which a result takes effect."""
        if self.committed_by == "lock":
            return "it is committed when .lock is free"
        process = f"process {self.pid or 'unknown'}, a running broker,"
        if self.committed_by == "swap":
            return f"{process} swaps it in"
        return f"it waits until {process} stops ({self.reason})"


@dataclass
class Ownership:
    """The directories of one daemon; thread-safe.

    `recovering` is called after each partition directory, so that a slow start can report progress; a log directory
    whose holds cannot be taken over is let go again.
    """

    files: Files
    clock: Clock
    log_dirs: Sequence[str]
    events: EventLog
    deletions: PendingDeletions
    metrics: Metrics
    jobs: Jobs
    brokers: LiveBrokers
    config: Callable[[], CleanerdConfig]
    recovering: Callable[[], None]
    onlooker: Onlooker
    holds: HoldsOfDirectories

    def __post_init__(self) -> None:
        self._starts: dict[str, BrokerStart] = {}  # by log directory, as last observed
        self._watching = threading.Lock()  # guards it
        self._mutex = threading.Lock()
        self._locks: dict[str, LogDirLock] = {}
        self._unrecovered: dict[str, set[str]] = {}  # by log directory, the partitions recovered so far

    def at(self, path: str) -> LogDir:
        """A log directory as it is now. Raises OSError, or DirOffline if it is damaged (`storage.whose`)."""
        log_dir = self._at(path)
        if log_dir.damage is not None:
            raise DirOffline(log_dir.damage)
        return log_dir

    def _at(self, path: str) -> LogDir:
        return LogDir.at(self.files, path, self.clock, self.log_dirs, self.onlooker.look(path))

    def owner(self, path: str) -> Owner:
        """The owner of a log directory now, for reports and decisions; NOBODY if the directory fails."""
        is_kafka, found = self._is_kafka(path), self.look(path)
        if found.owner is not None:
            return Owner.LIVE_BROKER if is_kafka else Owner.WRITER
        if found.is_expected(self.clock.monotonic_s()):
            return Owner.BROKER_COMING
        return Owner.STOPPED_BROKER if is_kafka else Owner.NOBODY

    def _is_kafka(self, path: str) -> bool:
        with contextlib.suppress(CleanerdError, OSError):
            return self._at(path).is_kafka
        return False

    def way(self, path: str) -> Way:
        """How results take effect in a log directory now. Asks no broker: `swap` also if none has been tried yet."""
        pid = self.owner_of(path)
        if self.owner(path) is not Owner.LIVE_BROKER:
            return Way("lock", pid)
        reason = self.brokers.known_refusal(path)
        return Way("swap" if reason is None else "restart", pid, reason)

    def full_dirs(self, log_dirs: Iterable[str], due_logs: DueLogs) -> dict[str, str]:
        """Log directories of live brokers in which nothing more may be staged, and why: their disks are not ours to fill."""
        full = {}
        for log_dir in log_dirs:
            if self.owner_of(log_dir) is None:
                continue
            try:
                waits = self.way(log_dir).waits
                error = self.at(log_dir).why_full(self.config(), waits=waits)
            except (OSError, DirOffline):
                continue  # the next scan takes it offline, or has
            if error is not None:
                remedy = error.remedy.replace(MAKE_ROOM, make_room(due_logs.dirty_bytes(log_dir)))
                full[log_dir] = f"{error}: {remedy}"
        return full

    def take(self, log_dirs: Sequence[str]) -> dict[str, str]:
        """Take `.cleanerd.lock` in these log directories, release all others; returns the reason for each that failed."""
        refused = {}
        with self._mutex:
            for log_dir in self._locks.keys() - set(log_dirs):
                self._release(log_dir)
            for log_dir in log_dirs:
                try:
                    self._take(log_dir)
                except (LockHeld, DirOffline) as reason:
                    refused[log_dir] = str(reason)
        return refused

    def name_holds(self) -> None:
        """Write the current holds to the lock file of every taken directory. They are in force before that, so that nobody
        waits long for a disk that hangs: it is done once that works again.
        """

        def name() -> None:
            with self._mutex:
                for log_dir, lock in self._locks.items():
                    self.holds.name(log_dir, lock)

        naming = threading.Thread(target=name, name="cleanerd-holds", daemon=True)
        naming.start()
        naming.join(_NAMING_S)

    def take_at_start(self, log_dirs: Sequence[str]) -> dict[str, str]:
        """Like `take`, but raises Fatal, with the pid, if another cleanerd works in one of them.

        Every daemon takes them in the same order, and stops at the first that it cannot have: if several start at once, one
        gets all of its directories.
        """
        offline: dict[str, str] = {}
        with self._mutex:
            for log_dir in sorted(log_dirs, key=os.path.realpath):
                try:
                    self._take(log_dir)
                except LockHeld as reason:
                    raise Fatal(str(reason)) from reason
                except DirOffline as reason:
                    offline[log_dir] = str(reason)
        return offline

    def recover(self, log_dir: str) -> bool:
        """Recover every partition directory unless that was done; False while another process owns the log directory.

        Once it is free again this goes on where it was: a broker's start may leave time for a part of it only. What is being
        cleaned when a broker stops is left for the next call: a cleaning has dropped what lay there before it.
        """
        with self._mutex:
            if log_dir not in self._unrecovered:
                return log_dir in self._locks
            assert log_dir in self._locks, "recovered by who keeps other cleanerds out"
        try:
            is_done = self._recover_all(self.at(log_dir))
        except LockHeld:
            return False
        except (CleanerdError, OSError) as error:
            _log.warning("recovery_postponed", log_dir=log_dir, reason=str(error))
            return False
        if is_done:
            with self._mutex:
                self._unrecovered.pop(log_dir, None)
        return True

    def look(self, log_dir: str) -> BrokerStart:
        """The holder of `.lock` now, and whether a broker is expected; changes nothing."""
        before = self._starts.get(log_dir, BrokerStart())
        try:
            return self._next(log_dir, before)
        except DirOffline:
            return replace(before, owner=None)

    def _next(self, log_dir: str, before: BrokerStart) -> BrokerStart:
        """The new state after a look at the directory. Raises DirOffline."""
        owner = other_holder(log_dir)
        has_left = before.owner is not None and owner is None
        waits_for_us = not has_left or not self._restarts_at_once(log_dir)
        return before.seen(owner, self.clock.monotonic_s(), waits_for_us=waits_for_us)

    def owner_of(self, log_dir: str) -> int | None:
        """Pid of the other process that holds `.lock`, 0 if the kernel does not name it; None when it is free or ours."""
        return self.look(log_dir).owner

    def is_yielding(self, log_dir: str) -> bool:
        """Whether nothing of ours may begin there: a broker is expected to take `.lock`, and has not."""
        return self.look(log_dir).is_expected(self.clock.monotonic_s())

    def observe(self, log_dirs: Iterable[str]) -> None:
        """Note which brokers have come and gone; once a second, so that the time for a restart begins when one has gone."""
        for log_dir in log_dirs:
            before = self._starts.get(log_dir, BrokerStart())
            with contextlib.suppress(DirOffline):  # nothing is known of it until it works again
                after = self._next(log_dir, before)
                # Not held while it is looked at: a disk that hangs keeps nobody from the others.
                with self._watching:
                    if self._starts.get(log_dir, BrokerStart()) == before:
                        self._starts[log_dir] = after

    def yield_to_broker(self, log_dir: str) -> None:
        """A broker is about to start: nothing of ours begins there until it has `.lock`, or for `BROKER_START_S`."""
        announced = self.look(log_dir).announced(self.clock.monotonic_s())
        with self._watching:
            self._starts[log_dir] = announced

    def _restarts_at_once(self, log_dir: str) -> bool:
        """Whether a broker that starts there does not wait for our lock."""
        return self._is_kafka(log_dir) and not may_lease(log_dir)

    def release(self) -> None:
        """Let go of everything."""
        with self._mutex:
            for log_dir in list(self._locks):
                self._release(log_dir)

    def _take(self, log_dir: str) -> None:
        """Raises LockHeld when another cleanerd works there, DirOffline when it is out of reach or damaged."""
        lock = self._locks.get(log_dir)
        if lock is not None:
            try:
                lock.check()
                self._check(log_dir, is_ours=True)
            except DirOffline:  # what was under way has failed, and what is mended may be another copy
                self._unrecovered[log_dir] = set()
                raise
            except LockHeld:  # the directory is another one: a disk was exchanged
                self._release(log_dir)
            else:
                return
        self._check(log_dir, is_ours=False)
        lock = LogDirLock(log_dir, names.CLEANERD_LOCK)
        try:
            lock.__enter__()
        except LockHeld as error:
            raise LockHeld(f"another cleanerd works in {log_dir} (process {error.pid})", error.pid) from error
        try:
            self.holds.take_over(log_dir, lock)
        except DirOffline:
            lock.__exit__(None, None, None)
            raise
        self._locks[log_dir] = lock
        self._unrecovered[log_dir] = set()

    def _check(self, log_dir: str, *, is_ours: bool) -> None:
        """Raise DirOffline if nothing may be done there, or it cannot be looked at. `is_ours`: it has been taken before."""
        try:
            why = self.onlooker.look(log_dir, thorough=True).damage
            if not is_ours:
                why = why_no_log_dir(self.files, log_dir) or why
                why = why or why_other_node(self.files, log_dir, self.config())
        except (CleanerdError, OSError) as error:
            why = str(ours(error, log_dir))
        if why is not None:
            raise DirOffline(why)

    def _release(self, log_dir: str) -> None:
        self._locks.pop(log_dir).__exit__(None, None, None)
        self._unrecovered.pop(log_dir, None)

    def _recover_all(self, log_dir: LogDir) -> bool:
        """Whether nothing is left. Raises LockHeld, DirOffline, OSError."""

        def is_under_way(name: str) -> bool:  # asked for each directory anew: a job may begin meanwhile
            log = logs[name]
            return any(log in job.logs for job in self.jobs.running())

        done = self._unrecovered.get(log_dir.path, set())
        listed = [name for name in self.files.list_names(log_dir.path) if name not in done]
        found = [(name, parse_partition_dir(name)) for name in listed]
        logs = {
            name: LogId(log_dir.path, parsed[0])
            for name, parsed in found
            if parsed is not None and parsed[1] is DirKind.CURRENT
        }
        for one in log_dir.recover(list(logs), is_under_way):
            done.add(one.name)
            self._record(log_dir.path, one)
        return done >= logs.keys()

    def _record(self, log_dir: str, one: Recovered) -> None:
        """A partition directory was recovered, or for a reason was not."""
        for action in one.actions:
            self.metrics.recovered(log_dir, action)
        self.recovering()
        directory = os.path.join(log_dir, one.name)
        if one.error is not None:
            self.events.record("recovery", "failed", f"{directory}: {one.error}")
        try:
            self.deletions.adopt(directory)
        except (CleanerdError, OSError) as error:
            _log.warning("leftovers_not_read", directory=directory, reason=str(error))
