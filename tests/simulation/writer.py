"""The actor that writes: cooperating writers with all kinds of producers, and what was acknowledged (`judge.Model`)."""

import random
from dataclasses import dataclass, field

from cleanerd.format.codecs import Codec
from cleanerd.format.names import TopicPartition
from cleanerd.tools.client.producer import Producer, ProducerRecord
from cleanerd.tools.client.writer import LogWriter, WriterOptions
from tests.simulation.disk import Disk
from tests.simulation.judge import PRODUCER_EXPIRATION_MS, Batch, Model

CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
SEGMENT_BYTES = 700


@dataclass
class Log:
    """One partition, its writer (None: dead) and its producers."""

    log_dir: str
    tp: TopicPartition
    disk: Disk
    chance: random.Random
    keys: int
    model: Model = field(default_factory=Model)
    writer: LogWriter | None = None
    producers: dict[int, Producer] = field(default_factory=dict)
    _sequences: dict[int, int] = field(default_factory=dict)
    is_whole: bool = False  # nobody writes, and the last one who did came to a clean end
    cut: int | None = None  # where a truncation is under way, or was interrupted
    future: str | None = None  # directory that its broker moves it to
    copied: set[int] = field(default_factory=set)  # segments that are there
    is_move_unseen: bool = False  # the directory that it moves to failed before the daemon had looked
    targets: set[str] = field(default_factory=set)  # log directories that it has been on its way to
    _next_producer: int = 1

    @property
    def directory(self) -> str:
        return f"{self.log_dir}/{self.tp}"

    def open(self) -> None:
        """Another writer; its producers have ids of their own, as after a crash of theirs."""
        self.is_whole = False
        writer = LogWriter(
            self.log_dir, self.tp.topic, self.tp.partition, segment_bytes=SEGMENT_BYTES, index_interval_bytes=120,
            start_offset=self.model.end, options=WriterOptions(
                repair=True, fsync=True, producer_expiration_ms=PRODUCER_EXPIRATION_MS, clock=self.disk.clock
            ),
        )  # fmt: skip
        self.writer = writer
        take = writer.append

        def append(raw: bytes) -> None:
            self.model.unacknowledged = None
            try:
                take(raw)
            except BaseException:
                self.model.unacknowledged = Batch.of(raw)
                raise
            self.model.append(raw)

        writer.append = append  # type: ignore[method-assign]

    def die(self) -> None:
        self.writer, self.is_whole = None, False
        self.producers.clear()
        self.disk.close_all_of(str(self.tp))

    def close(self) -> None:
        writer, self.writer = self.writer, None
        self.producers.clear()
        if writer is not None:
            writer.close()

    def append(self) -> str:
        """One batch, or the end of a transaction, by one of its producers."""
        if self.producers and self.chance.random() < 0.6:
            number = self.chance.choice(sorted(self.producers))
            producer = self.producers[number]
            if producer._in_transaction and self.chance.random() < 0.35:
                return self._end(number)
        else:
            number, producer = self._new_producer()
        count = self.chance.choice([1, 1, 2, 3])
        rows = [self._row() for _ in range(count)]
        offset = producer.send(rows)
        words = " ".join(f"{(row.key or b'-').decode()}={'~' if row.value is None else 'v'}" for row in rows)
        return f"{offset}: producer {number}: {words}"

    def _row(self) -> ProducerRecord:
        chance, now_ms = self.chance, self.disk.clock.now_ms()
        draw = chance.random()
        value = None if draw < 0.2 else b"%d:" % now_ms + b"x" * chance.randint(0, 90)
        if chance.random() < 0.15:  # a key that seldom comes again: its tombstone stays until its horizon
            key = b"once-%d" % chance.randrange(300)
            value = None if chance.random() < 0.6 else value
        else:
            key = b"k%d" % chance.randrange(self.keys)
        return ProducerRecord(key, value, now_ms - chance.randint(0, 5))

    def _new_producer(self) -> tuple[int, Producer]:
        assert self.writer is not None
        codec, draw = self.chance.choice(CODECS), self.chance.random()
        if draw < 0.35:
            return -1, Producer(self.writer, codec=codec)
        number, self._next_producer = self._next_producer, self._next_producer + 1
        made = self.producers[number] = Producer(self.writer, codec=codec, producer_id=number)
        if draw < 0.7:
            made.begin()
        if len(self.producers) > 3:
            oldest = min(self.producers)
            if not self.producers[oldest]._in_transaction:
                del self.producers[oldest]
        return number, made

    def _end(self, number: int) -> str:
        producer, now_ms = self.producers.pop(number), self.disk.clock.now_ms()
        is_abort = self.chance.random() < 0.4
        offset = producer.abort(now_ms) if is_abort else producer.commit(now_ms)
        return f"{offset}: producer {number}: {'abort' if is_abort else 'commit'}"

    def end_all(self) -> None:
        for number, producer in list(self.producers.items()):
            if producer._in_transaction:
                self._end(number)
        self.end_left()

    def end_left(self) -> None:
        """Those of producers that died are aborted by their coordinator."""
        writer = self.writer
        assert writer is not None
        for entry in writer.producers:
            if entry.current_txn_first_offset >= 0:
                left = Producer(writer, producer_id=entry.producer_id, producer_epoch=entry.producer_epoch)
                left._in_transaction = True
                left.abort(self.disk.clock.now_ms())
