"""Delete the oldest segments of a log (rule 6.7). Called with `.lock` held.

====  ==============================================================  =================================================
step  what is done                                                    a crash after it leaves
====  ==============================================================  =================================================
0     the directory is synced: what a killed process renamed may      the log as it was
      not be on disk yet
1     `.log` -> `.deleted`, oldest segment first, each synced         a log that starts at a later segment
2     these, the index files and the producer snapshots at their      the same; Kafka deletes indexes without a `.log`
      bases are unlinked; synced                                      (spec disk B8) and `.deleted` files (D2 pass 1)
====  ==============================================================  =================================================

The barriers matter: of the renames since the last sync any subset may survive a power failure. A newer segment must not go
before an older one: a hole would bring back the older values of its keys. And no segment may lose its transaction index
while its `.log` lives: aborted records would count as committed.
"""

import os
from collections.abc import Sequence

from cleanerd.env.files import Files
from cleanerd.format.names import SEGMENT_KINDS, FileKind, SegmentFileName, Suffix


def delete_segments(files: Files, directory: str, base_offsets: Sequence[int]) -> None:
    """Delete these segments, which are the oldest ones, ascending. Raises OSError.

    After an error the log is whole, if not as short as asked for; calling again with what is left goes on.
    """
    logs = [SegmentFileName(base, FileKind.LOG) for base in base_offsets]
    deleted = [log.with_suffix(Suffix.DELETED) for log in logs]
    files.fsync_dir(directory)
    for log, target in zip(logs, deleted, strict=True):
        files.rename(_path(directory, log), _path(directory, target))
        files.fsync_dir(directory)
    companions = (*SEGMENT_KINDS[1:], FileKind.PRODUCER_SNAPSHOT)
    for name in (*deleted, *(SegmentFileName(base, kind) for base in base_offsets for kind in companions)):
        if files.exists(_path(directory, name)):
            files.unlink(_path(directory, name))
    files.fsync_dir(directory)


def _path(directory: str, name: SegmentFileName) -> str:
    return os.path.join(directory, str(name))
