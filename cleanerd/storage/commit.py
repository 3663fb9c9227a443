"""The commit: staged files of a group take the place of its source segments. Called with `.lock` held.

====  ==========================================================  =====================================================
step  what is done (each ends with an fsync of the directory)     a crash after it leaves
====  ==========================================================  =====================================================
0     revalidate; nothing is touched                              the old log, staged files
1     `.log.cleanerd` -> `.log.cleaned`: the guard                the old log. Kafka deletes the guard (D2 pass 1)
2     `.index|.timeindex|.txnindex.cleanerd` -> `.swap`           the old log. The guard makes Kafka discard every swap
                                                                  file at or above its base
3     `.log.cleaned` -> `.log.swap`: THE COMMIT POINT             the new log: Kafka deletes what has a base in
                                                                  [base, next offset of the swap), renames the swaps
4     `.log` of the sources -> `.deleted`, ascending              the new log: Kafka deletes `.deleted`, goes on as in 3
5     their other live files -> `.deleted`, and the producer      the same
      snapshots of all sources but the first (rule 5.6)
6     `.log.swap` -> `.log`                                       the new log: Kafka renames what is left of the swaps
7     `.index|.timeindex|.txnindex.swap` -> live                  the new log, `.deleted` files that Kafka deletes
8     the manifest, then `.deleted`, are unlinked                 the new log
====  ==========================================================  =====================================================

cleanerd's own recovery (`recover`) rolls 1 and 2 back and 3 to 7 forward, with the sources named by the manifest.

The barriers matter: of the renames since the last sync any subset may survive a power failure. (A) Swapped index files
without guard and without `.log.swap` would be put over good indexes (spec disk D4), so the guard is synced before they
appear, and they before it goes. (B) A source may vanish only when `.log.swap` is on disk. (C) A source must not lose its
transaction index while its `.log` lives, so all `.log` go first. (D) An index must not take its final name before its
`.log`, because Kafka would delete it with the sources.

Kafka deletes by range: sources above the last batch of the new segment survive its recovery after step 3 (spec disk X6).
They hold no record that survived the cleaning, newer records of their keys lie above them, and they overlap nothing, so
the log is right, only not yet as short as it will be. (E) They go one by one, oldest first, each synced: a tombstone among
them must not vanish before the older value that it deletes.
"""

import os

from cleanerd.env.files import Files
from cleanerd.errors import LogUncleanable, SourceChanged
from cleanerd.format.names import SEGMENT_KINDS, FileKind, SegmentFileName, Suffix, parse_segment_file

from .checkpoints import read_leader_epochs
from .staged import StagedGroup

_FOREIGN = (Suffix.CLEANED, Suffix.SWAP)


def revalidate(files: Files, directory: str, group: StagedGroup) -> None:
    """Step 0. Raises SourceChanged with the reason when the group no longer fits the log (spec disk D4, G)."""
    found = [name for name in map(parse_segment_file, files.list_names(directory)) if name is not None]
    for name in found:
        if name.suffix in _FOREIGN:
            raise SourceChanged(f"{directory}/{name}: another cleaning was here")
    bases = {name.base_offset for name in found if name.kind is FileKind.LOG and name.suffix is Suffix.LIVE}
    inside = sorted(base for base in bases if group.base_offset <= base < group.next_base_offset)
    planned = [source.base_offset for source in group.sources]
    if inside != planned:
        raise SourceChanged(f"{directory}: segments in the group were {planned}, are {inside}")
    if group.next_base_offset not in bases:
        raise SourceChanged(f"{directory}: segment {group.next_base_offset} behind the group is gone")
    for source in group.sources:
        path = os.path.join(directory, str(SegmentFileName(source.base_offset, FileKind.LOG)))
        stat = files.stat(path)
        now, then = (
            (stat.inode, stat.size_bytes, stat.mtime_ns),
            (source.inode, source.size_bytes, source.mtime_ns),
        )
        if now != then:
            raise SourceChanged(f"{path}: (inode, size, mtime) was {then}, is {now}")
    epochs = tuple((e.epoch, e.start_offset) for e in read_leader_epochs(files, directory))
    below = tuple(entry for entry in epochs if entry[1] < group.next_base_offset)
    if below != group.leader_epochs:
        raise SourceChanged(
            f"{directory}: leader epochs below the end were {group.leader_epochs}, are {below}"
        )
    for kind, size in group.sizes.items():
        path = os.path.join(directory, str(group.staged(kind)))
        if not files.exists(path) or files.stat(path).size_bytes != size:
            raise SourceChanged(f"{path}: the staged file is not the one of {size} bytes that was written")


def commit_group(files: Files, directory: str, group: StagedGroup) -> None:
    """Steps 0 to 8. Raises SourceChanged before anything is touched; an OSError later is for `recover` to mend."""
    revalidate(files, directory, group)
    guard = SegmentFileName(group.base_offset, FileKind.LOG, Suffix.CLEANED)
    _rename(files, directory, group.staged(FileKind.LOG), guard)
    files.fsync_dir(directory)
    for kind in SEGMENT_KINDS[1:]:
        if kind in group.sizes:
            _rename(files, directory, group.staged(kind), group.staged(kind).with_suffix(Suffix.SWAP))
    files.fsync_dir(directory)
    _rename(files, directory, guard, guard.with_suffix(Suffix.SWAP))
    files.fsync_dir(directory)
    finish(files, directory, group)


def finish(files: Files, directory: str, group: StagedGroup) -> None:
    """Steps 4 to 8, from wherever an earlier attempt stopped: what is already done is passed over."""
    if _exists(files, directory, SegmentFileName(group.base_offset, FileKind.LOG, Suffix.SWAP)):
        _retire_sources(files, directory, group)
    for kinds in (SEGMENT_KINDS[:1], SEGMENT_KINDS[1:]):
        for kind in kinds:
            swap = SegmentFileName(group.base_offset, kind, Suffix.SWAP)
            if _exists(files, directory, swap):
                _rename(files, directory, swap, swap.with_suffix(Suffix.LIVE))
        files.fsync_dir(directory)
    _clear(files, directory, group)


def _retire_sources(files: Files, directory: str, group: StagedGroup) -> None:
    """Steps 4 and 5."""
    for source in group.sources:
        log = SegmentFileName(source.base_offset, FileKind.LOG)
        if not _exists(files, directory, log):
            continue
        stat = files.stat(os.path.join(directory, str(log)))
        if (stat.size_bytes, stat.mtime_ns) != (source.size_bytes, source.mtime_ns):
            raise LogUncleanable(f"{directory}/{log}: is not the segment that the commit under way replaces")
        _rename(files, directory, log, log.with_suffix(Suffix.DELETED))
        if source.base_offset > group.last_offset:
            files.fsync_dir(directory)  # (E)
    files.fsync_dir(directory)
    for source in group.sources:
        kinds: tuple[FileKind, ...] = SEGMENT_KINDS[1:]
        if source.base_offset != group.base_offset:
            kinds = (*kinds, FileKind.PRODUCER_SNAPSHOT)
        for kind in kinds:
            name = SegmentFileName(source.base_offset, kind)
            if _exists(files, directory, name):
                _rename(files, directory, name, name.with_suffix(Suffix.DELETED))
    files.fsync_dir(directory)


def _clear(files: Files, directory: str, group: StagedGroup) -> None:
    """Step 8."""
    if _exists(files, directory, group.manifest):
        files.unlink(os.path.join(directory, str(group.manifest)))
    bases = {source.base_offset for source in group.sources}
    for text in files.list_names(directory):
        name = parse_segment_file(text)
        if name is not None and name.suffix is Suffix.DELETED and name.base_offset in bases:
            files.unlink(os.path.join(directory, text))
    files.fsync_dir(directory)


def _exists(files: Files, directory: str, name: SegmentFileName) -> bool:
    return files.exists(os.path.join(directory, str(name)))


def _rename(files: Files, directory: str, source: SegmentFileName, target: SegmentFileName) -> None:
    files.rename(os.path.join(directory, str(source)), os.path.join(directory, str(target)))
