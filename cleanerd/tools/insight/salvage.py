"""`salvage`: a copy of a partition directory that holds every sound batch and nothing else; the original stays as it is.

    report = salvage("/data/kafka-logs/orders-3", "/restore/orders-3")
    for lost in report.damage: ...

Batches are copied byte for byte. Damaged batches, and bytes that are no batch, are left out and listed, range by range.
Segments keep their base offsets; one whose offsets or size do not fit its indexes is split. Offset, time and transaction
indexes are built from the batches, and a transaction index that can be read adds the aborts whose markers are lost. The
leader epochs and the topic id come along; producer snapshots are written for the last segment and the end of the log, so
that a broker that stopped in order does not start with an empty producer state (spec disk D2). What the disk cannot read
counts as zeros.

Until all of it is written and synced the new files have a suffix that brokers ignore. A crash leaves a directory without
`.log` files, or a complete one.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from cleanerd.env.files import Files, RealFiles, open_regular
from cleanerd.errors import BadUsage, CorruptFile, SourceChanged
from cleanerd.format import names
from cleanerd.format.batch import parse_header
from cleanerd.format.checkpoint import (
    EpochEntry,
    parse_leader_epochs,
    parse_offset_checkpoint,
    render_leader_epochs,
)
from cleanerd.format.errors import FormatError
from cleanerd.format.names import (
    MAX_OFFSET,
    SEGMENT_MAX_BYTES,
    FileKind,
    SegmentFileName,
    parse_partition_dir,
    segment_path,
)
from cleanerd.format.offset_index import INDEX_INTERVAL_BYTES
from cleanerd.format.partition_metadata import parse_partition_metadata, render_partition_metadata
from cleanerd.format.producer_snapshot import render_producer_snapshot
from cleanerd.format.txn_index import AbortedTxn
from cleanerd.kernels.tables import Bytes, Table
from cleanerd.policy.grouping import MAX_RELATIVE_OFFSET
from cleanerd.storage.index_files import read_txn_index
from cleanerd.storage.partition_dir import bases_of, why_not_whole
from cleanerd.storage.producer_state import ProducerState

from .new_segment import NewSegment, check_stopped
from .partition_check import waiting_swaps
from .regular_files import CarefulFiles, file_size, read_around_bad_sectors
from .walk import Bounds, Damage, Sound, walk_log

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Lost:
    """Bytes [`start`, `end`) of a file that are not in the copy, and why; `code` is one of `findings`."""

    path: str
    start: int
    end: int
    code: str
    expected: str
    found: str


@dataclass(slots=True)
class SalvageReport:
    """The content of the copy, and its losses. `open_transactions`: producers whose transaction has lost its end.

    `segments` are the base offsets of the copy. `end_offset` is that of the copy. `log_start_offset` is that of the original
    by the checkpoint of its log directory, 0 without one: the copy holds what lies in the same segment below it, too.
    """

    source: str
    output: str
    segments: list[int] = field(default_factory=list)
    damage: list[Lost] = field(default_factory=list)
    batches: int = 0
    records: int = 0
    bytes_kept: int = 0
    end_offset: int = 0
    log_start_offset: int = 0
    open_transactions: tuple[int, ...] = ()

    @property
    def bytes_lost(self) -> int:
        """Bytes of the original that are not in the copy."""
        return sum(lost.end - lost.start for lost in self.damage)


def salvage(
    source: str,
    output: str,
    *,
    index_interval_bytes: int = INDEX_INTERVAL_BYTES,
    segment_bytes_max: int = SEGMENT_MAX_BYTES,
    files: Files | None = None,
) -> SalvageReport:
    """Copy the sound batches of the partition directory `source` to the new directory `output`.

    Raises: `BadUsage` for directories that cannot be meant; `LockHeld` while a process holds the log directory of `source`;
    `OSError` when `output` cannot be written, and nothing of it is left then.
    """
    source, output = os.path.abspath(source), os.path.abspath(output)
    _check_usage(source, output)
    files = files or RealFiles()
    created = not os.path.isdir(output)
    os.makedirs(output, exist_ok=True)
    work = _Salvage(source, output, index_interval_bytes, segment_bytes_max, files)
    try:
        report = work.run()
    except BaseException:
        for name in os.listdir(output):
            files.unlink(os.path.join(output, name))
        if created:
            os.rmdir(output)
        raise
    files.fsync_dir(os.path.dirname(output))
    return report


def _check_usage(source: str, output: str) -> None:
    if parse_partition_dir(os.path.basename(source)) is None:
        raise BadUsage(f"{source}: expected a partition directory, named TOPIC-PARTITION")
    if not os.path.isdir(source):
        raise BadUsage(f"{source}: expected a directory")
    lacking = why_not_whole(source, os.listdir(source))
    if lacking is not None:
        raise BadUsage(lacking)
    waiting = waiting_swaps(os.listdir(source))
    if waiting:
        raise BadUsage(
            f"{source}: a cleaning was interrupted, {waiting[0]} waits to take the place of segments that may be gone: "
            "start the broker once, or run `cleanerd clean` where there is none; or put it in its place by hand"
        )
    if os.path.lexists(output) and (not os.path.isdir(output) or os.listdir(output)):
        raise BadUsage(f"{output}: expected a new or an empty directory")
    if os.path.realpath(output).startswith(os.path.realpath(source) + os.sep):
        raise BadUsage(f"{output}: lies in the directory that is to be copied")
    parent = os.path.dirname(output)
    if os.path.lexists(os.path.join(parent, names.META_PROPERTIES)):
        if parse_partition_dir(os.path.basename(output)) is None:
            raise BadUsage(f"{output}: with a directory of this name no broker of {parent} starts")
        check_stopped(parent)
    check_stopped(os.path.dirname(source))


class _Salvage:
    """A copy in progress."""

    def __init__(
        self, source: str, output: str, interval_bytes: int, segment_bytes_max: int, files: Files
    ) -> None:
        self._report = SalvageReport(source, output)
        self._source = source
        self._output = output
        self._interval_bytes = interval_bytes
        self._segment_bytes_max = segment_bytes_max
        self._files = files
        self._producers = ProducerState()
        self._segment: NewSegment | None = None
        self._written: list[NewSegment] = []
        self._aborted: dict[int, AbortedTxn] = {}  # by the offset of the marker
        self._lost_at: list[int] = []  # the offset after the batch before each damage
        self._covered: list[npt.NDArray[np.int64]] = []  # (first, last offset) of the batches of one segment
        self._epochs: list[EpochEntry] = []
        self._last_snapshot: bytes = b""
        self._owner: int | None = (
            None  # of the file that is read: as root nothing of it is given to anybody else
        )

    def run(self) -> SalvageReport:
        bases = bases_of(os.listdir(self._source))
        if not bases:
            raise BadUsage(f"{self._source}: no segment lies there")
        try:
            for base, next_base in zip(bases, [*bases[1:], None], strict=True):
                self._copy_segment(base, next_base)
            self._finish(bases[-1])
        finally:
            if self._segment is not None:
                self._segment.abandon()
        return self._report

    def _copy_segment(self, base: int, next_base: int | None) -> None:
        """Sound batches of one segment, into as many as they need."""
        path = segment_path(self._source, base, FileKind.LOG)
        try:
            with open_regular(path, follow_links=True) as fd:
                limit = min(base + MAX_RELATIVE_OFFSET + 1, MAX_OFFSET) if next_base is None else next_base
                bounds = Bounds(base, limit, MAX_OFFSET, 0, file_size(fd))
                self._owner = os.fstat(fd).st_uid
                for found in walk_log(fd, path, bounds, read=read_around_bad_sectors):
                    if isinstance(found, Damage):
                        self._lose(path, found)
                    else:
                        self._keep(path, base, found)
        except OSError as error:
            if error.filename != path:
                raise
            lost = Damage("unreadable", 0, 0, "a readable file", error.strerror or str(error))
            self._lose(path, lost)
        self._owner = None
        self._read_aborted(base, MAX_OFFSET if next_base is None else next_base)
        self._close_segment()
        self._covered = []

    def _lose(self, path: str, damage: Damage) -> None:
        self._lost_at.append(self._report.end_offset)
        self._report.damage.append(
            Lost(path, damage.start, damage.end, damage.code, damage.expected, damage.found)
        )

    def _keep(self, path: str, base: int, found: Sound) -> None:
        """Copy sound batches; where the next one does not fit the open segment, another one begins."""
        rows, begin = found.batches, 0
        if self._segment is None:
            fits = int(rows["last_offset"][0]) - base <= MAX_RELATIVE_OFFSET
            self._open_segment(base if fits else int(rows["base_offset"][0]), path)
        while begin < len(rows):
            assert self._segment is not None
            end = begin + self._segment.fitting(rows[begin:], self._segment_bytes_max)
            if end == begin:
                self._close_segment()
                self._open_segment(int(rows["base_offset"][begin]), path)
                continue
            self._segment.append(found.piece.raw, rows[begin:end])
            self._follow(found.piece.raw, rows[begin:end])
            begin = end
        self._covered.append(np.column_stack([rows["base_offset"], rows["last_offset"]]))
        self._report.batches += len(rows)
        self._report.records += len(found.part.records)

    def _open_segment(self, base_offset: int, like: str) -> None:
        self._last_snapshot = render_producer_snapshot(self._producers.entries)
        self._segment = NewSegment(self._files, self._output, base_offset, like)
        if self._owner is not None and self._segment.owner != self._owner:
            raise SourceChanged(f"{like}: was exchanged for a file of another user while it was copied")

    def _close_segment(self) -> None:
        if self._segment is not None:
            self._segment.close(self._interval_bytes)
            self._written.append(self._segment)
            self._segment = None

    def _follow(self, raw: Bytes, rows: Table) -> None:
        """Producers, transactions and epochs, as a broker's replay sees them."""
        epochs = rows["leader_epoch"]
        for row in [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist()]:
            epoch = int(epochs[row])
            if epoch >= 0 and (not self._epochs or epoch > self._epochs[-1].epoch):
                self._epochs.append(EpochEntry(epoch, int(rows["base_offset"][row])))
        for row in np.flatnonzero(rows["producer_id"] >= 0).tolist():
            start = int(rows["position"][row])
            batch = raw[start : start + int(rows["size"][row])].tobytes()
            try:
                txn = self._producers.apply(parse_header(batch), batch)
            except FormatError:
                continue  # a marker of a form that only its broker knows
            if txn is not None:
                self._aborted[txn.last_offset] = txn
        self._report.end_offset = int(rows["last_offset"][-1]) + 1

    def _read_aborted(self, base: int, next_base: int) -> None:
        """Entries of the original's index for transactions whose markers are lost.

        No CRC covers that index: an entry that names an offset of a batch that is there is either known or wrong. But it
        knows better where an abort began when a marker may be lost before: what that one ended was not aborted.
        """
        path = segment_path(self._source, base, FileKind.TXN_INDEX)
        try:
            txns = read_txn_index(CarefulFiles(), path, base, is_written=False)
        except (CorruptFile, OSError):
            return  # rebuilt from the markers
        covered = np.concatenate([np.zeros((0, 2), np.int64), *self._covered])
        for txn in txns:
            at = int(np.searchsorted(covered[:, 1], txn.last_offset))
            is_there = at < len(covered) and covered[at, 0] <= txn.last_offset
            known = self._aborted.get(txn.last_offset)
            if base <= txn.last_offset < next_base and not is_there:
                self._aborted[txn.last_offset] = txn
            elif (
                known is not None
                and known.producer_id == txn.producer_id
                and any(
                    known.first_offset < lost <= txn.first_offset <= txn.last_offset for lost in self._lost_at
                )
            ):
                self._aborted[txn.last_offset] = replace(known, first_offset=txn.first_offset)

    def _finish(self, last_base: int) -> None:
        """Everything that goes with the batches; then the files get the names that a broker reads."""
        if not self._written or self._written[-1].base_offset < last_base:
            self._open_segment(
                max(last_base, self._report.end_offset), segment_path(self._source, last_base, FileKind.LOG)
            )
            self._close_segment()
        self._report.end_offset = max(self._report.end_offset, self._written[-1].base_offset)
        self._write_aborted()
        last = self._written[-1]
        if len(self._written) > 1:
            snapshot = SegmentFileName(last.base_offset, FileKind.PRODUCER_SNAPSHOT)
            self._write(str(snapshot), self._last_snapshot)
        end = self._report.end_offset
        if end > last.base_offset:
            content = render_producer_snapshot(self._producers.entries)
            self._write(str(SegmentFileName(end, FileKind.PRODUCER_SNAPSHOT)), content)
        self._write(names.LEADER_EPOCH_CHECKPOINT, self._leader_epochs(end))
        topic_id = _parsed(os.path.join(self._source, names.PARTITION_METADATA), parse_partition_metadata)
        if topic_id is not None:
            self._write(names.PARTITION_METADATA, render_partition_metadata(topic_id))
        self._files.fsync_dir(self._output)
        for segment in self._written:
            segment.publish()
        self._files.fsync_dir(self._output)
        self._report.log_start_offset = self._log_start_offset()
        self._report.segments = [segment.base_offset for segment in self._written]
        self._report.bytes_kept = sum(segment.size_bytes for segment in self._written)
        self._report.open_transactions = tuple(
            entry.producer_id for entry in self._producers.entries if entry.current_txn_first_offset >= 0
        )

    def _write_aborted(self) -> None:
        """Each abort into the segment that holds its marker, or would."""
        bases = [segment.base_offset for segment in self._written]
        for txn in sorted(self._aborted.values(), key=lambda txn: txn.last_offset):
            slot = int(np.searchsorted(bases, txn.last_offset, side="right")) - 1
            if slot >= 0 and txn.last_offset < self._report.end_offset:
                self._written[slot].aborted.append(txn)
        for segment in self._written:
            segment.write_aborted()

    def _leader_epochs(self, end: int) -> bytes:
        """The leader epochs of the original up to the end of the copy; if they cannot be read, those of the batches."""
        path = os.path.join(self._source, names.LEADER_EPOCH_CHECKPOINT)
        entries = _parsed(path, parse_leader_epochs)
        return render_leader_epochs(
            entry for entry in (self._epochs if entries is None else entries) if entry.start_offset <= end
        )

    def _log_start_offset(self) -> int:
        log_dir, name = os.path.split(self._source)
        offsets = _parsed(os.path.join(log_dir, names.LOG_START_CHECKPOINT), parse_offset_checkpoint) or {}
        return next((offset for tp, offset in offsets.items() if str(tp) == name), 0)

    def _write(self, name: str, content: bytes) -> None:
        path = os.path.join(self._output, name)
        self._files.write(path, content, self._written[0].like)
        self._files.fsync(path)


def _parsed(path: str, parse: Callable[[bytes], _T]) -> _T | None:
    """The parsed content of a small file of the original; None if it cannot be read."""
    try:
        return parse(CarefulFiles().read(path))
    except (FormatError, OSError):
        return None
