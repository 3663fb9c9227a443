"""Producers of both client libraries: `Writer` is either.

librdkafka (confluent-kafka) writes snappy bare (rule 10.6) and ends transactions the old way. The client of
the JVM writes xerial frames and, with transaction version 2, a marker with a bumped epoch after every
transaction. Both lie on disk in the wild. Nothing is sent before `flush`, so each `send` makes one batch.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, Producer
from confluent_kafka import Message as Delivery
from py4j.java_gateway import JavaGateway

from tests.harness.broker.releases import jvm_options, kafka_libs, required_program

LINGER_MS = 60_000
TRANSACTION_TIMEOUT_MS = 900_000
"""The longest that the broker allows: an open transaction stays open for the whole test."""
TIMEOUT_S = 60.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Message:
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Style:
    codec: str = "none"
    idempotent: bool = False
    transactional: bool = False
    jvm: bool = False


class LibrdkafkaWriter:
    def __init__(self, bootstrap: str, style: Style, transactional_id: str) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "compression.type": style.codec,
            "enable.idempotence": style.idempotent,
            "linger.ms": LINGER_MS,
            "message.max.bytes": 1_000_000,
            "log_level": 0,
        }
        if style.transactional:
            settings |= {
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "enable.idempotence": True,
            }
        self._producer = Producer(settings)
        self._errors: list[str] = []
        if style.transactional:
            self._producer.init_transactions(TIMEOUT_S)

    def send(self, topic: str, messages: Iterable[Message]) -> None:
        """Write the messages as one batch and wait for the broker's answer."""
        for message in messages:
            self._producer.produce(
                topic,
                key=message.key,
                value=message.value,
                timestamp=message.timestamp_ms,
                headers=list(message.headers),
                partition=0,
                on_delivery=self._delivered,
            )
        assert self._producer.flush(TIMEOUT_S) == 0
        assert not self._errors, self._errors

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._producer.commit_transaction(TIMEOUT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(TIMEOUT_S)

    def _delivered(self, error: KafkaError | None, _delivery: Delivery) -> None:
        if error is not None:
            self._errors.append(str(error))


class JvmWriter:
    """A `KafkaProducer` of the broker's own release, reached through py4j."""

    def __init__(self, gateway: JavaGateway, bootstrap: str, style: Style, transactional_id: str) -> None:
        self._jvm = gateway.jvm
        settings = {
            "bootstrap.servers": bootstrap,
            "key.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
            "value.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
            "compression.type": style.codec,
            "enable.idempotence": str(style.idempotent or style.transactional).lower(),
            "linger.ms": str(LINGER_MS),
            "batch.size": "1000000",
            "delivery.timeout.ms": str(LINGER_MS * 2),
        }
        if style.transactional:
            settings |= {
                "transactional.id": transactional_id,
                "transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
            }
        java_settings = self._jvm.java.util.HashMap()
        for key, value in settings.items():
            java_settings.put(key, value)
        self._producer = self._jvm.org.apache.kafka.clients.producer.KafkaProducer(java_settings)
        if style.transactional:
            self._producer.initTransactions()

    def send(self, topic: str, messages: Iterable[Message]) -> None:
        for message in messages:
            headers = self._jvm.java.util.ArrayList()
            for key, value in message.headers:
                headers.add(self._jvm.org.apache.kafka.common.header.internals.RecordHeader(key, value))
            self._producer.send(
                self._jvm.org.apache.kafka.clients.producer.ProducerRecord(
                    topic, 0, message.timestamp_ms, message.key, message.value, headers
                )
            )
        self._producer.flush()

    def begin(self) -> None:
        self._producer.beginTransaction()

    def commit(self) -> None:
        self._producer.commitTransaction()

    def abort(self) -> None:
        self._producer.abortTransaction()

    def close(self) -> None:
        """End the client's threads; a JVM producer aborts what it has open."""
        self._producer.close()


Writer = LibrdkafkaWriter | JvmWriter


class WriterPool:
    """Producers by style and owner, made on first use and forgotten together.

    Only transactional producers need an owner of their own. Leaving the pool leaves their transactions open.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._writers: dict[tuple[Style, str], Writer] = {}
        self._gateway: JavaGateway | None = None
        self._exits = ExitStack()

    def __enter__(self) -> "WriterPool":
        return self

    def __exit__(self, *_: object) -> None:
        self._writers.clear()
        self._exits.close()

    def writer(self, style: Style, owner: str) -> Writer:
        """The producer of this style; `owner` is the transactional id of a transactional one."""
        place = (style, owner if style.transactional else "")
        if place not in self._writers:
            self._writers[place] = self._new_writer(style, owner)
        return self._writers[place]

    def _new_writer(self, style: Style, owner: str) -> Writer:
        if not style.jvm:
            return LibrdkafkaWriter(self._bootstrap, style, owner)
        if self._gateway is None:
            self._gateway = self._exits.enter_context(_gateway())
        writer = JvmWriter(self._gateway, self._bootstrap, style, owner)
        self._exits.callback(writer.close)
        return writer


@contextmanager
def _gateway() -> Iterator[JavaGateway]:
    """A JVM with the client's jars on its class path."""
    gateway = JavaGateway.launch_gateway(
        classpath=f"{kafka_libs()}/*",
        java_path=required_program("java"),
        javaopts=["-Xmx256m", *jvm_options()],
        die_on_exit=True,
    )
    try:
        yield gateway
    finally:
        gateway.shutdown()
        gateway.java_process.stdin.close()
        gateway.java_process.wait(TIMEOUT_S)
