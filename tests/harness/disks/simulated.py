"""A disk in memory that can be switched off: `Files` with an honest model of fsync.

What a power cut leaves
    1. Content of a file: what the last `fsync` of the file saw; of a later `write` all, a beginning or nothing; a later
       `truncate` done or not.
    2. Names of a directory: those of its last `fsync_dir`, changed by *any subset* of the operations since then.
       Only operations that depend on a lost one (a rename of a name that never came to be) are lost with it.
    3. Each rename is atomic: the file has one name or the other.
A process that is killed loses nothing: everything that it did is seen by the next one, synced or not.
"""

import os
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from cleanerd.env.files import READ_MAX_BYTES, FileStat

UNSYNCED_MAX = 4
"""Up to this many unsynced operations every subset is tried by `power_cuts`."""


class SwitchedOff(BaseException):
    """The process ends here. No `Exception`, so that nobody handles it by accident."""


@dataclass
class _File:
    inode: int
    content: bytes
    mtime_ns: int
    synced: bytes | None  # None: never
    whole: int = 0  # bytes at the beginning of `content` that no power cut takes


@dataclass(frozen=True)
class _Change:
    """An operation on names. `source` is None for a new file, `target` is None for an unlink."""

    inode: int
    source: str | None
    target: str | None


@dataclass
class _Directory:
    names: dict[str, int] = field(default_factory=dict)
    synced: dict[str, int] = field(default_factory=dict)
    changes: list[_Change] = field(default_factory=list)


class SimDisk:
    """Implements `cleanerd.env.files.Files`. `operations` records what changed anything, syncs included.

    With `stop_after` = k the operation after the k-th raises `SwitchedOff` and does nothing. With `before` set to a list
    a copy is added to it before each operation: what a process killed there leaves.
    """

    def __init__(self) -> None:
        self.operations: list[tuple[str, ...]] = []
        self.stop_after: int | None = None
        self.before: list[SimDisk] | None = None
        self._files: dict[int, _File] = {}
        self._directories: dict[str, _Directory] = {}
        self._ticks = 1_000

    # -- what a test does ---------------------------------------------------------------------------------

    def mkdir(self, directory: str) -> None:
        """A new directory, synced."""
        self._directories[directory] = _Directory()

    def put(self, path: str, content: bytes) -> None:
        """A file that is on the disk already: synced, not recorded."""
        stop, self.stop_after = self.stop_after, None
        kept = list(self.operations)
        self.write(path, content)
        self.fsync(path)
        self.fsync_dir(os.path.dirname(path))
        self.operations, self.stop_after = kept, stop

    def fill(self, path: str, content: bytes) -> None:
        """What somebody writes who has the file open: it stays the same one. Not recorded."""
        file = self._file(path)
        file.content, file.mtime_ns, file.whole = content, self._tick(), 0

    def restart(self) -> None:
        """A new process on the same machine; what was done before is no longer counted."""
        self.operations, self.stop_after = [], None

    def unsynced(self, directory: str) -> int:
        """How many operations on names a power cut may lose."""
        return len(self._directories[directory].changes)

    def power_cut(self, directory: str, kept: Collection[int], seed: int = 0) -> None:
        """Lose all unsynced operations on names of `directory` but those at `kept`; unsynced content is left to chance."""
        chance = random.Random(seed)
        place = self._directories[directory]
        names = dict(place.synced)
        for number, change in enumerate(place.changes):
            if number in kept:
                _apply(names, change)
        self._directories[directory] = _Directory(dict(names), dict(names))
        for inode in names.values():
            file = self._files[inode]
            if file.synced != file.content:
                torn = file.content[: chance.randint(file.whole, len(file.content))]
                file.content = chance.choice([file.synced or b"", torn, file.content])
            file.synced, file.whole = file.content, len(file.content)
        self.restart()

    def crash(self, seed: int) -> None:
        """A power cut in all directories that keeps a seeded choice of the unsynced operations."""
        chance = random.Random(seed)
        for directory, place in list(self._directories.items()):
            kept = {number for number in range(len(place.changes)) if chance.random() < 0.5}
            self.power_cut(directory, kept, seed)

    def power_cuts(self, directory: str, seeds: int = 4) -> list[frozenset[int]]:
        """Choices for `power_cut`: every subset if there are few.

        Else none, all, all but one, one alone (a missing sync shows in those), and a seeded sample.
        """
        count = self.unsynced(directory)
        if count <= UNSYNCED_MAX:
            return [frozenset(i for i in range(count) if bits >> i & 1) for bits in range(1 << count)]
        everything = frozenset(range(count))
        lost = [everything - {i} for i in range(count)]
        alone = [frozenset({i}) for i in range(count)]
        chance = random.Random(count)
        sample = [frozenset(i for i in range(count) if chance.random() < 0.5) for _ in range(seeds)]
        return [frozenset(), everything, *lost, *alone, *sample]

    def copy(self) -> "SimDisk":
        """The same disk once more."""
        twin = SimDisk()
        twin._ticks = self._ticks
        twin._files = {i: replace(f) for i, f in self._files.items()}
        twin._directories = {
            name: _Directory(dict(d.names), dict(d.synced), list(d.changes))
            for name, d in self._directories.items()
        }
        return twin

    def listing(self, directory: str) -> dict[str, bytes]:
        """Names and contents, to compare."""
        place = self._directories[directory]
        return {name: self._files[inode].content for name, inode in sorted(place.names.items())}

    def fingerprint(self, directory: str) -> frozenset[tuple[str, int, int, bytes]]:
        """All that the next process can see: two disks with the same one have the same future, short of a power cut."""
        files = ((name, self._files[inode]) for name, inode in self._directories[directory].names.items())
        return frozenset((name, file.inode, file.mtime_ns, file.content) for name, file in files)

    # -- Files --------------------------------------------------------------------------------------------

    def list_names(self, directory: str) -> list[str]:
        return sorted(self._directory(directory).names)

    def stat(self, path: str) -> FileStat:
        if path in self._directories:
            return FileStat(-1 - list(self._directories).index(path), 0, 0, is_regular=False)
        file = self._file(path)
        return FileStat(file.inode, len(file.content), file.mtime_ns)

    def exists(self, path: str) -> bool:
        directory, name = os.path.split(path)
        return path in self._directories or name in self._directories.get(directory, _Directory()).names

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        assert len(self._file(path).content) <= max_bytes
        return self._file(path).content

    def read_to_hole(self, path: str, max_bytes: int = READ_MAX_BYTES) -> tuple[bytes, int]:
        content = self.read(path, max_bytes)
        return content, len(content)

    def write(self, path: str, data: bytes, like: str | None = None) -> None:
        assert like is None or self._file(like)
        self._record("write", path, *([like] if like else []))
        directory, name = os.path.split(path)
        place = self._directory(directory)
        if name in place.names:  # what had the name goes: every new file is another one
            self._change(place, _Change(place.names[name], name, None))
        inode = len(self._files) + 1
        self._files[inode] = _File(inode, b"", 0, None)
        self._change(place, _Change(inode, None, name))
        file = self._files[place.names[name]]
        file.content, file.mtime_ns, file.whole = data, self._tick(), 0

    def copy_in(self, source: str, target: str, like: str) -> None:
        self.write(target, self._file(source).content, like)

    def is_copy(self, source: str, target: str) -> bool:
        return self._file(source).content == self._file(target).content

    def truncate(self, path: str, size_bytes: int) -> None:
        self._record("truncate", path, str(size_bytes))
        file = self._file(path)
        assert size_bytes <= len(file.content)
        file.content, file.mtime_ns = file.content[:size_bytes], self._tick()
        file.whole = min(file.whole, size_bytes)

    def fsync(self, path: str) -> None:
        self._record("fsync", path)
        file = self._file(path)
        file.synced, file.whole = file.content, len(file.content)

    def fsync_dir(self, directory: str) -> None:
        self._record("fsync_dir", directory)
        place = self._directory(directory)
        place.synced, place.changes = dict(place.names), []

    def fsync_dirs(self, directories: Sequence[str]) -> list[OSError | None]:
        found: list[OSError | None] = []
        for directory in directories:
            try:
                self.fsync_dir(directory)
                found.append(None)
            except OSError as error:
                found.append(error)
        return found

    def rename(self, source: str, target: str) -> None:
        directory, name = os.path.split(source)
        assert os.path.dirname(target) == directory, "a rename between directories is not simulated"
        place = self._directory(directory)
        if name not in place.names:
            raise FileNotFoundError(2, "no such file", source)  # and nothing that changes anything
        self._record("rename", source, target)
        self._change(place, _Change(place.names[name], name, os.path.basename(target)))

    def unlink(self, path: str) -> None:
        directory, name = os.path.split(path)
        change = _Change(self._file(path).inode, name, None)
        self._record("unlink", path)
        self._change(self._directory(directory), change)

    def rmdir(self, directory: str) -> None:
        self._record("rmdir", directory)
        assert not self._directory(directory).names
        del self._directories[directory]

    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        self._record("set_mtime_ns", path)
        self._file(path).mtime_ns = mtime_ns

    # -- inside -------------------------------------------------------------------------------------------

    def _record(self, *operation: str) -> None:
        if self.stop_after is not None and len(self.operations) >= self.stop_after:
            raise SwitchedOff(f"before operation {len(self.operations)}: {' '.join(operation)}")
        if self.before is not None:
            self.before.append(self.copy())
        self.operations.append(operation)

    def _change(self, place: _Directory, change: _Change) -> None:
        _apply(place.names, change)
        place.changes.append(change)

    def _directory(self, directory: str) -> _Directory:
        if directory not in self._directories:
            raise FileNotFoundError(2, "no such directory", directory)
        return self._directories[directory]

    def _file(self, path: str) -> _File:
        directory, name = os.path.split(path)
        place = self._directory(directory)
        if name not in place.names:
            raise FileNotFoundError(2, "no such file", path)
        return self._files[place.names[name]]

    def _tick(self) -> int:
        self._ticks += 1
        return self._ticks


def _apply(names: dict[str, int], change: _Change) -> None:
    """Do it, unless it depends on something that was lost."""
    if change.source is not None:
        if names.get(change.source) != change.inode:
            return
        del names[change.source]
    if change.target is not None:
        names[change.target] = change.inode
