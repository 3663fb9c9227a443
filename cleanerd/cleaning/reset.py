"""A checkpoint that no cleaning can have written is taken back to the log start, durably and at once (rules 1.5, 1.7).

One above the log end is what a log leaves that lost its end, or was restored from an older copy. Ignoring it is not enough:
the log grows past it, and then what lies below would count as clean although no cleaning has seen it. Tombstones among it
would go before the values that they delete.
"""

from cleanerd.cleaning.lock import commit_lock
from cleanerd.env.files import Files
from cleanerd.format import names
from cleanerd.format.names import TopicPartition
from cleanerd.policy.cleanable import usable_checkpoint
from cleanerd.storage.checkpoints import read_offsets, update_cleaner_checkpoint
from cleanerd.storage.generation import check_generation
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import Checkpoints, read_bounds


def reset_checkpoint(
    files: Files, log_dir: str, tp: TopicPartition, checkpoints: Checkpoints, *, is_kafka: bool
) -> int | None:
    """Write the log start offset over a first dirty offset below it or above the log end; None when there is none such.

    Requires: the log is not cleaned meanwhile, and no result of it waits, for that names the old checkpoint. `checkpoints`
    were read before. Raises LockHeld (a broker does this for itself), SourceChanged, CorruptFile, OSError.
    """
    checkpoint = checkpoints.cleaner.get(tp)
    if checkpoint is None:
        return None
    bounds = read_bounds(files, log_dir, tp, checkpoints)
    if (
        bounds is None
        or usable_checkpoint(checkpoint, bounds.start, bounds.end)
        or checkpoint == bounds.start
    ):
        return None
    with commit_lock(log_dir, is_kafka=is_kafka):
        check_generation(PartitionDir.of(files, log_dir, tp), bounds.generation)
        if read_offsets(files, f"{log_dir}/{names.CLEANER_OFFSET_CHECKPOINT}").get(tp) != checkpoint:
            return None  # it was moved since
        update_cleaner_checkpoint(files, log_dir, {tp: bounds.start})
    return bounds.start
