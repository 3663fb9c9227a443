"""Disk space granted to concurrent cleanings: each sees what is free, less what the others were granted."""

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cleanerd.env.files import Files
from cleanerd.env.space import Space, space_for
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.staged import staged_bytes


@dataclass(frozen=True, slots=True)
class _Grant:
    device: int
    granted_bytes: int


class Reservations:
    """Grants by partition directory; thread-safe. What a cleaning has staged already is no longer free, nor reserved."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._mutex = threading.Lock()
        self._grants: dict[str, _Grant] = {}

    def take(self, wanted: Mapping[str, int], least_free_bytes: int) -> int | None:
        """Grant so many bytes to directories of one file system, or none; returns how many there were for them then.

        `least_free_bytes` stay free. Raises OSError.
        """
        path = next(iter(wanted))
        device, total = os.stat(path).st_dev, sum(wanted.values())
        with self._mutex:
            others = sum(
                self._left(directory, grant)
                for directory, grant in self._grants.items()
                if grant.device == device and directory not in wanted
            )

            def available(space: Space) -> int:
                return space.free_bytes - least_free_bytes - others

            room = available(space_for(path, lambda space: available(space) >= total))
            if room < total:
                return max(room, 0)
            self._grants |= {directory: _Grant(device, size) for directory, size in wanted.items()}
            return None

    def release(self, directories: Iterable[str]) -> None:
        """What is staged there is all that there will be."""
        with self._mutex:
            for directory in directories:
                self._grants.pop(directory, None)

    def _left(self, directory: str, grant: _Grant) -> int:
        try:
            staged = staged_bytes(PartitionDir(self._files, directory))
        except OSError:  # the log is gone, or comes and goes while we look
            return grant.granted_bytes
        return max(grant.granted_bytes - staged, 0)
