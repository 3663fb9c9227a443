"""The offset checkpoints of a log directory and the leader epochs of a partition: read, and kept up to date.

A malformed checkpoint takes the whole directory of a broker offline (spec disk A7), so what is written is exact, and it is
only written while `.lock` is held. One that cannot be read is an error that says where and why (7.16b), and is not touched.
"""

import os
from collections.abc import Collection, Iterable, Mapping

from cleanerd.env.files import Files
from cleanerd.errors import CorruptFile
from cleanerd.format import names
from cleanerd.format.checkpoint import (
    EpochEntry,
    parse_leader_epochs,
    parse_offset_checkpoint,
    render_leader_epochs,
    render_offset_checkpoint,
)
from cleanerd.format.errors import FormatError
from cleanerd.format.names import TopicPartition

from .replace import replace_file
from .scan import Checkpoints

_OF_A_LOG_DIR = (
    names.CLEANER_OFFSET_CHECKPOINT,
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_CHECKPOINT,
    names.REPLICATION_CHECKPOINT,
)


def read_checkpoints(files: Files, log_dir: str) -> Checkpoints:
    """All four; a missing file is an empty one. Raises CorruptFile naming file, byte, expected and found."""
    return Checkpoints(
        cleaner=read_offsets(files, os.path.join(log_dir, names.CLEANER_OFFSET_CHECKPOINT)),
        recovery_point=read_offsets(files, os.path.join(log_dir, names.RECOVERY_POINT_CHECKPOINT)),
        log_start=read_offsets(files, os.path.join(log_dir, names.LOG_START_CHECKPOINT)),
        high_watermark=read_offsets(files, os.path.join(log_dir, names.REPLICATION_CHECKPOINT)),
    )


def read_offsets(files: Files, path: str) -> dict[TopicPartition, int]:
    """One offset checkpoint (rule 0.12)."""
    try:
        return parse_offset_checkpoint(files.read(path))
    except FileNotFoundError:
        return {}
    except FormatError as error:
        raise CorruptFile(path, error.position, error.expected, error.found) from error


def read_leader_epochs(files: Files, directory: str) -> tuple[EpochEntry, ...]:
    """Leader epochs of a partition, empty without a file. Raises CorruptFile."""
    path = os.path.join(directory, names.LEADER_EPOCH_CHECKPOINT)
    try:
        return parse_leader_epochs(files.read(path))
    except FileNotFoundError:
        return ()
    except FormatError as error:
        raise CorruptFile(path, error.position, error.expected, error.found) from error


def update_cleaner_checkpoint(
    files: Files,
    log_dir: str,
    offsets: Mapping[TopicPartition, int | None],
    *,
    known: Collection[TopicPartition] | None = None,
) -> None:
    """Set first dirty offsets, None drops an entry (rule 2.12). Needs `.lock`. Raises as `_update`.

    Other entries stay, but with `known` only those of known partitions. What is in `offsets` need not be known.
    """
    _update(files, log_dir, names.CLEANER_OFFSET_CHECKPOINT, offsets, known)


def truncate_cleaner_checkpoint(
    files: Files, log_dir: str, topic_partition: TopicPartition, offset: int, *, is_compacted: bool = True
) -> bool:
    """Lower the first dirty offset of a truncated log to `offset`, the base of its active segment (rule 2.14).

    Only where it is above, and only of a compacted topic; returns whether it was. Needs `.lock`. Raises as `_update`.
    """
    if not is_compacted:
        return False
    return lower_checkpoint(files, log_dir, names.CLEANER_OFFSET_CHECKPOINT, topic_partition, offset)


def lower_checkpoint(
    files: Files, log_dir: str, name: str, topic_partition: TopicPartition, offset: int
) -> bool:
    """Lower an entry of the checkpoint `name` to `offset` if it is above. Needs `.lock`. Raises as `_update`."""
    if read_offsets(files, os.path.join(log_dir, name)).get(topic_partition, 0) <= offset:
        return False
    _update(files, log_dir, name, {topic_partition: offset})
    return True


def move_cleaner_checkpoint(files: Files, topic_partition: TopicPartition, source: str, target: str) -> bool:
    """Carry the entry of a log that moved from log directory `source` to `target` over (rule 2.16); whether it had one.

    Two writes, the source first: a crash between them costs the entry, so that the log is cleaned from its start, and
    never leaves one that is not true. Needs `.lock` of both. Raises as `_update`, also for a damaged target before the
    source is touched.
    """
    offset = read_offsets(files, os.path.join(source, names.CLEANER_OFFSET_CHECKPOINT)).get(topic_partition)
    if offset is None:
        return False
    read_offsets(files, os.path.join(target, names.CLEANER_OFFSET_CHECKPOINT))
    update_cleaner_checkpoint(files, source, {topic_partition: None})
    update_cleaner_checkpoint(files, target, {topic_partition: offset})
    return True


def forget_partition(files: Files, log_dir: str, topic_partition: TopicPartition) -> None:
    """Drop all entries of a log that is gone: they would be taken for those of a new one of that name. Needs `.lock`.

    A stale log start offset hides or deletes new records, a stale first dirty offset lets new tombstones go before the
    values that they delete. Raises as `_update`, before anything is written if it is for damage.
    """
    found = [n for n in _OF_A_LOG_DIR if topic_partition in read_offsets(files, os.path.join(log_dir, n))]
    for name in found:
        _update(files, log_dir, name, {topic_partition: None})


def update_log_start_checkpoint(
    files: Files, log_dir: str, offsets: Mapping[TopicPartition, int | None]
) -> None:
    """Set log start offsets, None drops an entry (rule 6.12); keep all other entries. Needs `.lock`.

    Raises as `_update`.
    """
    _update(files, log_dir, names.LOG_START_CHECKPOINT, offsets)


def _update(
    files: Files,
    log_dir: str,
    name: str,
    offsets: Mapping[TopicPartition, int | None],
    known: Collection[TopicPartition] | None = None,
) -> None:
    """Replace a checkpoint of a log directory: the old or the new one is there, whatever happens.

    Raises CorruptFile before anything is written, OSError.
    """
    path = os.path.join(log_dir, name)
    before = {tp: o for tp, o in read_offsets(files, path).items() if known is None or tp in known}
    entries = {tp: offset for tp, offset in {**before, **offsets}.items() if offset is not None}
    replace_file(files, path, render_offset_checkpoint(entries), os.path.join(log_dir, names.LOCK))


def replace_leader_epochs(files: Files, directory: str, epochs: Iterable[tuple[int, int]]) -> None:
    """Replace the leader epochs of a partition that has some. Needs `.lock`. Raises OSError."""
    path = os.path.join(directory, names.LEADER_EPOCH_CHECKPOINT)
    replace_file(files, path, render_leader_epochs(epochs), path)


def truncate_leader_epochs(files: Files, directory: str, offset: int) -> None:
    """Drop the epochs that start at `offset` or later. Needs `.lock`. Raises CorruptFile, OSError."""
    epochs = read_leader_epochs(files, directory)
    kept = [epoch for epoch in epochs if epoch.start_offset < offset]
    if len(kept) < len(epochs):
        replace_leader_epochs(files, directory, kept)
