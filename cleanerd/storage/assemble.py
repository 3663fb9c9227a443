"""The parts of a segment group, put one behind the other, as the staged files of its new segment.

Everything is written under staged names and synced; nothing that a broker or reader looks at is touched. The new files get
the modification time of the last source (rule 4.12) and the owner and mode of its `.log` (spec disk D4.6).
"""

import contextlib
import os
from collections.abc import Sequence

from cleanerd.env.files import own_file
from cleanerd.env.page_cache import begin_writeback
from cleanerd.env.space import room
from cleanerd.errors import SourceChanged
from cleanerd.format.names import FileKind, SegmentFileName, Suffix
from cleanerd.format.offset_index import OffsetIndex, render_offset_index
from cleanerd.format.time_index import TimeIndex, render_time_index
from cleanerd.format.txn_index import AbortedTxn, render_txn_index

from .partition_dir import PartitionDir

_COPY_BYTES = 8 << 20


def assemble(
    partition: PartitionDir,
    base_offset: int,
    parts: Sequence[str],
    *,
    offset_index: OffsetIndex,
    time_index: TimeIndex,
    aborted_txns: Sequence[AbortedTxn],
    like: str,
    mtime_ns: int,
    least_free_bytes: int = 0,
) -> dict[FileKind, int]:
    """Write and sync the staged files; returns their sizes in bytes. The parts are gone afterwards.

    `parts`: paths in offset order, none for an empty segment; `like`: `.log` of the last source; `least_free_bytes` of the
    file system are left free.

    Raises OSError, NoSpace, and SourceChanged for a part that shrinks; after that, `discard_staged` removes the rest.
    """
    files = partition.files
    log = partition.path_of(_staged(base_offset, FileKind.LOG))
    if parts:
        files.rename(parts[0], log)
    else:
        files.write(log, b"", like)
    for part in parts[1:]:
        with room(part, os.path.getsize(part), least_free_bytes):  # both are there for a moment
            _append(log, part)
        files.unlink(part)
    contents = {
        FileKind.OFFSET_INDEX: render_offset_index(offset_index, base_offset),
        FileKind.TIME_INDEX: render_time_index(time_index, base_offset),
    }
    if aborted_txns:
        contents[FileKind.TXN_INDEX] = render_txn_index(aborted_txns)
    for kind, content in contents.items():
        files.write(partition.path_of(_staged(base_offset, kind)), content, like)
    for kind in (FileKind.LOG, *contents):
        path = partition.path_of(_staged(base_offset, kind))
        files.set_mtime_ns(path, mtime_ns)
        files.fsync(path)
    sizes = {kind: len(content) for kind, content in contents.items()}
    return {FileKind.LOG: files.stat(log).size_bytes, **sizes}


def _staged(base_offset: int, kind: FileKind) -> SegmentFileName:
    return SegmentFileName(base_offset, kind, Suffix.STAGED)


def _append(target: str, source: str) -> None:
    """Append one file to another inside the kernel where it can."""
    with own_file(source, os.O_RDONLY) as reader, own_file(target, os.O_RDWR) as writer:
        start = os.lseek(writer, 0, os.SEEK_END)
        left = size_bytes = os.fstat(reader).st_size
        while left:
            moved = 0
            with contextlib.suppress(OSError):  # a file system that cannot do it
                moved = os.copy_file_range(reader, writer, left)
            if not moved:
                moved = os.write(writer, os.read(reader, min(left, _COPY_BYTES)))
            if not moved:
                raise SourceChanged(f"{source}: ends {left} bytes before it should")
            left -= moved
        begin_writeback(writer, start, size_bytes)
