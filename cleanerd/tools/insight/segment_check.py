"""Check one segment against its indexes; `verify` does so in many processes (spec disk B1-B6, C).

Only the first wrong entry of an index is reported: nothing after it can be trusted, and one remedy fixes all of it. An
index that is not settled (of the active segment of a live or killed broker) may be longer than its log was when it was
listed, and ends at the first entry that is not used.
"""

import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from cleanerd.env.files import Files, FileStat, NotRegular, open_regular
from cleanerd.errors import CorruptFile
from cleanerd.format import offset_index, time_index
from cleanerd.format.errors import FormatError, Padded
from cleanerd.format.names import (
    MAX_OFFSET,
    SEGMENT_KINDS,
    SEGMENT_MAX_BYTES,
    FileKind,
    Suffix,
    TopicPartition,
    segment_path,
)
from cleanerd.format.offset_index import NAMED_BATCH, OffsetIndex
from cleanerd.format.time_index import TimeIndex
from cleanerd.format.txn_index import AbortedTxn
from cleanerd.kernels.scan import first_misplaced
from cleanerd.kernels.tables import Table
from cleanerd.policy.grouping import MAX_RELATIVE_OFFSET
from cleanerd.storage.index_files import read_offset_index, read_time_index, read_txn_index

from .findings import Finding, Judged
from .regular_files import CarefulFiles, file_size
from .walk import Bounds, Damage, Sound, walk_log

FINDINGS_MAX = 100
"""Listed per segment; a ruined one has as many as batches."""

CHANGED = "changed"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """A segment as it was listed. `next_base` is that of the segment above, None for the active one.

    `is_live`: a process holds the `.lock` of the log directory and may append, roll and delete. Then the active segment is
    read up to `high_watermark`. `is_clean`: the broker closed it in order,
    which it does with all but the metadata log (spec disk A8). `settled_offset`: below it every record was committed or
    flushed, by the checkpoints. `suffix`: `.swap` of one that waits to be swapped in.
    """

    log_dir: str
    topic_partition: TopicPartition
    directory: str
    base_offset: int
    next_base: int | None
    identity: FileStat
    kinds: frozenset[FileKind]
    is_live: bool
    is_clean: bool
    high_watermark: int
    settled_offset: int
    suffix: Suffix = Suffix.LIVE

    @property
    def size_bytes(self) -> int:
        """Size of the `.log` file."""
        return self.identity.size_bytes

    @property
    def is_settled(self) -> bool:
        """Whether its indexes are finished: of the active segment only after a broker stopped in order."""
        return not self.is_active or (self.is_clean and not self.is_live)

    @property
    def is_active(self) -> bool:
        """Whether it is the last one."""
        return self.next_base is None

    def path(self, kind: FileKind) -> str:
        """Path of one of its files."""
        return segment_path(self.directory, self.base_offset, kind, self.suffix)


@dataclass(slots=True)
class SegmentReport(Judged):
    """The findings and facts about a segment. `last_offset` is -1 without a batch.

    `events`: of every transaction the first batch of a run, and the markers. `epochs`: (leader epoch, first offset)
    of each run of batches. `is_whole`: no damage hides anything.
    """

    task: SegmentTask
    findings: list[Finding] = field(default_factory=list)
    unlisted: int = 0
    bytes_read: int = 0
    batches: int = 0
    records: int = 0
    last_offset: int = -1
    events: list[Table] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    aborted: tuple[AbortedTxn, ...] = ()
    has_producers: bool = False
    is_whole: bool = True

    @property
    def has_changed(self) -> bool:
        """Whether it only asks to list the log again."""
        return any(finding.code == CHANGED for finding in self.findings)

    @property
    def subject(self) -> tuple[str, str, int]:
        """Log directory, topic and partition."""
        return self.task.log_dir, self.task.topic_partition.topic, self.task.topic_partition.partition

    def add(
        self, code: str, path: str, position: int = -1, expected: object = "", found: object = ""
    ) -> None:
        """A finding about a file of this segment; only so many are listed."""
        if len(self.findings) < FINDINGS_MAX:
            Judged.add(self, code, path, position, expected, found)
        else:
            self.unlisted += 1


class OffsetIndexCheck:
    """Every entry names the start of a batch that is not above its offset, and offsets and positions rise."""

    kind, code = FileKind.OFFSET_INDEX, "index"

    def __init__(self, index: OffsetIndex, *, is_settled: bool) -> None:
        self._is_settled = is_settled
        self.flaw = index.flaw if is_settled else None
        self._index = index

    def add(self, sound: Sound) -> None:
        """Judge the entries that point into these batches."""
        slot = first_misplaced(sound.batches, sound.piece.file_position, self._index)
        if slot >= 0 and self.flaw is None:
            self.flaw = FormatError(slot * offset_index.ENTRY_BYTES, NAMED_BATCH, self._index.entry(slot))

    def finish(self, log_bytes: int, last_offset: int) -> None:
        """Judge entries that point behind the end of the log."""
        if self._is_settled:
            self.flaw = self.flaw or self._index.within(log_bytes, last_offset + 1).flaw


class TimeIndexCheck:
    """No batch up to the offset of an entry is younger than it says, timestamps rise and offsets do not fall."""

    kind, code = FileKind.TIME_INDEX, "time_index"

    def __init__(self, index: TimeIndex, *, is_settled: bool) -> None:
        self._is_settled = is_settled
        self.flaw = index.flaw if is_settled else None
        self._timestamps = index.timestamps_ms
        self._offsets = index.offsets
        self._checked = 0
        self.largest = -1

    def add(self, sound: Sound) -> None:
        """Judge the entries whose offsets lie in these batches."""
        rows = sound.batches
        high = int(np.searchsorted(self._offsets, int(rows["last_offset"][-1]), side="right"))
        largest = np.maximum.accumulate(np.maximum(rows["max_timestamp"], self.largest))
        if high > self._checked:
            entries = slice(self._checked, high)
            at = np.searchsorted(rows["last_offset"], self._offsets[entries], side="right") - 1
            below = np.where(at >= 0, largest[at], self.largest)
            good = below <= self._timestamps[entries]
            if not good.all():
                slot = self._checked + int(np.argmin(good))
                self._report_entry(slot, f"timestamp {below[slot - self._checked]} or later")
            self._checked = high
        self.largest = int(largest[-1])

    def finish(self, log_bytes: int, last_offset: int) -> None:  # noqa: ARG002 - as every index
        """Judge entries that lie behind the end of the log, or are younger than all of its records."""
        if not self._is_settled:
            return
        behind = np.flatnonzero((self._offsets > last_offset) | (self._timestamps > self.largest))
        if len(behind):
            wanted = f"at most timestamp {self.largest} and offset {last_offset}"
            self._report_entry(int(behind[0]), wanted)

    def _report_entry(self, slot: int, expected: str) -> None:
        found = f"timestamp {self._timestamps[slot]} at offset {self._offsets[slot]}"
        self.flaw = self.flaw or FormatError(slot * time_index.ENTRY_BYTES, expected, found)

    @property
    def is_too_short(self) -> bool:
        """Whether the segment has a larger timestamp than the last entry."""
        return self.last_timestamp < self.largest

    @property
    def last_timestamp(self) -> int:
        """Timestamp of the last entry, -1 without one."""
        return int(self._timestamps[-1]) if len(self._timestamps) else -1


IndexCheck = OffsetIndexCheck | TimeIndexCheck
"""Index checks have a `flaw`, the one thing that is reported, and a `code`, how the code of its finding begins."""


def check_segment(task: SegmentTask) -> SegmentReport | None:
    """Read a segment and its indexes; None if it is gone. An unreadable file is a finding.

    That a live broker has another segment than the one that was listed, or gives its files their names, is the only finding.
    """
    report = SegmentReport(task)
    path = task.path(FileKind.LOG)
    try:
        is_named = not task.is_live or _is_named(task)
        _check(report)
        is_same = not task.is_live or (is_named and FileStat.of(os.stat(path)) == task.identity)
        if not (is_same or task.is_active):
            report = SegmentReport(task)
            report.add(CHANGED, path, -1, "the same file for as long as it is read", "others")
    except FileNotFoundError:
        return None
    except NotRegular as error:
        report.add("not_regular", str(error.filename), -1, "a regular file", error.found)
        report.is_whole = False
    except OSError as error:
        report.add("unreadable", str(error.filename or path), -1, "a readable file", error.strerror)
        report.is_whole = False
    except Exception as error:  # noqa: BLE001 - one log's trouble is its own
        report.add("not_judged", path, -1, "", defect(error))
        report.is_whole = False
    if report.unlisted:
        more = f"{report.unlisted} more"
        report.findings.append(Finding("many_findings", *report.subject, path, -1, "nothing", more))
    return report


def _is_named(task: SegmentTask) -> bool:
    """Whether its files have their names: a broker that swaps a cleaned segment in names the `.log` first."""
    return not any(
        os.path.exists(segment_path(task.directory, task.base_offset, kind, Suffix.SWAP))
        and not os.path.exists(task.path(kind))
        for kind in SEGMENT_KINDS
    )


def defect(error: Exception) -> str:
    """The text of an unexpected error."""
    line = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {line.name}:{line.lineno}: {error}"


def _check(report: SegmentReport) -> None:
    task = report.task
    path = task.path(FileKind.LOG)
    with open_regular(path, follow_links=True) as fd:
        size = min(task.size_bytes, file_size(fd))
        if size > SEGMENT_MAX_BYTES:
            report.add(
                "segment_too_large", path, SEGMENT_MAX_BYTES, f"at most {SEGMENT_MAX_BYTES} bytes", size
            )
        indexes = list(_indexes(report))
        try:
            for found in walk_log(fd, path, _bounds(task, size)):
                if isinstance(found, Damage):
                    _note_damage(report, found)
                    continue
                _note_batches(report, found)
                for index in indexes:
                    index.add(found)
        except BaseException:  # such as an unreadable sector; findings so far are reported
            report.is_whole = False
            raise
        finally:
            for index in indexes:
                _finish(report, size, index)
        report.bytes_read = size
    _check_txn_index(report)


def _bounds(task: SegmentTask, size: int) -> Bounds:
    """A broker never lets the active segment overflow; closed ones did, in versions with a fault."""
    limit = task.base_offset + MAX_RELATIVE_OFFSET + 1 if task.next_base is None else task.next_base
    stop = task.high_watermark if task.is_active and task.is_live else MAX_OFFSET
    return Bounds(task.base_offset, min(limit, MAX_OFFSET), stop, 0, size)


def _indexes(report: SegmentReport) -> Iterator[IndexCheck]:
    is_settled = report.task.is_settled
    offsets = _read(report, FileKind.OFFSET_INDEX, "index_missing", read_offset_index)
    if offsets is not None:
        yield OffsetIndexCheck(offsets, is_settled=is_settled)
    times = _read(report, FileKind.TIME_INDEX, "time_index_missing", read_time_index)
    if times is not None:
        yield TimeIndexCheck(times, is_settled=is_settled)


def _read(
    report: SegmentReport, kind: FileKind, missing: str, read: Callable[[Files, str, int], _T]
) -> _T | None:
    """The parsed content of a file of the segment; None if it is missing, with the finding `missing` if that is given."""
    task, path = report.task, report.task.path(kind)
    if missing and kind not in task.kinds and not _comes_or_goes(task, path):
        report.add(missing, path, -1, "a file", "none")
        return None
    with report.reading(path):
        try:
            return read(CarefulFiles(), path, task.base_offset)
        except CorruptFile as error:
            report.add("txn_index_entry", path, error.position, error.expected, error.found)
            report.is_whole = False
    return None


def _comes_or_goes(task: SegmentTask, path: str) -> bool:
    """Whether a live broker is about to write a file that was not listed, or to delete its segment."""
    if not task.is_live:
        return False
    return task.is_active or os.path.exists(path) or not os.path.exists(task.path(FileKind.LOG))


def _note_damage(report: SegmentReport, damage: Damage) -> None:
    task, code = report.task, damage.code
    next_offset = report.last_offset + 1 if report.batches else task.base_offset
    if damage.at_end and task.is_active and next_offset >= task.settled_offset:
        if task.is_live:
            return  # it is being written
        if code == "zeros":
            code = "preallocated"
        elif code in ("torn_batch", "bad_batch") and not task.is_clean:
            code = "torn_tail"
    if code != "preallocated":
        report.is_whole = False
    found = f"{damage.found}; {damage.end - damage.start} bytes, to byte {damage.end}"
    report.add(code, task.path(FileKind.LOG), damage.start, damage.expected, found)


def _note_batches(report: SegmentReport, found: Sound) -> None:
    task, rows = report.task, found.batches
    last_offset = int(rows["last_offset"][-1])
    overflow = task.base_offset + MAX_RELATIVE_OFFSET
    if last_offset > overflow >= report.last_offset:
        row = int(np.argmax(rows["last_offset"] > overflow))
        at = found.piece.file_position + int(rows["position"][row])
        report.add(
            "segment_overflow",
            task.path(FileKind.LOG),
            at,
            f"offsets to {overflow}",
            rows["last_offset"][row],
        )
    report.last_offset = last_offset
    report.batches += len(rows)
    report.records += len(found.part.records)
    _note_epochs(report, rows)
    if (rows["producer_id"] >= 0).any():
        report.has_producers = True
        report.events.append(found.events())


def _note_epochs(report: SegmentReport, rows: Table) -> None:
    epochs = rows["leader_epoch"]
    for row in [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist()]:
        epoch = int(epochs[row])
        if epoch >= 0 and (not report.epochs or report.epochs[-1][0] != epoch):
            report.epochs.append((epoch, int(rows["last_offset"][row])))


def _finish(report: SegmentReport, size: int, index: IndexCheck) -> None:
    task, path = report.task, report.task.path(index.kind)
    if report.is_whole:
        index.finish(size, report.last_offset if report.batches else task.base_offset - 1)
    flaw = index.flaw
    if flaw is not None:
        code = f"{index.code}_padded" if isinstance(flaw, Padded) else f"{index.code}_entry"
        # Listed however much is wrong with the log.
        Judged.add(report, code, path, flaw.position, flaw.expected, flaw.found)
    elif report.is_whole and task.is_settled and isinstance(index, TimeIndexCheck) and index.is_too_short:
        report.add("time_index_end", path, -1, index.largest, index.last_timestamp)


def _check_txn_index(report: SegmentReport) -> None:
    task = report.task
    if os.path.exists(task.path(FileKind.TXN_INDEX)):
        read = partial(read_txn_index, is_written=not task.is_settled)
        report.aborted = _read(report, FileKind.TXN_INDEX, "", read) or ()
