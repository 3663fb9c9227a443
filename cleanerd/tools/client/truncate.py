"""Remove records from the end of a log. Called with `.lock` held, by the only one who appends to it.

====  ===========================================================  =====================================================
step  what is done (each is synced before the next)                what a crash after it leaves
====  ===========================================================  =====================================================
0     `prepare_truncation`: an interrupted commit is finished or   the log as it was, nothing staged
      undone, all that is staged is deleted
1     `cleanerd-generation` marks a truncation as under way        the log as it was; no cleaning planned before or now
                                                                   can be committed (`generation`)
2     the checkpoints are lowered to the new end                   the log as it was; some of it will be cleaned again
3     producer snapshots above the new active segment: unlinked    the log as it was; snapshots only save time
4     `.log` of the segments above it: unlinked, the highest       the beginning of the log, down to some segment; indexes
      first, each synced                                           without a `.log` are garbage
5     the `.log` of the new active segment is cut at a batch       the log as it shall be; its indexes lead beyond its end
6     the other files of the segments above: unlinked; leader      the same
      epochs that start at the new end or later are dropped
7     the caller opens the segment: its indexes are rewritten;     the same
      a segment is begun if the log has to end above its last batch
8     `end_truncation`                                             a log like any other
====  ===========================================================  =====================================================

After a crash
    cleanerd  `recover` does step 8: what is there is a whole log, if not yet as short as it was to be.
    a broker  deletes indexes without a `.log` (spec disk B8), drops leader epochs from the end (A6), rebuilds the indexes of
              the last segment, because there is no `.kafka_cleanshutdown` (D3), and ignores `cleanerd-generation`.
    a writer  that opens the log scans its last segment and rewrites its indexes, does 6 and 8, and may truncate again.

(A) The beginning of a log is a log; one with a hole is not. So segments go from the top, each for good before the next.
(B) The first dirty offset goes down before the log does. Afterwards it would, when the log has grown again, take records for
    cleaned that no cleaning has seen: tombstones among them would go before the values that they delete.
(C) A transaction index must not shrink before its `.log`: aborted records would count as committed. What it has beyond the
    end does no harm, for the transaction is open again there.

What a committed cleaning removed does not come back: if the record that superseded it is truncated, both are gone. Kafka
never truncates below the high watermark and never cleans above it; here it is for the writer to know what may go.
"""

from dataclasses import dataclass

from cleanerd.env.files import Files
from cleanerd.errors import LogUncleanable
from cleanerd.format import names
from cleanerd.format.names import SEGMENT_KINDS, FileKind, SegmentFileName, Suffix, TopicPartition
from cleanerd.storage.checkpoints import (
    lower_checkpoint,
    read_checkpoints,
    read_leader_epochs,
    truncate_leader_epochs,
)
from cleanerd.storage.generation import begin_truncation
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import recover
from cleanerd.storage.staged import discard_staged


@dataclass(frozen=True, slots=True)
class Truncation:
    """The result of a truncation to `offset`: `active_bytes` of the segment at `active_base`, nothing above."""

    offset: int
    active_base: int
    active_bytes: int


def prepare_truncation(files: Files, log_dir: str, topic_partition: TopicPartition) -> None:
    """Step 0. Raises LogUncleanable when an interrupted commit is in the way and cannot be resolved; OSError.

    A checkpoint that could not be lowered later is refused here, with CorruptFile.
    """
    partition = PartitionDir.of(files, log_dir, topic_partition)
    read_checkpoints(files, log_dir)
    read_leader_epochs(partition)
    reason = recover(partition, is_kafka=False)
    if reason is not None:
        raise LogUncleanable(reason)
    discard_staged(partition)
    partition.sync()


def truncate_log(
    files: Files, log_dir: str, topic_partition: TopicPartition, cut: Truncation, token: str
) -> None:
    """Steps 1 to 6, after `prepare_truncation`. `token`: new and random.

    Raises OSError, after which the log has to be opened again.
    """
    partition = PartitionDir.of(files, log_dir, topic_partition)
    active = partition.path_of(SegmentFileName(cut.active_base, FileKind.LOG))
    begin_truncation(partition, token, like=active)
    lower_checkpoint(files, log_dir, names.CLEANER_OFFSET_CHECKPOINT, topic_partition, cut.active_base)
    for name in (names.LOG_START_CHECKPOINT, names.RECOVERY_POINT_CHECKPOINT, names.REPLICATION_CHECKPOINT):
        lower_checkpoint(files, log_dir, name, topic_partition, cut.offset)
    partition.unlink(*_above(partition, cut.active_base, {FileKind.PRODUCER_SNAPSHOT}))
    partition.sync()
    for log in reversed(_above(partition, cut.active_base, {FileKind.LOG})):
        partition.unlink(log)
        partition.sync()  # (A)
    if files.stat(active).size_bytes > cut.active_bytes:
        files.truncate(active, cut.active_bytes)
        files.fsync(active)
    finish_truncation(partition, cut.active_base, cut.offset)


def finish_truncation(partition: PartitionDir, active_base: int, end_offset: int) -> None:
    """Step 6, for a log whose last segment is at `active_base`. Idempotent. Raises CorruptFile, OSError."""
    partition.unlink(*_above(partition, active_base, {*SEGMENT_KINDS[1:]}))
    truncate_leader_epochs(partition, end_offset)


def _above(partition: PartitionDir, base_offset: int, kinds: set[FileKind]) -> list[SegmentFileName]:
    """Live files of these kinds above `base_offset`, ascending."""
    found = partition.names()
    return sorted(
        (n for n in found if n.base_offset > base_offset and n.suffix is Suffix.LIVE and n.kind in kinds),
        key=lambda name: name.base_offset,
    )
