"""The offset checkpoints of a log directory and the leader epochs of a partition: read, and kept up to date.

A malformed checkpoint takes the whole directory of a broker offline (spec disk A7), so what is written is exact, and it is
only written while `.lock` is held. One that cannot be read is an error with place and cause (7.16b), and is not touched.

Log directories of one broker may not contradict each other in `cleaner-offset-checkpoint`: its cleaner reads all of them
into one map, and dies if a partition has two entries. So every write drops entries of partitions that do not lie in
the directory, and `LogDir.record_cleaned` keeps the other directories free of what is added. And the time of this file shows
something: what is below an entry and was written later is not clean (`policy.cleanable.lowered_checkpoint`). So every write
lowers such entries first. The other three are read for each
directory by itself, for the partitions that lie there, and a broker writes them whole, from what it has in memory: an entry
that is left over means nothing. In them entries of `-future` directories count as well, so none is dropped.
"""

import contextlib
import os
import threading
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

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
from cleanerd.format.names import FileKind, SegmentFileName, TopicPartition
from cleanerd.policy.cleanable import WRITTEN_MARGIN_MS, is_written_since, lowered_checkpoint

from .partition_dir import PartitionDir, bases_of
from .replace import replace_file
from .scan import Checkpoints

LOG_DIR_CHECKPOINTS = (
    names.CLEANER_OFFSET_CHECKPOINT,
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_CHECKPOINT,
    names.REPLICATION_CHECKPOINT,
)
"""The checkpoints of a log directory, in the order of the fields of `Checkpoints`."""

_WRITTEN_BY_BROKERS = (names.REPLICATION_CHECKPOINT, names.RECOVERY_POINT_CHECKPOINT)
"""And by nobody else: every 5 s and every minute by default, and when a broker ends."""

_turn = threading.Lock()


def read_checkpoints(files: Files, log_dir: str) -> Checkpoints:
    """All four; a missing file is an empty one. Raises CorruptFile naming file, byte, expected and found."""
    # The time is read before the content: never too late a time for it.
    written_ms = _written_ms(files, os.path.join(log_dir, names.CLEANER_OFFSET_CHECKPOINT))
    offsets = (read_offsets(files, os.path.join(log_dir, name)) for name in LOG_DIR_CHECKPOINTS)
    return Checkpoints(*offsets, cleaner_written_ms=written_ms)


def last_written_ms(files: Files, log_dirs: Iterable[str]) -> int:
    """The last time in ms when the broker wrote files that only a broker writes; 0 if there are none."""
    signs = [0]
    for log_dir in log_dirs:
        for name in _WRITTEN_BY_BROKERS:
            with contextlib.suppress(OSError):
                signs.append(files.stat(os.path.join(log_dir, name)).mtime_ms)
    return max(signs)


def _written_ms(files: Files, path: str, earlier_ms: int = 0) -> int | None:
    try:
        return files.stat(path).mtime_ms - earlier_ms
    except FileNotFoundError:
        return None


def read_offsets(files: Files, path: str) -> Mapping[TopicPartition, int]:
    """Read an offset checkpoint (rule 0.12)."""
    try:
        with corruption_in(path):
            return _parsed(files.read(path))
    except FileNotFoundError:
        return {}


@lru_cache(maxsize=8)
def _parsed(content: bytes) -> Mapping[TopicPartition, int]:
    """Parse once for all logs of a directory: otherwise n logs would cost n^2."""
    return MappingProxyType(parse_offset_checkpoint(content))


def read_leader_epochs(partition: PartitionDir) -> tuple[EpochEntry, ...]:
    """Leader epochs of a partition, empty without a file. Raises CorruptFile."""
    path = partition.path_of(names.LEADER_EPOCH_CHECKPOINT)
    try:
        with corruption_in(path):
            return parse_leader_epochs(partition.files.read(path))
    except FileNotFoundError:
        return ()


def update_cleaner_checkpoint(
    files: Files, log_dir: str, offsets: Mapping[TopicPartition, int | None], *, is_live: bool = False
) -> None:
    """Set first dirty offsets, None drops an entry (rule 2.12). Needs `.lock`. Raises as `update_checkpoint`.

    Other entries stay if their partition lies in the directory, no higher than `lowered_checkpoint` allows. What is in
    `offsets` need not lie there. `is_live`: a broker without a cleaner has `.lock`. Beside it one swap after the other is
    recorded, several a second: what is younger than a margin would never be noticed, so there is none.
    """
    update_checkpoint(
        files, log_dir, names.CLEANER_OFFSET_CHECKPOINT, offsets, WRITTEN_MARGIN_MS if is_live else 0
    )


def lower_checkpoint(
    files: Files, log_dir: str, name: str, topic_partition: TopicPartition, offset: int
) -> bool:
    """Lower an entry of the checkpoint `name` to `offset` (rule 2.14), only where it is above; returns whether it was.

    A log without an entry gets none. Needs `.lock`. Raises as `update_checkpoint`.
    """
    if read_offsets(files, os.path.join(log_dir, name)).get(topic_partition, 0) <= offset:
        return False
    update_checkpoint(files, log_dir, name, {topic_partition: offset})
    return True


def forget_partition(files: Files, log_dir: str, topic_partition: TopicPartition) -> None:
    """Drop all entries of a log that is gone: they would be taken for those of a new one of that name. Needs `.lock`.

    A stale log start offset hides or deletes new records, a stale first dirty offset lets new tombstones go before the
    values that they delete. Raises as `update_checkpoint`, before anything is written if it is for damage.
    """
    found = [
        n for n in LOG_DIR_CHECKPOINTS if topic_partition in read_offsets(files, os.path.join(log_dir, n))
    ]
    for name in found:
        update_checkpoint(files, log_dir, name, {topic_partition: None})


def update_checkpoint(
    files: Files, log_dir: str, name: str, offsets: Mapping[TopicPartition, int | None], earlier_ms: int = 0
) -> None:
    """Set entries of a checkpoint (rules 2.12, 6.12), None drops one: the old or the new file is there, whatever happens.

    Needs `.lock`. Beside a live broker without a cleaner, which has that, the threads of this process take turns here.
    `earlier_ms`: first dirty offsets count as written so much earlier.

    Raises CorruptFile before anything is written, OSError.
    """
    path = os.path.join(log_dir, name)
    with _turn:
        before = read_offsets(files, path)
        others: dict[TopicPartition, int | None] = {tp: o for tp, o in before.items() if tp not in offsets}
        if name == names.CLEANER_OFFSET_CHECKPOINT:
            written_ms = _written_ms(files, path, earlier_ms)
            others = {tp: _still_clean(files, log_dir, tp, before[tp], written_ms) for tp in others}
        kept = {tp: offset for tp, offset in {**others, **offsets}.items() if offset is not None}
        replace_file(files, path, render_offset_checkpoint(kept), os.path.join(log_dir, names.LOCK))


def is_still_clean(
    files: Files, log_dir: str, tp: TopicPartition, offset: int, *, is_live: bool = False
) -> bool:
    """Whether a first dirty offset would stay if `update_cleaner_checkpoint` set another one. Raises OSError."""
    path = os.path.join(log_dir, names.CLEANER_OFFSET_CHECKPOINT)
    written_ms = _written_ms(files, path, WRITTEN_MARGIN_MS if is_live else 0)
    return _still_clean(files, log_dir, tp, offset, written_ms) == offset


def _still_clean(
    files: Files, log_dir: str, tp: TopicPartition, offset: int, written_ms: int | None
) -> int | None:
    """`clean_up_to`; None for a log that is not in use there, or of which nothing is known. Raises OSError of the disk.

    `-future`, `-stray` and `-delete` directories have no first dirty offset.
    """
    try:
        return clean_up_to(PartitionDir.of(files, log_dir, tp), offset, written_ms)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None


def clean_up_to(
    partition: PartitionDir, checkpoint: int, written_ms: int | None, *, now_ms: int | None = None
) -> int:
    """The checkpoint of a log, or less, if a segment was written later (`lowered_checkpoint`). Raises OSError.

    Where no name in the directory is newer there is no new log, and none that was truncated: that deletes the segment which
    begins at the checkpoint. So does a power failure, or a copy of an earlier day, and no name is newer then. `now_ms`: what
    was written later than that counts as old.
    """
    if written_ms is None:
        return checkpoint
    is_old = not is_written_since(written_ms, partition.files.stat(partition.path).mtime_ms)
    if is_old and partition.exists(SegmentFileName(checkpoint, FileKind.LOG)):
        return checkpoint
    bases = bases_of(partition.list_names())
    modified = ((base, partition.stat(SegmentFileName(base, FileKind.LOG)).mtime_ms) for base in bases)
    return lowered_checkpoint(checkpoint, written_ms, modified, now_ms)


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
