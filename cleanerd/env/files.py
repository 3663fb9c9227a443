"""File system calls behind one small interface, so that a test can record, fail or forget any of them.

Only calls whose order matters for crash safety, and the reads that go with them, pass through here. Bulk reads and
writes of the pipeline open files themselves; what they write is synced and named through here.
"""

import contextlib
import os
from dataclasses import dataclass
from typing import Protocol

from . import space


@dataclass(frozen=True, slots=True)
class FileStat:
    """Identity and size of a file: what the generation check compares."""

    inode: int
    size_bytes: int
    mtime_ns: int


class Files(Protocol):
    """What cleanerd asks of a file system. Every method raises `OSError` as the system call does."""

    def list_names(self, directory: str) -> list[str]:
        """Names of all entries, sorted."""
        ...

    def stat(self, path: str) -> FileStat:
        """Identity and size."""
        ...

    def exists(self, path: str) -> bool:
        """Whether the path exists."""
        ...

    def read(self, path: str) -> bytes:
        """Whole content."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Create or truncate, write all of `data`. Not synced."""
        ...

    def truncate(self, path: str, size_bytes: int) -> None:
        """Keep only the first `size_bytes` of a file that has no fewer. Not synced."""
        ...

    def fsync(self, path: str) -> None:
        """Content of one file to stable storage."""
        ...

    def fsync_dir(self, directory: str) -> None:
        """Names of one directory to stable storage."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic move within one file system, replacing `target`."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a name. The space of a large file may come back a little later (`space.wait_for_deleted`)."""
        ...

    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        """Set the modification time (rule 4.12)."""
        ...

    def adopt_owner(self, path: str, like: str) -> None:
        """Give a file the owner and the permissions of another: the broker must be able to use it (spec disk D4.6)."""
        ...


class RealFiles:
    """The operating system's files."""

    def list_names(self, directory: str) -> list[str]:
        """Names of all entries, sorted."""
        return sorted(os.listdir(directory))

    def stat(self, path: str) -> FileStat:
        """Identity and size."""
        found = os.stat(path)
        return FileStat(found.st_ino, found.st_size, found.st_mtime_ns)

    def exists(self, path: str) -> bool:
        """Whether the path exists."""
        return os.path.exists(path)

    def read(self, path: str) -> bytes:
        """Whole content."""
        with open(path, "rb") as file:
            return file.read()

    def write(self, path: str, data: bytes) -> None:
        """Create or truncate, write all of `data`. Not synced."""
        with open(path, "wb") as file:
            file.write(data)

    def truncate(self, path: str, size_bytes: int) -> None:
        """Keep only the first `size_bytes` of a file that has no fewer. Not synced."""
        os.truncate(path, size_bytes)

    def fsync(self, path: str) -> None:
        """Content of one file to stable storage."""
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def fsync_dir(self, directory: str) -> None:
        """Names of one directory to stable storage."""
        self.fsync(directory)

    def rename(self, source: str, target: str) -> None:
        """Atomic move within one file system, replacing `target`."""
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        """Remove a name. The space of a large file comes back a little later (`space.wait_for_deleted`)."""
        space.unlink(path)

    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        """Set the modification time (rule 4.12)."""
        os.utime(path, ns=(mtime_ns, mtime_ns))

    def adopt_owner(self, path: str, like: str) -> None:
        """Give a file the owner and the permissions of another: the broker must be able to use it (spec disk D4.6)."""
        mine, theirs = os.stat(path), os.stat(like)
        if mine.st_uid != theirs.st_uid:
            os.chown(path, theirs.st_uid, theirs.st_gid)
        elif mine.st_gid != theirs.st_gid:
            with contextlib.suppress(PermissionError):  # the owner is who opens it
                os.chown(path, -1, theirs.st_gid)
        if mine.st_mode != theirs.st_mode:
            os.chmod(path, theirs.st_mode & 0o7777)
