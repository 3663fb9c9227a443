"""A log written by hand, batch by batch, and cleaned round by round: by the real path, checked against the twin."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cleanerd.format.batch import Record, encode_batch
from cleanerd.format.codecs import Codec
from cleanerd.format.control import ControlType, encode_end_txn_marker
from cleanerd.format.txn_index import AbortedTxn
from tests.harness.kernels import reference
from tests.harness.kernels.agreement import assert_agree
from tests.harness.kernels.real_path import Layout, RealPath
from tests.harness.kernels.reference import Batch, Cleaned, Facts, LastBatch, Replay, Segment
from tests.harness.logs.random_log import LogSegment

DAY_MS = 86_400_000
LARGE_MS = 2**63 - 1 - DAY_MS - 1
"""So late that a delete horizon of one day still fits, and one more day later it does not."""


@dataclass
class SmallLog:
    """Appends to the last segment; `clean` takes all others. Keys are numbers, values the offsets as text."""

    directory: Path
    retention_ms: int = DAY_MS
    layout: Layout = field(default_factory=lambda: Layout(chunk_bytes=1, buckets=4, slice_bytes=1))
    next_offset: int = 0
    segments: list[LogSegment] = field(default_factory=lambda: [LogSegment(0, b"")])
    producers: Replay = field(default_factory=Replay)  # as the broker remembers them, cleaned or not
    aborted: list[AbortedTxn] = field(default_factory=list)
    sequences: dict[int, int] = field(default_factory=dict)

    def append(
        self, *keys: int | bytes | None, pid: int = -1, txn: bool = False, value: bytes | None = b"offset"
    ) -> None:
        offset = self.next_offset
        records = [
            Record(
                offset + i,
                1000,
                b"%d" % key if isinstance(key, int) else key,
                b"%d" % (offset + i) if value == b"offset" else value,
            )
            for i, key in enumerate(keys)
        ]
        self.add(
            encode_batch(
                records,
                base_offset=offset,
                codec=Codec(offset % len(Codec)),
                producer_id=pid,
                producer_epoch=0 if pid >= 0 else -1,
                base_sequence=self._next_sequence(pid, len(keys)),
                transactional=txn,
            )
        )

    def append_each(self, keys: Iterable[int], per_segment: int = 1 << 30) -> None:
        for number, key in enumerate(keys, 1):
            self.append(key)
            if number % per_segment == 0:
                self.roll()

    def produce(self, pid: int, *keys: int | bytes) -> None:
        self.append(*keys, pid=pid, txn=True)

    def commit(self, pid: int, *, epoch: int = 0) -> None:
        self._end(ControlType.COMMIT, pid, epoch)

    def abort(self, pid: int) -> None:
        """The end of a transaction, and its entry in the transaction index."""
        producer = self.producers.producers.get(pid)
        first = None if producer is None else producer.txn_first_offset
        if first is not None:
            self.aborted.append(AbortedTxn(pid, first, self.next_offset, self.next_offset + 1))
        self._end(ControlType.ABORT, pid)

    def add(self, data: bytes) -> None:
        last = self.segments[-1]
        self.segments[-1] = LogSegment(last.base_offset, last.data + data, last.retain_legacy_deletes)
        reference.replay(self.producers, data, from_offset=0, high_watermark=2**62)
        self.next_offset = max(batch.last_offset for batch in reference.read_batches(data)) + 1

    def roll(self) -> None:
        """Close the last segment, unless nothing is in it."""
        if self.segments[-1].data:
            self.segments.append(LogSegment(self.next_offset, b""))

    def clean(self, first_dirty: int, now_ms: int = LARGE_MS, *, segments: int | None = None) -> Cleaned:
        """One round over the first `segments` closed segments (all). The log is what the round made of it."""
        self.roll()
        taken = len(self.segments) - 1 if segments is None else segments
        closed, round_end = self.segments[:taken], self.segments[taken].base_offset
        facts = self.facts(first_dirty, round_end, now_ms)
        path = RealPath(self.directory, closed, facts, self.layout)
        cleaned = path.clean()
        expected = reference.clean([Segment(s.data, s.retain_legacy_deletes) for s in closed], facts)
        assert_agree(cleaned, expected)
        self.segments[:taken] = [
            LogSegment(segment.base_offset, data, segment.retain_legacy_deletes)
            for segment, data in zip(closed, cleaned.segments, strict=True)
        ]
        self.aborted = cleaned.kept_aborted + [t for t in self.aborted if t.last_offset >= round_end]
        return cleaned

    def clean_twice(self, first_dirty: int, now_ms: int = LARGE_MS) -> None:
        """A round at `now_ms` and one when everything that it gave a horizon is past it."""
        self.clean(first_dirty, now_ms)
        self.clean(first_dirty, now_ms + DAY_MS + 1)

    def facts(self, first_dirty: int, round_end: int, now_ms: int) -> Facts:
        horizon = now_ms + self.retention_ms
        return Facts(
            now_ms=now_ms,
            new_horizon_ms=horizon if horizon < 2**63 else None,
            first_dirty_offset=first_dirty,
            round_end=round_end,
            producers={
                pid: LastBatch(producer.epoch, producer.last_data_offset)
                for pid, producer in self.producers.producers.items()
            },
            aborted=tuple(self.aborted),
        )

    def _end(self, kind: ControlType, pid: int, epoch: int = 0) -> None:
        self.add(
            encode_end_txn_marker(
                kind, offset=self.next_offset, timestamp_ms=1000, producer_id=pid, producer_epoch=epoch
            )
        )

    def _next_sequence(self, pid: int, count: int) -> int:
        if pid < 0:
            return -1
        sequence = self.sequences.get(pid, 0)
        self.sequences[pid] = sequence + count
        return sequence

    def batches(self) -> Iterator[Batch]:
        for segment in self.segments:
            yield from reference.read_batches(segment.data)

    @property
    def keys(self) -> list[int]:
        """Keys of the data records with key and value, in order."""
        return [
            int(record.key)
            for batch in self.batches()
            if not batch.is_control
            for record in batch.records
            if record.key is not None and record.value is not None
        ]

    @property
    def offsets(self) -> list[int]:
        """Offsets of the records with key and value, markers too."""
        return [
            record.offset
            for batch in self.batches()
            for record in batch.records
            if record.key is not None and record.value is not None
        ]

    @property
    def batch_ends(self) -> list[int]:
        return [batch.last_offset for batch in self.batches()]

    @property
    def batch_bases(self) -> list[int]:
        return [batch.base_offset for batch in self.batches()]

    @property
    def last_sequences(self) -> dict[int, int]:
        """Last sequence of every producer, as a replay of the log finds it."""
        return {
            batch.producer_id: batch.header.last_sequence
            for batch in self.batches()
            if batch.header is not None and batch.producer_id >= 0 and not batch.is_control
        }
