"""What only one process of a machine may do at a time, across processes that share nothing else."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cleanerd.env.cache import temporary_directory


@contextmanager
def machine_turn(name: str, *, is_shared: bool = False) -> Iterator[None]:
    """Wait until no other process or thread of this user has the turn, and have it; the kernel ends it with the process.

    `is_shared`: others may have it so at the same time, and one that wants it alone waits for all of them.
    The lock is a file in the directory for temporary files. Where it cannot be made or locked, or another user made it,
    there are no turns: no other user can keep a cleaning waiting.
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
