"""The commit: staged files of a group take the place of its source segments. Called with `.lock` held.

====  ==========================================================  =====================================================
step  what is done (all but 7 end with a sync of the directory)   what a crash after it leaves, and Kafka makes of it
====  ==========================================================  =====================================================
0     revalidate; nothing is touched                              the old log, and staged files that Kafka ignores
1     `.log.cleanerd` -> `.log.cleaned`: the guard                the old log: Kafka deletes the guard (D2 pass 1)
2     `.index|.timeindex|.txnindex.cleanerd` -> `.swap`           the old log: because of the guard Kafka deletes every
                                                                  swap file at or above its base (D2 pass 1)
3     `.log.cleaned` -> `.log.swap`: THE COMMIT POINT             the new log: Kafka deletes what has a base in [base,
                                                                  next offset of the swap), renames the swaps (2 to 4)
4     `.log` of the sources -> `.deleted`, ascending; then        the new log: Kafka deletes `.deleted`, goes on as in 3
      their other live files, and the producer snapshots
      of all sources but the first (rule 5.6)
5     `.log.swap` -> `.log`                                       the new log: Kafka renames the other swaps (pass 4)
6     `.index|.timeindex|.txnindex.swap` -> live, and             the new log, `.deleted` files that Kafka deletes
      `.deleted` is unlinked
7     the manifest is unlinked                                    the new log
====  ==========================================================  =====================================================

cleanerd's own recovery (`recover`) rolls 1 and 2 back and 3 to 7 forward, with the sources named by the manifest.
Groups are committed one after the other, ascending: at any time at most one is between 1 and 7.

The barriers matter: of the renames since the last sync any subset may survive a power failure. After 7 there is none: a
manifest that comes back describes nothing that lies there, and goes again.

(A) Swapped index files without guard and without `.log.swap` would be put over good indexes (spec disk D4). So the guard
    is on disk before they appear, and they are before it goes; taken back, they go before it.
(B) A source may vanish only when `.log.swap` is on disk: seen by a process is not enough after a restart.
(C) A source must not lose its transaction index while its `.log` lives: aborted records would count as committed. A source
    inside the range of the new log cannot live on, so what step 4 does to it needs no order; for the others (E) sees to it.
(D) An index must not take its final name before its `.log`: Kafka would delete it with the sources.

Kafka deletes by range. Sources with a base at or above the next offset of the new log survive its recovery after 3 (spec
disk X6), after an empty log all but the first (rule 5.16), until step 4 has taken them. They hold no record that survived
the cleaning and overlap nothing, so such a log is right, only not yet as short as it will be, provided that

(E) what survives is always the newest of them: a tombstone must not vanish before an older value that it deletes. So they
    go one by one, oldest first, each synced; and a later group, which may hold that tombstone, is committed only if all
    sources of the group staged before it are gone (`StagedGroup.previous`).
(F) an empty new log does not leave the transaction index of the first source in place: its range is empty, so no recovery
    deletes it, and an entry whose marker is gone hides what the producer commits later. An empty one is swapped over it.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cleanerd.errors import LogUncleanable, SourceChanged
from cleanerd.format.names import SEGMENT_KINDS, FileKind, SegmentFileName, Suffix
from cleanerd.policy.commit_plan import epochs_contradiction, segments_contradiction, uncovered_sources

from .checkpoints import read_leader_epochs
from .generation import check_generation
from .partition_dir import PartitionDir
from .staged import SourceSegment, StagedGroup, live_logs, staged_flaw

_INDEX_KINDS = SEGMENT_KINDS[1:]
_RETIRED_KINDS = sorted((*SEGMENT_KINDS, FileKind.PRODUCER_SNAPSHOT), key=lambda kind: kind.value)


def revalidate(
    partition: PartitionDir,
    group: StagedGroup,
    live: list[int] | None = None,
    staged: PartitionDir | None = None,
) -> None:
    """Step 0. Raises SourceChanged with the reason when the group no longer fits the log (spec disk D4, G).

    `live`: `live_logs`, where they are known. `staged`: where its files lie, if elsewhere. Whether the group
    before it is committed is not asked here but by `commit_steps`: all groups of a cleaning can be revalidated before the
    first is committed.
    """
    check_generation(partition, group.generation)
    try:
        reason = _contradiction(partition, group, live_logs(partition) if live is None else live)
        reason = reason or staged_flaw(partition if staged is None else staged, group)
    except FileNotFoundError as error:
        reason = f"{error.filename} is gone"
    if reason is not None:
        raise SourceChanged(f"{partition.path}: {reason}")


def _contradiction(partition: PartitionDir, group: StagedGroup, live: list[int]) -> str | None:
    return (
        segments_contradiction(
            [source.base_offset for source in group.sources],
            live,
            base_offset=group.base_offset,
            next_base_offset=group.next_base_offset,
        )
        or _changed_source(partition, group)
        or epochs_contradiction(
            group.leader_epochs,
            read_leader_epochs(partition),
            next_base_offset=group.next_base_offset,
        )
    )


def _changed_source(partition: PartitionDir, group: StagedGroup) -> str | None:
    for source in group.sources:
        found = _segment(partition, source.base_offset)
        if found != source:
            return f"the .log of {source.base_offset} was {source.identity}, is {found.identity}"
    return None


def _segment(partition: PartitionDir, base_offset: int) -> SourceSegment:
    return SourceSegment.of(base_offset, partition.stat(SegmentFileName(base_offset, FileKind.LOG)))


def commit_steps(
    partition: PartitionDir, group: StagedGroup, live: list[int] | None = None
) -> Iterator[None]:
    """Steps 0 to 7, to be gone through by the caller: at every yield the directory has to be synced before it goes on.

    So the commits of many logs can go side by side, and a file system with a journal writes it once for all of them.
    Raises SourceChanged before anything is touched; after an OSError later `recover` has to follow.

    `live`: `live_logs`, which the commit keeps up to date for the next group.

    Requires: `write_manifest` has returned, or `recover` since. After SourceChanged the later groups of the cleaning
    are worthless too: `discard_staged`.
    """
    live = live_logs(partition) if live is None else live
    revalidate(partition, group, live)
    check_previous(partition, group, live)
    guard = group.name(FileKind.LOG, Suffix.CLEANED)
    partition.rename(group.staged(FileKind.LOG), guard)
    yield
    for kind in _INDEX_KINDS:
        if kind in group.sizes:
            partition.rename(group.staged(kind), group.name(kind, Suffix.SWAP))
    _blank_txn_index(partition, group)
    yield
    partition.rename(guard, guard.with_suffix(Suffix.SWAP))
    yield
    yield from _finish_steps(partition, group)
    del live[bisect_left(live, group.base_offset + 1) : bisect_left(live, group.next_base_offset)]
    at = bisect_left(live, group.base_offset)
    assert live[at : at + 2] == [group.base_offset, group.next_base_offset], (
        "one segment, and what follows it"
    )


def check_previous(partition: PartitionDir, group: StagedGroup, live: list[int]) -> None:
    """(E) Raise SourceChanged unless the group staged before this one is committed, or retention has taken all of it since.

    `live`: `live_logs`.
    """
    before = group.previous
    if before is None:
        return
    if not live or live[0] >= before.next_base_offset:
        return
    inside = live[bisect_left(live, before.log.base_offset) : bisect_left(live, before.next_base_offset)]
    if inside == [before.log.base_offset] and _segment(partition, inside[0]) == before.log:
        return
    raise SourceChanged(
        f"{partition.path}: the group at {before.log.base_offset}, on which the group at {group.base_offset} relies, "
        f"is not or not wholly committed: segments {inside}"
    )


def _blank_txn_index(partition: PartitionDir, group: StagedGroup) -> None:
    """(F)"""
    stale = SegmentFileName(group.base_offset, FileKind.TXN_INDEX)
    if group.sizes[FileKind.LOG] == 0 and FileKind.TXN_INDEX not in group.sizes and partition.exists(stale):
        partition.write_like(stale.with_suffix(Suffix.SWAP), b"", partition.path_of(stale))


def finish(partition: PartitionDir, group: StagedGroup) -> None:
    """Steps 4 to 7, from wherever an earlier attempt stopped: what is already done is passed over.

    Requires: the names as they are now are synced (B).
    """
    for _ in _finish_steps(partition, group):
        partition.sync()


def _finish_steps(partition: PartitionDir, group: StagedGroup) -> Iterator[None]:
    if partition.exists(group.name(FileKind.LOG, Suffix.SWAP)):
        yield from _retire_sources(partition, group)
    _adopt(partition, group, (FileKind.LOG,))
    yield  # (D)
    _adopt(partition, group, _INDEX_KINDS)
    _unlink_retired(partition, group)
    yield
    partition.unlink_if_there(group.manifest)  # last: otherwise `.deleted` files would look like a broker's


def _adopt(partition: PartitionDir, group: StagedGroup, kinds: Sequence[FileKind]) -> None:
    for kind in kinds:
        partition.rename_if_there(group.name(kind, Suffix.SWAP), group.name(kind, Suffix.LIVE))


def _retire_sources(partition: PartitionDir, group: StagedGroup) -> Iterator[None]:
    """Step 4."""
    logs = [SegmentFileName(source.base_offset, FileKind.LOG) for source in group.sources]
    present = [log for log in logs if partition.exists(log)]
    for source in group.sources:
        _check_retirable(partition, source)
    uncovered = uncovered_sources([log.base_offset for log in logs], group.last_offset)
    for log in present:
        partition.rename(log, log.with_suffix(Suffix.DELETED))
        if log.base_offset in uncovered:
            yield  # (E), (C)
    for log in logs:
        is_first = log.base_offset == group.base_offset
        for kind in _INDEX_KINDS if is_first else (*_INDEX_KINDS, FileKind.PRODUCER_SNAPSHOT):
            name = SegmentFileName(log.base_offset, kind)
            partition.rename_if_there(name, name.with_suffix(Suffix.DELETED))
    yield


def _check_retirable(partition: PartitionDir, source: SourceSegment) -> None:
    """The inode is not compared: it does not survive a restored copy, and nothing can have written since step 0."""
    log = SegmentFileName(source.base_offset, FileKind.LOG)
    if partition.exists(log) and replace(partition.stat(log), inode=source.identity.inode) != source.identity:
        raise LogUncleanable(f"{partition.path}/{log}: is not the segment that the commit under way replaces")


def _unlink_retired(partition: PartitionDir, group: StagedGroup) -> None:
    for source in group.sources:
        for kind in _RETIRED_KINDS:
            partition.unlink_if_there(SegmentFileName(source.base_offset, kind, Suffix.DELETED))
