"""The directory of one partition, and the operations on its files by name."""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass

from cleanerd.env.files import Files, FileStat
from cleanerd.errors import CleanerdError, CorruptFile, LogUncleanable
from cleanerd.format.names import (
    RESCUE,
    FileKind,
    SegmentFileName,
    Suffix,
    TopicPartition,
    in_other_digits,
    parse_segment_file,
    taken_for_another,
)


def bases_of(
    listing: Iterable[str], kind: FileKind = FileKind.LOG, suffix: Suffix = Suffix.LIVE
) -> list[int]:
    """Base offsets of the files of a kind among the names of a directory, ascending."""
    parsed = filter(None, map(parse_segment_file, listing))
    return sorted(name.base_offset for name in parsed if name.kind is kind and name.suffix is suffix)


def list_segments(files: Files, directory: str) -> list[str]:
    """All names in the directory of a partition. Raises CorruptFile for a segment in digits that are not ASCII: half of the
    log might have such names; and for another name of which a broker would make a segment. Raises LogUncleanable for a log
    that is not whole (`spare`).
    """
    listed = files.list_names(directory)
    reason = why_not_whole(directory, listed)
    if reason is not None:
        raise LogUncleanable(reason)
    odd = in_other_digits(listed)
    if odd is not None:
        found = f"the digits of another locale, in which its broker runs ({odd}): cleanerd leaves such logs to their broker"
        raise CorruptFile(f"{directory}/{odd}", 0, "a file name in ASCII digits", found)
    short = taken_for_another(listed)
    if short is not None and files.stat(f"{directory}/{short}").is_regular:
        found = f"{short}, of which a broker that starts makes a segment where there is none: move it out of the directory"
        raise CorruptFile(f"{directory}/{short}", 0, "a file name with an offset of 20 digits", found)
    return listed


def why_not_whole(directory: str, listed: Iterable[str]) -> str | None:
    """Why a log with these names in its directory lacks records that lie elsewhere (`spare`); None: it does not."""
    if RESCUE not in listed:
        return None
    return (
        f"{directory}/{RESCUE}: a rescue was interrupted, and records of this log lie on its --spare: run `cleanerd "
        "rescue --yes` again, before the broker, which does not start with this file"
    )


@dataclass(frozen=True, slots=True)
class PartitionDir:
    """A partition directory at `path`, reached through `files`. Every method raises OSError as `files` does.

    Nothing is on stable storage before `sync`: when to sync is what the protocols of this package are about.
    """

    files: Files
    path: str

    @classmethod
    def of(cls, files: Files, log_dir: str, topic_partition: TopicPartition) -> "PartitionDir":
        """The directory of a log in a log directory."""
        return cls(files, os.path.join(log_dir, str(topic_partition)))

    def path_of(self, name: SegmentFileName | str) -> str:
        """Path of a file in it."""
        return f"{self.path}/{name}"

    def list_names(self) -> list[str]:
        """All names in it."""
        return self.files.list_names(self.path)

    def names(self) -> list[SegmentFileName]:
        """All names in it that parse. Raises CorruptFile as `list_segments`."""
        listed = list_segments(self.files, self.path)
        return [name for name in map(parse_segment_file, listed) if name is not None]

    def exists(self, name: SegmentFileName) -> bool:
        """Whether there is such a file."""
        return self.files.exists(self.path_of(name))

    def stat(self, name: SegmentFileName) -> FileStat:
        """Identity and size of a file."""
        return self.files.stat(self.path_of(name))

    def write_like(self, name: SegmentFileName, content: bytes, like: str) -> None:
        """Write a file with the owner and permissions of another, and sync it: the broker opens it (spec disk D4.6)."""
        path = self.path_of(name)
        self.files.write(path, content, like)
        self.files.fsync(path)

    def rename(self, source: SegmentFileName, target: SegmentFileName) -> None:
        """Give a file another name."""
        self.files.rename(self.path_of(source), self.path_of(target))

    def rename_if_there(self, source: SegmentFileName, target: SegmentFileName) -> None:
        """As `rename`, for a file that may be missing."""
        with contextlib.suppress(FileNotFoundError):
            self.rename(source, target)

    def unlink_if_there(self, name: SegmentFileName | str) -> None:
        """Unlink a file that may not be there."""
        with contextlib.suppress(FileNotFoundError):
            self.unlink(name)

    def unlink(self, *names: SegmentFileName | str) -> None:
        """Unlink files, in this order."""
        for name in names:
            self.files.unlink(self.path_of(name))

    def sync(self) -> None:
        """Sync the directory: all names in it reach stable storage."""
        self.files.fsync_dir(self.path)


def log_size(partition: PartitionDir) -> tuple[int, int]:
    """Bytes and number of the segments, as far as they can be read. Never raises."""
    try:
        logs = [
            name for name in partition.names() if name.kind is FileKind.LOG and name.suffix is Suffix.LIVE
        ]
        return sum(partition.stat(name).size_bytes for name in logs), len(logs)
    except (CleanerdError, OSError):
        return 0, 0


def check_no_link(path: str) -> None:
    """Raise LogUncleanable for a link: the files behind it may belong to another log directory.

    A broker follows links; cleanerd rewrites nothing behind one, neither a partition directory nor a segment (`regular_fd`).
    """
    if os.path.islink(path):
        raise LogUncleanable(f"{path}: a symbolic link is not a partition directory")
