"""The one segment that grows: its log and indexes as append-only files (spec disk B1-B6).

Order of writes in `append`: the aborted transaction, the batch, the index entries. So a reader that sees an
ABORT marker finds its transaction in the index, and one that follows an index entry finds the batch.

Index entries (spec disk B4): with *unindexed* the bytes of the batches since the last entry, before the next
is counted,
    unindexed > index.interval.bytes  ->  .index (last offset, start of the batch); unindexed = 0;
                                          .timeindex (largest timestamp so far, its offset) if that rose
and one last time index entry when the segment is closed.
"""

import os
from dataclasses import dataclass, field

from cleanerd.env.files import Files, new_file, open_own
from cleanerd.errors import CorruptFile
from cleanerd.format import offset_index, time_index
from cleanerd.format.batch import NO_TIMESTAMP, BatchHeader, checksum, parse_header
from cleanerd.format.errors import FormatError, corruption_in
from cleanerd.format.head import CRC_AT, LENGTH_AT, MAGIC_AT
from cleanerd.format.legacy import decode_entry
from cleanerd.format.names import MAX_OFFSET, FileKind, segment_path
from cleanerd.format.txn_index import AbortedTxn, render_txn_index
from cleanerd.storage.producer_state import ProducerState
from cleanerd.storage.segments import LogBatch, OpenSegment


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """The facts of an appended batch; `header` is None below magic 2."""

    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    header: BatchHeader | None


def check_batch(batch: bytes) -> BatchFacts:
    """Facts of bytes that are exactly one batch of any magic, its checksum verified.

    Raises: `FormatError` when they are not.
    """
    if len(batch) > MAGIC_AT and batch[MAGIC_AT] < 2:
        entry = decode_entry(batch)
        _expect_size(entry.size_bytes, batch)
        return BatchFacts(entry.base_offset, entry.last_offset, entry.timestamp_ms, None)
    header = parse_header(batch)
    _expect_size(header.size_bytes, batch)
    if header.crc != checksum(batch):
        raise FormatError(CRC_AT, f"CRC {header.crc:#010x}", f"{checksum(batch):#010x}")
    return BatchFacts(header.base_offset, header.last_offset, header.max_timestamp_ms, header)


def _expect_size(size_bytes: int, batch: bytes) -> None:
    if size_bytes != len(batch):
        raise FormatError(LENGTH_AT, f"a batch of {size_bytes} bytes", f"{len(batch)} bytes")


class IndexPacer:
    """Decides which index entries the batches of a segment get (spec disk B4)."""

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._unindexed_bytes = 0
        self._largest_timestamp_ms = NO_TIMESTAMP
        self._offset_of_largest = base_offset
        self._indexed_timestamp_ms = NO_TIMESTAMP

    def add(self, facts: BatchFacts, position: int, size_bytes: int) -> tuple[bytes, bytes]:
        """Entries for `.index` and `.timeindex` that come with the batch at `position`; mostly none."""
        if facts.max_timestamp_ms > self._largest_timestamp_ms:
            self._largest_timestamp_ms = facts.max_timestamp_ms
            self._offset_of_largest = facts.last_offset
        offset_entry = time_entry = b""
        if self._unindexed_bytes > self._interval_bytes:
            offset_entry = offset_index.ENTRY.pack(facts.last_offset - self._base_offset, position)
            time_entry = self.time_entry()
            self._unindexed_bytes = 0
        self._unindexed_bytes += size_bytes
        return offset_entry, time_entry

    def time_entry(self) -> bytes:
        """The entry of the largest timestamp so far, unless it is there already."""
        if self._largest_timestamp_ms <= self._indexed_timestamp_ms:
            return b""
        self._indexed_timestamp_ms = self._largest_timestamp_ms
        relative = self._offset_of_largest - self._base_offset
        return time_index.ENTRY.pack(self._largest_timestamp_ms, relative)


@dataclass(slots=True)
class SegmentScan:
    """A segment by its `.log`: the end of its batches, and the entries of its indexes up to there.

    `damage` is what stands at `size_bytes` instead of a batch, if anything does.
    """

    base_offset: int
    next_offset: int
    entries: IndexPacer
    size_bytes: int = 0
    offset_index: bytearray = field(default_factory=bytearray)
    time_index: bytearray = field(default_factory=bytearray)
    txn_index: bytearray = field(default_factory=bytearray)
    damage: CorruptFile | None = None


def scan_segment(
    directory: str,
    base_offset: int,
    interval_bytes: int,
    producers: ProducerState,
    end_offset: int = MAX_OFFSET,
) -> SegmentScan:
    """Read a segment up to the first batch that reaches `end_offset`, verify every batch before it, and move
    `producers` on by all of them.
    """
    scan = SegmentScan(base_offset, base_offset, IndexPacer(base_offset, interval_bytes))
    with OpenSegment(directory, base_offset) as segment:
        try:
            for batch in segment.batches():
                if batch.last_offset >= end_offset:
                    return scan
                _take(scan, batch, producers)
        except CorruptFile as damage:
            scan.damage = damage
        missing_bytes = segment.size_bytes - scan.size_bytes
        if missing_bytes and scan.damage is None:
            found = f"{missing_bytes} bytes of a torn one"
            scan.damage = CorruptFile(segment.path, scan.size_bytes, "a whole batch", found)
    return scan


def _take(scan: SegmentScan, batch: LogBatch, producers: ProducerState) -> None:
    with corruption_in(batch.path, batch.position):
        facts = check_batch(batch.data)
        if facts.base_offset < scan.next_offset:
            raise FormatError(0, f"an offset of {scan.next_offset} or more", facts.base_offset)
        aborted = None if facts.header is None else producers.apply(facts.header, batch.data)
    if aborted is not None:
        scan.txn_index += render_txn_index([aborted])
    offset_entry, time_entry = scan.entries.add(facts, batch.position, len(batch.data))
    scan.offset_index += offset_entry
    scan.time_index += time_entry
    scan.size_bytes = batch.position + len(batch.data)
    scan.next_offset = facts.last_offset + 1


class ActiveSegment:
    """The files of the segment that `scan` found, open for appending; indexes that differ from it are
    replaced.

    Without a `.log` an empty segment is created. After an `OSError` the files may hold half of something:
    scan again.
    """

    def __init__(self, files: Files, directory: str, scan: SegmentScan) -> None:
        assert scan.damage is None
        self.base_offset = scan.base_offset
        self.size_bytes = scan.size_bytes
        self._files = files
        self._directory = directory
        self._entries = scan.entries
        _settle(files, self._path(FileKind.OFFSET_INDEX), scan.offset_index)
        _settle(files, self._path(FileKind.TIME_INDEX), scan.time_index)
        if scan.txn_index or files.exists(self._path(FileKind.TXN_INDEX)):
            _settle(files, self._path(FileKind.TXN_INDEX), scan.txn_index)
        self._offset_index = self._open(FileKind.OFFSET_INDEX)
        self._time_index = self._open(FileKind.TIME_INDEX)
        self._txn_index: int | None = None
        self._log = self._open(FileKind.LOG)  # last: a segment that can be seen has its indexes

    def append(self, batch: bytes, facts: BatchFacts, aborted: AbortedTxn | None) -> None:
        """Write a batch and the index entries that come with it."""
        if aborted is not None:
            if self._txn_index is None:
                self._txn_index = self._open(FileKind.TXN_INDEX)
            _write(self._txn_index, render_txn_index([aborted]))
        _write(self._log, batch)
        offset_entry, time_entry = self._entries.add(facts, self.size_bytes, len(batch))
        if offset_entry:
            _write(self._offset_index, offset_entry)
        if time_entry:
            _write(self._time_index, time_entry)
        self.size_bytes += len(batch)

    def sync_log(self) -> None:
        """Sync the batches to stable storage."""
        os.fsync(self._log)

    def close(self, *, sync: bool) -> None:
        """Write the last time index entry, and let go of the files; with `sync` all are on stable storage."""
        _write(self._time_index, self._entries.time_entry())
        if sync:
            for fd in self._fds():
                os.fsync(fd)
            if self._txn_index is None and self._files.exists(self._path(FileKind.TXN_INDEX)):
                self._files.fsync(self._path(FileKind.TXN_INDEX))  # as it was found, or rebuilt from the log
        self.release()

    def release(self) -> None:
        """Close the files as they are."""
        for fd in self._fds():
            os.close(fd)

    def _fds(self) -> list[int]:
        fds = (self._log, self._offset_index, self._time_index, self._txn_index)
        return [fd for fd in fds if fd is not None]

    def _path(self, kind: FileKind) -> str:
        return segment_path(self._directory, self.base_offset, kind)

    def _open(self, kind: FileKind) -> int:
        path, flags = self._path(kind), os.O_WRONLY | os.O_APPEND
        try:
            return open_own(path, flags)
        except FileNotFoundError:
            os.close(new_file(path, mode=0o644))
            return open_own(path, flags)


def _settle(files: Files, path: str, content: bytearray) -> None:
    if not files.exists(path) or files.read(path) != content:
        files.write(path, bytes(content))


def _write(fd: int, data: bytes) -> None:
    """Write all of `data`, in several calls if the kernel takes only a part."""
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, data[written:])
