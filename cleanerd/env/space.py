"""Free space of file systems, and deleted files whose space is not free yet.

A file system frees a file when its last descriptor is closed. For a GiB that takes a tenth of a second, twice that with the
mount option `discard`; for 4 MiB on a busy disk some milliseconds. So a file is unlinked at once, and its descriptor is
closed in a thread: no caller waits for that, least of all with `.lock` held.
"""

import os
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass

from cleanerd.env.turns import machine_turn
from cleanerd.errors import MAKE_ROOM, NoSpace
from cleanerd.units import size

_COUNTLESS = 2**63 - 1
_LARGE_BYTES = 1 << 20
_MAX_PENDING = 64  # each is an open file

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
    """Bytes that a cleaning leaves free on a file system: `ratio` of its size, at least 64 MiB, or 1 % of a small one.

    That is enough for other writers, such as those of checkpoints.
    """
    return max(int(space.total_bytes * ratio), min(_FLOOR_BYTES, space.total_bytes // _FLOOR_SHARE))


SWAP_BYTES = 256 << 10
"""What a rescue leaves free beside a live broker, whose swap renames and writes a checkpoint, and with all but its first
group: XFS makes no file where less than 200 KiB are free."""
_AMPLE_BYTES = 1 << 30
"""More than all concurrent writers write at once."""


def make_room(frees_bytes: int, needs_bytes: int = 0) -> str:
    """Advice for a full file system: what a rescue frees there at most, and needs before that (0: not known)."""
    needs = f", for which it needs {size(needs_bytes)}" if needs_bytes else ""
    return f"{MAKE_ROOM}: up to {size(frees_bytes)}{needs}" if frees_bytes else MAKE_ROOM


@contextmanager
def room(path: str, size_bytes: int, least_free_bytes: int) -> Iterator[None]:
    """A context in which `size_bytes` may be written and at least `least_free_bytes` stay free.

    If space may become tight, processes of this user write one at a time. Processes of other users, or with another
    directory for temporary files, are not waited for: they may take some of the space above the floor. Raises NoSpace,
    OSError.
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


def reserved_bytes(path: str) -> int:
    """Bytes that are free for root alone, as ext4 keeps 5 % of a file system. Raises OSError."""
    found = os.statvfs(path)
    return (found.f_bfree - found.f_bavail) * found.f_frsize


def owed_bytes(path: str) -> int:
    """Of what is freed, how much root's reserve on ext4 may take first: root has written into it. Raises OSError.

    The kernel does not tell how large that is; mkfs makes it a twentieth.
    """
    kept_bytes, space = reserved_bytes(path), space_of(path)
    return max(space.total_bytes // 20 - kept_bytes, 0) if kept_bytes and not space.free_bytes else 0


def names_left(path: str) -> int:
    """How many files can still be made on the file system of `path`; very many if it does not count them. Raises OSError."""
    found = os.statvfs(path)
    return found.f_favail if found.f_files else _COUNTLESS


def lacks_names(path: str) -> bool:
    """Whether fewer files can be made than a start of a broker makes: 256, or 5 % of those of a small file system."""
    return names_left(path) < min(256, os.statvfs(path).f_files // 20)


def space_for(path: str, suffices: Callable[[Space], bool]) -> Space:
    """Free bytes of a file system; if they do not suffice, first waits until files deleted by this process are freed.

    Raises OSError.
    """
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
        return None  # `unlink` reports the error, if there is one


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
