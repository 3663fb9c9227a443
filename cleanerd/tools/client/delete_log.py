"""Delete the log of a partition (rules 2.9, 5.23).

====  ===========================================================  =====================================================
step  what is done                                                 what a crash after it leaves
====  ===========================================================  =====================================================
1     the cleaner is asked to stop (`control`), `.lock` is taken   the log as it was
2     its entry in `cleaner-offset-checkpoint` is dropped          the log as it was; it will be cleaned from its start
3     `<topic>-<partition>` -> `<topic>-<partition>.<32 hex        no log; whatever was being made for it lies in the
      digits>-delete`; the log directory is synced                 renamed directory, or is for other files than those of
                                                                   a new log of that name
4     its entries in the other checkpoints are dropped             the same
5     on request the renamed directory is removed                  some of its files, never read
====  ===========================================================  =====================================================

A new log of that name must not inherit entries of the old one; those that a crash between 3 and 4 leaves are dropped by the
writer that makes it. Kafka deletes a directory whose name ends in `-delete` after a start, and the daemon does where no
broker will come, both after file.delete.delay.ms.
"""

import os
import shutil
import threading
import uuid

from cleanerd.env.files import Files, RealFiles
from cleanerd.format.names import TopicPartition, deleted_dir_name
from cleanerd.storage.checkpoints import forget_partition, read_checkpoints, update_cleaner_checkpoint
from cleanerd.storage.lock import LogDirLock
from cleanerd.tools.client.control import DaemonControl, stopped
from cleanerd.tools.client.writer import LOCK_WAIT_S

_REAL_FILES = RealFiles()


def delete_log(
    log_dir: str,
    topic: str,
    partition: int,
    *,
    remove: bool = False,
    control: DaemonControl | None = None,
    lock_wait_s: float = LOCK_WAIT_S,
    files: Files = _REAL_FILES,
) -> str:
    """Delete a log that no writer has open; returns the path of the renamed directory.

    With `remove` its files are gone for good; otherwise that is left to a later clean-up. Raises FileNotFoundError when
    there is no such log; LockHeld, Retryable from `control`, CorruptFile for a damaged checkpoint, all before anything was
    changed; OSError, after which it may be called again.
    """
    topic_partition = TopicPartition(topic, partition)
    directory = os.path.join(log_dir, str(topic_partition))
    renamed = os.path.join(log_dir, deleted_dir_name(topic_partition, uuid.uuid4().hex))
    lock = LogDirLock(log_dir, wait_s=lock_wait_s, wait=threading.Event().wait)
    with stopped(control, topic_partition), lock:
        files.list_names(directory)  # there must be one
        if topic_partition in read_checkpoints(files, log_dir).cleaner:
            update_cleaner_checkpoint(files, log_dir, {topic_partition: None})
        files.rename(directory, renamed)
        files.fsync_dir(log_dir)
        forget_partition(files, log_dir, topic_partition)
    if remove:
        shutil.rmtree(renamed)
        files.fsync_dir(log_dir)
    return renamed
