"""Real files that can lose power: every system call by which this process changes them passes through here.

`tests.harness.disks.simulated` is a disk in memory for protocols that go through `Files`. A whole cleaning reads and writes
with plain descriptors, so here the files are real ones (in memory: `/dev/shm`), and the functions of `os` are exchanged
while the disk is `installed`. What a power cut leaves is the same model:

    1. Content of a file: what its last `fsync` saw; of later writes all, a beginning, a beginning and zeros, or nothing.
    2. Names of a directory: those of its last `fsync`, changed by any subset of the operations since then.
    3. Each rename is atomic. One to another directory is there when either directory was synced, and then all before it.
A process that is killed loses nothing.

Each directory below the root is a file system of its own (`inodes`). A power cut is the same for all.

Every inode that was ever made here has a second link outside of the tree until nothing can bring it back, so that a file
keeps its identity over a power cut. Numbers of inodes and all times are of this disk, so that a run repeats itself.
"""

import builtins
import contextlib
import errno
import functools
import io
import os
import random
import shutil
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from cleanerd.env import files as env_files
from tests.harness.clock import Tick
from tests.harness.disks.simulated import SwitchedOff, _apply, _Change, _Directory
from tests.simulation.inodes import File, FileSystems, Move
from tests.simulation.raw_file import RawFile

REAL = types.SimpleNamespace(**{name: getattr(os, name) for name in dir(os) if not name.startswith("__")})
_BLOCK_BYTES = 4096
_WRITES = os.O_WRONLY | os.O_RDWR


def content_of(path: str) -> bytes:
    """Of a file, past all that is simulated."""
    fd = REAL.open(path, os.O_RDONLY)
    try:
        return bytes(REAL.read(fd, 1 << 24))
    finally:
        REAL.close(fd)


def _on_disk(call: Callable[..., Any]) -> Callable[..., Any]:
    """For a path that is not of this disk, the function of `os` is called instead."""
    real = getattr(REAL, call.__name__.removeprefix("_os_"))

    def chosen(disk: "Disk", path: Any, *arguments: Any, dir_fd: int | None = None, **options: Any) -> Any:
        whole = _whole(path, dir_fd)
        if disk._is_inside(whole):
            return call(disk, whole, *arguments, **options)
        return real(whole, *arguments, **options)

    return chosen


def _whole(path: Any, dir_fd: int | None) -> Any:
    """A path that was given below an open directory."""
    return path if dir_fd is None else f"{os.readlink(f'/proc/self/fd/{dir_fd}')}/{path}"


@dataclass
class Disk:
    """The tree below `root`.

    `before(operation, path)` is called before every operation, and may raise what the call is to raise."""

    root: str
    clock: Tick
    before: Callable[[str, str], None] = lambda *_: None
    is_off: bool = False  # the process was killed: nothing that it still does reaches the disk
    forgets_fsync: Callable[[str], bool] = lambda _: False  # for tests: a mutation of the code under test
    _files: dict[int, File] = field(default_factory=dict)
    _dirs: dict[int, _Directory] = field(default_factory=dict)
    _homes: dict[int, str] = field(default_factory=dict)  # directory -> its file system
    _numbers: dict[int, int] = field(default_factory=dict)
    _fds: dict[int, int] = field(default_factory=dict)
    opener: str = ""  # who opens files now
    _openers: dict[int, str] = field(default_factory=dict)
    _device: int = 0
    _moves: int = 0

    def __post_init__(self) -> None:
        self._pins, self.systems = f"{self.root}.pins", FileSystems(self.root)
        for path in (self.root, self._pins):
            REAL.mkdir(path)
        found = REAL.stat(self.root)
        self._device = found.st_dev
        self._dirs[found.st_ino], self._homes[found.st_ino] = _Directory(), ""
        self.number(found.st_ino)

    def remove(self) -> None:
        for path in (self.root, self._pins):
            shutil.rmtree(path)

    # -- the calls ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """The functions of `os` go here."""
        changes = (
            "open write fsync rename replace link unlink remove rmdir mkdir truncate ftruncate utime "
            "copy_file_range statvfs"
        )
        calls = {name: getattr(self, f"_os_{name}") for name in changes.split()}
        calls |= {
            name: functools.partial(self._read, getattr(REAL, name)) for name in ("read", "pread", "preadv")
        }
        looks = ("stat", "lstat", "listdir", "scandir")
        calls |= {name: functools.partial(self._look, getattr(REAL, name)) for name in looks}
        with contextlib.ExitStack() as stack:
            for name, call in calls.items():
                stack.enter_context(mock.patch.object(os, name, call))
            stack.enter_context(mock.patch.object(builtins, "open", self._open_file))
            stat_of = env_files.FileStat.of
            numbered = staticmethod(lambda found: self._numbered(stat_of(found), found))
            stack.enter_context(mock.patch.object(env_files.FileStat, "of", numbered))
            yield

    def _numbered(self, made: env_files.FileStat, found: os.stat_result) -> env_files.FileStat:
        if found.st_dev != self._device or found.st_ino not in self._numbers:
            return made
        size_bytes = (
            made.size_bytes if made.is_regular else 0
        )  # of a directory, it is the file system's affair
        return replace(made, inode=self._numbers[found.st_ino], size_bytes=size_bytes)

    def number(self, inode: int) -> int:
        return self._numbers.setdefault(inode, len(self._numbers) + 100)

    def _is_inside(self, path: object) -> bool:
        return isinstance(path, str) and (path == self.root or path.startswith(f"{self.root}/"))

    def _tracked(self, fd: object) -> int | None:
        """Inode behind a descriptor of this disk. C code may have closed it, and the number be another file's."""
        if not isinstance(fd, int) or fd not in self._fds:
            return None
        inode = self._fds[fd]
        with contextlib.suppress(OSError):
            if REAL.fstat(fd).st_ino == inode:
                return inode
        del self._fds[fd]
        return None

    def _do(self, operation: str, path: str) -> None:
        if self.is_off:
            raise SwitchedOff
        self.clock.ns += 20_000
        self.before(operation, path)

    @_on_disk
    def _os_open(self, path: str, flags: int, mode: int = 0o777) -> int:
        if (
            flags & os.O_TMPFILE == os.O_TMPFILE or flags & os.O_PATH
        ):  # what has no name, and the way to a name
            return REAL.open(path, flags, mode)  # type: ignore[no-any-return]
        is_new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        opens = "update" if flags & _WRITES else "open"
        self._do("create" if is_new else "write" if flags & os.O_TRUNC else opens, path)
        fd = REAL.open(path, flags, mode)
        inode = self._fds[fd] = REAL.fstat(fd).st_ino
        self._openers[fd] = self.opener
        if is_new:
            self._made(path, inode)
        elif flags & os.O_TRUNC:
            self._files[inode].whole = 0
            self._touch(inode)
        return int(fd)

    def _made(self, path: str, inode: int) -> None:
        self._files[inode] = File()
        self.number(inode)
        REAL.link(path, self._pin(inode))
        self._touch(inode)
        self._change(os.path.dirname(path), _Change(inode, None, os.path.basename(path)))

    def _os_write(self, fd: int, data: Any) -> int:
        inode = self._tracked(fd)
        if inode is None:
            return REAL.write(fd, data)
        path = self._name_of(fd)
        self._do("write", path)
        size, room = len(memoryview(data).cast("B")), self.systems.room(path)
        left = room.capacity_bytes - self.used_bytes(path) if size and room.is_small else size
        if size > left + _BLOCK_BYTES:  # what is left of the last block is not counted
            if left <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = memoryview(data).cast("B")[:left]
        count = REAL.write(fd, data)
        self._touch(inode)
        return count

    def _read(self, call: Callable[..., Any], fd: int, *arguments: Any) -> Any:
        if self._tracked(fd) is not None:
            if self.is_off:
                raise SwitchedOff
            self.before("read", self._name_of(fd))
        return call(fd, *arguments)

    def _look(self, call: Callable[..., Any], path: Any = ".", *arguments: Any, **options: Any) -> Any:
        if self._is_inside(path):
            self.before("look", path)
        return call(path, *arguments, **options)

    def _os_copy_file_range(self, source: int, target: int, count: int) -> int:
        if self._tracked(target) is None:
            return REAL.copy_file_range(source, target, count)
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))  # the copy goes on with reads and writes

    def _os_fsync(self, fd: int) -> None:
        inode = self._tracked(fd)
        if inode is None:
            return REAL.fsync(fd)
        path = self._name_of(fd)
        self._do("fsync", path)
        if self.forgets_fsync(path):
            return None
        if inode in self._dirs:
            self._sync_names(inode)
        else:
            file = self._files[inode]
            file.synced, file.synced_mtime_ns = self._content(inode), REAL.stat(self._pin(inode)).st_mtime_ns
            file.whole = len(file.synced)
        return None

    def _sync_names(self, directory: int) -> None:
        place = self._dirs[directory]
        moves = [change for change in place.changes if isinstance(change, Move)]
        place.synced, place.changes = dict(place.names), []
        for move in moves:
            self._sync_names(move.other)

    def _os_rename(self, source: str, target: str, **places: int | None) -> None:
        source, target = _whole(source, places.get("src_dir_fd")), _whole(target, places.get("dst_dir_fd"))
        if self._is_inside(source):
            self._rename(source, target)
        else:
            REAL.rename(source, target)

    _os_replace = _os_rename

    def _rename(self, source: str, target: str) -> None:
        old, new = os.path.split(source), os.path.split(target)
        self._do("rename", f"{source} -> {new[1] if old[0] == new[0] else target}")
        inode = REAL.lstat(source).st_ino
        self.systems.check_same(source, target)
        REAL.rename(source, target)
        if old[0] == new[0]:
            self._change(old[0], _Change(inode, old[1], new[1]))
        else:
            self._moves += 1
            places = [REAL.stat(place).st_ino for place in (old[0], new[0])]
            self._change(new[0], Move(inode, None, new[1], places[0], self._moves))
            self._change(old[0], Move(inode, old[1], None, places[1], self._moves))

    @_on_disk
    def _os_link(self, source: str, target: str) -> None:
        self._do("link", target)
        self.systems.check_same(source, target)
        REAL.link(source, target)
        directory, name = os.path.split(target)
        self._change(directory, _Change(REAL.stat(target).st_ino, None, name))

    @_on_disk
    def _os_unlink(self, path: str) -> None:
        self._drop("unlink", path)

    _os_remove = _os_unlink

    @_on_disk
    def _os_rmdir(self, path: str) -> None:
        self._drop("rmdir", path)

    def _drop(self, operation: str, path: str) -> None:
        self._do(operation, path)
        inode = REAL.lstat(path).st_ino
        getattr(REAL, operation)(path)
        self._change(os.path.dirname(path), _Change(inode, os.path.basename(path), None))

    @_on_disk
    def _os_mkdir(self, path: str, mode: int = 0o777) -> None:
        self._do("mkdir", path)
        REAL.mkdir(path, mode)
        inode = REAL.stat(path).st_ino
        self._dirs[inode], self._homes[inode] = _Directory(), self.systems.of(f"{path}/")
        self.number(inode)
        self._set_time(path)
        self._change(os.path.dirname(path), _Change(inode, None, os.path.basename(path)))

    def _os_truncate(self, path: Any, length: int) -> None:
        inode = self._tracked(path) if isinstance(path, int) else None
        if inode is None and not self._is_inside(path):
            REAL.truncate(path, length)
            return
        self._do("truncate", path if isinstance(path, str) else self._name_of(path))
        REAL.truncate(path, length)
        inode = inode or REAL.stat(path).st_ino
        self._files[inode].whole = min(self._files[inode].whole, length)
        self._touch(inode)

    _os_ftruncate = _os_truncate

    @_on_disk
    def _os_utime(self, path: str, *arguments: Any, **options: Any) -> None:
        self._do("utime", path)
        REAL.utime(path, *arguments, **options)

    @_on_disk
    def _os_statvfs(self, path: str) -> Any:
        self.before("look", path)
        free = self.free_bytes(path) // _BLOCK_BYTES
        blocks = self.systems.room(path).capacity_bytes // _BLOCK_BYTES
        return types.SimpleNamespace(
            f_blocks=blocks, f_frsize=_BLOCK_BYTES, f_bavail=free, f_bfree=free, f_files=0
        )

    def _open_file(self, file: Any, mode: str = "r", buffering: int = -1, *more: Any, **options: Any) -> Any:
        """`open`: what writes does so through the functions above."""
        if not self._is_inside(file) or not set(mode) & set("wax+"):
            if self._is_inside(file):
                self._do("open", file)
            return _OPEN(file, mode, buffering, *more, **options)
        assert "b" in mode
        new = os.O_WRONLY | os.O_CREAT
        flags = {"w": new | os.O_TRUNC, "x": new | os.O_EXCL}.get(mode[0])
        raw = RawFile(self._os_open(file, flags or os.O_RDWR, 0o666))
        return raw if buffering == 0 else io.BufferedWriter(raw)

    # -- power ----------------------------------------------------------------------------------------------

    def power_cut(self, chance: random.Random) -> None:
        """What was not synced is left to chance. No descriptor of this disk may be used afterwards."""
        self.is_off = False
        keeps, moved = chance.choice([0.0, 0.5, 0.9, 1.0]), dict[int, bool]()
        for place in self._dirs.values():
            names = dict(place.synced)
            for change in place.changes:
                is_kept = chance.random() < keeps
                if isinstance(change, Move):
                    is_kept = moved.setdefault(change.number, is_kept)
                if is_kept:
                    _apply(names, change)
            place.names, place.synced, place.changes = names, dict(names), []
        aside = f"{self.root}.aside"
        REAL.rename(self.root, aside)
        inode = REAL.stat(aside).st_ino
        found = {REAL.stat(path).st_ino: path for path, _, _ in os.walk(aside, topdown=False)}
        kept = f"{self.root}.kept"
        REAL.mkdir(kept)
        for number, path in found.items():  # those below come first
            for name in os.listdir(path):
                REAL.unlink(f"{path}/{name}")
            REAL.rename(path, f"{kept}/{number}")
        living: set[int] = set()
        self._build(kept, inode, self.root, living)
        for name in os.listdir(kept):
            REAL.rmdir(f"{kept}/{name}")
        REAL.rmdir(kept)
        self._dirs = {number: place for number, place in self._dirs.items() if number in living}
        for file in sorted(living & self._files.keys(), key=self.number):
            self._settle(file, chance)
        self._fds.clear()
        self._openers.clear()
        self._forget_unreachable()

    def _build(self, kept: str, inode: int, path: str, living: set[int]) -> int:
        if os.path.exists(f"{kept}/{inode}"):
            REAL.rename(f"{kept}/{inode}", path)
        else:  # it had been removed, and that is what was lost
            REAL.mkdir(path)
            made = REAL.stat(path).st_ino
            self._dirs[made], self._numbers[made] = self._dirs[inode], self._numbers[inode]
            self._homes[made] = self._homes[inode]
            inode = made
        place = self._dirs[inode]
        living.add(inode)
        for name, member in place.names.items():
            if member in self._dirs:
                place.names[name] = place.synced[name] = self._build(kept, member, f"{path}/{name}", living)
            else:
                REAL.link(self._pin(member), f"{path}/{name}")
                living.add(member)
        self._set_time(path)
        return inode

    def _settle(self, inode: int, chance: random.Random) -> None:
        """The content of a file after a power cut."""
        file, now = self._files[inode], self._content(inode)
        if file.synced == now:
            return
        length = chance.randint(min(file.whole, len(now)), len(now))
        torn = now[:length]
        content = chance.choice([file.synced or b"", torn, torn + bytes(len(now) - length), now])
        mtime_ns = REAL.stat(self._pin(inode)).st_mtime_ns
        if content != now and file.synced_mtime_ns and chance.random() < 0.5:
            mtime_ns = file.synced_mtime_ns
        with _OPEN(self._pin(inode), "wb") as opened:
            opened.write(content)
        REAL.utime(self._pin(inode), ns=(mtime_ns, mtime_ns))
        file.synced, file.synced_mtime_ns = content, mtime_ns
        file.whole = file.size = len(content)

    def _forget_unreachable(self) -> None:
        reachable = {inode for place in self._dirs.values() for inode in place.names.values()}
        for inode in [inode for inode in self._files if inode not in reachable]:
            del self._files[inode]
            REAL.unlink(self._pin(inode))

    # -- looking --------------------------------------------------------------------------------------------

    def retired(self, directory: str) -> set[int]:
        """Inodes of files that became `.deleted` ones since the directory was synced: a power cut may undo that."""
        with contextlib.suppress(FileNotFoundError):
            changes = self._dirs[REAL.stat(directory).st_ino].changes
            return {one.inode for one in changes if one.source and one.target == f"{one.source}.deleted"}
        return set()

    def used_bytes(self, path: str) -> int:
        """Of the files that have a name on the file system of a path, and of others."""
        places = (
            place for inode, place in self._dirs.items() if self._homes.get(inode) == self.systems.of(path)
        )
        reachable = {inode for place in places for inode in place.names.values()}
        sizes = (self._files[inode].size for inode in reachable if inode in self._files)
        used_bytes = sum(-(-size // _BLOCK_BYTES) * _BLOCK_BYTES for size in sizes)
        return used_bytes + self.systems.room(path).others_bytes

    def free_bytes(self, path: str) -> int:
        """For all who write on the file system of a path."""
        return max(self.systems.room(path).capacity_bytes - self.used_bytes(path), 0)

    def close_all_of(self, opener: str) -> None:
        """The end of a process. It must hold its descriptors as numbers: objects would close them once more."""
        for fd in [fd for fd, who in self._openers.items() if who == opener]:
            del self._openers[fd]
            if self._tracked(fd) is not None:
                REAL.close(fd)

    def open_fds(self) -> dict[int, str]:
        """Descriptors of files of this disk that are open now, by number."""
        found = {}
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/self/fd/{name}")
                if path.startswith((self.root, self._pins)):
                    found[int(name)] = path
        return found

    # -- inside ---------------------------------------------------------------------------------------------

    def _pin(self, inode: int) -> str:
        return f"{self._pins}/{inode}"

    def _content(self, inode: int) -> bytes:
        with _OPEN(self._pin(inode), "rb") as file:
            return bytes(file.read())

    def _name_of(self, fd: int) -> str:
        return os.readlink(f"/proc/self/fd/{fd}")

    def _touch(self, inode: int) -> None:
        self.clock.ns += 1_000
        self._set_time(self._pin(inode))
        self._files[inode].size = REAL.stat(self._pin(inode)).st_size

    def _change(self, directory: str, change: _Change) -> None:
        place = self._dirs[REAL.stat(directory).st_ino]
        _apply(place.names, change)
        place.changes.append(change)
        self._set_time(directory)

    def _set_time(self, path: str) -> None:
        REAL.utime(path, ns=(self.clock.wall_ns(), self.clock.wall_ns()))


_OPEN = builtins.open
