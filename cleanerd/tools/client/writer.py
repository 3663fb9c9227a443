"""A cooperating writer: appends batches to one partition while cleanerd cleans what lies behind (architecture 2).

Invariants
    1. `.lock` of the log directory is held while the set of segments changes: on opening, on each roll, and while
       records are taken from the end.
    2. A closed segment is complete before its follower can be seen: indexes finished, then `<base>.snapshot` of the
       follower, then the follower's indexes, then its `.log`.
    3. The last segment is never merged, and the writer touches no other but to truncate.
    4. What was truncated cannot be committed over: every truncation begins a new generation of the log
       (`storage.generation`), also one of the active segment only, for a cleaning looks at the markers in it.

The directory gets no `meta.properties`: it belongs to no broker.
"""

import os
import threading
import uuid
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from cleanerd.env.clock import Clock, SystemClock
from cleanerd.env.files import Files, RealFiles
from cleanerd.errors import BadUsage
from cleanerd.format.names import (
    LOCK,
    SEGMENT_MAX_BYTES,
    DirKind,
    FileKind,
    TopicPartition,
    parse_partition_dir,
    segment_path,
)
from cleanerd.format.offset_index import INDEX_INTERVAL_BYTES
from cleanerd.format.producer_snapshot import ProducerEntry, render_producer_snapshot
from cleanerd.policy.grouping import MAX_RELATIVE_OFFSET
from cleanerd.storage.checkpoints import forget_partition
from cleanerd.storage.generation import begin_log, end_truncation
from cleanerd.storage.lock import LogDirLock
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.producer_state import ProducerState, producers_at, snapshot_offsets
from cleanerd.storage.segments import live_bases
from cleanerd.tools.client.active_segment import (
    ActiveSegment,
    BatchFacts,
    IndexPacer,
    SegmentScan,
    check_batch,
    scan_segment,
)
from cleanerd.tools.client.truncate import (
    Truncation,
    finish_truncation,
    prepare_truncation,
    truncate_log,
)

LOCK_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """Options of a writer.

    `repair` cuts off the active segment at the first byte that belongs to no whole and undamaged batch. `fsync` makes every
    append and roll durable before it returns. The `.lock` is waited for `lock_wait_s` seconds at most.
    Producers that are idle by
    `clock` for `producer_expiration_ms` (`producer.id.expiration.ms` of a broker, which has a day) leave the state when a
    snapshot of it is written; None: never.
    """

    repair: bool = False
    fsync: bool = False
    lock_wait_s: float = LOCK_WAIT_S
    producer_expiration_ms: int | None = None
    clock: Clock = field(default_factory=SystemClock)
    files: Files = field(default_factory=RealFiles)


_DEFAULTS = WriterOptions()


class LogWriter:
    """Appends to the log of one partition, from its end on; creates what does not exist. One writer and one
    thread at a time.

    `start_offset` is where a new log starts.

    Raises: `BadUsage` for an invalid name or segment size; `CorruptFile` for a damaged tail without
    `options.repair`, and for a checkpoint that may belong to an earlier log of this name; `LockHeld`; before anything was
    changed. After an `OSError` the writer takes nothing more: open the log again.
    """

    def __init__(
        self,
        log_dir: str,
        topic: str,
        partition: int,
        *,
        segment_bytes: int,
        index_interval_bytes: int = INDEX_INTERVAL_BYTES,
        start_offset: int = 0,
        options: WriterOptions = _DEFAULTS,
    ) -> None:
        self._topic_partition = TopicPartition(topic, partition)
        if parse_partition_dir(str(self._topic_partition)) != (self._topic_partition, DirKind.CURRENT):
            raise BadUsage(f"{self._topic_partition} is no name for a partition")
        if not 0 < segment_bytes <= SEGMENT_MAX_BYTES:
            raise BadUsage(f"segment_bytes: expected 1 to {SEGMENT_MAX_BYTES}, found {segment_bytes}")
        self._partition = PartitionDir.of(options.files, log_dir, self._topic_partition)
        self.directory = self._partition.path
        self._log_dir = log_dir
        self._segment_bytes = segment_bytes
        self._index_interval_bytes = index_interval_bytes
        self._options = options
        self._files = options.files
        self._is_usable = True
        os.makedirs(self.directory, exist_ok=True)
        with self._lock():
            self._producers, scan = self._find_end(start_offset)
            self.log_end_offset = scan.next_offset
            self._segment = ActiveSegment(self._files, self.directory, scan)
            # an append is worth nothing while the name of its file is not on stable storage
            if options.fsync:
                self._files.fsync_dir(self.directory)
                self._files.fsync_dir(log_dir)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_usable:
            self.close()

    @property
    def active_base_offset(self) -> int:
        """Base offset of the segment that is being appended to."""
        return self._segment.base_offset

    @property
    def producers(self) -> tuple[ProducerEntry, ...]:
        """Producer state at the log end."""
        return self._producers.entries

    def append(self, batch: bytes) -> None:
        """Append one encoded batch of any magic, whose base offset is the log end offset.

        Rolls first when the batch would make the segment larger than `segment_bytes`. Raises: `FormatError`
        for bytes that are no such batch, `LockHeld` when a roll is due; the log is unchanged then.
        """
        facts = check_batch(batch)
        if facts.base_offset != self.log_end_offset:
            raise ValueError(
                f"the batch starts at {facts.base_offset}, the log ends at {self.log_end_offset}"
            )
        if self._is_full(len(batch), facts):
            self.roll()
        assert self._is_usable, "the writer is closed, or failed before"
        aborted = None if facts.header is None else self._producers.apply(facts.header, batch)
        self._is_usable = False
        self._segment.append(batch, facts, aborted)
        if self._options.fsync:
            self._segment.sync_log()
        self.log_end_offset = facts.last_offset + 1
        self._is_usable = True

    def roll(self) -> None:
        """Close the active segment and start one at the log end; nothing happens when it is empty.

        Raises: `LockHeld`; the log is unchanged then.
        """
        if self._segment.size_bytes == 0:
            return
        with self._lock():
            assert self._is_usable, "the writer is closed, or failed before"
            self._is_usable = False
            self._start_segment()
            self._is_usable = True

    def truncate(self, offset: int) -> None:
        """Take all records at `offset` and above from the log, which then ends exactly there (rule 2.7).

        A batch that reaches `offset` goes as a whole. At the log end or above nothing happens. What a cleaning has
        removed does not come back, also where a record that is truncated was the reason (`truncate`).

        Raises: ValueError below the first segment; `LockHeld`, `LogUncleanable` for
        an interrupted commit that cannot be resolved, `CorruptFile` for damage below `offset`: the log is unchanged then.
        After an `OSError` it ends at `offset` or above.
        """
        if offset >= self.log_end_offset:
            return
        with self._lock():
            assert self._is_usable, "the writer is closed, or failed before"
            prepare_truncation(self._files, self._log_dir, self._topic_partition)
            self._cut(offset)
            self._partition.sync()
            end_truncation(self._partition)
            self._is_usable = True

    def close(self) -> None:
        """Finish the indexes and write the producer state at the log end (spec disk B7)."""
        assert self._is_usable, "the writer is closed, or failed before"
        self._is_usable = False
        self._segment.close(sync=self._options.fsync)
        if self.log_end_offset > self._segment.base_offset:
            self._write_snapshot()

    def _lock(self) -> LogDirLock:
        return LogDirLock(self._log_dir, wait_s=self._options.lock_wait_s, wait=threading.Event().wait)

    def _cut(self, offset: int) -> None:
        """Steps 1 to 7 of `truncate`."""
        bases = [base for base in live_bases(self.directory) if base <= offset]
        if not bases:
            raise ValueError(f"the log starts above {offset}")
        producers = producers_at(self.directory, bases[-1])
        scan = scan_segment(self.directory, bases[-1], self._index_interval_bytes, producers, offset)
        if scan.damage is not None:
            raise scan.damage
        self._is_usable = False
        self._segment.release()
        cut = Truncation(offset, bases[-1], scan.size_bytes)
        truncate_log(self._files, self._log_dir, self._topic_partition, cut, uuid.uuid4().hex)
        self._producers, self.log_end_offset = producers, offset
        self._segment = ActiveSegment(self._files, self.directory, scan)
        if scan.next_offset < offset:  # else offsets below it would be given out a second time
            self._start_segment()

    def _start_segment(self) -> None:
        """Close the active segment and start one at the log end."""
        self._segment.close(sync=self._options.fsync)
        self._write_snapshot()
        # invariant 2 holds after a power cut, too: the transaction index may be a new file
        if self._options.fsync:
            self._files.fsync_dir(self.directory)
        self._segment = ActiveSegment(self._files, self.directory, self._empty(self.log_end_offset))
        if self._options.fsync:
            self._partition.sync()

    def _is_full(self, batch_bytes: int, facts: BatchFacts) -> bool:
        if self._segment.size_bytes == 0:
            return False
        relative = facts.last_offset - self._segment.base_offset
        return self._segment.size_bytes + batch_bytes > self._segment_bytes or relative > MAX_RELATIVE_OFFSET

    def _empty(self, base_offset: int) -> SegmentScan:
        return SegmentScan(base_offset, base_offset, IndexPacer(base_offset, self._index_interval_bytes))

    def _write_snapshot(self) -> None:
        if self._options.producer_expiration_ms is not None:
            self._producers.forget_idle(self._options.clock.now_ms() - self._options.producer_expiration_ms)
        path = self._snapshot_path(self.log_end_offset)
        self._files.write(path, render_producer_snapshot(self._producers.entries))
        if self._options.fsync:
            self._files.fsync(path)

    def _snapshot_path(self, offset: int) -> str:
        return segment_path(self.directory, offset, FileKind.PRODUCER_SNAPSHOT)

    def _find_end(self, start_offset: int) -> tuple[ProducerState, SegmentScan]:
        bases = live_bases(self.directory)
        if not bases:
            forget_partition(self._files, self._log_dir, self._topic_partition)
            lock = os.path.join(self._log_dir, LOCK)
            begin_log(self._partition, uuid.uuid4().hex, like=lock)
            return ProducerState(), self._empty(start_offset)
        producers = producers_at(self.directory, bases[-1])
        scan = scan_segment(self.directory, bases[-1], self._index_interval_bytes, producers)
        if scan.damage is not None:
            if not self._options.repair:
                raise scan.damage
            self._files.truncate(scan.damage.path, scan.size_bytes)
            scan.damage = None
        for offset in snapshot_offsets(self.directory):
            if offset not in bases:  # of an earlier end of the log; Kafka removes them too
                self._files.unlink(self._snapshot_path(offset))
        finish_truncation(self._partition, bases[-1], scan.next_offset)
        end_truncation(self._partition)
        return producers, scan
