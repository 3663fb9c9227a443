"""One partition directory: its files, and its segments against each other and against the checkpoints.

`list_partition` looks at names and small files and returns which segments to read; `check_partition` puts together what was
read. Between them the segments are checked, in any order and anywhere.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

import numpy as np

from cleanerd.env.files import FileStat
from cleanerd.errors import CleanerdError
from cleanerd.format import names
from cleanerd.format.checkpoint import EpochEntry, parse_leader_epochs
from cleanerd.format.names import (
    MAX_OFFSET,
    FileKind,
    SegmentFileName,
    Suffix,
    TopicPartition,
    in_other_digits,
    parse_segment_file,
)
from cleanerd.format.partition_metadata import parse_partition_metadata
from cleanerd.format.producer_snapshot import parse_producer_snapshot
from cleanerd.kernels.tables import EVENT, EventKind, Table
from cleanerd.storage.generation import read_generation
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.staged import read_manifests, staged_flaw, staged_names
from cleanerd.units import counted

from .findings import Finding, Judged
from .regular_files import CarefulFiles
from .segment_check import SegmentReport, SegmentTask


@dataclass(frozen=True, slots=True)
class DirFacts:
    """Values shared by all partitions of a log directory; see `SegmentTask`.

    `is_kafka`: it is a broker's; `is_kraft`: of a cluster whose topics have ids.
    """

    log_dir: str
    is_kafka: bool
    is_kraft: bool
    is_live: bool
    is_clean: bool
    offsets: Mapping[str, Mapping[TopicPartition, int]]  # by name of the checkpoint

    def offset(self, checkpoint: str, tp: TopicPartition) -> int | None:
        """Entry of a log in a checkpoint."""
        return self.offsets.get(checkpoint, {}).get(tp)


@dataclass(slots=True)
class Partition(Judged):
    """A listed partition directory, with its findings so far."""

    facts: DirFacts
    topic_partition: TopicPartition
    directory: str
    tasks: list[SegmentTask] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)
    epochs: tuple[EpochEntry, ...] | None = None
    topic_id: UUID | None = None

    def path(self, name: str) -> str:
        """Path of a file in it."""
        return os.path.join(self.directory, name)

    @property
    def subject(self) -> tuple[str, str, int]:
        """Log directory, topic and partition."""
        return self.facts.log_dir, self.topic_partition.topic, self.topic_partition.partition


def list_partition(facts: DirFacts, topic_partition: TopicPartition, directory: str) -> Partition:
    """Check names and small files of a partition directory; an unreadable file is a finding."""
    found = Partition(facts, topic_partition, directory)
    try:
        listed = sorted(os.listdir(directory))
    except FileNotFoundError:
        return found
    except OSError as error:
        found.add("unreadable", directory, -1, "a readable directory", error.strerror)
        return found
    _look_for_link(found, directory, "a directory")
    live, waiting = _sort_names(found, listed)
    _list_segments(found, live, waiting)
    _read_metadata(found)
    _read_snapshots(found, live)
    _look_at_staged(found, listed)
    return found


def _look_for_link(found: Partition, path: str, expected: str) -> None:
    if os.path.islink(path):
        found.add("link", path, -1, expected, f"a symbolic link to {os.readlink(path)}")


def waiting_swaps(listed: Sequence[str]) -> list[SegmentFileName]:
    """Each `.log.swap` among these names that a starting broker takes for its segment, or whose sources are `.deleted`.

    What they hold may lie nowhere else. Ascending. Others lie at or above a `.cleaned`: the broker deletes them, and their
    sources are the log (spec disk D2).
    """
    found = [name for name in map(parse_segment_file, listed) if name is not None]
    first_cleaned = min((n.base_offset for n in found if n.suffix is Suffix.CLEANED), default=MAX_OFFSET)
    logs = [name for name in found if name.kind is FileKind.LOG]
    last_deleted = max((n.base_offset for n in logs if n.suffix is Suffix.DELETED), default=-1)
    swaps = [name for name in logs if name.suffix is Suffix.SWAP]
    waiting = [n for n in swaps if n.base_offset < first_cleaned or n.base_offset <= last_deleted]
    return sorted(waiting, key=lambda name: name.base_offset)


def _sort_names(
    found: Partition, listed: Sequence[str]
) -> tuple[list[SegmentFileName], list[SegmentFileName]]:
    """Live files, and all files of segments that wait to be swapped in."""
    live, swaps = list[SegmentFileName](), list[SegmentFileName]()
    staged = set(staged_names(listed))
    waiting = waiting_swaps(listed)
    bases = {name.base_offset for name in waiting}
    for name in listed:
        parsed = parse_segment_file(name)
        if name in staged or name in _KNOWN:
            continue
        if parsed is None:
            _judge_name(found, name)
        elif parsed.suffix is Suffix.LIVE:
            live.append(parsed)
        elif parsed.suffix is Suffix.DELETED:
            found.add("deleted_file", found.path(name))
        elif not found.facts.is_live:  # else its broker is at work
            found.add("waiting_swap" if parsed in waiting else "interrupted_cleaning", found.path(name))
            if parsed.suffix is Suffix.SWAP and parsed.base_offset in bases:
                swaps.append(parsed)
    return live, swaps


_KNOWN = {
    names.LEADER_EPOCH_CHECKPOINT,
    names.PARTITION_METADATA,
    names.GENERATION,
    f"{names.LEADER_EPOCH_CHECKPOINT}.tmp",
    f"{names.PARTITION_METADATA}.tmp",
    "quorum-state",
}


def _judge_name(found: Partition, name: str) -> None:
    """Check a name that is no segment's; a broker parses the part before the first dot as a number (spec disk A6)."""
    path = found.path(name)
    if name.endswith((".checkpoint", ".checkpoint.deleted", ".checkpoint.part")) and os.path.isfile(path):
        return
    number, _, _ = name.partition(".")
    if name == names.RESCUE:
        found.add("rescue_interrupted", path)
        return
    if in_other_digits([name]) is not None:
        found.add("other_digits", path, -1, "an offset in ASCII digits", name)
        return
    if not os.path.isfile(path) or _SEGMENT_END.search(name) is None:
        found.add("foreign_file", path)
    elif _NUMBER.fullmatch(number) is None or not -MAX_OFFSET <= int(number) <= MAX_OFFSET:
        found.add("misnamed_file", path, -1, "an offset of 20 digits", name)
    else:
        found.add("short_name", path, -1, "an offset of 20 digits", name)


_NUMBER = re.compile(r"[+-]?[0-9]{1,400}")  # as Java reads one
_SEGMENT_END = re.compile(r"\.(log|index|timeindex|txnindex|snapshot|cleaned|swap)$")


def _list_segments(
    found: Partition, live: Sequence[SegmentFileName], swaps: Sequence[SegmentFileName]
) -> None:
    kinds, waiting = _kinds_by_base(live), _kinds_by_base(swaps)
    bases = sorted(base for base, present in kinds.items() if FileKind.LOG in present)
    # a live broker renames the `.log` first
    orphans = set() if found.facts.is_live else kinds.keys() - set(bases)
    for base in sorted(orphans):
        for kind in sorted(kinds[base] & _INDEXES, key=lambda kind: kind.value):
            found.add("orphan_index", found.path(str(SegmentFileName(base, kind))))
    for base, next_base in zip(bases, [*bases, None][1:], strict=True):
        _list_segment(found, base, next_base, kinds[base], Suffix.LIVE)
    for base, present in waiting.items():  # never the active one
        above = [other for other in (*waiting, *bases[-1:]) if other > base]
        _list_segment(found, base, min(above, default=None), present, Suffix.SWAP)
    found.tasks.sort(key=lambda task: (task.base_offset, task.suffix is Suffix.LIVE))


def _kinds_by_base(files: Sequence[SegmentFileName]) -> dict[int, set[FileKind]]:
    kinds: dict[int, set[FileKind]] = {}
    for name in files:
        kinds.setdefault(name.base_offset, set()).add(name.kind)
    return kinds


def _list_segment(
    found: Partition, base: int, next_base: int | None, kinds: set[FileKind], suffix: Suffix
) -> None:
    facts, path = found.facts, found.path(str(SegmentFileName(base, FileKind.LOG, suffix)))
    try:
        identity = FileStat.of(os.stat(path))
    except FileNotFoundError:
        if os.path.islink(path):
            found.add("unreadable", path, -1, "a readable file", "a link to nothing")
        return
    except OSError as error:
        found.add("unreadable", path, -1, "a readable file", error.strerror)
        return
    _look_for_link(found, path, "a regular file")
    is_clean = facts.is_clean and found.topic_partition.topic != names.CLUSTER_METADATA_TOPIC
    watermark = facts.offset(names.REPLICATION_CHECKPOINT, found.topic_partition) or 0
    flushed = facts.offset(names.RECOVERY_POINT_CHECKPOINT, found.topic_partition) or 0
    found.tasks.append(
        SegmentTask(
            facts.log_dir, found.topic_partition, found.directory, base, next_base, identity,
            frozenset(kinds), facts.is_live, is_clean,
            watermark if facts.is_kafka else MAX_OFFSET, max(watermark, flushed), suffix,
        )
    )  # fmt: skip


_INDEXES = {FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX}


def _read_metadata(found: Partition) -> None:
    path = found.path(names.PARTITION_METADATA)
    found.topic_id = found.parsed(path, parse_partition_metadata, "partition_metadata")
    if found.topic_id is None and found.facts.is_kraft and _is_missing(found, path):
        found.add("partition_metadata_missing", path)
    path = found.path(names.LEADER_EPOCH_CHECKPOINT)
    found.epochs = found.parsed(path, parse_leader_epochs, "epochs")
    if found.epochs is None and _is_missing(found, path):
        found.add("epochs_missing", path)


def _is_missing(found: Partition, path: str) -> bool:
    """Whether a file is not there that a broker wrote; one that lives may be about to write it."""
    facts = found.facts
    return facts.is_kafka and not facts.is_live and bool(found.tasks) and not os.path.lexists(path)


def _read_snapshots(found: Partition, live: Sequence[SegmentFileName]) -> None:
    for name in live:
        if name.kind is not FileKind.PRODUCER_SNAPSHOT:
            continue
        path, parse = found.path(str(name)), partial(parse_producer_snapshot, offset=name.base_offset)
        if found.parsed(path, parse, "snapshot", in_writing=found.facts.is_live) is not None:
            found.snapshots.append(name.base_offset)


def _look_at_staged(found: Partition, listed: Sequence[str]) -> None:
    partition = PartitionDir(CarefulFiles(), found.directory)
    try:
        read_generation(partition)
    except CleanerdError as error:
        found.add("truncation", found.path(names.GENERATION), -1, "a finished truncation", error)
    except OSError:
        found.add("unreadable", found.path(names.GENERATION))
    staged = staged_names(listed)
    if not staged:
        return
    try:
        groups = read_manifests(partition)
        flaws = [staged_flaw(partition, group) for group in groups]
    except (CleanerdError, OSError) as error:
        found.add("staged_useless", found.path(staged[0]), -1, "a manifest that can be read", error)
        return
    flaw = next((flaw for flaw in flaws if flaw is not None), None)
    if not groups:
        if not found.facts.is_live:  # else cleanerd may be at work
            found.add(
                "staged_useless",
                found.path(staged[0]),
                -1,
                "a manifest",
                f"{counted(len(staged), 'file')} without one",
            )
    elif flaw is not None:
        found.add("staged_useless", found.path(staged[0]), -1, "the files that the manifest names", flaw)
    else:
        found.add("staged", found.path(staged[0]), -1, "", counted(len(groups), "group") + " of segments")


def check_partition(found: Partition, reports: Sequence[SegmentReport]) -> None:
    """Combine the reports of the segments, ascending; their findings are added to those of the partition.

    The log is the one that the next start makes: a segment that waits to be swapped in takes the place of what it covers.
    """
    for report in reports:
        found.findings += report.findings
    swapped = [report for report in reports if report.task.suffix is Suffix.SWAP]
    reports = [
        report
        for report in reports
        if report.task.suffix is Suffix.SWAP
        or not any(swap.task.base_offset <= report.task.base_offset <= swap.last_offset for swap in swapped)
    ]
    _check_transactions(found, reports)
    _check_epochs(found, reports)
    _check_ends(found, reports)
    if (
        found.facts.is_kafka
        and found.facts.is_clean
        and not found.snapshots
        and any(report.has_producers for report in reports)
    ):
        found.add("snapshots_missing", found.directory, -1, "a producer snapshot", "none")


def _log_end(found: Partition, reports: Sequence[SegmentReport]) -> int | None:
    """End of the log, None when it is not known."""
    if not reports or reports[-1].task != found.tasks[-1] or found.facts.is_live:
        return None
    last = reports[-1]
    if not last.is_whole and not last.batches:
        return None
    return last.last_offset + 1 if last.batches else last.task.base_offset


def _check_ends(found: Partition, reports: Sequence[SegmentReport]) -> None:
    """Checkpoints, epochs and snapshots that lie behind the end of the log."""
    end = _log_end(found, reports)
    if end is None:
        return
    for name in (
        names.RECOVERY_POINT_CHECKPOINT,
        names.REPLICATION_CHECKPOINT,
        names.CLEANER_OFFSET_CHECKPOINT,
    ):
        _check_checkpoint(found, name, "checkpoint_beyond_end", end)
    _check_checkpoint(found, names.LOG_START_CHECKPOINT, "log_start_beyond_end", end)
    if found.epochs and found.epochs[-1].start_offset > end:
        path = found.path(names.LEADER_EPOCH_CHECKPOINT)
        found.add("epoch_beyond_end", path, -1, f"start offsets to {end}", found.epochs[-1].start_offset)
    for offset in found.snapshots:
        if offset > end:
            path = found.path(str(SegmentFileName(offset, FileKind.PRODUCER_SNAPSHOT)))
            found.add("snapshot", path, -1, f"an offset to {end}", offset)


def _check_checkpoint(found: Partition, name: str, code: str, end: int) -> None:
    offset = found.facts.offset(name, found.topic_partition)
    if offset is not None and offset > end:
        found.add(code, os.path.join(found.facts.log_dir, name), -1, f"an offset to {end}", offset)


def _check_epochs(found: Partition, reports: Sequence[SegmentReport]) -> None:
    """Epochs of batches never fall, and are those that the checkpoint gives their offsets."""
    start = found.facts.offset(names.LOG_START_CHECKPOINT, found.topic_partition) or 0
    path = found.path(names.LEADER_EPOCH_CHECKPOINT)
    starts = np.array([entry.start_offset for entry in found.epochs or ()], np.int64)
    highest = -1
    for report in reports:
        for epoch, offset in report.epochs:
            log = report.task.path(FileKind.LOG)
            if epoch < highest:
                found.add(
                    "epoch_order", log, -1, f"epoch {highest} or later at offset {offset}", f"epoch {epoch}"
                )
                return
            highest = epoch
            slot = int(np.searchsorted(starts, offset, side="right")) - 1
            if not found.epochs or offset < start or found.facts.is_live:
                continue
            if slot < 0 or found.epochs[slot].epoch != epoch:
                named = found.epochs[slot].epoch if slot >= 0 else "none"
                found.add("epoch_order", path, -1, f"epoch {epoch} at offset {offset}", f"epoch {named}")
                return


def _check_transactions(found: Partition, reports: Sequence[SegmentReport]) -> None:
    """Every abort marker that ends records is in its index, from where they begin, and nothing else is (spec disk B6)."""
    events = _events(reports)
    aborts = events["kind"] == int(EventKind.ABORT)
    order = np.lexsort((events["offset"], events["producer_id"]))
    before = np.roll(order, 1)
    has_data = np.zeros(len(events), np.bool_)
    if len(events):
        same = events["producer_id"][order] == events["producer_id"][before]
        same[0] = False
        has_data[order] = same & (events["kind"][before] == int(EventKind.DATA))
    marked = _beginnings(events[order])
    needed = events[aborts & has_data]
    listed = {(txn.producer_id, txn.last_offset) for report in reports for txn in report.aborted}
    for producer_id, offset in zip(needed["producer_id"].tolist(), needed["offset"].tolist(), strict=True):
        report = reports[_segment_of(reports, offset)]
        if (producer_id, offset) not in listed and report.is_whole:
            path = report.task.path(FileKind.TXN_INDEX)
            found.add(
                "txn_index_gap", path, -1, f"the abort of producer {producer_id} at offset {offset}", "none"
            )
    if (
        found.facts.is_live
        or not all(report.is_whole for report in reports)
        or len(reports) != len(found.tasks)
    ):
        return
    for report in reports:
        for txn in report.aborted:
            marker = f"an abort marker of producer {txn.producer_id} at offset {txn.last_offset}"
            first, last = marked.get((txn.producer_id, txn.last_offset), (0, -1))
            if not first <= txn.first_offset <= last:
                expected = f"{marker} for records from {first} to {last} on" if last >= 0 else marker
                there = txn.first_offset if last >= 0 else "none"
                found.add("txn_index_entry", report.task.path(FileKind.TXN_INDEX), -1, expected, there)
                break


def _beginnings(events: Table) -> dict[tuple[int, int], tuple[int, int]]:
    """Possible first offsets of transactions, by producer and offset of the abort marker: after the marker before, and in or
    before its first batch. `events` by producer, then offset; those before a log's first marker may be gone.
    """
    found: dict[tuple[int, int], tuple[int, int]] = {}
    producer, after, first = -1, 0, -1
    for producer_id, offset, kind in zip(
        events["producer_id"].tolist(), events["offset"].tolist(), events["kind"].tolist(), strict=True
    ):
        if producer_id != producer:
            producer, after, first = producer_id, 0, -1
        if kind == int(EventKind.DATA):
            first = offset if first < 0 else first
        elif kind in (int(EventKind.ABORT), int(EventKind.COMMIT)):
            if kind == int(EventKind.ABORT):
                found[producer_id, offset] = (after, offset if first < 0 else first)
            after, first = offset + 1, -1
    return found


def _events(reports: Sequence[SegmentReport]) -> Table:
    parts = [part for report in reports for part in report.events]
    return np.concatenate(parts) if parts else np.zeros(0, EVENT)


def _segment_of(reports: Sequence[SegmentReport], offset: int) -> int:
    bases = [report.task.base_offset for report in reports]
    return int(np.searchsorted(bases, offset, side="right")) - 1
