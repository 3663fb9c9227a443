"""What may go from the directory of a stopped broker that has no room for anything, before any log is looked into.

1. What a start of the broker would delete anyway: `.deleted` and `.cleaned` files (spec disk D2 pass 1) and the directories
   of deleted partitions (`-delete`, A5). Not where a `.swap` lies beside them: which of those count, `.cleaned` files say.
2. Offset indexes of closed segments, only as many as it takes to write anything at all: their broker makes them again where
   they are missing (spec disk B8), and so does the cleaning that has this room. Time indexes stay, for retention goes by
   them, and transaction indexes, without which aborted records would count as committed.

Called with `.lock` held. Nothing depends on these files, so whatever subset of them a power failure brings back is right.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator

from cleanerd.env.files import Files
from cleanerd.env.space import wait_for_deleted
from cleanerd.errors import CorruptFile
from cleanerd.format.names import DirKind, FileKind, SegmentFileName, Suffix, parse_partition_dir

from .log_dir import LogDir
from .partition_dir import PartitionDir, check_no_link
from .recover import sound_end
from .staged import live_logs


def leftover_files(log_dir: LogDir, name: str) -> list[str]:
    """Paths that go with the directory `name`, by rule 1; of a deleted partition all that lie in it. Raises OSError.

    Raises LogUncleanable for a link, CorruptFile as `list_segments`.
    """
    parsed = parse_partition_dir(name)
    partition = PartitionDir(log_dir.files, os.path.join(log_dir.path, name))
    if parsed is None or parsed[1] not in (DirKind.CURRENT, DirKind.DELETE):
        return []
    if log_dir.files.stat(partition.path).is_regular:  # a file may have such a name
        return []
    check_no_link(partition.path)
    if parsed[1] is DirKind.DELETE:
        return [partition.path_of(one) for one in partition.list_names()]
    found = partition.names()
    if any(one.suffix is Suffix.SWAP for one in found):
        return []
    return [partition.path_of(one) for one in found if one.suffix in (Suffix.DELETED, Suffix.CLEANED)]


def delete_leftovers(log_dir: LogDir, name: str) -> None:
    """Rule 1 for one directory. Raises as `leftover_files`."""
    files, parsed = log_dir.files, parse_partition_dir(name)
    paths = leftover_files(log_dir, name)
    for path in paths:
        files.unlink(path)
    if parsed is not None and parsed[1] is DirKind.DELETE:
        files.rmdir(os.path.join(log_dir.path, name))
        files.fsync_dir(log_dir.path)
    elif paths:
        files.fsync_dir(os.path.join(log_dir.path, name))


def freed_bytes(files: Files, paths: Iterable[str]) -> int:
    """What a disk gets back with these names, as `FileStat.frees_bytes`; a link is not followed. Raises OSError."""
    return sum(files.stat(path, follow_links=False).frees_bytes for path in paths)


def delete_offset_indexes(partition: PartitionDir) -> Iterator[bool]:
    """Rule 2 for one log, oldest segments first: whether that of the next one has gone. Raises OSError, SourceChanged.

    A broker makes a missing index again from what is sound of its segment, and cuts off the rest. So only a segment that is
    sound as a whole, and bears no aborted transactions, which it would have to make again as well, goes without one.
    """
    for index in _offset_indexes(partition):
        is_sound = False
        with contextlib.suppress(CorruptFile):
            sound_end(partition.path_of(SegmentFileName(index.base_offset, FileKind.LOG)))
            is_sound = True
        if is_sound:
            partition.unlink(index)
            partition.sync()  # a file system with a journal frees nothing before
            wait_for_deleted()
        yield is_sound


def offset_indexes_bytes(partition: PartitionDir) -> int:
    """What rule 2 may free of one log, in bytes. Raises OSError, SourceChanged."""
    return sum(partition.stat(index).frees_bytes for index in _offset_indexes(partition))


def _offset_indexes(partition: PartitionDir) -> Iterator[SegmentFileName]:
    """Those that give back space, or a name where those are short: an empty one has an inode, too."""
    for base in live_logs(partition)[:-1]:
        index, aborted = (SegmentFileName(base, kind) for kind in (FileKind.OFFSET_INDEX, FileKind.TXN_INDEX))
        if partition.exists(aborted) and partition.stat(aborted).size_bytes:
            continue
        if partition.exists(index) and partition.stat(index).is_last_name:
            yield index
