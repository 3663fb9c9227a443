"""Finish or undo an interrupted commit. Called with `.lock` held, before anything else is done to a log.

1. A truncation that was interrupted counts as ended (`generation`).
2. If there is anything but live files: fsync the directory. What a killed process renamed may not be on disk yet, and a
   step taken on top of it might survive a power failure alone (`commit`, B).
3. Each group that has a manifest, ascending: decide by `policy.recovery_plan`, then do it.
4. What a broker's own cleaner left, or a commit of ours whose manifest cannot be read: in a broker's directory it stays, the
   log is skipped until its broker has started. Elsewhere no broker will come, and its rules are followed here (spec disk D2,
   passes 1 to 4), with syncs between them. They take the offsets of the `.log.swap` for what it replaces. That is right
   after our commit point too: what lies beyond its last batch holds no record that survived (`commit`, E). But unlike a
   broker, this refuses in doubt, and then touches nothing: when more than one `.log.swap` is there, when one is empty or
   damaged or without its indexes, and when no segment follows, for the active one must not be taken for a source.
5. Staged files that belong to no waiting group are unlinked, manifests first; a manifest that cannot be read stays beside
   the files that step 4 refused to touch.

Idempotent, and safe to interrupt anywhere: it repeats steps of `commit` or of a broker, or takes back 1 and 2 in reverse.
A group that was never begun stays, and the caller may commit or discard it.
"""

import os
from collections.abc import Callable, Iterable

from cleanerd.errors import CorruptFile, LogUncleanable
from cleanerd.format.batch import checksum
from cleanerd.format.errors import FormatError, corruption_in
from cleanerd.format.head import CRC_AT
from cleanerd.format.legacy import decode_entry
from cleanerd.format.names import SEGMENT_KINDS, FileKind, SegmentFileName, Suffix, parse_segment_file
from cleanerd.policy.recovery_plan import Found, Leftovers, Remedy, choose_remedy, objection

from .commit import finish
from .generation import end_truncation
from .partition_dir import PartitionDir
from .segments import LogBatch, OpenSegment
from .staged import (
    StagedGroup,
    begun_bases,
    manifest_names,
    read_manifest,
    staged_flaw,
    staged_names,
    unlink_staged,
)

Acted = Callable[[str], None]


def sound_end(path: str) -> int:
    """The offset after the last batch of a `.log`, staged or swapped as well, its base if it is empty.

    A broker checks no CRC in a `.log.swap` (D2). Raises CorruptFile unless all of it is sound batches whose offsets rise
    from the base on; OSError.
    """
    directory, name = os.path.split(path)
    end = int(name.partition(".")[0])
    suffix = next((one for one in (Suffix.SWAP, Suffix.STAGED) if name.endswith(one.value)), Suffix.LIVE)
    with OpenSegment(directory, end, suffix) as segment:
        for batch in segment.batches():
            with corruption_in(path, batch.position):
                first, last = _offsets(batch)
                if not end <= first <= last:
                    raise FormatError(0, f"an offset of {end} or more", f"{first} to {last}")
            end = last + 1
        if segment.position < segment.size_bytes:
            raise CorruptFile(path, segment.position, "a whole batch", "a torn one")
    return end


def _offsets(batch: LogBatch) -> tuple[int, int]:
    """First and last offset of a batch whose CRC is right."""
    if batch.header is None:
        entry = decode_entry(batch.data)
        return entry.base_offset, entry.last_offset
    if batch.header.crc != checksum(batch.data):
        raise FormatError(CRC_AT, f"CRC {batch.header.crc:#010x}", f"{checksum(batch.data):#010x}")
    return batch.header.base_offset, batch.header.last_offset


def recover(
    partition: PartitionDir,
    *,
    is_kafka: bool,
    next_offset: Callable[[str], int] = sound_end,
    acted: Acted = lambda _: None,
) -> str | None:
    """Bring a partition directory into order; returns why the log must be skipped, or None. Raises OSError.

    `is_kafka`: a broker owns the directory. `next_offset`: of the `.log.swap` at a path, the offset after its last batch,
    its base if it is empty; raises CorruptFile. Raises LogUncleanable when a source changed in the middle of a commit.
    `acted` is called with roll_forward or roll_back for every commit that was completed or undone, and with delete_leftover.
    """
    end_truncation(partition)
    listed = partition.list_names()
    temporary = [n for n in map(parse_segment_file, listed) if n is not None and n.suffix is not Suffix.LIVE]
    if not temporary and not staged_names(listed):
        return None
    partition.sync()
    groups, unreadable = _read(partition)
    waiting = {
        group.base_offset for group in groups if _settle_group(partition, group, acted, is_kafka=is_kafka)
    }
    reason = _settle_foreign(partition, acted, is_kafka=is_kafka, next_offset=next_offset)
    if _sweep(partition, waiting | begun_bases(partition.names()) & unreadable):
        acted("delete_leftover")
    return reason


def _read(partition: PartitionDir) -> tuple[list[StagedGroup], set[int]]:
    """Groups with a manifest, and the bases of those whose manifest cannot be read: it declares nothing."""
    groups, unreadable = [], set()
    for name in manifest_names(partition):
        try:
            groups.append(read_manifest(partition, name))
        except CorruptFile:
            unreadable.add(name.base_offset)
    return groups, unreadable


def _settle_group(partition: PartitionDir, group: StagedGroup, acted: Acted, *, is_kafka: bool) -> bool:
    """Finish or undo one group; returns whether it still waits to be committed."""

    def look(suffix: Suffix) -> Found:
        return _look(partition, group, suffix, is_kafka=is_kafka)

    remedy = choose_remedy(
        staged_log=partition.exists(group.staged(FileKind.LOG)),
        staged_whole=staged_flaw(partition, group) is None,
        guard=look(Suffix.CLEANED),
        swap=look(Suffix.SWAP),
        live=look(Suffix.LIVE),
    )
    if remedy is Remedy.FINISH:
        finish(partition, group)
        acted("roll_forward")
    elif remedy is Remedy.ROLL_BACK:
        _roll_back(partition, group)
        acted("roll_back")
    return remedy is Remedy.WAIT


def _look(partition: PartitionDir, group: StagedGroup, suffix: Suffix, *, is_kafka: bool) -> Found:
    """Our new segment differs from another cleaner's in size, modification time or inode.

    Where no broker cleans, the inode is not asked for: it does not survive a restored copy, and no broker will repair that.
    """
    name = group.name(FileKind.LOG, suffix)
    if not partition.exists(name):
        return Found.NOTHING
    stat = partition.stat(name)
    is_alike = (stat.size_bytes, stat.mtime_ns) == (group.sizes[FileKind.LOG], group.log_mtime_ns)
    return Found.OURS if is_alike and not (is_kafka and stat.inode != group.log_inode) else Found.FOREIGN


def _roll_back(partition: PartitionDir, group: StagedGroup) -> None:
    """Take back steps 2 and 1. The manifest goes last: without it the guard would pass for a broker's."""
    swaps = [group.name(kind, Suffix.SWAP) for kind in SEGMENT_KINDS[1:]]
    _unlink(partition, [name for name in swaps if partition.exists(name)])
    _unlink(partition, [group.name(FileKind.LOG, Suffix.CLEANED)])
    _unlink(partition, [group.manifest])


def _sweep(partition: PartitionDir, waiting: set[int]) -> bool:
    """Unlink all that is staged, except groups that wait; parts and unfinished manifests belong to none.

    Returns whether there was anything.
    """
    leftovers = []
    for text in staged_names(partition.list_names()):
        name = parse_segment_file(text)
        if name is None or name.base_offset not in waiting or name.kind is FileKind.PART:
            leftovers.append(text)
    unlink_staged(partition, leftovers)
    return bool(leftovers)


def _settle_foreign(
    partition: PartitionDir, acted: Acted, *, is_kafka: bool, next_offset: Callable[[str], int]
) -> str | None:
    found = partition.names()
    leftovers = Leftovers(
        cleaned=_bases(name for name in found if name.suffix is Suffix.CLEANED),
        swaps=_bases(name for name in found if name.suffix is Suffix.SWAP),
        deleted_logs=_bases(n for n in found if n.kind is FileKind.LOG and n.suffix is Suffix.DELETED),
    )
    reason = objection(leftovers, is_kafka=is_kafka)
    if reason is not None:
        return f"{partition.path}: {reason}"
    if not is_kafka:
        try:
            replaced = _replaced(partition, found, leftovers, next_offset)
        except LogUncleanable as doubt:
            return f"{partition.path}: an interrupted commit is left as it is, decide by hand: {doubt}"
        _undo_incomplete(partition, found, leftovers)
        if leftovers.cleaned:
            acted("roll_back")
        if _adopt_swaps(partition, replaced):
            acted("roll_forward")
    return None


def _replaced(
    partition: PartitionDir,
    found: list[SegmentFileName],
    leftovers: Leftovers,
    next_offset: Callable[[str], int],
) -> range:
    """Base offsets of the segments whose place the valid `.log.swap` takes. Raises LogUncleanable in doubt."""
    swaps = [n for n in found if n.suffix is Suffix.SWAP and leftovers.is_valid(n.base_offset)]
    logs = [name for name in swaps if name.kind is FileKind.LOG]
    if not logs:
        return range(0)
    log = logs[0]
    if len(logs) > 1:
        raise LogUncleanable(f"{len(logs)} segments wait to be swapped in, from {log} to {logs[-1]}")
    for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
        if SegmentFileName(log.base_offset, kind, Suffix.SWAP) not in swaps:
            raise LogUncleanable(f"{log} is without its {kind.value}")
    end = next_offset(partition.path_of(log))
    if end == log.base_offset:
        raise LogUncleanable(f"{log} is empty")
    live = (n for n in found if n.kind is FileKind.LOG and n.suffix is Suffix.LIVE)
    if not any(name.base_offset >= end for name in live):
        raise LogUncleanable(f"no segment follows {log}, which ends at {end}")
    return range(log.base_offset, end)


def _undo_incomplete(partition: PartitionDir, found: list[SegmentFileName], leftovers: Leftovers) -> None:
    """D2 pass 1. The `.cleaned` files go last: while one is there, the swap files above it count for nothing."""
    invalid = [n for n in found if n.suffix is Suffix.SWAP and not leftovers.is_valid(n.base_offset)]
    _unlink(partition, invalid + [n for n in found if n.suffix is Suffix.DELETED])
    _unlink(partition, [n for n in found if n.suffix is Suffix.CLEANED])


def _adopt_swaps(partition: PartitionDir, bases: range) -> bool:
    """D2 passes 3 and 4, `.log` before its indexes; the producer snapshot at the new base stays (rule 5.6).

    Returns whether there were any.
    """
    found = partition.names()
    swaps = [name for name in found if name.suffix is Suffix.SWAP]
    if not swaps:
        return False
    unlink_staged(partition, staged_names(partition.list_names()))  # made for the log as it was
    logs = [name for name in swaps if name.kind is FileKind.LOG]
    kept = SegmentFileName(bases.start, FileKind.PRODUCER_SNAPSHOT)
    replaced = [n for n in found if n.suffix is Suffix.LIVE and n.base_offset in bases and n != kept]
    _unlink(partition, replaced)
    for names in (logs, [name for name in swaps if name.kind is not FileKind.LOG]):
        for name in names:
            partition.rename(name, name.with_suffix(Suffix.LIVE))
        partition.sync()
    return True


def _unlink(partition: PartitionDir, names: list[SegmentFileName]) -> None:
    """Unlink, then sync, so that later unlinks cannot reach the disk before these."""
    partition.unlink(*names)
    if names:
        partition.sync()


def _bases(found: Iterable[SegmentFileName]) -> list[int]:
    return sorted({name.base_offset for name in found})
