"""Close the active segment of a log, so that its records can be cleaned (rule 1.9).

With `.lock` held, so that no broker and no writer opens the log meanwhile:

====  ==============================================================  =================================================
step  what is done                                                    a crash after it leaves
====  ==============================================================  =================================================
1     the log is looked at: it is whole, its indexes are complete,    the log as it was
      and no other process has its active segment open
2     the files of the active segment are synced: what lies below     the log as it was
      an empty segment must be on disk, for its broker will not look
      below the recovery point, which is there already
3     an empty segment begins at the log end: producer snapshot,      the log as it was, or rolled: see there
      indexes, `.log` (`storage.roll`)
====  ==============================================================  =================================================

Beside a live broker all of that is the broker's own roll (`UnifiedLog.roll`), if it can be asked.

What a broker does more at its own roll, it has done when it closed the log, or has nothing to do with the files: the last
entry of the time index, indexes cut to their length, the flush, the recovery point. So a log that its broker did not close
is not rolled: nothing of it is cleanable beyond its recovery point anyway.

A cooperating writer keeps its segment open for its life and takes `.lock` only to roll. What it appended to a segment that
was closed behind its back would be lost, so it is asked of the kernel whether the file is open.
"""

import os
import threading

from cleanerd.broker_agent import live_logs
from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.env.files import Files
from cleanerd.errors import CorruptFile, LockHeld, LogUncleanable, NoWayIn
from cleanerd.format import names
from cleanerd.format.names import SEGMENT_KINDS, FileKind, TopicPartition
from cleanerd.storage.index_files import walk_headers
from cleanerd.storage.lock import is_open_elsewhere
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.producer_state import producers_at
from cleanerd.storage.roll import roll_segment
from cleanerd.storage.scan import PartitionSnapshot

_FLUSH_S, _FLUSH_TRIES = 0.05, 100


def roll(log_dir: LogDir, tp: TopicPartition, brokers: LiveBrokers) -> None:
    """Close the active segment of a log, by its live broker where there is one; nothing happens where it is empty.

    Raises as `roll_log`: LockHeld also where the broker cannot be asked.
    """
    try:
        roll_log(log_dir, tp)
    except LockHeld as held:
        brokers.check(held, log_dir)
        _roll_live(log_dir, tp, brokers)


def _roll_live(log_dir: LogDir, tp: TopicPartition, brokers: LiveBrokers) -> None:
    """The broker flushes the segment in a thread of its own: until then it is not cleanable, so that is waited for."""
    partition = log_dir.partition(tp)
    try:
        rolled = live_logs.roll(brokers.session(log_dir.path), partition, tp)
        error = rolled.error(partition.path)
        if error is not None:
            raise error
        for _ in range(_FLUSH_TRIES):
            described = live_logs.describe(brokers.session(log_dir.path), log_dir.path, [tp])
            flushed = [log.recovery_point for log in described if not log.is_future]
            if rolled.active_base_offset is None or min(flushed, default=0) >= rolled.active_base_offset:
                return
            threading.Event().wait(_FLUSH_S)
    except NoWayIn as error:
        raise LockHeld(f"{partition.path}: {error}") from error


def roll_log(log_dir: LogDir, tp: TopicPartition) -> None:
    """Close the active segment of a log that no broker has; nothing happens where it is empty.

    Raises LockHeld while another process has `.lock` or the segment; LogUncleanable for a log that was not closed as it
    should be; CorruptFile, SourceChanged: the log is as it was. OSError: it is that, or rolled.
    """
    with log_dir.lock() as lock:
        snapshot = log_dir.scan(tp, log_dir.checkpoints())
        if snapshot is None or not snapshot.segments[-1].size_bytes:
            return
        _check_closed(log_dir.files, snapshot)
        active, partition = snapshot.segments[-1], log_dir.partition(tp)
        producers = producers_at(snapshot.directory, snapshot.log_end_offset).entries
        for kind in active.kinds.intersection(SEGMENT_KINDS):
            log_dir.files.fsync(active.sibling(kind))
        lock.check()
        roll_segment(partition, snapshot.log_end_offset, producers, like=active.path)


def is_closed_by_broker(files: Files, snapshot: PartitionSnapshot) -> bool:
    """Whether a broker closed this log and left nothing behind its end: only then the indexes of the active segment are
    complete. A recovery point elsewhere than at the log end means that bytes are missing, or too many.
    """
    marker = os.path.join(snapshot.log_dir, names.CLEAN_SHUTDOWN)
    is_whole = snapshot.recovery_point == snapshot.log_end_offset
    return snapshot.is_kafka and is_whole and files.exists(marker)


def _check_closed(files: Files, snapshot: PartitionSnapshot) -> None:
    active = snapshot.segments[-1]
    largest_ms, end = walk_headers(active.path, active.identity)
    if end < active.size_bytes:
        raise CorruptFile(active.path, end, "a whole batch", "a torn one: open the log once with its owner")
    if snapshot.is_kafka and not is_closed_by_broker(files, snapshot):
        raise LogUncleanable(
            f"{snapshot.directory}: its broker was killed, or did not close it: start and stop it once before a roll"
        )
    if not snapshot.is_kafka and is_open_elsewhere(active.path):
        raise LockHeld(
            f"{active.path}: another process has it open: only that can roll the log, or must end first"
        )
    if not snapshot.is_kafka and active.facts.largest_timestamp_ms < largest_ms:
        raise LogUncleanable(
            f"{active.sibling(FileKind.TIME_INDEX)}: is not complete: open the log once with its writer before a roll"
        )
