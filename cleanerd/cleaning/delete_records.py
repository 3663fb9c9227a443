"""Raise the log start offset of a log: its records below are gone for good (rules 6.8, 6.12; Kafka's DeleteRecords).

The new log start is an entry of `log-start-offset-checkpoint`, replaced as a whole, so a crash leaves the old or the new
one. Segments that lie wholly below it go with the next retention pass, which drops the entry once the first segment says
as much.
"""

from cleanerd.env.files import Files
from cleanerd.errors import CleanerdError
from cleanerd.format.names import TopicPartition
from cleanerd.storage.checkpoints import update_log_start_checkpoint
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.scan import PartitionSnapshot


class OffsetOutOfRange(CleanerdError):
    """The log start cannot be raised there: `high_watermark` is as far as it goes, 0 if there is no such log."""

    def __init__(self, topic_partition: TopicPartition, offset: int, high_watermark: int) -> None:
        super().__init__(
            f"{topic_partition}: offset {offset} is out of range: records can be deleted up to the high watermark, "
            f"which is {high_watermark}"
        )
        self.offset = offset
        self.high_watermark = high_watermark


def delete_records(log_dir: LogDir, tp: TopicPartition, offset: int) -> int:
    """Delete the records of a log below `offset`; returns the log start offset, which is higher if it was already.

    Raises OffsetOutOfRange for an offset below 0 or above the high watermark; LockHeld while a broker lives; CorruptFile,
    SourceChanged, OSError. Nothing has changed then.
    """
    with log_dir.lock() as lock:
        snapshot = log_dir.scan(tp, log_dir.checkpoints())
        if snapshot is None:
            raise OffsetOutOfRange(tp, offset, 0)
        if not 0 <= offset <= snapshot.high_watermark:
            raise OffsetOutOfRange(tp, offset, snapshot.high_watermark)
        if offset > snapshot.log_start_offset:
            _sync_up_to(log_dir.files, snapshot, offset)
            lock.check()
            update_log_start_checkpoint(log_dir.files, log_dir.path, {tp: offset})
    return max(offset, snapshot.log_start_offset)


def _sync_up_to(files: Files, snapshot: PartitionSnapshot, offset: int) -> None:
    """Offsets below a durable log start must never be given out again: what uses them up has to be durable before."""
    holding = [segment for segment in snapshot.segments if segment.base_offset < offset][-1]
    files.fsync(holding.path)
    files.fsync_dir(snapshot.directory)
