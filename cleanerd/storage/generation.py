"""The generation of a log (the check of KAFKA-631): a new log has one, and each truncation begins another.

`cleanerd-generation` in the partition directory holds a random token, and one more word while records are being taken:

====================  =================================================================================================
content               meaning
====================  =================================================================================================
no file               not made by a cooperating writer of ours (a broker's), and nothing was ever truncated
`<token>`             what was planned under another token, or under none, must not be carried out
`<token> truncating`  a truncation is under way or was interrupted: nothing can be planned
====================  =================================================================================================

That the source segments are still the same files is not enough. A cleaning that finds nothing to change moves the checkpoint
alone, and must not do so on a log that was deleted and created again. One that does judges with all records of its range but
exchanges only the segments that change: the record that superseded another one may be gone although no source was touched.
It looks at the active segment too, where the marker of a transaction may be. And a segment that was cut and filled up again
can have the old inode, size and, within one tick of the file system's clock, modification time.

The last word keeps a cleaning from being planned on half of a truncation. It can only be left behind by a crash; the next
holder of `.lock` may take it away, because whatever a crash leaves of a truncation is a log in order.
"""

import os

from cleanerd.errors import SourceChanged, each_log
from cleanerd.format.names import GENERATION

from .lock import LogDirLock
from .partition_dir import PartitionDir
from .replace import replace_file

_UNDER_WAY = " truncating"


def read_generation(partition: PartitionDir) -> str:
    """The token, empty without a file. To be read before the segments that a cleaning is planned on.

    Raises SourceChanged while a truncation is under way; OSError.
    """
    content = _read(partition)
    if content.endswith(_UNDER_WAY):
        raise SourceChanged(f"{partition.path}: is being truncated, or a truncation was interrupted")
    return content


def check_generation(partition: PartitionDir, generation: str) -> None:
    """Raise SourceChanged unless this is still the token. Needs `.lock` to mean anything."""
    if read_generation(partition) != generation:
        raise SourceChanged(f"{partition.path}: was truncated or created again since this was planned")


def begin_log(partition: PartitionDir, token: str, *, like: str) -> None:
    """Give a new log its first token; `like`: a file with the owner that its files shall have. Needs `.lock`."""
    replace_file(partition.files, partition.path_of(GENERATION), token.encode(), like)


def begin_truncation(partition: PartitionDir, token: str, *, like: str) -> None:
    """Invalidate all that was planned so far. `token` is new; `like`: a file of the log. Needs `.lock`."""
    replace_file(partition.files, partition.path_of(GENERATION), f"{token}{_UNDER_WAY}".encode(), like)


def end_left_truncation(partition: PartitionDir) -> None:
    """End a truncation whose writer died in it, so that the log can be planned again. A writer holds `.lock` to the end.

    Never raises: while another process has the lock, or the log cannot be read, the log stays as it is.
    """
    with each_log(partition.path):
        if _read(partition).endswith(_UNDER_WAY):
            with LogDirLock(os.path.dirname(partition.path)):
                end_truncation(partition)


def end_truncation(partition: PartitionDir) -> None:
    """Allow cleanings to be planned again, under the token of `begin_truncation`. Needs `.lock`; idempotent."""
    content = _read(partition)
    if content.endswith(_UNDER_WAY):
        path = partition.path_of(GENERATION)
        replace_file(partition.files, path, content.removesuffix(_UNDER_WAY).encode(), path)


def _read(partition: PartitionDir) -> str:
    try:
        return partition.files.read(partition.path_of(GENERATION)).decode(errors="replace")
    except FileNotFoundError:
        return ""
