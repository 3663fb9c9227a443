"""Logs out of a seeded random generator: everything that may lie in a log directory, in small.

All codecs, headers, null and empty keys, tombstones, delete horizons, gaps, batches that were compacted before, empty
batches, LogAppendTime, idempotent and transactional producers whose transactions interleave, end or stay open, markers
without data, control batches that are no markers, and messages of magic 0 and 1 alone and in wrappers.
"""

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cleanerd.format.batch import Record, decode_batch, encode_batch, encode_empty_batch, parse_header
from cleanerd.format.codecs import Codec
from cleanerd.format.control import ControlType, encode_end_txn_marker
from cleanerd.format.legacy import encode_message, encode_wrapper, wrap_messages
from cleanerd.format.txn_index import AbortedTxn
from tests.harness.kernels import reference
from tests.harness.kernels.reference import Facts, LastBatch, Replay

NOW_MS = 1_700_000_000_000
RETENTION_MS = 86_400_000
WRAPPING = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
KEYS = (
    b"",
    b"a",
    b"k1",
    b"k2",
    b"\0\0\0\1",
    b"\0\0\0\0",
    b"key-of-16-bytes!",
    b"k" * 7,
    b"k" * 8,
    b"k" * 9,
    b"l" * 300,
)


_WEIGHTS = {
    "plain": 6,
    "idempotent": 3,
    "transactional": 6,
    "marker": 4,
    "other": 1,
    "legacy": 1,
    "wrapper": 2,
    "mixed_wrapper": 1,
}
"""Kinds of steps, each a method of `RandomLog`, and how often they come."""


@dataclass
class _Producer:
    epoch: int = 0
    sequence: int = 0
    txn_first_offset: int | None = None


@dataclass
class Placed:
    """A batch and where it is; `base_offset` is below or at the first offset in it."""

    base_offset: int
    data: bytes


def with_horizon(data: bytes, horizon_ms: int) -> bytes:
    """A marker that got a delete horizon."""
    header, records = decode_batch(data)
    return encode_batch(
        records,
        base_offset=header.base_offset,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        transactional=True,
        control=True,
        delete_horizon_ms=horizon_ms,
    )


@dataclass
class RandomLog:
    """Appends random batches. `kinds` restricts them by name."""

    rng: random.Random
    keys: Sequence[bytes] = KEYS
    kinds: Sequence[str] = tuple(_WEIGHTS)
    next_offset: int = 0
    batches: list[Placed] = field(default_factory=list)
    aborted: list[AbortedTxn] = field(default_factory=list)
    producers: dict[int, _Producer] = field(default_factory=dict)

    def append(self, count: int = 1) -> "RandomLog":
        for _ in range(count):
            if self.rng.random() < 0.1:
                self.next_offset += self.rng.choice((1, 5, 1000))
            name = self.rng.choices(self.kinds, [_WEIGHTS[kind] for kind in self.kinds])[0]
            getattr(self, f"_{name}")()
        return self

    def write_segment(self, directory: Path, count: int) -> int:
        """Append so many, which are a `.log` of their own; returns its base offset."""
        first, base = len(self.batches), self.next_offset
        self.append(count)
        data = b"".join(placed.data for placed in self.batches[first:])
        (directory / f"{base:020d}.log").write_bytes(data)
        return base

    @property
    def data(self) -> bytes:
        return b"".join(placed.data for placed in self.batches)

    def _add(self, base_offset: int, data: bytes, next_offset: int) -> None:
        self.batches.append(Placed(base_offset, data))
        self.next_offset = next_offset

    def _records(self, *, magic: int = 2) -> list[Record]:
        rng, offset, records = self.rng, self.next_offset, []
        spread = rng.choice((1, 1000, 10**9))
        for _ in range(rng.choice((1, 1, 2, 3, 8))):
            offset += rng.choice((0, 0, 0, 1, 3))
            timestamp_ms = NOW_MS - rng.randrange(spread) if magic > 0 and rng.random() < 0.95 else -1
            value = None if rng.random() < 0.25 else rng.randbytes(rng.choice((0, 1, 10, 100)))
            key = None if rng.random() < 0.08 else rng.choice(self.keys)
            headers = (("h", b"1"), ("h\xe9", None)) if magic == 2 and rng.random() < 0.2 else ()
            records.append(Record(offset, timestamp_ms, key, value, headers))
            offset += 1
        return records

    def _data_batch(self, **more: int | bool) -> None:
        rng, base, records = self.rng, self.next_offset, self._records()
        last = records[-1].offset + rng.choice((0, 0, 0, 2))
        horizon = rng.choice((None, None, None, None, NOW_MS - 1, NOW_MS, NOW_MS + 1, NOW_MS + RETENTION_MS))
        data = encode_batch(
            records,
            base_offset=base,
            last_offset=last,
            codec=rng.choice(list(Codec)),
            leader_epoch=rng.choice((-1, 0, 67)),
            log_append_time=rng.random() < 0.2,
            delete_horizon_ms=horizon,
            **more,  # type: ignore[arg-type]
        )
        if rng.random() < 0.08:
            data = encode_empty_batch(parse_header(data))
        self._add(base, data, last + 1)

    def _plain(self) -> None:
        self._data_batch()

    def _producer(self) -> tuple[int, _Producer]:
        number = self.rng.randrange(5)
        producer = self.producers.setdefault(number, _Producer())
        if self.rng.random() < 0.1:
            producer.epoch, producer.sequence = producer.epoch + 1, 0
        return number, producer

    def _produce(self, number: int, producer: _Producer, *, transactional: bool) -> None:
        start = self.next_offset
        self._data_batch(
            producer_id=number,
            producer_epoch=producer.epoch,
            base_sequence=producer.sequence,
            transactional=transactional,
        )
        producer.sequence += self.next_offset - start

    def _idempotent(self) -> None:
        number, producer = self._producer()
        self._produce(number + 100, producer, transactional=False)

    def _transactional(self) -> None:
        number, producer = self._producer()
        if producer.txn_first_offset is None:
            producer.txn_first_offset = self.next_offset
        self._produce(number, producer, transactional=True)

    def _marker(self) -> None:
        """The end of a transaction, often one without data; sometimes one that earlier rounds worked on."""
        rng, offset = self.rng, self.next_offset
        number, producer = self._producer()
        kind = rng.choice((ControlType.COMMIT, ControlType.ABORT))
        data = encode_end_txn_marker(
            kind,
            offset=offset,
            timestamp_ms=NOW_MS - 5,
            producer_id=number,
            producer_epoch=producer.epoch,
            coordinator_epoch=3,
        )
        first = producer.txn_first_offset
        if kind is ControlType.ABORT and first is not None:
            stable = [
                p.txn_first_offset
                for p in self.producers.values()
                if p.txn_first_offset is not None and p is not producer
            ]
            self.aborted.append(AbortedTxn(number, first, offset, min(stable, default=offset + 1)))
        if first is None and rng.random() < 0.5:
            data = self._worn(data)
        producer.txn_first_offset = None
        self._add(offset, data, offset + 1)

    def _worn(self, data: bytes) -> bytes:
        """A marker with a delete horizon, or its empty header."""
        if self.rng.random() < 0.4:
            return encode_empty_batch(decode_batch(data)[0])
        return with_horizon(data, self.rng.choice((NOW_MS - 1, NOW_MS, NOW_MS + 1)))

    def _other(self) -> None:
        """What KRaft writes, and types that nobody knows yet."""
        offset, kind = self.next_offset, self.rng.choice((2, 3, 99))
        record = Record(offset, NOW_MS, struct.pack(">hh", 0, kind), self.rng.choice((None, b"\0\0\0\0")))
        producer_id = self.rng.choice((-1, 1))
        data = encode_batch(
            [record],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=min(producer_id, 0),
            control=True,
        )
        self._add(offset, data, offset + 1)

    def _legacy(self) -> None:
        magic = self.rng.choice((0, 1))
        append_time = magic == 1 and self.rng.random() < 0.3
        for record in self._records(magic=magic):
            data = encode_message(record, magic=magic, log_append_time=append_time)
            self._add(record.offset, data, record.offset + 1)

    def _wrapper(self) -> None:
        rng, magic = self.rng, self.rng.choice((0, 1))
        records = self._records(magic=magic)
        codec, append_time = rng.choice(WRAPPING), magic == 1 and rng.random() < 0.3
        data = encode_wrapper(records, magic=magic, codec=codec, log_append_time=append_time)
        self._add(records[0].offset, data, records[-1].offset + 1)

    def _mixed_wrapper(self) -> None:
        """KAFKA-4298: messages of the other magic inside."""
        rng, magic = self.rng, self.rng.choice((0, 1))
        records = self._records(magic=magic)
        base = records[0].offset if magic == 1 else 0
        inner = (
            encode_message(replace(record, offset=record.offset - base, timestamp_ms=NOW_MS), magic=1 - magic)
            for record in records
        )
        data = wrap_messages(
            b"".join(inner),
            magic=magic,
            codec=rng.choice(WRAPPING),
            last_offset=records[-1].offset,
            timestamp_ms=NOW_MS,
            log_append_time=magic == 1 and rng.random() < 0.3,
        )
        self._add(records[0].offset, data, records[-1].offset + 1)


@dataclass(frozen=True)
class LogSegment:
    base_offset: int
    data: bytes
    retain_legacy_deletes: bool = False


def cut_segments(rng: random.Random, batches: Sequence[Placed], count: int) -> list[LogSegment]:
    """Closed segments of random size; later ones keep legacy tombstones (rule 4.11)."""
    cuts = sorted(rng.choices(range(len(batches) + 1), k=count - 1))
    keep_from = rng.randrange(count + 1)
    segments: list[LogSegment] = []
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(batches)], strict=True)):
        inside = batches[start:end]
        if segments and not inside:
            continue
        data = b"".join(placed.data for placed in inside)
        segments.append(LogSegment(inside[0].base_offset if inside else 0, data, number >= keep_from))
    return segments


def random_facts(rng: random.Random, log: RandomLog, now_ms: int = NOW_MS) -> Facts:
    """Facts of the whole log; some producers are expired or known only by a marker."""
    state = Replay()
    for placed in log.batches:
        reference.replay(state, placed.data, from_offset=0, high_watermark=log.next_offset)
    producers = {
        number: LastBatch(producer.epoch, producer.last_data_offset)
        for number, producer in state.producers.items()
        if rng.random() < 0.7
    }
    return Facts(
        now_ms=now_ms,
        new_horizon_ms=rng.choice((now_ms + RETENTION_MS, now_ms + RETENTION_MS, 2**63 - 1, None)),
        first_dirty_offset=rng.choice(
            (0, rng.randrange(log.next_offset + 1), rng.randrange(log.next_offset + 1))
        ),
        round_end=log.next_offset + rng.choice((0, 0, 7)),
        producers=producers,
        aborted=tuple(log.aborted),
    )
