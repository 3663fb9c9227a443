"""A group that has no room beside its sources at all: written on another file system, the spare, it takes their place.

Called with `.lock` held. `rescue` stands for `run-cleanerd-rescue-again.log` in the partition directory: it names the spare.

====  =====================================================  ==========================================================
step  what is done                                           what a kill or a power failure after it leaves
====  =====================================================  ==========================================================
0     revalidate; the group lies staged on the spare, with   the old log; on the spare what nobody needs
      its manifest, and was read from its disk (`read_back`)
1     `rescue` is written under a staged name, synced, and   the old log, which no broker loads: the name is none of a
      renamed; sync                                          segment, so its start ends with an error that has it
2     `.log` of the sources is unlinked, ascending, each     a log without its oldest records, which no broker loads and
      synced                                                 cleanerd leaves alone; they lie on the spare
3     their indexes and the producer snapshots of all but    the same
      the first (rule 5.6) are unlinked; sync
4     the staged files are copied from the spare, synced     the same
      and compared
5     `.cleanerd` -> live; sync                              the new log, which no broker loads
6     `rescue` is unlinked; sync                             the new log; on the spare what nobody needs
7     the files on the spare are unlinked                    the new log
====  =====================================================  ==========================================================

ENOSPC or EIO at 1 on either file system leaves the old log: what was written is taken back. From 2 on both leave what a kill
leaves there, and so does a spare that is full, gone or cannot be read. `resume` takes 1 back where all sources are there;
else it goes on from 2, whatever has been done. If the spare does not have the group any more, it refuses, and names the
offsets that only a copy of the spare has. Either file system may be a copy by then, with other inodes. A spare in memory
(tmpfs) does not survive a power failure: then what step 2 has taken is lost, which is the newest value of some keys. The
broker says so by not starting.
"""

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from cleanerd.env.files import open_regular
from cleanerd.env.page_cache import drop
from cleanerd.env.space import wait_for_deleted
from cleanerd.env.trust import open_directory, why_exposed
from cleanerd.errors import CorruptFile, LogUncleanable, NoSpace, SourceChanged
from cleanerd.format.names import META_PROPERTIES, RESCUE, SEGMENT_KINDS, FileKind, SegmentFileName, Suffix
from cleanerd.units import size

from .commit import revalidate
from .partition_dir import PartitionDir, bases_of
from .recover import sound_end
from .staged import SourceSegment, StagedGroup, discard_staged, read_manifests, staged_flaw

_UNFINISHED = f"{RESCUE}{Suffix.STAGED.value}"
_WHAT = (
    "A rescue was interrupted: records of this log lie in the directory `spare` alone, so its broker does not start. Leave "
    "this file, mount the spare, run `cleanerd rescue --config server.properties --yes` again, then start the broker."
)
"""For a person who looks into the file."""


def commit_from_spare(partition: PartitionDir, spare: PartitionDir) -> StagedGroup:
    """Steps 0 to 7 for the one group that is staged on the spare; returns it.

    Raises SourceChanged before anything is touched, OSError: `resume` goes on.
    """
    (group,) = read_manifests(spare)
    revalidate(partition, group, staged=spare)
    like = partition.path_of(SegmentFileName(group.sources[-1].base_offset, FileKind.LOG))
    sources = [asdict(source) for source in group.sources]
    journal = json.dumps({"what": _WHAT, "spare": spare.path, "sources": sources}, indent=1).encode()
    unfinished = partition.path_of(_UNFINISHED)
    try:
        partition.files.write(unfinished, journal, like)
        partition.files.fsync(unfinished)
        partition.files.rename(unfinished, partition.path_of(RESCUE))
    except OSError:
        with contextlib.suppress(OSError):
            partition.unlink_if_there(_UNFINISHED)
        raise
    partition.sync()
    _exchange(partition, spare, group)
    return group


def read_back(spare: PartitionDir) -> None:
    """Read what is staged on the spare from its disk, not from memory, while the sources are there.

    Raises CorruptFile, SourceChanged, OSError: then nothing but the spare would have what it cannot give back.
    """
    groups = read_manifests(spare)
    if not groups:
        raise SourceChanged(f"{spare.path}: what was staged there is gone")
    for group in groups:
        for kind, size_bytes in group.sizes.items():
            path = spare.path_of(group.staged(kind))
            with open_regular(path) as fd:
                drop(fd, ((0, size_bytes),))
            if kind is FileKind.LOG:
                sound_end(path)
            else:
                spare.files.read(path)


def _sources_left(partition: PartitionDir, sources: Sequence[SourceSegment]) -> list[SourceSegment]:
    """The sources whose `.log` is still the one that was read, or a copy of it."""
    found = []
    for source in sources:
        log = SegmentFileName(source.base_offset, FileKind.LOG)
        if partition.exists(log) and replace(partition.stat(log), inode=source.inode) == source.identity:
            found.append(source)
    return found


def _check_no_other(
    partition: PartitionDir, spare: PartitionDir, group: StagedGroup, left: Sequence[SourceSegment]
) -> None:
    """Raise LogUncleanable for a segment in the place of the group that is neither a source nor the new one, which would
    overlap it.
    """
    sources = {source.base_offset for source in left}
    for base in bases_of(partition.list_names()):
        if not group.base_offset <= base < group.next_base_offset or base in sources:
            continue
        if base != group.base_offset or not _is_placed(partition, spare, group, FileKind.LOG):
            log = partition.path_of(SegmentFileName(base, FileKind.LOG))
            raise LogUncleanable(
                f"{log}: is not the segment that a rescue has read before it was interrupted: was the directory copied "
                "without the modification times (`cp -a` keeps them)?"
            )


def _exchange(partition: PartitionDir, spare: PartitionDir, group: StagedGroup) -> None:
    """Steps 2 to 7, from wherever an earlier attempt stopped."""
    sources = _sources_left(partition, group.sources)
    _check_no_other(partition, spare, group, sources)
    for source in sources:
        partition.unlink(SegmentFileName(source.base_offset, FileKind.LOG))
        partition.sync()
    for source in group.sources:
        is_first = source.base_offset == group.base_offset
        for kind in SEGMENT_KINDS[1:] if is_first else (*SEGMENT_KINDS[1:], FileKind.PRODUCER_SNAPSHOT):
            partition.unlink_if_there(SegmentFileName(source.base_offset, kind))
    wait_for_deleted()  # else there may be no room for the copy
    partition.sync()
    files, like = partition.files, partition.path_of(RESCUE)
    left = [kind for kind in group.sizes if not _is_placed(partition, spare, group, kind)]
    for kind in left:
        target = partition.path_of(group.staged(kind))
        files.copy_in(spare.path_of(group.staged(kind)), target, like)
        files.set_mtime_ns(target, group.log_mtime_ns)
        files.fsync(target)
    for kind in left:
        partition.rename(group.staged(kind), group.name(kind, Suffix.LIVE))
    partition.sync()
    partition.unlink(RESCUE)
    partition.sync()
    discard_staged(spare)


def _is_placed(partition: PartitionDir, spare: PartitionDir, group: StagedGroup, kind: FileKind) -> bool:
    """Whether step 5 was done for a file: there may be no room for it twice."""
    live = group.name(kind, Suffix.LIVE)
    return partition.exists(live) and partition.files.is_copy(
        spare.path_of(group.staged(kind)), partition.path_of(live)
    )


def interrupted(partition: PartitionDir) -> bool:
    """Whether a rescue through a spare was interrupted in this partition directory. Raises OSError."""
    return partition.files.exists(partition.path_of(RESCUE))


def resume(partition: PartitionDir) -> None:
    """Go on with what `interrupted` has found. Raises as `check_resumable`, and NoSpace."""
    spare, group = check_resumable(partition)
    if group is None:
        partition.unlink(RESCUE)
        partition.sync()
        _forget(spare)
        return
    try:
        _exchange(partition, spare, group)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise NoSpace(
            f"{partition.path}: a rescue was interrupted, and there is no room any more for what lies in {spare.path}, "
            f"{size(sum(group.sizes.values()))}: move something away that is not Kafka's, then run rescue again",
            needs_bytes=sum(group.sizes.values()),
        ) from error
    _forget(spare)


def _forget(spare: PartitionDir) -> None:
    """What lies on a spare that nobody needs any more; it may be gone."""
    with contextlib.suppress(OSError):
        discard_staged(spare)
        spare.files.rmdir(spare.path)


def check_resumable(partition: PartitionDir) -> tuple[PartitionDir, StagedGroup | None]:
    """The spare and the group with which `resume` would go on; None where the sources are all there, and it takes 1 back.

    Raises LogUncleanable where the spare does not have what is missing, CorruptFile, OSError.
    """
    journal = partition.path_of(RESCUE)
    try:
        fields = json.loads(partition.files.read(journal))
        spare = PartitionDir(partition.files, str(fields["spare"]))
        sources = [SourceSegment(**source) for source in fields["sources"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFile(journal, 0, "the journal of a rescue", repr(error)) from error
    if _sources_left(partition, sources) == sources:
        return spare, None
    for declared in _declared(spare):
        group = replace(declared, log_inode=None)  # it may lie on a copy of that spare by now
        if list(group.sources) == sources and staged_flaw(spare, group) is None:
            return spare, group
    raise LogUncleanable(
        f"{partition.path}: a rescue was interrupted, and {spare.path} does not have its group, from offset "
        f"{sources[0].base_offset} on: mount the spare again and run rescue again. If it is lost, so are the newest "
        f"values that it had: without {journal} the broker starts with what is left"
    )


def _declared(spare: PartitionDir) -> Iterator[StagedGroup]:
    """The groups whose manifests lie on the spare; none if they cannot be read."""
    with contextlib.suppress(OSError, CorruptFile):
        yield from read_manifests(spare)


def check_spare(spare: str, log_dir: str) -> None:
    """Raise OSError, or LogUncleanable for a spare that is none."""
    try:
        is_directory = stat.S_ISDIR(os.stat(spare).st_mode)
    except OSError as error:
        raise LogUncleanable(f"--spare {spare!r}: expected a directory, found: {error.strerror}") from error
    if not is_directory:
        raise LogUncleanable(f"--spare {spare}: expected a directory, found something else")
    if not os.access(spare, os.W_OK | os.X_OK):
        raise LogUncleanable(f"--spare {spare}: expected a directory that this user may write to")
    if os.stat(spare).st_dev == os.stat(log_dir).st_dev:
        raise LogUncleanable(
            f"--spare {spare}: expected a directory on another file system, found one on that of {log_dir}"
        )
    made = os.path.join(spare, "a new name")
    exposed = why_exposed(made)
    if exposed is not None and why_exposed(made, user=os.stat(log_dir).st_uid) is not None:
        raise LogUncleanable(
            f"--spare {spare}: {exposed}: what lies there for a moment is nowhere else, so nobody else may exchange it"
        )
    place = os.path.realpath(spare)
    while place != os.path.dirname(place):
        if os.path.lexists(os.path.join(place, META_PROPERTIES)):
            raise LogUncleanable(
                f"--spare {spare}: expected a directory of no broker, found a log directory: {place}"
            )
        place = os.path.dirname(place)


def on_spare(spare: str, log_dir: str, name: str) -> str:
    """A new directory on the spare for a partition directory: another broker may use the same spare. Raises as above."""
    check_spare(spare, log_dir)
    made = f"{name}.{secrets.token_hex(4)}"
    with open_directory(spare, os.O_RDONLY) as opened:
        os.mkdir(made, 0o700, dir_fd=opened)
        os.fsync(opened)  # what is synced in it needs its name as well
    return os.path.join(os.path.abspath(spare), made)
