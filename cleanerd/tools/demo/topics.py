"""The demo's three topics, the cooperating writer of each, and the truth about the committed records."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from cleanerd.format.batch import NO_PRODUCER_ID, Record
from cleanerd.format.codecs import Codec
from cleanerd.tools.client.producer import Producer, ProducerRecord
from cleanerd.tools.client.writer import LogWriter

SEGMENT_BYTES = 4 << 20
_PRODUCER_ID = 4711
_TRANSACTION_BATCHES_MAX = 4
_ABORTED_SHARE = 0.1
_PROFILES, _ORDERS, _PAGES = 20_000, 15_000, 8_000
_DELETED_SHARE = 0.04
_CITIES = ("Basel", "Bern", "Chur", "Lugano", "Zug")
_STATES = ("created", "paid", "packed", "shipped", "delivered")
_ABOUT = "Likes logs that stay short, keys that stay, mountains, trains that leave on time, and coffee. " * 8


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the demo, and its first `batches`; `row` makes a record of some key."""

    name: str
    about: str
    codec: Codec
    is_transactional: bool
    batches: int
    batch_records: int
    row: Callable[[Random, int], ProducerRecord]


def _profile(random: Random, now_ms: int) -> ProducerRecord:
    number = random.randrange(_PROFILES)
    key = b"user-%05d" % number
    if random.random() < _DELETED_SHARE:
        return ProducerRecord(key, None, now_ms)
    city, plan = random.choice(_CITIES), random.choice(("free", "team", "pro"))
    value = (
        f'{{"id": {number}, "name": "User {number}", "mail": "user{number}@example.org", "city": "{city}", '
        f'"plan": "{plan}", "about": "{_ABOUT[: random.randrange(len(_ABOUT))]}", "seen_ms": {now_ms}}}'
    )
    return ProducerRecord(key, value.encode(), now_ms)


def _order(random: Random, now_ms: int) -> ProducerRecord:
    number = random.randrange(_ORDERS)
    key = b"order-%05d" % number
    if random.random() < _DELETED_SHARE:
        return ProducerRecord(key, None, now_ms)
    state, cents = random.choice(_STATES), random.randrange(100, 50_000)
    value = f'{{"order": {number}, "state": "{state}", "cents": {cents}, "items": {cents % 7 + 1}, "at_ms": {now_ms}}}'
    return ProducerRecord(key, value.encode(), now_ms)


def _page_view(random: Random, now_ms: int) -> ProducerRecord:
    number = random.randrange(_PAGES)
    value = (
        f'{{"page": "/articles/{number}", "views": {random.randrange(10**6)}, "seconds": {random.random():.6f}, '
        f'"last_visitor": "{random.getrandbits(64):016x}", "until_ms": {now_ms}}}'
    )
    return ProducerRecord(b"/articles/%d" % number, value.encode(), now_ms)


PROFILES = Topic("user-profiles", "JSON profiles, some deleted", Codec.NONE, False, 800, 100, _profile)
ORDERS = Topic("orders-changelog", "lz4, transactions, some aborted", Codec.LZ4, True, 1200, 50, _order)
PAGE_VIEWS = Topic("page-views-zstd", "zstd, counters of pages", Codec.ZSTD, False, 250, 400, _page_view)
TOPICS = (PROFILES, ORDERS, PAGE_VIEWS)


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest committed record of a key; `value` None: the key is deleted."""

    offset: int
    value: bytes | None


class Truth:
    """The records committed to one log: noted by its writer, read by any thread."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()  # guards what follows
        self._latest: dict[bytes, Latest] = {}
        self._written: dict[int, int] = {}  # offset -> hash of key and value

    def announce(self, records: Sequence[Record]) -> None:
        """Note records that a reader may see from now on."""
        with self._mutex:
            self._written.update((record.offset, hash((record.key, record.value))) for record in records)

    def settle(self, records: Sequence[Record]) -> None:
        """Note records that a reader must see from now on, or newer ones of their keys."""
        with self._mutex:
            for record in records:
                assert record.key is not None
                self._latest[record.key] = Latest(record.offset, record.value)

    def latest(self) -> dict[bytes, Latest]:
        """The records that a read starting now must find, by key."""
        with self._mutex:
            return dict(self._latest)

    def was_committed(self, record: Record) -> bool:
        """Whether exactly this was written at this offset, and not in a transaction that was aborted."""
        return self._written.get(record.offset) == hash((record.key, record.value))


class Feed:
    """Appends to the log of one topic and keeps the truth about it. One thread at a time."""

    def __init__(self, log_dir: str, topic: Topic, seed: int) -> None:
        self.topic = topic
        self.truth = Truth()
        self.records = 0
        self.writer = LogWriter(log_dir, topic.name, 0, segment_bytes=SEGMENT_BYTES)
        producer_id = _PRODUCER_ID if topic.is_transactional else NO_PRODUCER_ID
        self._producer = Producer(self.writer, codec=topic.codec, producer_id=producer_id)
        self._random = Random(seed)  # noqa: S311 - traffic, not secrets
        self._open: list[Record] = []  # of the transaction that is open
        self._batches_to_come = 0

    @property
    def directory(self) -> str:
        """The partition directory."""
        return self.writer.directory

    def send_batch(self, now_ms: int) -> None:
        """Append one batch; end its transaction after the planned number of batches."""
        rows = [self.topic.row(self._random, now_ms) for _ in range(self.topic.batch_records)]
        base_offset = self.writer.log_end_offset
        records = [
            Record(base_offset + i, row.timestamp_ms, row.key, row.value) for i, row in enumerate(rows)
        ]
        self.records += len(rows)
        if self.topic.is_transactional:
            self._send_in_transaction(rows, records, now_ms)
        else:
            self.truth.announce(records)
            self._producer.send(rows)
            self.truth.settle(records)

    def _send_in_transaction(
        self, rows: Sequence[ProducerRecord], records: Sequence[Record], now_ms: int
    ) -> None:
        if not self._open:
            self._producer.begin()
            self._batches_to_come = self._random.randint(1, _TRANSACTION_BATCHES_MAX)
        self._producer.send(rows)
        self._open += records
        self._batches_to_come -= 1
        if self._batches_to_come == 0:
            self._end_transaction(now_ms)

    def _end_transaction(self, now_ms: int) -> None:
        if self._random.random() < _ABORTED_SHARE:
            self._producer.abort(now_ms)
        else:
            self.truth.announce(self._open)
            self._producer.commit(now_ms)
            self.truth.settle(self._open)
        self._open = []

    def roll(self, now_ms: int) -> None:
        """End an open transaction and start a new segment, so that everything up to here may be cleaned."""
        if self._open:
            self._end_transaction(now_ms)
        self.writer.roll()

    def close(self, now_ms: int) -> None:
        """End an open transaction and close the writer."""
        if self._open:
            self._end_transaction(now_ms)
        self.writer.close()
