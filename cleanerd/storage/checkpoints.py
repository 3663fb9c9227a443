"""The offset checkpoints of a log directory and the leader epochs of a partition: read, and the cleaner's own written.

A malformed checkpoint takes the whole directory of a broker offline (spec disk A7), so what is written is exact, and it is
only written while `.lock` is held: broker and cleanerd share the name of the temporary file.
"""

import os
from collections.abc import Mapping

from cleanerd.env.files import Files
from cleanerd.errors import CorruptFile
from cleanerd.format import names
from cleanerd.format.checkpoint import (
    EpochEntry,
    parse_leader_epochs,
    parse_offset_checkpoint,
    render_offset_checkpoint,
)
from cleanerd.format.errors import FormatError
from cleanerd.format.names import TopicPartition

from .scan import Checkpoints


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


def update_cleaner_checkpoint(files: Files, log_dir: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Set first dirty offsets, keep all other entries. Needs `.lock`.

    Written whole to `<name>.tmp`, synced, renamed over the old one, directory synced: a crash leaves old or new.
    """
    path = os.path.join(log_dir, names.CLEANER_OFFSET_CHECKPOINT)
    temporary = f"{path}.tmp"
    files.write(temporary, render_offset_checkpoint({**read_offsets(files, path), **offsets}))
    files.fsync(temporary)
    files.rename(temporary, path)
    files.fsync_dir(log_dir)
