"""What a simulated disk knows of its files and its file systems.

Each directory below its root is a file system: it has room of its own, and nothing is renamed or linked from one to another.
"""

import errno
import os
from dataclasses import dataclass

from tests.harness.disks.simulated import _Change

_ENDLESS = 1 << 40


@dataclass
class File:
    """Durable state of an inode; `whole`: bytes at the beginning of the content that no power cut takes."""

    synced: bytes | None = None  # None: never
    synced_mtime_ns: int = 0
    whole: int = 0
    size: int = 0  # when it was changed last


@dataclass(frozen=True)
class Move(_Change):
    """Half of a rename to or from another directory. `number`: of both halves."""

    other: int
    number: int


@dataclass
class Room:
    """Of a file system. `others_bytes`: what others have on it."""

    capacity_bytes: int = _ENDLESS
    others_bytes: int = 0

    @property
    def is_small(self) -> bool:
        return self.capacity_bytes < _ENDLESS


class FileSystems:
    """Those of a disk; what lies directly below its root is on one, too."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._rooms: dict[str, Room] = {}

    def of(self, path: str) -> str:
        name, separator, _ = path[len(self._root) + 1 :].partition("/")
        return name if separator else ""

    def check_same(self, source: str, target: str) -> None:
        """Raises OSError for two paths that are not on one."""
        if self.of(source) != self.of(target):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)

    def room(self, path: str) -> Room:
        return self._rooms.setdefault(self.of(path), Room())
