"""The offset checkpoints of a log directory and the leader epochs of a partition: read, and the cleaner's own written.

A malformed checkpoint takes the whole directory of a broker offline (spec disk A7), so what is written is exact, and it is
only written while `.lock` is held. The temporary file is not Kafka's `<name>.tmp`: left behind by another user, that one
would keep the broker from writing its own.
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

    1. Write everything to `<name>.cleanerd`, with owner and permissions of the old file, or of `.lock`; sync it.
    2. Rename it over the old one; sync the directory.
    A crash leaves the old or the new file, and at most a temporary one that no broker looks at. Raises CorruptFile before
    anything is written, OSError.
    """
    path = os.path.join(log_dir, names.CLEANER_OFFSET_CHECKPOINT)
    content = render_offset_checkpoint({**read_offsets(files, path), **offsets})
    temporary = f"{path}{names.Suffix.STAGED.value}"
    if files.exists(temporary):
        files.unlink(temporary)  # whose it is, it may not be writable
    files.write(temporary, content)
    files.adopt_owner(temporary, path if files.exists(path) else os.path.join(log_dir, names.LOCK))
    files.fsync(temporary)
    files.rename(temporary, path)
    files.fsync_dir(log_dir)
