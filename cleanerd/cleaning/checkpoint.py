"""Step 9 of a cleaning: the first dirty offset, once for all log directories of a broker."""

import os
from collections.abc import Mapping, Sequence

from cleanerd.cleaning.lock import commit_lock
from cleanerd.cleaning.siblings import siblings
from cleanerd.env.files import Files
from cleanerd.errors import CleanerdError, DirOffline, LockHeld, guarded
from cleanerd.format import names
from cleanerd.format.names import TopicPartition
from cleanerd.storage.checkpoints import read_offsets, update_cleaner_checkpoint


def record_cleaned(
    files: Files, log_dir: str, ends: Mapping[TopicPartition, int], *, log_dirs: Sequence[str], is_kafka: bool
) -> None:
    """Write first dirty offsets; no other one of `log_dirs` that is of the same broker keeps an entry of these partitions.

    A partition whose topic was created again, or whose replica was moved, leaves an entry in the directory where it was,
    and a broker's cleaner dies of two. The old one goes first: a crash in between costs the entry, so that the log is
    cleaned from its start. Where it cannot go, because another process has that directory or it fails, no new one is
    written. What else is wrong with another directory is no reason not to write in this one: a broker reads none that fails.

    Needs `.lock` of `log_dir`. Raises CorruptFile, before anything is written if it is about `log_dir`; OSError.
    """
    read_offsets(files, os.path.join(log_dir, names.CLEANER_OFFSET_CHECKPOINT))
    kept: set[TopicPartition] = set()
    for other in siblings(files, log_dir, log_dirs) if is_kafka else ():
        stale = _entries(files, other) & ends.keys()
        if stale and not _forget(files, other, stale):
            kept |= stale
    ours = {tp: end for tp, end in ends.items() if tp not in kept}
    if ours:
        update_cleaner_checkpoint(files, log_dir, ours)


def _entries(files: Files, log_dir: str) -> set[TopicPartition]:
    """Partitions with an entry. A checkpoint that cannot be read has none: a broker takes its directory offline."""
    path = os.path.join(log_dir, names.CLEANER_OFFSET_CHECKPOINT)
    found = guarded(lambda: read_offsets(files, path), path)
    return set() if isinstance(found, CleanerdError) else set(found)


def _forget(files: Files, log_dir: str, stale: set[TopicPartition]) -> bool:
    try:
        with commit_lock(log_dir, is_kafka=True):
            update_cleaner_checkpoint(files, log_dir, dict.fromkeys(stale))
    except (LockHeld, DirOffline, OSError):
        return False
    return True
