"""Steps 8 and 9 of a cleaning: stage what the pipeline wrote, commit it under `.lock`, record the checkpoint."""

import threading

from cleanerd.cleaning.plan import CleaningPlan, Group
from cleanerd.env.files import Files
from cleanerd.pipeline.conclude import aborted_in
from cleanerd.pipeline.indexes import join_entries
from cleanerd.pipeline.work import RewrittenLog, WrittenPart
from cleanerd.storage.assemble import Assembly, assemble
from cleanerd.storage.checkpoints import read_leader_epochs, update_cleaner_checkpoint
from cleanerd.storage.commit import commit_group, revalidate
from cleanerd.storage.lock import LogDirLock
from cleanerd.storage.staged import SourceSegment, StagedGroup, write_manifest

_WRITER_LOCK_WAIT_S = 30.0


def commit_lock(log_dir: str, *, is_kafka: bool) -> LogDirLock:
    """The `.lock` of a log directory, to be entered.

    A cooperating writer holds it for the moment of a roll, so it is waited for; a broker for its life, so it is not.
    """
    wait_s = 0.0 if is_kafka else _WRITER_LOCK_WAIT_S
    return LogDirLock(log_dir, wait_s=wait_s, wait=threading.Event().wait)


def stage_log(files: Files, plan: CleaningPlan, rewritten: RewrittenLog) -> list[StagedGroup]:
    """Assemble and declare every changed group, ascending. Raises OSError, SourceChanged."""
    staged = []
    for number in sorted(rewritten.parts):
        group, parts = plan.groups[number], rewritten.parts[number]
        staged.append(_stage_group(files, plan, group, rewritten, parts))
    return staged


def _stage_group(
    files: Files, plan: CleaningPlan, group: Group, rewritten: RewrittenLog, parts: list[WrittenPart]
) -> StagedGroup:
    snapshot = plan.candidate.snapshot
    first, last = group.sources[0], group.sources[-1]
    offset_index, time_index = join_entries([written.part for written in parts])
    sizes = assemble(
        files,
        snapshot.directory,
        Assembly(
            base_offset=first.base_offset,
            parts=tuple(written.path for written in parts if written.path is not None),
            offset_index=offset_index,
            time_index=time_index,
            aborted_txns=tuple(aborted_in(rewritten.indexed, first.base_offset, group.next_base_offset)),
            like=last.path,
            mtime_ns=last.mtime_ns,
        ),
    )
    epochs = read_leader_epochs(files, snapshot.directory)
    staged = StagedGroup(
        sources=tuple(SourceSegment(s.base_offset, s.inode, s.size_bytes, s.mtime_ns) for s in group.sources),
        next_base_offset=group.next_base_offset,
        round_end=plan.work.round_end,
        sizes=sizes,
        log_mtime_ns=last.mtime_ns,
        last_offset=max(written.part.last_offset for written in parts),
        leader_epochs=tuple(
            (e.epoch, e.start_offset) for e in epochs if e.start_offset < group.next_base_offset
        ),
    )
    write_manifest(files, snapshot.directory, staged)
    return staged


def commit_log(files: Files, plan: CleaningPlan, staged: list[StagedGroup]) -> None:
    """Swap every group, oldest first, and record the checkpoint. Raises LockHeld, SourceChanged, OSError.

    Oldest first: a tombstone may only go after the values that it deletes.
    """
    snapshot = plan.candidate.snapshot
    with commit_lock(snapshot.log_dir, is_kafka=snapshot.is_kafka) as lock:
        for group in staged:
            revalidate(files, snapshot.directory, group)
        for group in staged:
            lock.check()
            commit_group(files, snapshot.directory, group)
        update_cleaner_checkpoint(files, snapshot.log_dir, {snapshot.topic_partition: plan.work.round_end})
