"""A log, and its cleaning by hand, which stages and commits as cleanerd does, without Spark.

Every batch has one record, so a batch stays as it is or goes. What stays are the newest record of each
key, unless it is a tombstone, and the markers of transactions.
"""

import contextlib
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from cleanerd.config.load import resolve
from cleanerd.config.sources import read_sources
from cleanerd.env.files import RealFiles
from cleanerd.format.names import LOCK, FileKind, SegmentFileName, Suffix, TopicPartition
from cleanerd.format.offset_index import OffsetIndex
from cleanerd.format.time_index import TimeIndex
from cleanerd.format.txn_index import parse_txn_index
from cleanerd.storage.assemble import assemble
from cleanerd.storage.checkpoints import update_cleaner_checkpoint
from cleanerd.storage.generation import read_generation
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.segments import LogBatch, OpenSegment, live_bases
from cleanerd.storage.spare import commit_from_spare, interrupted, resume
from cleanerd.storage.staged import StagedGroup, write_manifest
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.writer import LogWriter
from tests.harness.disks.committing import commit_group
from tests.harness.disks.hooked import HookedFiles
from tests.harness.logs.model import group_of

TP = TopicPartition("t", 0)
GROUPS = (slice(0, 3), slice(3, 7), slice(7, None))
"""Segments of each group; with seed 7 the second ends before its last source starts (X6), and nothing of the third stays."""
FILES = RealFiles()
RETENTION_MS = 250
RETAINED = resolve(
    read_sources(
        topic_assignments=[
            (TP.topic, "cleanup.policy", "delete"),
            (TP.topic, "retention.ms", str(RETENTION_MS)),
        ]
    )
).topic(TP.topic)
"""Deleted by time."""


def write_log(log_dir: Path, seed: int) -> None:
    """Hot keys, keys written once, deleted keys, aborted and committed transactions; ten segments and more."""
    chance = random.Random(seed)
    (log_dir / LOCK).touch()
    with LogWriter(str(log_dir), TP.topic, TP.partition, segment_bytes=2200) as writer:
        plain = Producer(writer)
        for number in range(130):
            kind = chance.random()
            if kind < 0.55:
                plain.put(b"hot %d" % chance.randrange(3), b"%d" % number, number)
            elif kind < 0.7:
                plain.put(b"once %d" % number, b"%d" % number, number)
            elif kind < 0.85:
                plain.put(b"gone %d" % chance.randrange(4), chance.choice([b"%d" % number, None]), number)
            else:
                _transaction(writer, number, abort=kind < 0.95)
        for number in range(
            60
        ):  # nothing of it stays: the groups end early, some are empty (spec disk X6, X5e)
            plain.put(b"gone %d" % (number % 4), None if number > 55 else b"for now", 150 + number)
        writer.roll()
        for number in range(3):
            plain.put(b"hot %d" % number, b"at last", 250)
        plain.put(b"end", b"end", 300)


def _transaction(writer: LogWriter, number: int, *, abort: bool) -> None:
    producer = Producer(writer, producer_id=number % 4)
    producer.begin()
    producer.put(b"hot %d" % (number % 3), b"in transaction %d" % number, number)
    producer.put(b"once %d" % number, b"in transaction %d" % number, number)
    if abort:
        producer.abort(number)
    else:
        producer.commit(number)


def batches(directory: str, base: int) -> Iterator[LogBatch]:
    with OpenSegment(directory, base) as segment:
        yield from segment.batches()


def kept_offsets(directory: str) -> set[int]:
    """Of the batches that a cleaning of all closed segments keeps; the active segment stays whole."""
    bases = live_bases(directory)
    aborted = [txn for base in bases for txn in _aborted(directory, base)]
    newest: dict[bytes | None, tuple[int, bytes | None]] = {}
    kept: set[int] = set()
    for base in bases:
        for batch in batches(directory, base):
            header, record = batch.header, batch.records()[0]
            assert header is not None
            if header.is_control or base == bases[-1]:
                kept.add(record.offset)
            if not header.is_control and not any(
                txn.producer_id == header.producer_id and txn.first_offset <= record.offset < txn.last_offset
                for txn in aborted
            ):
                newest[record.key] = record.offset, record.value
    return kept | {offset for offset, value in newest.values() if value is not None}


def _aborted(directory: str, base: int) -> tuple:
    path = os.path.join(directory, str(SegmentFileName(base, FileKind.TXN_INDEX)))
    return parse_txn_index(FILES.read(path)) if FILES.exists(path) else ()


def clean(log_dir: str, files: RealFiles) -> None:
    """Stage and commit all groups of closed segments, then record the checkpoint."""
    directory = os.path.join(log_dir, str(TP))
    kept, bases = kept_offsets(directory), live_bases(directory)
    closed = bases[:-1]
    groups = [closed[segments] for segments in GROUPS if closed[segments]]
    staged = []
    for group in groups:
        following = bases[bases.index(group[-1]) + 1]
        staged.append(_stage(files, directory, group, following, kept, bases[-1]))
    for group in staged:
        commit_group(files, directory, group)
    update_cleaner_checkpoint(files, log_dir, {TP: bases[-1]})


def stage_on_spare(log_dir: str) -> None:
    """Stage the second group where it is to be exchanged from, on another file system."""
    directory, spare = os.path.join(log_dir, str(TP)), PartitionDir(FILES, spare_of(log_dir))
    kept, bases = kept_offsets(directory), live_bases(directory)
    group = bases[:-1][GROUPS[1]]
    staged = _stage(FILES, directory, group, bases[bases.index(group[-1]) + 1], kept, bases[-1])
    os.mkdir(spare.path)
    for name in os.listdir(directory):
        if name.endswith(Suffix.STAGED.value):
            shutil.move(os.path.join(directory, name), spare.path)
    os.unlink(spare.path_of(staged.manifest))
    like = os.path.join(directory, str(SegmentFileName(group[0], FileKind.LOG)))
    write_manifest(spare, staged, like=like)  # its files have other inodes there


def spare_of(log_dir: str) -> str:
    """Where that is, beside the disk in which the log directory lies."""
    return os.path.join(os.path.dirname(os.path.dirname(log_dir)), "spare", "ext4", str(TP))


def exchange(log_dir: str, files: RealFiles) -> None:
    """What was staged there takes the place of its sources."""
    commit_from_spare(PartitionDir.of(files, log_dir, TP), PartitionDir(files, spare_of(log_dir)))


def go_on(log_dir: str, files: RealFiles) -> None:
    """As the next rescue does, if that was interrupted."""
    partition = PartitionDir.of(files, log_dir, TP)
    if interrupted(partition):
        resume(partition)


def clean_until(log_dir: str, ending: str) -> None:
    """The same, interrupted before the first rename to such a name."""

    def stop(call: str, path: str) -> None:
        if call == "rename" and path.endswith(ending):
            raise InterruptedError

    with contextlib.suppress(InterruptedError):
        clean(log_dir, HookedFiles(before=stop))


def _stage(
    files: RealFiles, directory: str, bases: list[int], following: int, kept: set[int], round_end: int
) -> StagedGroup:
    survivors = [b for base in bases for b in batches(directory, base) if b.last_offset in kept]
    last_offset = survivors[-1].last_offset if survivors else -1
    parts = []
    for base, half in zip((bases[0], bases[0] + 1), (survivors[:2], survivors[2:]), strict=True):
        part = os.path.join(directory, str(SegmentFileName(base, FileKind.PART, Suffix.STAGED)))
        files.write(part, b"".join(batch.data for batch in half))
        parts.append(part)
    partition = PartitionDir(files, directory)
    last = SegmentFileName(bases[-1], FileKind.LOG)
    nothing = np.zeros(0, np.int64)
    sizes = assemble(
        partition,
        bases[0],
        parts,
        offset_index=OffsetIndex(nothing, nothing),
        time_index=TimeIndex(np.array([900]), np.array([last_offset]))
        if survivors
        else TimeIndex(nothing, nothing),
        aborted_txns=[txn for base in bases for txn in _aborted(directory, base)],
        like=partition.path_of(last),
        mtime_ns=partition.stat(last).mtime_ns,
    )
    group = group_of(partition, bases, following, sizes, last_offset)
    group = replace(group, round_end=round_end, generation=read_generation(partition))
    write_manifest(partition, group)
    return group
