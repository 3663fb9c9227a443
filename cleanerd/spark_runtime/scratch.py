"""The scratch directory of a session: Spark's files, blocks, shared values, sockets, libraries.

All of it lies in a directory of its own, which the process that has the session deletes when the JVM has ended. That process
holds a lock on the directory (`flock`), which the kernel takes away when it dies. So a directory that can be locked is one
that a killed process has left, and whoever looks there next deletes it: each session when it starts, and the daemon once a
minute. Where the file system knows no locks nothing is deleted but by its owner.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence

from cleanerd.env.cache import cache_directory, temporary_directory

SETTING = "spark.local.dir"
"""Spark's: where its scratch files lie, several places divided by commas."""
GATEWAY_FILE = "gateway"
"""The file in which a JVM says where it can be called; its environment names it."""
_PREFIX = "cleanerd-scratch-"
_UNLOCKED = "cleanerd-unlocked-"
_PATH_MAX = 64  # bytes: a socket below has a name of 42, and 107 in all are allowed
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def scratch_roots(settings: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """Directories in which sessions with these Spark properties keep their scratch directories."""
    named = [root.strip() for root in settings.get(SETTING, "").split(",") if root.strip()]
    if named:
        return named
    if environment.get("CACHE_DIRECTORY"):
        return [os.path.join(cache_directory(environment), "spark")]
    return [tempfile.gettempdir()]


def temporary_place(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """TMPDIR for a process whose sessions have these properties, where it finds no other directory for temporary files."""
    if temporary_directory() is not None:
        return {}
    with contextlib.suppress(OSError):
        root = scratch_roots(settings, environment)[0]
        os.makedirs(root, exist_ok=True)
        return {"TMPDIR": root}
    return {}


class Scratch:
    """A new directory in each of `roots` that can be used, locked by this process; those that others have left there go."""

    def __init__(self, roots: Sequence[str]) -> None:
        """Raises OSError where none can be used."""
        sweep(roots)
        self.paths: list[str] = []
        self._locks: list[int] = []
        errors: list[OSError] = []
        for root in roots:
            try:
                self._add(root)
            except OSError as error:  # a disk of several that has failed
                errors.append(error)
        if not self.paths:
            raise errors[0]

    def _add(self, root: str) -> None:
        os.makedirs(root, exist_ok=True)
        while True:
            path = tempfile.mkdtemp(prefix=_PREFIX, dir=root)
            with contextlib.suppress(FileNotFoundError):
                lock = os.open(path, _OPEN)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                except (
                    OSError
                ):  # no locks for us; a process that has them would take it for one that was left
                    os.close(lock)
                    os.rmdir(path)
                    path = tempfile.mkdtemp(prefix=_UNLOCKED, dir=root)
                    lock = os.open(path, _OPEN)
                if os.path.exists(path):
                    self.paths.append(path)
                    self._locks.append(lock)
                    return
                os.close(lock)  # a sweep was quicker than our lock

    def jvm_options(self) -> str:
        """Options that move a JVM's temporary files here, too: sockets to its workers, unpacked native libraries."""
        path = self.paths[0]
        is_usable = (
            path.isprintable() and not set(path) & set(" \"'\\") and len(os.fsencode(path)) <= _PATH_MAX
        )
        return f"-Djava.io.tmpdir={path}" if is_usable else ""

    def remove(self) -> None:
        """Delete the directories. Files that a dying process still writes are deleted by the next sweep."""
        paths, self.paths = self.paths, []
        locks, self._locks = self._locks, []
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)
        for lock in locks:
            os.close(lock)


def sweep_those_of(settings: Mapping[str, str]) -> None:
    """`sweep` where sessions with these properties of Spark have their directories."""
    with contextlib.suppress(OSError):  # there is no temporary directory
        sweep(scratch_roots(settings, os.environ))


def sweep(roots: Sequence[str]) -> None:
    """Delete the scratch directories that ended processes of this user have left in `roots`, as far as possible."""
    for root in roots:
        with contextlib.suppress(OSError), os.scandir(root) as found:
            for path in [entry.path for entry in found if entry.name.startswith(_PREFIX)]:
                _delete_if_left(path)


def _delete_if_left(path: str) -> None:
    with contextlib.suppress(OSError):
        lock = os.open(path, _OPEN)
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _kill_its_jvm(path)
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)


def _kill_its_jvm(path: str) -> None:
    """A JVM whose process died during its start ends by itself, unless this directory goes first: then it stays for ever."""
    wanted = os.fsencode(f"={os.path.join(path, GATEWAY_FILE)}\0")
    with contextlib.suppress(OSError):  # no /proc
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{name}/environ", "rb") as environment,
            ):  # of others, or ended
                if wanted in environment.read():
                    os.kill(int(name), signal.SIGKILL)
