"""Up to where installed logs are clean: a broker that gets a log has no first dirty offset for it (`cleanerd.install`)."""

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from cleanerd.daemon.values.log_id import LogId
from cleanerd.env.files import Files
from cleanerd.format.names import PARTITION_METADATA
from cleanerd.storage.scan import Checkpoints


@dataclass(frozen=True, slots=True)
class Installed:
    """A log that is clean up to `offset` as long as its `partition.metadata` has this inode: in this directory, no other.

    `noted_ms`: when; what is written below `offset` since is not clean, as with any checkpoint.
    """

    inode: int
    offset: int
    noted_ms: int

    fields = asdict


class InstalledLogs:
    """All that are known; thread-safe, every entry is replaced as a whole."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._found: dict[LogId, Installed] = {}

    def note(self, found: Iterable[tuple[LogId, Installed]]) -> None:
        """Remember these; before a scan sees the directory."""
        self._found.update(found)

    def complete(self, checkpoints: Checkpoints, log: LogId) -> Checkpoints:
        """With what is known of the log, where its broker has written no first dirty offset for it since."""
        installed, tp = self._found.get(log), log.topic_partition
        if installed is None or (
            tp in checkpoints.cleaner and (checkpoints.cleaner_written_ms or 0) > installed.noted_ms
        ):
            return checkpoints
        try:
            found = self._files.stat(os.path.join(log.directory, PARTITION_METADATA)).inode
        except OSError:
            return checkpoints
        if found != installed.inode:
            return checkpoints
        cleaner = {**checkpoints.cleaner, tp: installed.offset}
        return replace(checkpoints, cleaner=cleaner, cleaner_written_ms=installed.noted_ms)
