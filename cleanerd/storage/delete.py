"""Delete the oldest segments of a log (rule 6.7). Called with `.lock` held.

1. Oldest segment first, its live files and the producer snapshot at its base become `.deleted`, `.log` before the others.
2. fsync the directory.
3. The `.deleted` files are unlinked; fsync the directory.

A crash after any rename leaves a log that starts at a later segment, with index files that have no `.log` (a broker deletes
them when it loads the log, spec disk B8) or `.deleted` files (likewise, D2 pass 1). Nothing in the middle is ever missing.
"""

import os
from collections.abc import Sequence

from cleanerd.env.files import Files
from cleanerd.format.names import SEGMENT_KINDS, FileKind, SegmentFileName, Suffix


def delete_segments(files: Files, directory: str, base_offsets: Sequence[int]) -> None:
    """Delete these segments, which are the oldest ones, ascending. Raises OSError."""
    renamed = []
    for base in base_offsets:
        for kind in (*SEGMENT_KINDS, FileKind.PRODUCER_SNAPSHOT):
            name = SegmentFileName(base, kind)
            path = os.path.join(directory, str(name))
            if files.exists(path):
                target = os.path.join(directory, str(name.with_suffix(Suffix.DELETED)))
                files.rename(path, target)
                renamed.append(target)
    files.fsync_dir(directory)
    for path in renamed:
        files.unlink(path)
    files.fsync_dir(directory)
