"""A broker that works in a log directory and no longer has its `.lock`: the file was removed under it.

`kafka-metadata-shell.sh` removed it (KAFKA-19334, up to 3.9.1 and 4.0.0), and to remove it is common advice where a broker
does not start. The lock that the broker holds is then that of a file without a name, and whoever makes a new one gets that.
So two more signs are asked wherever `.lock` is free, of a directory with `meta.properties`:

1. A broker has all its segments open, for writing. The kernel gives no read lease (`F_SETLEASE`) on a file that is open for
   writing anywhere, whatever the user, the container or the pid namespace. That is asked of active segments of a few logs.
2. Where it gives none for other reasons (NFS; a file of another user without CAP_LEASE), and to learn the process id:
   `/proc/locks` names who holds a lock on a whole file, and `/proc/PID/fd` tells that its file was a `.lock` here. That
   shows only processes of the same pid namespace, and their files only to their user and to root.

Where neither can be had nothing is known beyond `.lock`. In a directory of a cooperating writer, which has its segments open
and takes `.lock` for moments, nothing is asked.
"""

import contextlib
import errno
import fcntl
import os
import signal
from collections import defaultdict
from itertools import islice

from cleanerd.format import names
from cleanerd.format.names import DirKind, FileKind, parse_partition_dir

_LOGS_ASKED = 8
"""A broker has every log open; one that it does not know, such as one that was put there, may be among them."""
_asked: dict[str, tuple[str, ...]] = {}
"""The segments that were last asked about, by log directory: to list a directory of thousands of logs takes milliseconds."""
_LOG = FileKind.LOG.value
_REMOVED = f"/{names.LOCK} (deleted)"


def owner_without_lock(log_dir: str) -> int | None:
    """The process that has the segments of a broker's directory open; 0 if it cannot be seen, None if none is known.

    Takes well below a millisecond where there is none.
    """
    if not os.path.exists(os.path.join(log_dir, names.META_PROPERTIES)):
        return None
    is_written = _is_written(log_dir)
    if is_written is False:
        return None
    pid = _holder_of_removed(log_dir)
    return 0 if pid is None and is_written else pid


def _is_written(log_dir: str) -> bool | None:
    """Whether another process has a segment open for writing; None if that is not known."""
    answer = _is_any_written(_asked.get(log_dir, ()))
    if answer is None:
        _asked[log_dir] = _some_segments(log_dir)
        answer = _is_any_written(_asked[log_dir])
    return answer


def _is_any_written(paths: tuple[str, ...]) -> bool | None:
    known: bool | None = None
    for path in paths:
        answer = _is_open_for_writing(path)
        if answer:
            return True
        known = answer if known is None else known
    return known


def _some_segments(log_dir: str) -> tuple[str, ...]:
    """The newest ones of some logs, spread over all. A broker keeps them open when they are rolled."""
    try:
        listed = os.listdir(log_dir)
    except OSError:
        return ()
    spread = listed[:: max(len(listed) // (2 * _LOGS_ASKED), 1)]
    logs = islice(filter(_is_log, dict.fromkeys([*spread, *listed])), _LOGS_ASKED)
    return tuple(path for name in logs for path in _active_segment(os.path.join(log_dir, name)))


def _active_segment(directory: str) -> list[str]:
    try:
        segments = [file for file in os.listdir(directory) if file.endswith(_LOG)]
    except OSError:
        return []
    return [os.path.join(directory, max(segments))] if segments else []


def _is_log(name: str) -> bool:
    parsed = parse_partition_dir(name)
    return parsed is not None and parsed[1] is DirKind.CURRENT


def _is_open_for_writing(path: str) -> bool | None:
    """Whether another process has the file open for writing; None if unknown: no leases, or this process writes to it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # the default signal would end the process
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        # NFS 4 and CIFS say EAGAIN of every file of which they have no delegation
        is_refused = error.errno == errno.EAGAIN and not _is_open_here(fd)
        return True if is_refused and has_leases(os.path.dirname(path), os.geteuid()) else None
    else:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False
    finally:
        os.close(fd)


def has_leases(directory: str, owner: int) -> bool:
    """Whether the file system knows leases and we may have them of such a user's files: tried on one without a name."""
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        if owner != os.fstat(fd).st_uid:
            os.fchown(fd, owner, -1)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def _is_open_here(fd: int) -> bool:
    """Whether this process has the file open otherwise, too."""
    wanted = os.fstat(fd)
    found = 0
    try:
        own = os.listdir("/proc/self/fd")
    except OSError:  # no /proc: it may be
        return True
    for name in own:
        with contextlib.suppress(OSError):
            found += os.path.samestat(os.fstat(int(name)), wanted)
    return found > 1


def _holder_of_removed(log_dir: str) -> int | None:
    """The holder of the lock on a `.lock` of this directory that was removed."""
    for pid, inodes in _whole_file_locks().items():
        fds = f"/proc/{pid}/fd"
        try:
            listed = os.listdir(fds)
        except OSError:  # it has ended, or is another user's
            continue
        for fd in listed:
            with contextlib.suppress(OSError):  # closed meanwhile
                link = os.readlink(f"{fds}/{fd}")
                if link.endswith(_REMOVED) and os.stat(f"{fds}/{fd}").st_ino in inodes:
                    directory = f"/proc/{pid}/root{link.removesuffix(_REMOVED)}"
                    if os.path.samefile(directory, log_dir):
                        return pid
    return None


def _whole_file_locks() -> dict[int, set[int]]:
    """Inodes on which other processes hold a POSIX lock from the first byte to the end."""
    found: dict[int, set[int]] = defaultdict(set)
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as file:
        for words in map(str.split, file):
            if words[1] == "POSIX" and words[3] == "WRITE" and words[6:8] == ["0", "EOF"]:
                found[int(words[4])].add(int(words[5].rpartition(":")[2]))
    found.pop(os.getpid(), None)
    return found
