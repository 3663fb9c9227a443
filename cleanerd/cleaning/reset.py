"""A checkpoint that no cleaning of this log can have written is taken back, durably and at once (rules 1.5, 1.7).

One above the log end is what a log leaves that lost its end, or was restored from an older copy: it goes back to the log
start. One that is older than segments below it is what a broker without a cleaner leaves of a log that it truncated, or of
a topic that was created again: it goes back to the first of them (`policy.cleanable.lowered_checkpoint`).

Ignoring it is not enough: the log grows past it, or another entry of the same file is written. Then what lies below would
count as clean although no cleaning has seen it. Tombstones among it would go before the values that they delete.
"""

from cleanerd.cleaning.lock import commit_lock
from cleanerd.env.files import Files
from cleanerd.format import names
from cleanerd.format.names import TopicPartition
from cleanerd.policy.cleanable import usable_checkpoint
from cleanerd.storage.checkpoints import clean_up_to, read_offsets, update_cleaner_checkpoint
from cleanerd.storage.generation import check_generation
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import Checkpoints, read_bounds


def reset_checkpoint(
    files: Files, log_dir: str, tp: TopicPartition, checkpoints: Checkpoints, *, is_kafka: bool, now_ms: int
) -> int | None:
    """Write where the log is dirty from over a first dirty offset that is not usable; None when it is.

    Requires: the log is not cleaned meanwhile, and no result of it waits, for that names the old checkpoint. `checkpoints`
    were read before. Raises LockHeld (a broker does this for itself), SourceChanged, CorruptFile, OSError.
    """
    checkpoint = checkpoints.cleaner.get(tp)
    if checkpoint is None:
        return None
    bounds = read_bounds(files, log_dir, tp, checkpoints)
    if bounds is None:
        return None
    partition = PartitionDir.of(files, log_dir, tp)
    if usable_checkpoint(checkpoint, bounds.start, bounds.end):
        written_ms = checkpoints.cleaner_written_ms
        first_dirty = max(clean_up_to(partition, checkpoint, written_ms, now_ms=now_ms), bounds.start)
    else:
        first_dirty = bounds.start
    if first_dirty == checkpoint:
        return None
    with commit_lock(log_dir, is_kafka=is_kafka):
        check_generation(partition, bounds.generation)
        if read_offsets(files, f"{log_dir}/{names.CLEANER_OFFSET_CHECKPOINT}").get(tp) != checkpoint:
            return None  # it was moved since
        update_cleaner_checkpoint(files, log_dir, {tp: first_dirty})
    return first_dirty
