"""Delete the oldest segments of a log (rule 6.7). Called with `.lock` held.

====  ==============================================================  =================================================
step  what is done                                                    a crash after it leaves
====  ==============================================================  =================================================
0     the directory is synced: what a killed process renamed may      the log as it was
      not be on disk yet
1     `.log` -> `.log.deleted`, oldest segment first, each synced     a log that starts at a later segment
2     their other files, producer snapshots included, -> `.deleted`;  the same; Kafka deletes indexes without a `.log`
      synced                                                          (spec disk B8), stray snapshots (rule 5.19) and
                                                                      `.deleted` files (D2 pass 1)
3     `.deleted` files are unlinked, after file.delete.delay.ms       the same
====  ==============================================================  =================================================

The barriers matter: of the renames since the last sync any subset may survive a power failure. A newer segment must not go
before an older one: a hole would bring back the older values of its keys. And no segment may lose its transaction index
while its `.log` lives: aborted records would count as committed.

Step 2 takes every live file whose base is at or below that of the last segment that goes. Beyond the files of these
segments (5.6, 6.7) those are indexes that an interrupted deletion left, and snapshots below the new log start, which a
broker drops when it loads the log (rules 5.19, 10.5).

The log start offset needs no entry in a checkpoint: the first segment implies it, and what step 1 synced does not come back.
"""

from collections.abc import Iterable, Sequence

from cleanerd.env.files import Files
from cleanerd.errors import SourceChanged
from cleanerd.format.names import MAX_OFFSET, SEGMENT_KINDS, FileKind, SegmentFileName, Suffix

from .partition_dir import PartitionDir

_KINDS = {*SEGMENT_KINDS, FileKind.PRODUCER_SNAPSHOT}


def retire_segments(partition: PartitionDir, base_offsets: Sequence[int]) -> tuple[str, ...]:
    """Steps 0 to 2 for these segments, which are the oldest ones, ascending.

    Returns the paths of all `.deleted` files with a base at or below the last of `base_offsets`, those that an earlier
    attempt left included. Raises SourceChanged before anything is touched if another segment lies among them; OSError:
    the log is whole then, if not as short as asked for, and calling again goes on.
    """
    last, going = base_offsets[-1], set(base_offsets)
    partition.sync()
    for log in _up_to(partition, last, Suffix.LIVE, {FileKind.LOG}):
        if log.base_offset not in going:
            raise SourceChanged(f"{partition.path}/{log}: is older than segments that should go before it")
    for base in base_offsets:
        log = SegmentFileName(base, FileKind.LOG)
        if partition.exists(log):
            _rename_deleted(partition, log)
            partition.sync()
    for name in _up_to(partition, last, Suffix.LIVE, _KINDS):
        _rename_deleted(partition, name)
    partition.sync()
    return tuple(partition.path_of(name) for name in _up_to(partition, last, Suffix.DELETED, _KINDS))


def deleted_files(partition: PartitionDir) -> tuple[str, ...]:
    """Paths of all segment files that wait for their deletion. Raises OSError."""
    return tuple(partition.path_of(name) for name in _up_to(partition, MAX_OFFSET, Suffix.DELETED, _KINDS))


def unlink_all(files: Files, paths: Iterable[str]) -> dict[str, OSError]:
    """Step 3. Attempts every file even if one fails and passes over missing ones (5.8); returns what failed, and why."""
    failed = {}
    for path in paths:
        try:
            files.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            failed[path] = error
    return failed


def _up_to(partition: PartitionDir, last: int, suffix: Suffix, kinds: set[FileKind]) -> list[SegmentFileName]:
    found = partition.names()
    return [n for n in found if n.base_offset <= last and n.suffix is suffix and n.kind in kinds]


def _rename_deleted(partition: PartitionDir, name: SegmentFileName) -> None:
    partition.rename(name, name.with_suffix(Suffix.DELETED))
