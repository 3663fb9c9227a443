"""Seeded topics: what is written depends on the seed alone, only the broker's own timestamps differ.

A topic is a `TopicPlan`; `write` appends one phase of it. Every batch is sent and answered before the next,
so the batch boundaries, offsets and the order of interleaved producers belong to the seed too.

Two things that the broker asks for:
- `segment.bytes` below 1 MiB is refused; `internal.segment.bytes`, a topic setting that the broker hides but
  obeys, for the cleaner's grouping too, takes any size. A batch must still fit a segment.
- A compacted topic refuses records without a key, so the topic that has some is created with the delete
  policy and altered after its first phase.

The phases of even seeds end with two records that do not fit one segment together: everything before them lies
in closed segments. Those of odd seeds end anywhere, with transactions that began in a closed segment and ended in
the active one.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from tests.harness.broker.producers import CODECS, Message, Style, Writer, WriterPool
from tests.harness.broker.releases import current_release

TIMEOUT_S = 30.0
YEARS_MS = 10 * 365 * 86_400_000
DAY_MS = 86_400_000
STEPS = 70
KEPT_TOMBSTONES_MS = DAY_MS
EXPIRED_TOMBSTONES_MS = 1
JVM = tuple(Style(codec, jvm=True) for codec in CODECS)
LIBRDKAFKA = tuple(Style(codec) for codec in CODECS)


class Phase(Enum):
    """Where in the life of a topic a `write` stands."""

    ONLY = "only"
    FIRST = "first"
    SECOND = "second"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of topic. `age_ms` is how long before now its records claim to be written."""

    name: str
    styles: tuple[Style, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    null_keys: bool = False
    leave_open: bool = False
    delete_records: bool = False
    age_ms: int = DAY_MS // 24
    value_bytes_max: int = 300


SCENARIOS = (
    Scenario("plain", (LIBRDKAFKA[0], LIBRDKAFKA[0])),
    Scenario("codecs", LIBRDKAFKA),
    Scenario("jvm-codecs", JVM),
    Scenario("to-gzip", (LIBRDKAFKA[0], LIBRDKAFKA[4]), {"compression.type": "gzip"}),
    Scenario("to-snappy", (LIBRDKAFKA[0], LIBRDKAFKA[3]), {"compression.type": "snappy"}),
    Scenario("to-lz4", (LIBRDKAFKA[0], LIBRDKAFKA[2]), {"compression.type": "lz4"}),
    Scenario("to-zstd", (LIBRDKAFKA[0], LIBRDKAFKA[1]), {"compression.type": "zstd"}),
    Scenario("to-none", LIBRDKAFKA[1:], {"compression.type": "uncompressed"}),
    Scenario("append-time", LIBRDKAFKA, {"message.timestamp.type": "LogAppendTime"}),
    Scenario("null-keys", LIBRDKAFKA[:3], null_keys=True),
    Scenario("idempotent", (Style("lz4", idempotent=True), Style("zstd", idempotent=True, jvm=True))),
    Scenario(
        "expired-producers", (Style(idempotent=True), Style("gzip", transactional=True)), age_ms=400 * DAY_MS
    ),
    Scenario("transactions", (Style(transactional=True), Style("zstd", transactional=True), LIBRDKAFKA[0])),
    Scenario(
        "jvm-transactions",
        (Style(transactional=True, jvm=True), Style("snappy", transactional=True, jvm=True), LIBRDKAFKA[2]),
    ),
    Scenario(
        "transactions-append-time",
        (Style(transactional=True), Style("lz4", transactional=True, jvm=True)),
        {"message.timestamp.type": "LogAppendTime", "compression.type": "lz4"},
    ),
    Scenario(
        "left-open", (Style(transactional=True), Style(transactional=True), LIBRDKAFKA[0]), leave_open=True
    ),
    # A broker deletes records of topics with the delete policy only; retention.ms keeps it from more.
    Scenario(
        "log-start",
        (LIBRDKAFKA[0], LIBRDKAFKA[4]),
        {"cleanup.policy": "compact,delete"},
        delete_records=True,
    ),
    Scenario("large-values", (LIBRDKAFKA[0], LIBRDKAFKA[3], JVM[4]), value_bytes_max=3000),
)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic to be: everything that its content depends on but the phase."""

    seed: int
    scenario: Scenario
    segment_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    key_count: int

    @property
    def topic(self) -> str:
        return f"{self.scenario.name}-{self.seed}"

    @property
    def directory(self) -> str:
        return f"{self.topic}-0"

    @property
    def config(self) -> dict[str, str]:
        """The topic's settings as the broker calls them; the ratio is the broker's own."""
        return {
            "cleanup.policy": "delete" if self.scenario.null_keys else "compact",
            "internal.segment.bytes": str(self.segment_bytes),
            "index.interval.bytes": str(self.index_interval_bytes),
            "delete.retention.ms": str(self.delete_retention_ms),
            "segment.ms": str(YEARS_MS),
            "retention.ms": "-1",
            **self.scenario.config,
        }

    @property
    def cleaner_config(self) -> dict[str, str]:
        """The settings in force for a cleaner, in the public names."""
        return {
            "cleanup.policy": self.scenario.config.get("cleanup.policy", "compact"),
            "segment.bytes": str(self.segment_bytes),
            "index.interval.bytes": str(self.index_interval_bytes),
            "delete.retention.ms": str(self.delete_retention_ms),
            "retention.ms": "-1",
        }


def plan_topic(seed: int) -> TopicPlan:
    """The topic of a seed; eighteen consecutive seeds cover every scenario."""
    rng = random.Random(seed)
    return TopicPlan(
        seed=seed,
        scenario=SCENARIOS[seed % len(SCENARIOS)],
        segment_bytes=rng.choice((8192, 12288, 16384)),
        index_interval_bytes=rng.choice((256, 1024, 4096)),
        delete_retention_ms=rng.choice((EXPIRED_TOMBSTONES_MS, KEPT_TOMBSTONES_MS)),
        key_count=rng.randrange(15, 60),
    )


def create_topics(admin: AdminClient, configs: Mapping[str, Mapping[str, str]]) -> None:
    """Create topics of one partition with these settings, and wait until they exist."""
    release = current_release()
    topics = [NewTopic(topic, 1, 1, config=release.topic_config(config)) for topic, config in configs.items()]
    for created in admin.create_topics(topics).values() if topics else ():
        created.result(TIMEOUT_S)


def write(admin: AdminClient, pool: WriterPool, plan: TopicPlan, phase: Phase, now_ms: int) -> int:
    """Append a phase to the topic; return the number of records sent.

    Only the last phase leaves a transaction open, only the first has records without a key.
    """
    rng = random.Random(f"{plan.seed} {phase.value}")
    null_keys = plan.scenario.null_keys and phase is not Phase.SECOND
    is_last = phase is not Phase.FIRST
    stream = _messages(rng, plan, now_ms - plan.scenario.age_ms, null_keys=null_keys)
    actors = [
        _Actor(pool.writer(style, f"{plan.topic}-{number}"), style.transactional, rng, plan, stream)
        for number, style in enumerate(plan.scenario.styles)
    ]
    for _ in range(STEPS):
        rng.choice(actors).step()
    for number, actor in enumerate(actors):
        if number == 0 and is_last and plan.scenario.leave_open:
            actor.leave_open()
        else:
            actor.finish()
    if null_keys:
        alter_config(admin, plan.topic, {"cleanup.policy": "compact"})
    seal = _seal(rng, plan, now_ms) if plan.seed % 2 == 0 else []
    for message in seal:
        pool.writer(LIBRDKAFKA[0], "").send(plan.topic, [message])
    return sum(actor.sent for actor in actors) + len(seal)


def alter_config(admin: AdminClient, topic: str, values: Mapping[str, str]) -> None:
    """Set some of a topic's settings, leaving the others."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in current_release().topic_config(values).items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def delete_records(admin: AdminClient, topic: str, offset: int) -> None:
    """Move the log start to an offset, inside a segment as like as not."""
    target = TopicPartition(topic, 0, offset)
    admin.delete_records([target])[target].result(TIMEOUT_S)


class _Actor:
    """One producer of a topic, and whether it has a transaction open."""

    def __init__(
        self,
        writer: Writer,
        transactional: bool,
        rng: random.Random,
        plan: TopicPlan,
        stream: Iterator[Message],
    ) -> None:
        self._writer = writer
        self._transactional = transactional
        self._rng = rng
        self._plan = plan
        self._stream = stream
        self._open = False
        self.sent = 0

    def step(self) -> None:
        if self._open and self._rng.random() < 0.4:
            self.finish()
            return
        if self._transactional and not self._open:
            self._writer.begin()
            self._open = True
        batch = self._batch()
        self._writer.send(self._plan.topic, batch)
        self.sent += len(batch)

    def leave_open(self) -> None:
        """Have a transaction open, with something in it."""
        while not self._open:
            self.step()

    def finish(self) -> None:
        if not self._open:
            return
        if self._rng.random() < 0.5:
            self._writer.commit()
        else:
            self._writer.abort()
        self._open = False

    def _batch(self) -> list[Message]:
        """One to twelve messages that fit half a segment."""
        budget_bytes = self._plan.segment_bytes // 2
        batch: list[Message] = []
        for _ in range(self._rng.choice((1, 1, 2, 5, 12))):
            message = next(self._stream)
            budget_bytes -= len(message.value or b"") + 100
            if batch and budget_bytes < 0:
                break
            batch.append(message)
        return batch


def _messages(rng: random.Random, plan: TopicPlan, start_ms: int, *, null_keys: bool) -> Iterator[Message]:
    """Endless messages: hot and cold keys, tombstones, empty values, headers, times that step back."""
    keys = [b"", *(b"key-%d" % number * rng.choice((1, 1, 4)) for number in range(1, plan.key_count))]
    timestamp_ms = start_ms
    while True:
        timestamp_ms += rng.choice((0, 1, 1, 50, -20))
        key = rng.choice(keys[: len(keys) // 4]) if rng.random() < 0.5 else rng.choice(keys)
        no_key = null_keys and rng.random() < 0.2
        yield Message(None if no_key else key, _value(rng, plan), max(timestamp_ms, 1), _headers(rng))


def _headers(rng: random.Random) -> tuple[tuple[str, bytes | None], ...]:
    """None, one or three headers, some with empty or no value."""
    return tuple(
        (f"h{number}", rng.choice((None, b"", b"x" * 9))) for number in range(rng.choice((0, 0, 1, 3)))
    )


def _value(rng: random.Random, plan: TopicPlan) -> bytes | None:
    """A tombstone, nothing, or text that compresses about by half."""
    roll = rng.random()
    if roll < 0.15:
        return None
    if roll < 0.2:
        return b""
    return rng.randbytes(rng.randrange(1, plan.scenario.value_bytes_max) // 2).hex().encode()


def _seal(rng: random.Random, plan: TopicPlan, now_ms: int) -> list[Message]:
    """Two records of 0.6 segments each that no codec makes smaller."""
    size_bytes = plan.segment_bytes * 6 // 10
    return [Message(b"seal-%d" % number, rng.randbytes(size_bytes), now_ms) for number in range(2)]
