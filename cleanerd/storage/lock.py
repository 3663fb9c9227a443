"""The lock of a log directory: a POSIX record lock on a file in it, as Kafka takes it (spec disk A3).

Invariants
    1. The lock is `fcntl.lockf` (F_WRLCK, from 0 to the end): `flock` would not see the broker's.
    2. A process loses its POSIX lock when it closes *any* descriptor of the file. So one slot per directory
       and name serves the whole process: the file is not opened while a thread of this process holds it. That
       also makes threads exclude each other, which the kernel would not do.
    3. A broker that stops unlinks its file, and the lock on an unlinked file protects nothing. So a lock
       counts only if the path still names the locked file after locking. Between its unlock and its unlink a
       broker leaves a gap in which that test passes too early: `LogDirLock.check` repeats it before every
       step that matters.
    4. The file is never unlinked here.
    5. Every user who may create files in the directory may open the file: left behind by another user with a
       tighter mode it would take the directory offline at the broker's next start.
    6. The name is not followed: a link would have a process of root create or change another user's file. It is made
       only where there is nothing. Nor is a FIFO of that name waited for.
    7. A broker tries the lock once, at its start, and dies if it is taken. So `.lock` is locked under a write lease
       (`F_SETLEASE`), taken before the lock and given up after it. The kernel grants the lease only while no other
       descriptor of the file is open, so a broker between its open and its lock is never overtaken. And as long as the
       lease lasts every other `open` waits in the kernel: a broker that starts now finds the lock free, however late we
       let go (up to /proc/sys/fs/lease-break-time, 45 s). `is_wanted`: one waits.
       The file system must know leases (every local one does, NFS does not) and the file must be ours or
       CAP_LEASE given. Where that is not so, `is_leased` is false, and a broker may meet the lock.
    8. No key of a terminal stops the process while it holds `.lock` (`stop_between_holds`): a broker that starts would wait
       for the lease, and die when the kernel has broken it.
    9. Somebody may remove the file of a live broker. So where `.lock` is free it is asked whether a process has the
       segments open all the same (`unlocked`): that counts as a holder.
"""

import contextlib
import errno
import fcntl
import os
import signal
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from cleanerd.env.files import create_exclusively, own_file
from cleanerd.env.trust import open_directory
from cleanerd.errors import DirOffline, LockHeld
from cleanerd.format import names

from .unlocked import has_leases, owner_without_lock

POLL_S = 0.1
"""Pause between two attempts of a waiting `LogDirLock`."""

ATTEMPTS_MAX = 16
"""How often the file may be exchanged under one attempt before it counts as held."""

HOLD_S = 0.1
"""Expected seconds of one hold of `.lock`; it may take twice as long (architecture 2)."""
_GIVE_WAY_S = 1.5 * POLL_S
_SHARE = 3.0

_CAREFULLY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_OPENED_S = 0.002
"""Pause before a file that another process has open, but not locked, is tried again, `ATTEMPTS_MAX` times."""

_TEXT_MAX_BYTES = 1 << 20

_FLOCK = struct.Struct("hhqqi0q")  # struct flock: type, whence, start, length, pid, trailing padding


class _Slot:
    """This process's use of one lock file; `mutex` guards `fd` and every open or close of the file."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.fd: int | None = None
        self.is_leased = False


_slots: dict[tuple[int, int, str], _Slot] = {}
_slots_mutex = threading.Lock()


class _Stops:
    """Stops of this process by its terminal, which wait for the end of all holds of `.lock`."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._holds = 0
        self._is_wanted = False

    def begin_hold(self) -> None:
        with self._mutex:
            self._holds += 1

    def end_hold(self) -> None:
        with self._mutex:
            self._holds -= 1
            if self._is_wanted and not self._holds:
                self._stop()

    def want(self) -> None:
        """Called between two instructions of the main thread, which may be in one of the others."""
        self._is_wanted = True
        if self._mutex.acquire(blocking=False):
            try:
                if not self._holds:
                    self._stop()
            finally:
                self._mutex.release()

    def _stop(self) -> None:
        self._is_wanted = False
        os.kill(os.getpid(), signal.SIGSTOP)


_stops = _Stops()


def stop_between_holds() -> None:
    """Let Ctrl-Z stop this process only while it holds no `.lock`, and ignore all other stop signals of a terminal.

    To be called in the main thread.
    """
    signal.signal(signal.SIGTSTP, lambda *_: _stops.want())
    for number in (signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)


class LogDirLock:
    """Holds the lock file `name` of `log_dir` inside a `with` block, against other processes and threads.

    Raises on entry `LockHeld` with the holder's pid at once, or after about `wait_s` seconds of polling in
    which `wait` is called with the seconds to pause, `own_wait_s` where the holder is another thread of this process;
    `DirOffline` if the file cannot be opened or locked. One instance is entered once at a time.
    """

    def __init__(
        self,
        log_dir: str,
        name: str = names.LOCK,
        *,
        wait_s: float = 0.0,
        own_wait_s: float = 0.0,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        assert wait_s == own_wait_s == 0 or wait is not None, "waiting needs something to wait with"
        self._path = os.path.join(log_dir, name)
        self._is_brokers = name == names.LOCK
        self._wait_s = wait_s
        self._own_wait_s = max(wait_s, own_wait_s)
        self._wait = wait
        self._slot: _Slot | None = None

    def __enter__(self) -> Self:
        assert self._slot is None, "entered twice"
        polls = 0
        while True:
            try:
                self._slot = self._begin_hold()
                return self
            except LockHeld as held:
                wait_s = self._own_wait_s if held.pid == os.getpid() else self._wait_s
                if polls >= int(wait_s / POLL_S) or self._wait is None:
                    raise
            polls += 1
            self._wait(POLL_S)

    def _begin_hold(self) -> _Slot:
        if not self._is_brokers:
            return _acquire(self._path)
        _stops.begin_hold()
        try:
            return _acquire(self._path)
        except BaseException:
            _stops.end_hold()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        slot, self._slot = self._slot, None
        assert slot is not None, "left without having been entered"
        with slot.mutex:
            _let_go(slot)
        if self._is_brokers:
            _stops.end_hold()

    @property
    def is_leased(self) -> bool:
        """Whether other processes that open the file wait instead of failing (invariant 7)."""
        assert self._slot is not None, "not entered"
        return self._slot.is_leased

    @property
    def is_wanted(self) -> bool:
        """Whether another process waits for the file: leave the block soon. Never true without a lease."""
        assert self._slot is not None, "not entered"
        assert self._slot.fd is not None
        return self._slot.is_leased and fcntl.fcntl(self._slot.fd, fcntl.F_GETLEASE) != fcntl.F_WRLCK

    def write(self, text: str) -> None:
        """Have the file hold this text, also after a power failure. Raises `DirOffline`."""
        assert self._slot is not None, "not entered"
        assert self._slot.fd is not None
        data = text.encode()
        try:
            if os.pwrite(self._slot.fd, data, 0) != len(data):  # the next byte would not fit
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.ftruncate(self._slot.fd, len(data))
            os.fsync(self._slot.fd)
            with open_directory(os.path.dirname(self._path), os.O_RDONLY) as directory:
                os.fsync(directory)  # the name of a file that was just made
        except OSError as error:
            raise DirOffline(f"{self._path}: cannot write the lock file: {error.strerror}") from error

    def check(self) -> None:
        """Raise `LockHeld` unless the path still names the locked file (invariant 3). Cheap: one stat."""
        assert self._slot is not None, "not entered"
        assert self._slot.fd is not None
        if not _names_same_file(self._path, self._slot.fd):
            raise LockHeld(f"{self._path}: was removed while we held it, a broker may be starting", None)


def pause_after(lock: LogDirLock, held_s: float) -> float:
    """How long to leave a directory alone, in seconds, before its lock, which is still held, is taken again.

    A waiter gets it then. Without a lease a waiter cannot be seen: three quarters of the time are left.
    """
    if lock.is_wanted:
        return _GIVE_WAY_S
    return 0.0 if lock.is_leased else _SHARE * held_s


def other_holder(log_dir: str) -> int | None:
    """As `probe` of `.lock`, None also where this process holds it. Raises `DirOffline`."""
    pid = probe(log_dir)
    return None if pid == os.getpid() else pid


def probe(log_dir: str, name: str = names.LOCK) -> int | None:
    """Find the holder of the lock, without taking it.

    Returns the pid of the holder; 0 if there is one that the kernel does not name (another container, an
    NFS client); None if the lock is free or the file does not exist, and no broker lost it (invariant 9).
    Raises `DirOffline`.
    """
    path = os.path.join(log_dir, name)
    pid = _locked_by(path)
    return _unlocked(path) if pid is None else pid


def _locked_by(path: str) -> int | None:
    slot = _slot_of(path)
    with slot.mutex:
        if slot.fd is not None:
            return os.getpid()
        try:
            fd = os.open(path, os.O_RDONLY | _CAREFULLY)
        except FileNotFoundError:
            return None
        except BlockingIOError:
            return _lease_holder(path)
        except OSError as error:
            raise DirOffline(f"{path}: cannot read the lock file: {error.strerror}") from error
        try:
            return _holder(fd)
        finally:
            os.close(fd)


def read_text(log_dir: str, name: str) -> str:
    """The content of a lock file, also of a locked one; empty if there is no file. Raises `DirOffline`."""
    path = os.path.join(log_dir, name)
    slot = _slot_of(path)
    with slot.mutex:
        try:
            fd = slot.fd if slot.fd is not None else os.open(path, os.O_RDONLY | _CAREFULLY)
            try:
                return os.pread(fd, _TEXT_MAX_BYTES, 0).decode(errors="replace")
            finally:
                if fd != slot.fd:
                    os.close(fd)
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise DirOffline(f"{path}: cannot read the lock file: {error.strerror}") from error


def _slot_of(path: str) -> _Slot:
    """The slot of a lock file, found by the identity of its directory: two paths may lead to one."""
    directory, name = os.path.split(path)
    try:
        found = os.stat(directory)
    except OSError as error:
        raise DirOffline(f"{directory}: cannot reach the log directory: {error.strerror}") from error
    with _slots_mutex:
        return _slots.setdefault((found.st_dev, found.st_ino, name), _Slot())


def _acquire(path: str) -> _Slot:
    slot = _slot_of(path)
    with slot.mutex:
        if slot.fd is not None:
            raise LockHeld(f"{path}: held by another thread of this process", os.getpid())
        if not os.path.lexists(path):
            _check_nobody_else(path)  # before a file is made in its directory
        for _ in range(ATTEMPTS_MAX):
            fd = _open(path)
            slot.is_leased = _try_lease(path, fd)
            if _try_lock(path, fd):
                slot.fd = fd
                try:
                    _check_nobody_else(path)
                except BaseException:
                    _let_go(slot)
                    raise
                return slot
    raise LockHeld(f"{path}: replaced by other processes again and again", None)


def _check_nobody_else(path: str) -> None:
    """Raise LockHeld if a broker whose `.lock` was removed works here (invariant 9)."""
    pid = _unlocked(path)
    if pid is not None:
        process = f"process {pid}" if pid else "another process"
        raise LockHeld(
            f"{path}: is free, but {process} has segments open for writing: a broker that is starting, or whose .lock "
            "somebody has removed: stop and start that one, which makes the file again",
            pid or None,
        )


def _unlocked(path: str) -> int | None:
    directory, name = os.path.split(path)
    return owner_without_lock(directory) if name == names.LOCK else None


def _let_go(slot: _Slot) -> None:
    assert slot.fd is not None
    fd, slot.fd = slot.fd, None
    fcntl.lockf(fd, fcntl.LOCK_UN)
    # closing is not enough while a child that was just forked has the descriptor, too
    if slot.is_leased:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    os.close(fd)


def _try_lease(path: str, fd: int) -> bool:
    """Take the lease; False where there are none. Raises LockHeld, and closes `fd`, while another process has it open."""
    if os.path.basename(path) != names.LOCK:
        return False
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # the default signal would end the process
    except OSError:  # a sandbox without signals of one's own choice
        return False
    for _ in range(ATTEMPTS_MAX):
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            if error.errno != errno.EAGAIN or not has_leases(os.path.dirname(path), os.geteuid()):
                return False
        else:
            return True
        pid = _holder(fd)
        if pid is not None:
            os.close(fd)
            raise LockHeld(f"{path}: held by {f'process {pid}' if pid else 'another process'}", pid or None)
        threading.Event().wait(_OPENED_S)
    os.close(fd)
    raise LockHeld(f"{path}: another process has it open, a broker may be starting", None)


def may_lease(log_dir: str) -> bool:
    """Whether `.lock` can be had under a lease (invariant 7), as far as one can know without taking it."""
    try:
        owner = os.stat(os.path.join(log_dir, names.LOCK)).st_uid
    except OSError:
        owner = os.geteuid()  # there is none: it would be ours
    return has_leases(log_dir, owner)


def is_open_elsewhere(path: str) -> bool:
    """Whether another process has a file open, or it cannot be known that none has: the kernel gives no lease then.

    Raises OSError.
    """
    with own_file(path, os.O_RDWR) as fd:
        try:
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            return True
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def _lease_holder(path: str) -> int:
    """Pid of the process whose lease keeps the file from being opened, 0 if the kernel does not name it."""
    try:
        end = f":{os.stat(path).st_ino}"
        with open("/proc/locks", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        return 0
    return next((int(row[4]) for row in rows if row[1] == "LEASE" and row[5].endswith(end)), 0)


def _try_lock(path: str, fd: int) -> bool:
    """Lock `fd` and return whether the lock counts; closes it if not, or if an error is raised."""
    locked = False
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked = _names_same_file(path, fd)
    except (BlockingIOError, PermissionError) as error:  # POSIX allows either
        pid = _holder(fd) or None
        raise LockHeld(f"{path}: held by {f'process {pid}' if pid else 'another process'}", pid) from error
    except OSError as error:
        raise DirOffline(f"{path}: cannot lock: {error.strerror}") from error
    finally:
        if not locked:
            os.close(fd)
    return locked


def _names_same_file(path: str, fd: int) -> bool:
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise DirOffline(f"{path}: cannot look at the lock file: {error.strerror}") from error
    return os.path.samestat(named, os.fstat(fd))


def _open(path: str) -> int:
    """Open the lock file for writing, or create it; the rest of the world must be able to do the same."""
    flags = os.O_RDWR | _CAREFULLY
    try:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                return _create(path)
            return os.open(path, flags)
    except BlockingIOError as error:
        pid = _lease_holder(path) or None
        raise LockHeld(f"{path}: held by {f'process {pid}' if pid else 'another process'}", pid) from error
    except OSError as error:
        raise DirOffline(f"{path}: cannot open the lock file: {error.strerror}") from error


def _create(path: str) -> int:
    """Create the file with the owner of its directory (root may) and the directory's permissions."""
    place, name = os.path.split(path)
    with open_directory(place) as opened:
        directory, fd = os.fstat(opened), create_exclusively(name, opened, 0o644)
    try:
        file = os.fstat(fd)
        if os.geteuid() == 0 and (file.st_uid, file.st_gid) != (directory.st_uid, directory.st_gid):
            os.fchown(fd, directory.st_uid, directory.st_gid)
        if file.st_uid == os.geteuid():
            os.fchmod(fd, 0o644 | directory.st_mode & 0o666)
    except OSError:
        os.close(fd)
        raise
    return fd


def _holder(fd: int) -> int | None:
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, question))
    return None if kind == fcntl.F_UNLCK else max(int(pid), 0)
