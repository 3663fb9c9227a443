"""A cooperating writer: appends batches to one partition while cleanerd cleans what lies behind (architecture
2).

Invariants
    1. `.lock` of the log directory is held while the set of segments changes: on opening, and on each roll.
    2. A closed segment is complete before its follower can be seen: indexes finished, then `<base>.snapshot`
    of the
       follower, then the follower's indexes, then its `.log`.
    3. The last segment is never merged by anybody, and the writer touches no other.
    4. Nothing is ever truncated, except a damaged tail when `repair` asks for it.

The directory gets no `meta.properties`: it belongs to no broker.
"""

import os
import threading
from types import TracebackType
from typing import Self

from cleanerd.client.active_segment import (
    ActiveSegment,
    BatchFacts,
    IndexEntries,
    SegmentScan,
    check_batch,
    scan_segment,
)
from cleanerd.client.producer_state import ProducerState
from cleanerd.client.replay import producers_at, snapshot_offsets
from cleanerd.client.segments import live_bases
from cleanerd.env.files import Files, RealFiles
from cleanerd.format.names import FileKind, SegmentFileName, TopicPartition
from cleanerd.format.producer_snapshot import ProducerEntry, render_producer_snapshot
from cleanerd.storage.lock import LogDirLock

INDEX_INTERVAL_BYTES = 4096
LOCK_WAIT_S = 10.0
_RELATIVE_OFFSET_MAX = 2**31 - 1
_REAL_FILES = RealFiles()


class LogWriter:
    """Appends to the log of one partition, from its end on; creates what does not exist. One writer and one
    thread at a time.

    `start_offset` is where a new log starts. `fsync` makes every append and roll durable before it returns.
    `repair` cuts off the active segment at the first byte that belongs to no whole and undamaged batch. The
    `.lock` is waited for `lock_wait_s` seconds at most.

    Raises: `CorruptFile` for a damaged tail without `repair`; `LockHeld`, before anything was changed. After
    an `OSError` the writer takes nothing more: open the log anew.
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
        fsync: bool = False,
        repair: bool = False,
        lock_wait_s: float = LOCK_WAIT_S,
        files: Files = _REAL_FILES,
    ) -> None:
        self.directory = os.path.join(log_dir, str(TopicPartition(topic, partition)))
        self._log_dir = log_dir
        self._segment_bytes = segment_bytes
        self._index_interval_bytes = index_interval_bytes
        self._fsync = fsync
        self._lock_wait_s = lock_wait_s
        self._files = files
        self._is_usable = True
        os.makedirs(self.directory, exist_ok=True)
        with self._lock():
            self._producers, scan = self._find_end(start_offset, repair=repair)
            self.log_end_offset = scan.next_offset
            self._segment = ActiveSegment(files, self.directory, scan)

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
        if self._fsync:
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
            self._segment.close(sync=self._fsync)
            self._write_snapshot()
            self._segment = ActiveSegment(self._files, self.directory, self._empty(self.log_end_offset))
            if self._fsync:
                self._files.fsync_dir(self.directory)
            self._is_usable = True

    def close(self) -> None:
        """Finish the indexes and write the producer state at the log end (spec disk B7)."""
        assert self._is_usable, "the writer is closed, or failed before"
        self._is_usable = False
        self._segment.close(sync=self._fsync)
        if self.log_end_offset > self._segment.base_offset:
            self._write_snapshot()

    def _lock(self) -> LogDirLock:
        return LogDirLock(self._log_dir, wait_s=self._lock_wait_s, wait=threading.Event().wait)

    def _is_full(self, batch_bytes: int, facts: BatchFacts) -> bool:
        if self._segment.size_bytes == 0:
            return False
        relative = facts.last_offset - self._segment.base_offset
        return self._segment.size_bytes + batch_bytes > self._segment_bytes or relative > _RELATIVE_OFFSET_MAX

    def _empty(self, base_offset: int) -> SegmentScan:
        return SegmentScan(base_offset, base_offset, IndexEntries(base_offset, self._index_interval_bytes))

    def _write_snapshot(self) -> None:
        path = self._snapshot_path(self.log_end_offset)
        self._files.write(path, render_producer_snapshot(self._producers.entries))
        if self._fsync:
            self._files.fsync(path)

    def _snapshot_path(self, offset: int) -> str:
        return os.path.join(self.directory, str(SegmentFileName(offset, FileKind.PRODUCER_SNAPSHOT)))

    def _find_end(self, start_offset: int, *, repair: bool) -> tuple[ProducerState, SegmentScan]:
        bases = live_bases(self.directory)
        if not bases:
            return ProducerState(), self._empty(start_offset)
        producers = producers_at(self.directory, bases[-1])
        scan = scan_segment(self.directory, bases[-1], self._index_interval_bytes, producers)
        if scan.damage is not None:
            if not repair:
                raise scan.damage
            os.truncate(scan.damage.path, scan.size_bytes)
            scan.damage = None
        for offset in snapshot_offsets(self.directory):
            if offset not in bases:  # of an earlier end of the log; Kafka removes them too
                self._files.unlink(self._snapshot_path(offset))
        return producers, scan
