"""Damage, or a file that was replaced while we read it? A broker that swaps segments takes no lock that we see.

A reader with the transaction index of the new segment and the log of the old one finds aborts in one that are not in the
other; both are sound. So a `CorruptFile` is believed only while the files of its segment are those that were read.
"""

import os
from collections.abc import Mapping

from cleanerd.env.files import Files, FileStat
from cleanerd.errors import CorruptFile, SourceChanged
from cleanerd.format.names import parse_segment_file
from cleanerd.storage.scan import PartitionSnapshot


def stamps(files: Files, path: str) -> Mapping[str, FileStat]:
    """The `stat` by name of all files of the segment that `path` belongs to, or of this one file. Never raises."""
    directory, name = os.path.split(path)
    found: dict[str, FileStat] = {}
    try:
        for other in files.list_names(directory):
            if _stem(other) == _stem(name):
                found[other] = files.stat(os.path.join(directory, other))
    except OSError:
        pass  # a file that vanishes meanwhile has changed, too
    return found


def is_other_segment(files: Files, snapshot: PartitionSnapshot, path: str) -> bool:
    """Whether the segment that `path` belongs to is no longer the one of the snapshot. Never raises."""
    parsed = parse_segment_file(os.path.basename(path))
    planned = [s for s in snapshot.segments if parsed is not None and s.base_offset == parsed.base_offset]
    if not planned:
        return False
    (segment,) = planned
    try:
        return files.stat(segment.path) != segment.identity
    except FileNotFoundError:
        return True
    except OSError:
        return False


def changed_while_read(error: CorruptFile) -> SourceChanged:
    """The error for damage found in a file that was replaced meanwhile."""
    return SourceChanged(f"{error.path}: its segment was exchanged while it was read ({error})")


def _stem(name: str) -> str:
    return name.partition(".")[0]
