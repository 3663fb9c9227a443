"""The offset checkpoints of a log directory and the leader epochs of a partition: read, and kept up to date.

A malformed checkpoint takes the whole directory of a broker offline (spec disk A7), so what is written is exact, and it is
only written while `.lock` is held. One that cannot be read is an error that says where and why (7.16b), and is not touched.

Log directories of one broker may not contradict each other in `cleaner-offset-checkpoint`: its cleaner reads all of them
into one map, and dies if a partition has two entries. So every write drops entries of partitions that do not lie in
the directory, and `cleaning.checkpoint` keeps the other directories free of what is added. The other three are read for each
directory by itself, for the partitions that lie there, and a broker writes them whole, from what it has in memory: an entry
that is left over says nothing. In them entries of `-future` directories count as well, so none is dropped.
"""

import os
from collections.abc import Iterable, Mapping
from functools import lru_cache

from cleanerd.env.files import Files
from cleanerd.format import names
from cleanerd.format.checkpoint import (
    EpochEntry,
    parse_leader_epochs,
    parse_offset_checkpoint,
    render_leader_epochs,
    render_offset_checkpoint,
)
from cleanerd.format.errors import corruption_in
from cleanerd.format.names import TopicPartition

from .partition_dir import PartitionDir
from .replace import replace_file
from .scan import Checkpoints

LOG_DIR_CHECKPOINTS = (
    names.CLEANER_OFFSET_CHECKPOINT,
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_CHECKPOINT,
    names.REPLICATION_CHECKPOINT,
)
"""The checkpoints of a log directory, in the order of the fields of `Checkpoints`."""


def read_checkpoints(files: Files, log_dir: str) -> Checkpoints:
    """All four; a missing file is an empty one. Raises CorruptFile naming file, byte, expected and found."""
    return Checkpoints(*(read_offsets(files, os.path.join(log_dir, name)) for name in LOG_DIR_CHECKPOINTS))


def read_offsets(files: Files, path: str) -> dict[TopicPartition, int]:
    """One offset checkpoint (rule 0.12)."""
    try:
        with corruption_in(path):
            return dict(_parsed(files.read(path)))
    except FileNotFoundError:
        return {}


@lru_cache(maxsize=8)
def _parsed(content: bytes) -> dict[TopicPartition, int]:
    """Every log of a directory asks for the same few files several times: parsed each time, n logs would cost n^2."""
    return parse_offset_checkpoint(content)


def read_leader_epochs(partition: PartitionDir) -> tuple[EpochEntry, ...]:
    """Leader epochs of a partition, empty without a file. Raises CorruptFile."""
    path = partition.path_of(names.LEADER_EPOCH_CHECKPOINT)
    try:
        with corruption_in(path):
            return parse_leader_epochs(partition.files.read(path))
    except FileNotFoundError:
        return ()


def update_cleaner_checkpoint(
    files: Files, log_dir: str, offsets: Mapping[TopicPartition, int | None]
) -> None:
    """Set first dirty offsets, None drops an entry (rule 2.12). Needs `.lock`. Raises as `_update`.

    Other entries stay if their partition lies in the directory. What is in `offsets` need not lie there.
    """
    _update(files, log_dir, names.CLEANER_OFFSET_CHECKPOINT, offsets)


def truncate_cleaner_checkpoint(
    files: Files, log_dir: str, topic_partition: TopicPartition, offset: int
) -> bool:
    """Lower the first dirty offset of a truncated log to `offset`, the base of its active segment (rule 2.14).

    Only where it is above; returns whether it was. A log without an entry gets none. Needs `.lock`. Raises as `_update`.
    """
    return lower_checkpoint(files, log_dir, names.CLEANER_OFFSET_CHECKPOINT, topic_partition, offset)


def lower_checkpoint(
    files: Files, log_dir: str, name: str, topic_partition: TopicPartition, offset: int
) -> bool:
    """Lower an entry of the checkpoint `name` to `offset` if it is above. Needs `.lock`. Raises as `_update`."""
    if read_offsets(files, os.path.join(log_dir, name)).get(topic_partition, 0) <= offset:
        return False
    _update(files, log_dir, name, {topic_partition: offset})
    return True


def forget_partition(files: Files, log_dir: str, topic_partition: TopicPartition) -> None:
    """Drop all entries of a log that is gone: they would be taken for those of a new one of that name. Needs `.lock`.

    A stale log start offset hides or deletes new records, a stale first dirty offset lets new tombstones go before the
    values that they delete. Raises as `_update`, before anything is written if it is for damage.
    """
    found = [
        n for n in LOG_DIR_CHECKPOINTS if topic_partition in read_offsets(files, os.path.join(log_dir, n))
    ]
    for name in found:
        _update(files, log_dir, name, {topic_partition: None})


def update_log_start_checkpoint(
    files: Files, log_dir: str, offsets: Mapping[TopicPartition, int | None]
) -> None:
    """Set log start offsets, None drops an entry (rule 6.12); keep all other entries. Needs `.lock`.

    Raises as `_update`.
    """
    _update(files, log_dir, names.LOG_START_CHECKPOINT, offsets)


def _update(files: Files, log_dir: str, name: str, offsets: Mapping[TopicPartition, int | None]) -> None:
    """Replace a checkpoint of a log directory: the old or the new one is there, whatever happens.

    Raises CorruptFile before anything is written, OSError.
    """
    path = os.path.join(log_dir, name)
    before = read_offsets(files, path)
    if name == names.CLEANER_OFFSET_CHECKPOINT:
        before = {tp: offset for tp, offset in before.items() if _lies_in(files, log_dir, tp)}
    entries = {tp: offset for tp, offset in {**before, **offsets}.items() if offset is not None}
    replace_file(files, path, render_offset_checkpoint(entries), os.path.join(log_dir, names.LOCK))


def _lies_in(files: Files, log_dir: str, topic_partition: TopicPartition) -> bool:
    """Whether the log is in use there: `-future`, `-stray` and `-delete` directories have no first dirty offset."""
    return files.exists(os.path.join(log_dir, str(topic_partition)))


def replace_leader_epochs(partition: PartitionDir, epochs: Iterable[tuple[int, int]]) -> None:
    """Replace the leader epochs of a partition that has some. Needs `.lock`. Raises OSError."""
    path = partition.path_of(names.LEADER_EPOCH_CHECKPOINT)
    replace_file(partition.files, path, render_leader_epochs(epochs), path)


def truncate_leader_epochs(partition: PartitionDir, offset: int) -> None:
    """Drop the epochs that start at `offset` or later. Needs `.lock`. Raises CorruptFile, OSError."""
    epochs = read_leader_epochs(partition)
    kept = [epoch for epoch in epochs if epoch.start_offset < offset]
    if len(kept) < len(epochs):
        replace_leader_epochs(partition, kept)
