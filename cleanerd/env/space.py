"""Space of file systems: what is free, and deleted files whose space is about to be free.

A file system frees a file when the last who has it open lets go. For a GiB that takes a tenth of a second, and twice that
with the mount option `discard`; for 4 MiB on a busy one some milliseconds. So the name of such a file goes
at once, and a thread of its own lets the file go: no caller waits for it, least of all with `.lock` held.
"""

import os
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass

from cleanerd.env.turns import machine_turn
from cleanerd.errors import NoSpace
from cleanerd.units import size

_COUNTLESS = 2**63 - 1
_LARGE_BYTES = 1 << 20
_MAX_PENDING = 64  # each of them is an open file

_mutex = threading.Lock()
_pending: set[Future[None]] = set()
_thread = ThreadPoolExecutor(1, thread_name_prefix="cleanerd-space")  # ends with the process, its work done


@dataclass(frozen=True, slots=True)
class Space:
    """Sizes of a file system, by `statvfs`."""

    total_bytes: int
    free_bytes: int  # for users without privileges, as `df` counts

    @property
    def free_ratio(self) -> float:
        """Share of the whole that is free."""
        return self.free_bytes / max(self.total_bytes, 1)


_FLOOR_BYTES = 64 << 20
_FLOOR_SHARE = 100


def floor_bytes(space: Space, ratio: float) -> int:
    """What a cleaning leaves free of a file system: `ratio` of it, and in any case 64 MiB, but of a small one only 1 %.

    Others that write there can go on; a checkpoint, for one, takes little.
    """
    return max(int(space.total_bytes * ratio), min(_FLOOR_BYTES, space.total_bytes // _FLOOR_SHARE))


SWAP_BYTES = 1 << 20
"""What a rescue leaves free beside a live broker: its swap renames, and writes a checkpoint."""
_AMPLE_BYTES = 1 << 30
"""More than all who write at the same time write at once."""


@contextmanager
def room(path: str, size_bytes: int, least_free_bytes: int) -> Iterator[None]:
    """Room for `size_bytes` more, to be written in the block, that leaves `least_free_bytes` free.

    What one process may still write, no other process of this user takes meanwhile: where it may become tight they write
    one at a time. Those of other users or with another directory for temporary files are not waited for: these may take
    what lies between the floor and what they write at once. Raises NoSpace, OSError.
    """
    turn = f"space-{os.stat(path).st_dev}"
    with machine_turn(turn, is_shared=True):
        if space_of(path).free_bytes - size_bytes - _AMPLE_BYTES >= least_free_bytes:
            yield
            return
    with machine_turn(turn):
        free_bytes = space_of(path).free_bytes
        if free_bytes - size_bytes < least_free_bytes:
            raise NoSpace(
                f"{path}: {size(free_bytes)} are free on its file system: {size(size_bytes)} more would not leave "
                f"{size(least_free_bytes)} free"
            )
        yield


def space_of(path: str) -> Space:
    """Space of the file system of `path` now. Raises OSError."""
    stat = os.statvfs(path)
    return Space(stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize)


def names_left(path: str) -> int:
    """How many files can still be made on the file system of `path`; very many if it does not count them. Raises OSError."""
    found = os.statvfs(path)
    return found.f_favail if found.f_files else _COUNTLESS


def space_for(path: str, suffices: Callable[[Space], bool]) -> Space:
    """Space that something is decided by: unless it suffices, what this process deleted has come back. Raises OSError."""
    space = space_of(path)
    if suffices(space):
        return space
    wait_for_deleted()
    return space_of(path)


def wait_for_deleted() -> None:
    """Return when the space of all that this process has deleted has come back."""
    with _mutex:
        pending = set(_pending)
    wait(pending)


def unlink(name: str, directory: int) -> None:
    """Remove a name of an open directory. The space of a large file comes back a little later: `wait_for_deleted`.

    Raises OSError.
    """
    fd = _open_large(name, directory)
    try:
        os.unlink(name, dir_fd=directory)
    finally:
        if fd is not None:
            _let_go(fd)


def _open_large(name: str, directory: int) -> int | None:
    """A large file, open, so that it outlives its name; None where it need not or cannot."""
    try:
        if len(_pending) >= _MAX_PENDING or _size(name, directory) < _LARGE_BYTES:
            return None
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None  # `unlink` reports what is wrong, if anything is


def _size(name: str, directory: int) -> int:
    """Bytes of a regular file, 0 of anything else: to open that might wait."""
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _let_go(fd: int) -> None:
    try:
        with _mutex:
            future = _thread.submit(os.close, fd)
            _pending.add(future)
    except RuntimeError:  # the process is ending
        os.close(fd)
        return
    future.add_done_callback(_forget)


def _forget(future: Future[None]) -> None:
    with _mutex:
        _pending.discard(future)
