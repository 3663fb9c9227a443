"""Mutual exclusion between processes of a machine that share nothing else."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cleanerd.env.cache import temporary_directory


@contextmanager
def machine_turn(name: str, *, is_shared: bool = False) -> Iterator[None]:
    """A context that excludes other processes and threads of this user; the kernel ends it with the process.

    `is_shared`: several shared holders may run at a time, and exclude an exclusive one.
    The lock is a file in the directory for temporary files. If it cannot be made or locked, or another user made it, nothing
    is excluded: so no other user can keep a cleaning waiting.
    """
    fd = _own_file(f"cleanerd-{os.geteuid()}-{name}.lock")
    try:
        if fd is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(fd, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)
        yield
    finally:
        if fd is not None:
            os.close(fd)


@contextmanager
def file_turn(fd: int) -> Iterator[None]:
    """Wait until no other descriptor of this file has the turn, in any process, and have it.

    Where the file system knows no locks there are no turns.
    """
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)


def _own_file(name: str) -> int | None:
    directory = temporary_directory()
    if directory is None:
        return None
    path = os.path.join(directory, name)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    if os.fstat(fd).st_uid != os.geteuid():
        os.close(fd)
        return None
    return fd
