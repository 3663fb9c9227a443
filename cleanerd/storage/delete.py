"""Delete the oldest segments of a log (rule 6.7). Called with `.lock` held.

====  ==============================================================  =================================================
step  what is done                                                    a crash after it leaves
====  ==============================================================  =================================================
0     the directory is synced: what a killed process renamed may      the log as it was
      not be on disk yet
1     `.log` -> `.deleted`, oldest segment first, each synced         a log that starts at a later segment
2     their index files and the producer snapshots at their bases     the same; Kafka deletes indexes without a `.log`
      -> `.deleted`; synced                                           (spec disk B8) and `.deleted` files (D2 pass 1)
3     the `.deleted` files are unlinked; synced                       the same
====  ==============================================================  =================================================

The barriers matter: of the renames since the last sync any subset may survive a power failure. A newer segment must not go
before an older one: a hole would bring back the older values of its keys. And no segment may lose its transaction index
while its `.log` lives: aborted records would count as committed.
"""

import os
from collections.abc import Sequence

from cleanerd.env.files import Files
from cleanerd.format.names import SEGMENT_KINDS, FileKind, SegmentFileName, Suffix

_COMPANIONS = (*SEGMENT_KINDS[1:], FileKind.PRODUCER_SNAPSHOT)


def delete_segments(files: Files, directory: str, base_offsets: Sequence[int]) -> None:
    """Delete these segments, which are the oldest ones, ascending. Raises OSError.

    After an error the log is whole, if not as short as asked for; calling again with what is left goes on.
    """
    files.fsync_dir(directory)
    for base in base_offsets:
        if _retire(files, directory, SegmentFileName(base, FileKind.LOG)):
            files.fsync_dir(directory)
    for base in base_offsets:
        for kind in _COMPANIONS:
            _retire(files, directory, SegmentFileName(base, kind))
    files.fsync_dir(directory)
    for base in base_offsets:
        for kind in (FileKind.LOG, *_COMPANIONS):
            path = _path(directory, SegmentFileName(base, kind, Suffix.DELETED))
            if files.exists(path):
                files.unlink(path)
    files.fsync_dir(directory)


def _retire(files: Files, directory: str, name: SegmentFileName) -> bool:
    """Rename a live file to `.deleted`; whether there was one."""
    path = _path(directory, name)
    if not files.exists(path):
        return False
    files.rename(path, _path(directory, name.with_suffix(Suffix.DELETED)))
    return True


def _path(directory: str, name: SegmentFileName) -> str:
    return os.path.join(directory, str(name))
