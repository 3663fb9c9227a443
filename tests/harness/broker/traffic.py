"""What clients do beside a story: idempotent and transactional producers and consumer groups, and what they were promised.

`Ledger` is the model of one topic: what was acknowledged, at which offset, and what has been seen to be gone.
"""

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as Delivery

from cleanerd.env.clock import SystemClock
from cleanerd.format.record import Record
from tests.harness.broker.live import (
    BATCH_RECORDS,
    PATIENCE_S,
    VALUE_BYTES,
    Entry,
    Journal,
    check_nothing_is_lost,
)
from tests.harness.broker.producers import TRANSACTION_TIMEOUT_MS

KEYS = 150
ROUND_S = 0.2
RETRIES_MAX = 30
TOMBSTONES = 0.15
ACKNOWLEDGED_S = 180.0
"""A request that a killed or starting broker swallows is sent again after the client's `socket.timeout.ms`, a minute."""


class Ledger:
    """The model of a topic's partition 0."""

    def __init__(self, topic: str, bootstrap: str, rng: random.Random) -> None:
        self.topic = topic
        self.committed: dict[int, Entry] = {}  # of transactions
        self.sent: list[Entry] = []  # by the idempotent producer, in its order
        self._bootstrap = bootstrap
        self._rng = rng
        self._journal = Journal(bootstrap, in_flight=1)
        self._gone: set[int] = set()
        self._log_start = 0

    @property
    def written(self) -> dict[int, Entry]:
        """All that a read_committed consumer might see, by offset."""
        return self._acknowledged | self.committed

    @property
    def _acknowledged(self) -> dict[int, Entry]:
        return self._journal.written.get(self.topic, {})

    def entry(self) -> Entry:
        """The next record: any key, sometimes a tombstone."""
        key = b"key-%d" % self._rng.randrange(KEYS)
        return key, None if self._rng.random() < TOMBSTONES else self._rng.randbytes(VALUE_BYTES)

    def send(self) -> None:
        for _ in range(BATCH_RECORDS):
            entry = self.entry()
            self.sent.append(entry)
            self._journal.send(self.topic, entry)

    def flush(self) -> None:
        self._journal.flush(ACKNOWLEDGED_S)

    def restart(self) -> None:
        """The topic was deleted and created again."""
        self.committed, self.sent, self._gone, self._log_start = {}, [], set(), 0
        self._journal = Journal(self._bootstrap, in_flight=1)

    def check(self, seen: Sequence[Record], log_start: int) -> None:
        """Nothing is lost, nothing that was gone is back, offsets only rise."""
        written = self.written
        order = [self._acknowledged[offset] for offset in sorted(self._acknowledged)]
        assert order == self.sent, self.topic
        check_nothing_is_lost(written, seen, log_start=log_start, why=self.topic)
        offsets = {record.offset for record in seen}
        assert not offsets & self._gone, (self.topic, sorted(offsets & self._gone))
        assert log_start >= self._log_start, self.topic
        self._gone = set(written) - offsets
        self._log_start = log_start


class Transactions:
    """A transactional producer of one topic. Raises `KafkaException` for what the broker's restarts do not explain."""

    def __init__(self, ledger: Ledger, bootstrap: str) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"{ledger.topic}-writer",
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "max.in.flight.requests.per.connection": 1,
            "linger.ms": 5,
            "log_level": 0,
        }
        self.is_open = False
        self._ledger = ledger
        self._pending: dict[int, Entry] = {}
        self._errors: list[str] = []
        self._producer = Producer(settings)
        self._producer.init_transactions(PATIENCE_S)

    def write(self) -> None:
        """Two batches of the open transaction; begins it."""
        if not self.is_open:
            self._producer.begin_transaction()
            self.is_open = True
        now_ms = SystemClock().now_ms()
        for _ in range(2 * BATCH_RECORDS):
            key, value = entry = self._ledger.entry()
            self._producer.produce(
                self._ledger.topic, value, key, 0, timestamp=now_ms, on_delivery=self._note(entry)
            )
        assert self._producer.flush(PATIENCE_S) == 0
        assert not self._errors, self._errors

    def end(self, *, commit: bool) -> None:
        """Commit or abort, as often as the coordinator asks for it."""
        end = self._producer.commit_transaction if commit else self._producer.abort_transaction
        retried(lambda: end(PATIENCE_S))
        if commit:
            self._ledger.committed.update(self._pending)
        self._pending.clear()
        self.is_open = False

    def _note(self, entry: Entry) -> Any:
        def delivered(error: KafkaError | None, delivery: Delivery) -> None:
            offset = delivery.offset()
            if error is not None or offset is None:
                self._errors.append(str(error))
            else:
                self._pending[offset] = entry

        return delivered


class Groups:
    """Consumer groups that commit offsets, for ever higher ones."""

    def __init__(self, bootstrap: str, names: Sequence[str], topics: Sequence[str]) -> None:
        self.committed = 0
        self._topics = topics
        self._consumers = [
            Consumer(
                {
                    "bootstrap.servers": bootstrap,
                    "group.id": name,
                    "enable.auto.commit": False,
                    "log_level": 0,
                }
            )
            for name in names
        ]

    def commit(self) -> None:
        """The next offset, for every topic and group."""
        self.committed += 1
        offsets = [TopicPartition(topic, 0, self.committed) for topic in self._topics]
        for consumer in self._consumers:
            retried(lambda consumer=consumer: consumer.commit(offsets=offsets, asynchronous=False))

    def check(self) -> None:
        asked = [TopicPartition(topic, 0) for topic in self._topics]
        for consumer in self._consumers:
            found = retried(lambda consumer=consumer: consumer.committed(asked, PATIENCE_S))
            assert {partition.offset for partition in found} == {self.committed}

    def close(self) -> None:
        for consumer in self._consumers:
            consumer.close()


@contextmanager
def again_and_again(step: Callable[[], object], pause_s: float) -> Iterator[None]:
    """A thread takes a step after the other meanwhile; what one raises is raised at the end."""
    is_over = threading.Event()

    def run() -> None:
        step()
        while not is_over.wait(pause_s):
            step()

    with ThreadPoolExecutor(1) as thread:
        steps = thread.submit(run)
        try:
            yield
        finally:
            is_over.set()
    steps.result()


def retried(ask: Any) -> Any:
    """Ask again while a coordinator is still coming up."""
    for _ in range(RETRIES_MAX):
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].fatal() or error.args[0].txn_requires_abort():
                raise
            last = error
            threading.Event().wait(0.5)
    raise last


class Traffic:
    """A thread that writes a batch to every topic, again and again; holds still while something is looked at."""

    def __init__(self, ledgers: Mapping[str, Ledger]) -> None:
        self._active = dict(ledgers)
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def __enter__(self) -> "Traffic":
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    @contextmanager
    def still(self) -> Iterator[None]:
        """Everything is acknowledged, and no more is sent."""
        with self._lock:
            for ledger in self._active.values():
                ledger.flush()
            yield

    @contextmanager
    def without(self, topic: str) -> Iterator[Ledger]:
        """Nothing of this topic is sent meanwhile."""
        with self._lock:
            ledger = self._active.pop(topic)
            ledger.flush()
        yield ledger
        with self._lock:
            self._active[topic] = ledger

    def _run(self) -> None:
        while not self._stopping.wait(ROUND_S):
            with self._lock:
                for ledger in self._active.values():
                    ledger.send()
