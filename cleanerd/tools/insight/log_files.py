"""Every file with records of a log in a log directory: its segments, and what waits to be deleted, swapped in or committed.

Whoever says that something is nowhere has to look at all of them.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass

from cleanerd.format.names import (
    RESCUE,
    DirKind,
    FileKind,
    SegmentFileName,
    Suffix,
    TopicPartition,
    parse_partition_dir,
    parse_segment_file,
    without_attempt,
)

_LEFTOVERS = {
    Suffix.DELETED: "deleted_file",
    Suffix.CLEANED: "interrupted_cleaning",
    Suffix.SWAP: "waiting_swap",
    Suffix.STAGED: "staged",
}
_DIRECTORIES = {
    DirKind.DELETE: "delete_directory",
    DirKind.STRAY: "stray_directory",
    DirKind.FUTURE: "future_directory",
}
_NAME_MAX = 255
LEFTOVERS = frozenset((*_LEFTOVERS.values(), *_DIRECTORIES.values()))
"""Every code that `LogFile.leftover` gives."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of batches. `kind`: of its directory."""

    topic_partition: TopicPartition
    kind: DirKind
    directory: str
    name: SegmentFileName
    path: str
    size_bytes: int

    @property
    def leftover(self) -> str | None:
        """The code of `findings` for what it is; None for a segment of the log."""
        return _DIRECTORIES.get(self.kind) or _LEFTOVERS.get(self.name.suffix)


def log_files(
    log_dir: str, topics: Collection[str] = (), partitions: Collection[int] = ()
) -> tuple[list[LogFile], dict[str, str]]:
    """Files of the given topics and partitions; without any, all. And by path why some could not be listed, or are passed
    over: a copy that somebody has left, or a segment in the digits of another locale, has a name that is none of a segment.

    Leaves out files that vanish. Raises OSError.
    """
    found, failed = list[LogFile](), dict[str, str]()
    for directory in sorted(os.listdir(log_dir)):
        parsed = parse_partition_dir(directory)
        if parsed is None or (topics and not _is_of(directory, parsed[0].topic, topics)):
            continue
        if partitions and parsed[0].partition not in partitions:
            continue
        path = os.path.join(log_dir, directory)
        try:
            names = sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failed[path] = f"{path}: {error.strerror}"
            continue
        for listed in names:
            name = parse_segment_file(without_attempt(listed))
            if name is None and FileKind.LOG.value in listed and not listed.startswith(RESCUE):
                odd = os.path.join(path, listed)
                failed[odd] = f"{odd}: was not read, for its name is not that of a segment"
            if name is None or name.kind not in (FileKind.LOG, FileKind.PART):
                continue
            try:
                size_bytes = os.stat(os.path.join(path, listed)).st_size
            except FileNotFoundError:
                continue
            found.append(LogFile(*parsed, path, name, os.path.join(path, listed), size_bytes))
    return found, failed


def _is_of(directory: str, topic: str, topics: Collection[str]) -> bool:
    """Whether a directory may be of one of these topics: a broker cuts a long name to make room for `-delete`."""
    return topic in topics or (len(directory) == _NAME_MAX and any(one.startswith(topic) for one in topics))
