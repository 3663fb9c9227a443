"""Step 8 of a cleaning, first half: turns the output of the pipeline into staged files with manifests."""

import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

from cleanerd.cleaning.plan import CleaningPlan
from cleanerd.env.files import Files, open_regular
from cleanerd.env.page_cache import Ranges, drop, size_bytes
from cleanerd.format.names import FileKind, Suffix, segment_path
from cleanerd.pipeline.rewrite import VerificationFailed
from cleanerd.pipeline.segment_indexes import aborted_in, join_entries
from cleanerd.pipeline.values import IndexedLog, RewrittenLog
from cleanerd.storage.assemble import assemble
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.staged import NO_LIMIT_MS, SourceSegment, StagedGroup, discard_parts, write_manifest

_MOSTLY = 0.9  # of the bytes of a group


def stage_log(
    files: Files,
    plan: CleaningPlan,
    rewritten: RewrittenLog,
    before: StagedGroup | None = None,
    commit_by_ms: int = NO_LIMIT_MS,
) -> Sequence[StagedGroup]:
    """Assemble and declare every group of a round, ascending; returns them. Raises OSError, SourceChanged, NoSpace.

    `before`: the last group of the round before it. `commit_by_ms`: as `StagedGroup` has it.
    """
    partition, basis = PartitionDir(files, plan.work.directory), plan.candidate.basis
    groups, made = rewritten.indexed.groups_now, list[StagedGroup]()
    snapshot = plan.candidate.snapshot
    if (
        snapshot.recovery_point is None and before is None
    ):  # the first round has synced all that later ones depend on
        _sync_from(PartitionDir(files, snapshot.directory), plan, plan.work.first_dirty_offset)
    for number in groups:
        group, parts = plan.groups[number], rewritten.parts.get(number, [])
        first, last = group.sources[0], group.sources[-1]
        # Only the group before it may vouch for what this one drops (E of `storage.commit`).
        assert not made or made[-1].next_base_offset <= first.base_offset, "groups ascend"
        assert group.next_base_offset <= plan.work.round_end, "no group reaches behind the round"
        staged = StagedGroup(
            sources=tuple(SourceSegment.of(s.base_offset, s.identity) for s in group.sources),
            next_base_offset=group.next_base_offset,
            round_end=plan.work.round_end,
            sizes=_assemble(partition, plan, rewritten, number),
            log_mtime_ns=last.identity.mtime_ns,
            last_offset=max((part.last_offset for part in parts), default=-1),
            leader_epochs=basis.leader_epochs,
            is_last=number == groups[-1],
            generation=basis.generation,
            checkpoint=basis.checkpoint,
            moves_checkpoint=not rewritten.indexed.later_groups,
            commit_by_ms=commit_by_ms,
            removes_expired=rewritten.removes_expired,
        )
        made.append(write_manifest(partition, staged, made[-1] if made else before, last.path))
    discard_parts(partition)
    _leave_cache(plan, rewritten.indexed)
    return made


def _sync_from(partition: PartitionDir, plan: CleaningPlan, offset: int) -> None:
    """Sync the records on which the result depends, before it may take effect.

    A record must not be lost after the older ones that it superseded, nor the end of a transaction, which lies behind the
    range, after its data. And the log must not end below its first dirty offset, because it grows past it. A writer may
    leave its appends unsynced; a broker has synced up to the recovery point (for later ones see `storage.unflushed`).
    """
    snapshot = plan.candidate.snapshot
    ends = [*(segment.base_offset for segment in snapshot.segments[1:]), snapshot.log_end_offset]
    for segment, end in zip(snapshot.segments, ends, strict=True):
        if end > offset:
            partition.files.fsync(segment.path)
    partition.sync()


def _leave_cache(plan: CleaningPlan, indexed: IndexedLog) -> None:
    """Drop pages that only this cleaning has cached: those of cold segments, and of new ones made from them."""
    cold_bytes, read_bytes = defaultdict[int, int](int), defaultdict[int, int](int)
    for chunk in indexed.work.chunks:
        source = chunk.source
        cold_bytes[chunk.group] += size_bytes(source.cold)
        read_bytes[chunk.group] += source.size_bytes
        if source.cold and chunk.group not in indexed.changed_groups:
            _drop(source.path, source.cold)
    for number in indexed.groups_now:
        if cold_bytes[number] and cold_bytes[number] >= _MOSTLY * read_bytes[number]:
            base_offset = plan.groups[number].sources[0].base_offset
            directory = plan.candidate.snapshot.directory
            _drop(
                segment_path(directory, base_offset, FileKind.LOG, Suffix.STAGED), ((0, read_bytes[number]),)
            )


def _drop(path: str, ranges: Ranges) -> None:
    with contextlib.suppress(OSError), open_regular(path) as fd:  # a hint: the file may be gone
        drop(fd, ranges)


def _assemble(
    partition: PartitionDir, plan: CleaningPlan, rewritten: RewrittenLog, number: int
) -> Mapping[FileKind, int]:
    """Write the staged files of a group; returns their sizes."""
    group, parts = plan.groups[number], rewritten.parts.get(number, [])
    first, last = group.sources[0], group.sources[-1]
    offset_index, time_index = join_entries(parts, plan.work.index_interval_bytes)
    sizes = assemble(
        partition,
        first.base_offset,
        tuple(dict.fromkeys(part.path for part in parts if part.path is not None)),
        offset_index=offset_index,
        time_index=time_index,
        aborted_txns=tuple(aborted_in(rewritten.indexed, first.base_offset, group.next_base_offset)),
        like=last.path,
        mtime_ns=last.identity.mtime_ns,
        least_free_bytes=plan.work.least_free_bytes,
    )
    expected = sum(part.size_bytes for part in parts)
    if sizes[FileKind.LOG] != expected:
        raise VerificationFailed(
            f"{last.path}: {expected} bytes stay of its group, {sizes[FileKind.LOG]} are staged"
        )
    return sizes
