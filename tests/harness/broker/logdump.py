"""A partition directory as plain comparable values.

Left out of a batch is what a rebuild may choose: length and position, and the CRC of compressed bytes or a new
horizon. A delete horizon replaces the base timestamp on disk (rule 0.6), so where there is one the base timestamp is not
a fact of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cleanerd.format.batch import BatchHeader, decode_batch, iterate_batches
from cleanerd.format.codecs import Codec
from cleanerd.format.legacy import LegacyEntry, decode_entry
from cleanerd.format.names import (
    LEADER_EPOCH_CHECKPOINT,
    FileKind,
    SegmentFileName,
    Suffix,
    parse_segment_file,
)
from cleanerd.format.record import Record
from cleanerd.format.txn_index import AbortedTxn, parse_txn_index


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of any magic: its header and its records. A CRC is there where the same records give the same bytes."""

    magic: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    codec: str
    log_append_time: bool
    transactional: bool
    control: bool
    base_timestamp_ms: int | None
    delete_horizon_ms: int | None
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    crc: int | None
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment: its batches, its aborted transactions, and the times and sizes of its files."""

    base_offset: int
    batches: tuple[Batch, ...]
    aborted: tuple[AbortedTxn, ...]
    mtime_ms: int
    size_bytes: int
    kinds: frozenset[FileKind]


@dataclass(frozen=True, slots=True)
class LogDump:
    """A whole partition, in offset order. The last segment is the active one."""

    name: str
    segments: tuple[Segment, ...]
    leader_epochs: str
    snapshot_offsets: tuple[int, ...]
    foreign_names: tuple[str, ...]

    @property
    def batches(self) -> list[Batch]:
        return [batch for segment in self.segments for batch in segment.batches]

    @property
    def records(self) -> list[Record]:
        """All records of users: no control records."""
        return [record for batch in self.batches if not batch.control for record in batch.records]

    @property
    def aborted(self) -> list[AbortedTxn]:
        return [entry for segment in self.segments for entry in segment.aborted]

    @property
    def bases(self) -> list[int]:
        return [segment.base_offset for segment in self.segments]

    @property
    def end_offset(self) -> int:
        batches = self.batches
        return batches[-1].last_offset + 1 if batches else self.bases[-1]


def dump_partition(directory: Path) -> LogDump:
    """Read a partition directory of a stopped broker.

    Raises: `FormatError` for a bad batch; `ValueError` for bytes after the last batch.
    """
    names = sorted(path.name for path in directory.iterdir())
    parsed = [(name, parse_segment_file(name)) for name in names]
    live = [file for _, file in parsed if file is not None and file.suffix is Suffix.LIVE]
    bases = [file.base_offset for file in live if file.kind is FileKind.LOG]
    return LogDump(
        name=directory.name,
        segments=tuple(_dump_segment(directory, base, live) for base in bases),
        leader_epochs=(directory / LEADER_EPOCH_CHECKPOINT).read_text(encoding="utf-8"),
        snapshot_offsets=tuple(file.base_offset for file in live if file.kind is FileKind.PRODUCER_SNAPSHOT),
        foreign_names=tuple(
            name
            for name, file in parsed
            if file is not None and file.suffix not in (Suffix.LIVE, Suffix.DELETED)
        ),
    )


def _dump_segment(directory: Path, base_offset: int, live: list[SegmentFileName]) -> Segment:
    log = directory / str(SegmentFileName(base_offset, FileKind.LOG))
    txn_index = directory / str(SegmentFileName(base_offset, FileKind.TXN_INDEX))
    return Segment(
        base_offset=base_offset,
        batches=tuple(_batches(log.read_bytes())),
        aborted=parse_txn_index(txn_index.read_bytes()) if txn_index.exists() else (),
        mtime_ms=log.stat().st_mtime_ns // 1_000_000,
        size_bytes=log.stat().st_size,
        kinds=frozenset(file.kind for file in live if file.base_offset == base_offset),
    )


def _batches(data: bytes) -> Iterator[Batch]:
    end = 0
    for position, size_bytes, magic in iterate_batches(data):
        if magic == 2:
            yield _batch(*decode_batch(data, position))
        else:
            yield _legacy_batch(decode_entry(data, position))
        end = position + size_bytes
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes after the last batch at {end}")


def _batch(header: BatchHeader, records: list[Record]) -> Batch:
    horizon_ms = header.delete_horizon_ms
    return Batch(
        magic=2,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        leader_epoch=header.leader_epoch,
        codec=header.codec.name,
        log_append_time=header.is_log_append_time,
        transactional=header.is_transactional,
        control=header.is_control,
        base_timestamp_ms=header.base_timestamp_ms if horizon_ms is None else None,
        delete_horizon_ms=horizon_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        crc=header.crc if header.codec is Codec.NONE and horizon_ms is None else None,
        records=tuple(records),
    )


def _legacy_batch(entry: LegacyEntry) -> Batch:
    """Magic 0 and 1 know neither producers nor transactions (rule 0.9)."""
    return Batch(
        magic=entry.magic,
        base_offset=entry.base_offset,
        last_offset=entry.last_offset,
        leader_epoch=-1,
        codec=entry.codec.name,
        log_append_time=entry.log_append_time,
        transactional=False,
        control=False,
        base_timestamp_ms=entry.records[0].timestamp_ms,
        delete_horizon_ms=None,
        max_timestamp_ms=entry.timestamp_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        crc=None,
        records=entry.records,
    )
