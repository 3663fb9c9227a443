"""Delete the records of a log below an offset: they are gone for good (rules 6.3, 6.8, 6.12; Kafka's DeleteRecords).

Which topics allow it (KIP-1161): all but internal ones and those whose `cleanup.policy` is `compact` without `delete`. So
an empty policy does.

With `.lock` held for steps 1 and 2 together:

====  ==============================================================  =================================================
step  what is done                                                    a crash after it leaves
====  ==============================================================  =================================================
1     the segment that holds the last of these records is synced,     the log as it was
      and its directory: offsets below a durable log start must
      never be given out again
2     the new log start is written to `log-start-offset-checkpoint`,  a log that starts there; segments below it lie
      which is replaced as a whole                                    unread until a retention pass of any policy, or of
                                                                      its broker, takes them (6.3)
3     segments wholly below it become `.deleted` files, oldest first  a log that starts at a later segment, at or below
      (`storage.delete`)                                              the new log start: the entry of step 2 holds
4     `leader-epoch-checkpoint` is trimmed; the entry of step 2 is    the same, or leader epochs too many, which a broker
      dropped if the first segment implies it (6.9, 6.12)             folds when it loads the log
====  ==============================================================  =================================================

Not 3 before 2: after a crash, a log start that is not durable would be that of the first segment, and what was reported as
deleted would be there again. Steps 3 and 4 are those of a retention pass whose only limit is the log start, so no
other setting can take anything: the active segment stays, and so does what a broker has still to recover (`retain`).
"""

from dataclasses import replace

from cleanerd.cleaning.result import Size
from cleanerd.cleaning.retain import Dispose, Retained, retire_below_start
from cleanerd.config.model import TopicConfig
from cleanerd.errors import CleanerdError, LockHeld
from cleanerd.format import names
from cleanerd.format.names import INTERNAL_TOPICS, TopicPartition
from cleanerd.storage.checkpoints import update_checkpoint
from cleanerd.storage.log_dir import LogDir


class DeletionForbidden(CleanerdError):
    """Records of this log may not be deleted, or not these."""


class OffsetOutOfRange(DeletionForbidden):
    """The log start cannot be raised there: `high_watermark` is as far as it goes, 0 if there is no such log."""

    def __init__(self, topic_partition: TopicPartition, offset: int, high_watermark: int) -> None:
        super().__init__(
            f"{topic_partition}: offset {offset} is out of range: records can be deleted up to the high watermark, "
            f"which is {high_watermark}"
        )
        self.offset = offset
        self.high_watermark = high_watermark


def delete_records(
    log_dir: LogDir, tp: TopicPartition, offset: int, config: TopicConfig, *, dispose: Dispose | None = None
) -> Retained:
    """Delete the records of a log below `offset`, and the segments that hold no others.

    Returns the deleted segments and the log start offset, which may be higher than `offset`. `dispose`: as in `retain`.

    Raises DeletionForbidden; OffsetOutOfRange for an offset below 0 or above the high watermark; LockHeld while a broker
    lives: nothing has changed then. CorruptFile, SourceChanged, LogUncleanable, OSError: the log is whole, and to call again
    goes on where it was.
    """
    if tp.topic in INTERNAL_TOPICS:
        raise DeletionForbidden(f"{tp}: records of an internal topic cannot be deleted")
    if config.compact and not config.delete:
        raise DeletionForbidden(
            f"{tp}: its cleanup.policy is compact without delete, for which Kafka refuses this, too"
        )
    if config.remote_storage_enable:
        raise DeletionForbidden(
            f"{tp}: a part of it is in remote storage (remote.storage.enable), which only its broker can delete"
        )
    with log_dir.lock() as lock:
        snapshot = log_dir.scan(tp, log_dir.checkpoints())
        if snapshot is None:
            raise OffsetOutOfRange(tp, offset, 0)
        if not 0 <= offset <= snapshot.high_watermark:
            raise OffsetOutOfRange(tp, offset, snapshot.high_watermark)
        if offset > snapshot.log_start_offset:
            holding = [segment for segment in snapshot.segments if segment.base_offset < offset][-1]
            log_dir.files.fsync(holding.path)
            log_dir.files.fsync_dir(snapshot.directory)
            lock.check()
            update_checkpoint(log_dir.files, log_dir.path, names.LOG_START_CHECKPOINT, {tp: offset})
            snapshot = replace(snapshot, log_start_offset=offset)
    try:
        return retire_below_start(log_dir, snapshot, dispose=dispose)
    except LockHeld:  # a broker has come, which goes on from step 2
        return Retained(Size(), 0, 0, 0, (), snapshot.log_start_offset, rolled=False)
