"""File system calls behind one small interface, so that tests can record, fail or forget any of them.

Only calls whose order matters for crash safety, and the reads that go with them, pass through here. Bulk reads and
writes of the pipeline have descriptors of their own; what they write is synced and named through here.

A log directory may hold anything under any name: FIFOs, devices, sparse terabytes, links. So all that is read there is
opened by `regular_fd`, which never waits, and no read takes more memory than its caller allows. And whoever may write to it
may put a link at any name, at any moment. So nothing is written, given away or synced there by a path: every new file is
made by `new_file`, every other one opened by `open_own`, in a directory that was reached as `trust.open_directory` does
(`tests/test_tidy.py` looks for other ways).
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import BinaryIO

from cleanerd.errors import SourceChanged

from . import space
from .trust import open_directory


@dataclass(frozen=True, slots=True)
class FileStat:
    """The identity of a file: it differs if the file was replaced, appended to or overwritten.

    No part of that: how many names (hard `links`) the file has, and `disk_bytes`, which holes do not take.
    """

    inode: int
    size_bytes: int
    mtime_ns: int
    is_regular: bool = True
    links: int = field(default=1, compare=False)
    disk_bytes: int = field(default=0, compare=False)

    @staticmethod
    def of(found: os.stat_result) -> "FileStat":
        """The identity from a `stat` result."""
        is_regular, disk_bytes = stat.S_ISREG(found.st_mode), found.st_blocks * _STAT_BLOCK_BYTES
        return FileStat(
            found.st_ino, found.st_size, found.st_mtime_ns, is_regular, found.st_nlink, disk_bytes
        )

    @property
    def mtime_ms(self) -> int:
        """Modification time in ms, the unit of all times of policy."""
        return self.mtime_ns // 1_000_000

    @property
    def frees_bytes(self) -> int:
        """What the disk gets back with this name: nothing while the file has another one, as in a backup by hard links."""
        return self.disk_bytes if self.is_last_name else 0

    @property
    def is_last_name(self) -> bool:
        """Whether the file goes with this name. A file system that does not count names (FUSE) may say 0."""
        return self.links <= 1

    def __str__(self) -> str:
        return f"inode {self.inode}, {self.size_bytes} bytes, modified at {self.mtime_ns} ns"


def inode_of(path: str) -> int:
    """The inode at a path now, -1 if nothing is there."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return -1


def check_unchanged(path: str, planned: FileStat, found: FileStat) -> None:
    """Raise SourceChanged unless a file is still the one that was planned for."""
    if found != planned:
        raise SourceChanged(f"{path}: was planned for as {planned}, and is {found}")


_CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_sync_threads = ThreadPoolExecutor(4, thread_name_prefix="cleanerd-sync")

_COPY_BYTES = 8 << 20
_STAT_BLOCK_BYTES = 512  # the unit of `st_blocks`, on any file system
_READ_BYTES = 16 << 10  # at least, of a file that grows; as much memory is taken as is asked for
READ_MAX_BYTES = 256 << 20
"""Default limit in bytes for reading a whole file: enough for the index of a 1 GiB segment with an entry per batch."""


class NotRegular(OSError):
    """The path is no regular file, or the file is larger than the caller's limit; `found` describes it."""

    found = "another kind of file"


def regular_fd(path: str, *, follow_links: bool = False) -> int:
    """A descriptor to read a regular file. Never waits.

    Raises NotRegular, also for a symbolic link unless `follow_links`, and OSError.
    """
    found = os.stat(path, follow_symlinks=follow_links)
    check_regular(found.st_mode, path)  # to open a device may do something
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    return _open_checked(path, flags if follow_links else flags | os.O_NOFOLLOW, path)


def _open_checked(name: str, flags: int, path: str, place: int | None = None) -> int:
    """Open `name`, in the directory `place` if there is one; `path` is for errors. Raises NotRegular, OSError."""
    try:
        fd = os.open(name, flags, dir_fd=place)
    except OSError as error:
        if error.errno == errno.ELOOP:
            check_regular(stat.S_IFLNK, path)
        raise
    try:
        check_regular(os.fstat(fd).st_mode, path)
    except NotRegular:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def open_regular(path: str, *, follow_links: bool = False) -> Iterator[int]:
    """The same, closed at the end of the block."""
    fd = regular_fd(path, follow_links=follow_links)
    try:
        yield fd
    finally:
        os.close(fd)


def regular_file(path: str, buffering: int = -1) -> BinaryIO:
    """A regular file to read. Raises as `regular_fd`."""
    return os.fdopen(regular_fd(path), "rb", buffering)


def new_file(path: str, like: str | None = None, mode: int = 0o666) -> int:
    """Create a file and return a descriptor to read and write it; no other function creates files in a log directory.

    An existing entry with this name is removed first: a link, a FIFO, or the file of a dead process whose children may still
    write to it. `like`: path of the file whose owner and permissions it gets. Raises OSError.
    """
    with _parent(path) as (place, name):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=place)
        fd = create_exclusively(name, place, mode)
    try:
        if like is not None:
            _adopt_owner(fd, like)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def _parent(path: str) -> Iterator[tuple[int, str]]:
    """The directory of a path, open, and the name in it; errors of the block name the whole path."""
    directory, name = os.path.split(path)
    try:
        with open_directory(directory) as place:
            yield place, name
    except OSError as error:
        error.filename = path
        raise


def create_exclusively(name: str, directory: int, mode: int) -> int:
    """As `new_file`, in an open directory, if nothing has the name yet. Raises FileExistsError, OSError."""
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _CAREFULLY, mode, dir_fd=directory)


def open_own(path: str, flags: int) -> int:
    """A descriptor of a regular file that is there, to change it; a link or FIFO is refused. Raises NotRegular, OSError."""
    with _parent(path) as (place, name):
        return _open_checked(name, flags | _CAREFULLY, path, place)


@contextlib.contextmanager
def own_file(path: str, flags: int) -> Iterator[int]:
    """The same, closed at the end of the block."""
    fd = open_own(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def _adopt_owner(fd: int, like: str) -> None:
    mine, theirs = os.fstat(fd), os.lstat(like)
    if stat.S_ISLNK(theirs.st_mode):
        check_regular(theirs.st_mode, like)
    if mine.st_uid != theirs.st_uid:
        os.fchown(fd, theirs.st_uid, theirs.st_gid)
    elif mine.st_gid != theirs.st_gid:
        with contextlib.suppress(PermissionError):  # the owner is who opens it
            os.fchown(fd, -1, theirs.st_gid)
    permissions = theirs.st_mode & 0o777  # never those that let a file run as its owner
    if stat.S_IMODE(mine.st_mode) != permissions:
        os.fchmod(fd, permissions)


def read_to_hole(path: str, max_bytes: int, *, follow_links: bool = False) -> tuple[bytes, int]:
    """The content up to the first hole, and the size of the file: preallocated space is not read.

    Raises as `regular_fd`, and NotRegular for more than `max_bytes` before the hole.
    """
    with open_regular(path, follow_links=follow_links) as fd:
        size, content = os.fstat(fd).st_size, b""
        try:
            stored = os.lseek(fd, 0, os.SEEK_HOLE)
        except OSError:  # empty, or the file system knows no holes
            stored = size
        if stored > max_bytes:
            raise NotRegular(errno.EFBIG, f"expected at most {max_bytes} bytes, found {stored}", path)
        while len(content) < stored and (more := os.pread(fd, stored - len(content), len(content))):
            content += more
    return content, size


def check_regular(mode: int, path: str) -> None:
    """Raise NotRegular unless `st_mode` is that of a regular file."""
    if not stat.S_ISREG(mode):
        error = NotRegular(errno.EINVAL, f"expected a regular file, found {kind_of(mode)}", path)
        error.found = kind_of(mode)
        raise error


def kind_of(mode: int) -> str:
    """The type of a file in words, such as `a directory`."""
    kinds = {
        stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket",
        stat.S_IFBLK: "a block device", stat.S_IFCHR: "a character device", stat.S_IFREG: "a regular file",
        stat.S_IFLNK: "a symbolic link",
    }  # fmt: skip
    return kinds.get(stat.S_IFMT(mode), "no regular file")


_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""With these nothing can be there; any other error leaves it unknown."""


class RealFiles:
    """The operating system's files. Every method raises `OSError` as the system call does."""

    def list_names(self, directory: str) -> list[str]:
        """Names of all entries, sorted."""
        return sorted(os.listdir(directory))

    def stat(self, path: str, *, follow_links: bool = True) -> FileStat:
        """Identity and size."""
        return FileStat.of(os.stat(path, follow_symlinks=follow_links))

    def exists(self, path: str) -> bool:
        """Whether the path exists. Raises OSError if that cannot be determined, where `os.path.exists` returns False."""
        try:
            os.stat(path)
        except OSError as error:
            if error.errno in _ABSENT:
                return False
            raise
        return True

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        """Read a whole file. Raises as `regular_fd`, and NotRegular for a file of more than `max_bytes`."""
        with open_regular(path) as fd:
            size, content = os.fstat(fd).st_size, b""
            while size <= max_bytes >= len(content):
                wanted = max(size - len(content) + 1, _READ_BYTES)
                more = os.read(fd, min(wanted, max_bytes + 1 - len(content)))
                if not more:
                    break
                content += more
        found = max(size, len(content))
        if found > max_bytes:
            raise NotRegular(errno.EFBIG, f"expected at most {max_bytes} bytes, found {found}", path)
        return content

    def read_to_hole(self, path: str, max_bytes: int = READ_MAX_BYTES) -> tuple[bytes, int]:
        """Content of a regular file up to its first hole, and its size, as `read_to_hole`."""
        return read_to_hole(path, max_bytes)

    def write(self, path: str, data: bytes, like: str | None = None) -> None:
        """Make a new file, as `new_file`, with all of `data` in it. Not synced.

        `like`: the path of the file whose owner and permissions it gets: the broker must be able to use it (spec disk D4.6).
        """
        fd = new_file(path, like)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
        finally:
            os.close(fd)

    def copy_in(self, source: str, target: str, like: str) -> None:
        """Make a new file, as `new_file`, with the content of another one, and compare the two. Not synced."""
        fd = new_file(target, like)
        try:
            with open_regular(source) as reader:
                while data := os.read(reader, _COPY_BYTES):
                    left = memoryview(data)
                    while left:
                        left = left[os.write(fd, left) :]
        finally:
            os.close(fd)
        if not self.is_copy(source, target):
            raise OSError(errno.EIO, "is not what was copied", target)

    def is_copy(self, source: str, target: str) -> bool:
        """Whether two files have the same content."""
        with open_regular(source) as one, open_regular(target) as other:
            if os.fstat(one).st_size != os.fstat(other).st_size:
                return False
            while data := os.read(one, _COPY_BYTES):
                if os.read(other, len(data)) != data:
                    return False
        return True

    def truncate(self, path: str, size_bytes: int) -> None:
        """Keep only the first `size_bytes` of a file that has no fewer. Not synced."""
        with own_file(path, os.O_WRONLY) as fd:
            os.ftruncate(fd, size_bytes)

    def fsync(self, path: str) -> None:
        """Content of one file to stable storage."""
        with own_file(path, os.O_RDONLY) as fd:
            os.fsync(fd)

    def fsync_dir(self, directory: str) -> None:
        """Names of one directory to stable storage."""
        with open_directory(directory, os.O_RDONLY) as fd:
            os.fsync(fd)

    def fsync_dirs(self, directories: Sequence[str]) -> list[OSError | None]:
        """`fsync_dir` of several directories in parallel; returns the error of each, None for success.

        The file system writes its journal once for all: 16 directories on ext4 take 2 ms, one after the other 13 ms.
        """

        def sync(directory: str) -> OSError | None:
            try:
                self.fsync_dir(directory)
            except OSError as error:
                return error
            return None

        if len(directories) == 1:
            return [sync(directories[0])]
        try:
            return list(_sync_threads.map(sync, directories))
        except RuntimeError:  # the process is ending, and its threads take nothing more
            return [sync(directory) for directory in directories]

    def rename(self, source: str, target: str) -> None:
        """Atomic move within one file system, replacing `target`."""
        with _parent(source) as (origin, name):
            there, new = os.path.split(target)
            if there == os.path.dirname(source):  # a commit has thousands of these, with `.lock` held
                os.replace(name, new, src_dir_fd=origin, dst_dir_fd=origin)
                return
            with _parent(target) as (place, _):
                os.replace(name, new, src_dir_fd=origin, dst_dir_fd=place)

    def unlink(self, path: str) -> None:
        """Remove a name. The space of a large file comes back a little later (`space.wait_for_deleted`)."""
        with _parent(path) as (place, name):
            space.unlink(name, place)

    def rmdir(self, directory: str) -> None:
        """Remove an empty directory."""
        with _parent(directory) as (place, name):
            os.rmdir(name, dir_fd=place)

    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        """Set the modification time (rule 4.12)."""
        with own_file(path, os.O_RDONLY) as fd:
            os.utime(fd, ns=(mtime_ns, mtime_ns))


Files = RealFiles
"""The interface of a file system; tests hand in one of their own."""
