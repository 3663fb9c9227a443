"""Files that wait to be deleted: `.deleted` now, gone after file.delete.delay.ms (rules 5.8-5.10).

The queue dies with the process (5.10), the files do not. So at its start the daemon adopts what lies there, due at once:
Kafka deletes leftovers when it loads a log (5.12), whatever was left of their delay.

A file is unlinked only
    1. with `.lock` held: a broker that starts lists the directory, and takes it offline when a file vanishes between the
       listing and its look at it. While another process holds the lock the files wait; a broker removes them itself;
    2. if it is the file that was queued, by inode: a topic may have been deleted and created again meanwhile;
    3. if the log directory is not damaged (`storage.whose`), which is looked at anew;
    4. if no `.cleaned` or `.swap` lies beside it: of a swap that was interrupted the `.deleted` file may be the only copy
       (rule 5.19b).

Rule 5.9 (a log promoted from `-future` meanwhile) does not arise: only a broker that runs promotes one, and that has removed
what was `.deleted` when it loaded the log.
"""

import os
import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.errors import CleanerdError, LockHeld
from cleanerd.format.names import Suffix
from cleanerd.storage.delete import deleted_files, unlink_all
from cleanerd.storage.lock import LogDirLock
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.whose import Onlooker

_FILES_AT_ONCE = 5_000
"""So many are unlinked before another process that waits for `.lock` has a chance."""

RETRY_MS = 60_000
"""Until a file that could not be deleted is tried again."""


@dataclass(slots=True)
class Deleted:
    """The result of one run. Files in `failures` are tried again after `RETRY_MS`."""

    files: int = 0
    bytes: int = 0
    failures: dict[str, OSError | CleanerdError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Waiting:
    due_ms: int
    inode: int
    size_bytes: int
    since_ms: int

    def is_due(self, now_ms: int) -> bool:
        """Whether its time has come; also when the clock was set back, which would make it wait as much longer."""
        return not self.since_ms <= now_ms < self.due_ms


class PendingDeletions:
    """The queue. Any thread may use it; the disk is never touched under its mutex."""

    def __init__(self, files: Files, clock: Clock, onlooker: Onlooker | None = None) -> None:
        self._files = files
        self._onlooker = onlooker or Onlooker(files)
        self._clock = clock
        self._mutex = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}

    def add(self, paths: Iterable[str], due_ms: int) -> None:
        """Delete these `.deleted` files from `due_ms` (wall clock) on. One that waits already keeps the earlier time."""
        for path in paths:
            found = self._identity(path, due_ms)
            if found is None:
                continue
            with self._mutex:
                known = self._waiting.get(path)
                if known is None or known.inode != found.inode or known.due_ms > due_ms:
                    self._waiting[path] = found

    def adopt(self, directory: str) -> None:
        """Queue `.deleted` files that an earlier process left in a partition directory, due at once.

        Requires: no other process owns the log directory. Raises OSError.
        """
        self.add(deleted_files(PartitionDir(self._files, directory)), self._clock.now_ms())

    def run_due(self, now_ms: int) -> Deleted:
        """Delete files that are due and may be deleted; every file is attempted even if others fail (5.8).

        One that is gone already is no failure.
        """
        done = Deleted()
        by_directory: dict[str, list[str]] = defaultdict(list)
        with self._mutex:
            files = sorted(path for path, waiting in self._waiting.items() if waiting.is_due(now_ms))
        for path in files:
            try:
                is_there = self._files.exists(path)
            except OSError as error:
                self._postpone([path], now_ms)
                done.failures[path] = error
                continue
            if is_there:
                by_directory[os.path.dirname(path)].append(path)
            else:
                self._forget(path)
        for directory, paths in by_directory.items():
            self._delete_in(directory, paths, now_ms, done)
        return done

    def _delete_in(self, directory: str, paths: list[str], now_ms: int, done: Deleted) -> None:
        """The lock is taken for some files of one partition at a time: a process that waits for it must not wait for all."""
        for start in range(0, len(paths), _FILES_AT_ONCE):
            some = paths[start : start + _FILES_AT_ONCE]
            try:
                with LogDirLock(os.path.dirname(directory)):
                    suffixes = {name.suffix for name in PartitionDir(self._files, directory).names()}
                    if self._onlooker.look(os.path.dirname(directory)).damage is not None:
                        self._postpone(some, now_ms)
                        continue
                    if not suffixes & {Suffix.CLEANED, Suffix.SWAP}:
                        self._delete(some, now_ms, done)
            except LockHeld:
                break
            except (OSError, CleanerdError) as error:
                self._postpone(some, now_ms)
                done.failures |= dict.fromkeys(some, error)

    def _delete(self, paths: list[str], now_ms: int, done: Deleted) -> None:
        assert all(path.endswith(Suffix.DELETED.value) for path in paths), "no file that a log still has"
        mine = [path for path in paths if self._is_same(path)]
        failures = unlink_all(self._files, mine)
        self._postpone(failures, now_ms)
        gone = {path: self._forget(path) for path in paths if path not in failures}
        sizes = [waiting.size_bytes for path, waiting in gone.items() if path in mine and waiting is not None]
        done.files += len(sizes)
        done.bytes += sum(sizes)
        done.failures |= failures

    def _is_same(self, path: str) -> bool:
        with self._mutex:
            waiting = self._waiting.get(path)
        found = self._identity(path, 0)
        return waiting is not None and found is not None and waiting.inode == found.inode

    def _identity(self, path: str, due_ms: int) -> _Waiting | None:
        try:
            found = self._files.stat(path)
        except FileNotFoundError:
            return None
        return _Waiting(due_ms, found.inode, found.size_bytes, self._clock.now_ms())

    def _forget(self, path: str) -> _Waiting | None:
        with self._mutex:
            return self._waiting.pop(path, None)

    def _postpone(self, paths: Iterable[str], now_ms: int) -> None:
        with self._mutex:
            for path in paths:
                if path in self._waiting:
                    waiting = self._waiting[path]
                    self._waiting[path] = replace(waiting, due_ms=now_ms + RETRY_MS, since_ms=now_ms)
