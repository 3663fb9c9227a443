"""The key table against spec behaviour section 8 and against the models that it fills."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import cleanerd
from cleanerd.config.keys import (
    BROKER_KEYS,
    IGNORED_BROKER_KEYS,
    IGNORED_TOPIC_KEYS,
    INERT_KEYS,
    MS_PER_UNIT,
    TOPIC_KEYS,
    BrokerKey,
    Scope,
    TopicKey,
)
from cleanerd.config.load import resolve
from cleanerd.config.model import CleanerdConfig, TopicConfig
from cleanerd.config.reference import render_reference
from cleanerd.config.sources import read_sources

INT64_MAX = 2**63 - 1
PACKAGE = Path(cleanerd.__file__).parent
FEEDING = {"log.dirs", "log.dir", "metadata.log.dir", "node.id", "broker.id", "internal.segment.bytes"}
"""Keys without a field of their own: the loader reads them."""
DERIVED_TOPIC_FIELDS = {"broker_min_cleanable_dirty_ratio"}
DERIVED_FIELDS = {"log_dirs", "metadata_log_dir", "log_cleaner_threads_is_set", "spark_conf"}
TOPIC_DEFAULTS = {
    "cleanup.policy": ("delete",),
    "min.cleanable.dirty.ratio": 0.5,
    "delete.retention.ms": 86400000,
    "min.compaction.lag.ms": 0,
    "max.compaction.lag.ms": INT64_MAX,
    "retention.ms": 604800000,
    "retention.bytes": -1,
    "segment.bytes": 1073741824,
    "internal.segment.bytes": None,
    "segment.ms": 604800000,
    "segment.jitter.ms": 0,
    "segment.index.bytes": 10485760,
    "index.interval.bytes": 4096,
    "file.delete.delay.ms": 60000,
    "max.message.bytes": 1048588,
    "preallocate": False,
    "flush.messages": INT64_MAX,
    "flush.ms": INT64_MAX,
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "cleanerd.min.cleanable.dirty.ratio": None,
    "cleanerd.compression": "batch",
    "compression.gzip.level": -1,
    "compression.lz4.level": 9,
    "compression.zstd.level": 3,
    "message.timestamp.before.max.ms": INT64_MAX,
    "message.timestamp.after.max.ms": 3_600_000,
    "remote.storage.enable": False,
    "remote.log.copy.disable": False,
    "remote.log.delete.on.disable": False,
    "local.retention.ms": -2,
    "local.retention.bytes": -2,
}
BROKER_DEFAULTS = {
    "log.cleaner.enable": True,
    "log.cleaner.threads": 1,
    "log.cleaner.io.max.bytes.per.second": 1.7976931348623157e308,
    "log.cleaner.dedupe.buffer.size": 134217728,
    "log.cleaner.io.buffer.size": 524288,
    "log.cleaner.io.buffer.load.factor": 0.9,
    "log.cleaner.backoff.ms": 15000,
    "message.max.bytes": 1048588,
    "log.retention.hours": 168,
    "log.roll.hours": 168,
    "log.retention.check.interval.ms": 300000,
    "producer.id.expiration.ms": 86400000,
    "log.dir": ("/tmp/kafka-logs",),
    "cleanerd.chunk.bytes": 32 * 1024 * 1024,
}
SECTION_8C = {
    "log.dirs",
    "log.dir",
    "log.retention.check.interval.ms",
    "log.flush.offset.checkpoint.interval.ms",
    "log.flush.start.offset.checkpoint.interval.ms",
    "log.initial.task.delay.ms",
    "num.recovery.threads.per.data.dir",
    "background.threads",
    "producer.id.expiration.ms",
    "producer.id.expiration.check.interval.ms",
    "replica.high.watermark.checkpoint.interval.ms",
    "log.dir.failure.timeout.ms",
}
DYNAMIC_8A = {  # 7.18
    "log.cleaner.threads",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.size",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.backoff.ms",
    "message.max.bytes",
}
OWN_DEFAULTS = {
    "compression": "batch",
    "io.max.read.bytes.per.second": 1.7976931348623157e308,
    "io.max.write.bytes.per.second": 1.7976931348623157e308,
    "spark.idle.timeout.ms": 60_000,
    "job.max.bytes": 268_435_456,
    "job.max.logs": 256,
    "scan.interval.ms": 30_000,
    "retry.max": 3,
    "retry.backoff.ms": 10_000,
    "reserved.topics": (
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__remote_log_metadata",
    ),
    "reserved.max.wait.ms": 60_000,
    "commit.live": "off",
    "broker.agent.untested": False,
    "staged.max.bytes": -1,
    "staged.min.free.ratio": 0.1,
    "staged.commit.interval.ms": 1000,
    "log.cleaner.enable": None,
    "min.cleanable.dirty.ratio": None,
    "broker.cleaner.grace.ms": 900_000,
    "kafka.bootstrap.servers": (),
    "kafka.client.config": "",
    "shutdown.timeout.ms": 20_000,
    "state.dir": "/var/lib/cleanerd",
    "history.max.age.ms": 2_592_000_000,
    "history.max.bytes": 67_108_864,
    "control.socket": "/run/cleanerd/control.sock",
    "metrics.listen": "127.0.0.1:11308",
    "metrics.per.partition.topics": (),
    "page": True,
    "log.format": "auto",
    "log.level": "info",
    "merge.enable": True,
    "spark.master": "",
    "chunk.bytes": 33_554_432,
    "job.stall.timeout.ms": 300_000,
}
OWN_STATIC = {
    "state.dir",
    "control.socket",
    "metrics.listen",
    "page",
    "log.format",
    "spark.master",
    "chunk.bytes",
}


def test_8b_defaults() -> None:
    """Defaults of the topic keys, N6 among them."""
    assert {name: key.default for name, key in TOPIC_KEYS.items()} == TOPIC_DEFAULTS


def test_8a_and_8c_defaults() -> None:
    """Defaults of the broker keys."""
    assert {name: BROKER_KEYS[name].default for name in BROKER_DEFAULTS} == BROKER_DEFAULTS


def test_8c_has_a_row_or_a_reason_for_every_key() -> None:
    """The table of the specification, name by name."""
    assert SECTION_8C & BROKER_KEYS.keys() == SECTION_8C - IGNORED_BROKER_KEYS.keys()
    assert IGNORED_BROKER_KEYS.keys() <= SECTION_8C
    assert all(IGNORED_BROKER_KEYS.values())


def test_8a_dynamic_keys() -> None:
    """Column Dyn of 8A: the seven of 7.18, not log.cleaner.enable."""
    for name in (*DYNAMIC_8A, "log.cleaner.enable"):
        assert (BROKER_KEYS[name].scope is Scope.CLUSTER) == (name in DYNAMIC_8A), name


def test_keys_of_cleanerd() -> None:
    """Names, defaults and which of them need a restart; every key of the daemon has its own field."""
    own = {name.removeprefix("cleanerd."): key for name, key in BROKER_KEYS.items() if "cleanerd." in name}
    assert {name: key.default for name, key in own.items()} == OWN_DEFAULTS
    assert {name for name, key in own.items() if key.scope is Scope.STATIC} == OWN_STATIC
    of_topics = {
        "min.cleanable.dirty.ratio": "",
        "compression": "",
    }  # defaults of topics, and so no fields of the broker's
    expected = {name: name.replace(".", "_") for name in own} | of_topics
    assert {name: key.field for name, key in own.items()} == expected


def test_n5_only_the_first_synonym_is_dynamic() -> None:
    """Hours and minutes variants cannot be changed at run time."""
    for key in TOPIC_KEYS.values():
        first, *others = key.synonyms or ("log.segment.bytes",)
        assert BROKER_KEYS[first].scope is Scope.CLUSTER
        assert all(BROKER_KEYS[name].scope is Scope.STATIC for name in others)


def test_defaults_of_synonyms_agree_with_their_topic_key() -> None:
    """A default is the same whichever way one comes to it."""
    for key in TOPIC_KEYS.values():
        defaults = [
            default * MS_PER_UNIT[BROKER_KEYS[name].unit] if len(key.synonyms) > 1 else default
            for name in key.synonyms
            if (default := BROKER_KEYS[name].default) is not None
        ]
        assert defaults == ([key.default] if key.synonyms and key.default is not None else [])


@pytest.mark.parametrize("key", [*BROKER_KEYS.values(), *TOPIC_KEYS.values()], ids=lambda key: key.name)
def test_every_row_is_sound(key: BrokerKey | TopicKey) -> None:
    """The default passes the row's own check, and the row says what it is for."""
    assert key.default is None or key.check.accepts(key.default)
    assert key.doc.endswith(".")
    assert key.name.endswith(".ms") == (key.unit == "ms")


def test_every_field_of_the_models_has_its_row() -> None:
    """Rows and models cannot drift apart."""
    topic_fields = {field.name for field in fields(TopicConfig)}
    assert {key.field for key in TOPIC_KEYS.values()} - {""} == topic_fields - DERIVED_TOPIC_FIELDS
    broker_fields = {field.name for field in fields(CleanerdConfig)}
    assert {key.field for key in BROKER_KEYS.values()} - {""} == broker_fields - DERIVED_FIELDS


def test_no_key_is_both_used_and_ignored() -> None:
    """The list of names without effect holds only such."""
    assert TOPIC_KEYS.keys().isdisjoint(IGNORED_TOPIC_KEYS)


def test_nothing_configured_is_all_defaults() -> None:
    """The model of an empty configuration."""
    configuration = resolve(read_sources())
    assert configuration.broker.log_dirs == ("/tmp/kafka-logs",)
    assert configuration.broker.metadata_log_dir == "/tmp/kafka-logs"
    assert not configuration.broker.log_cleaner_threads_is_set
    topic = configuration.topic("anything")
    assert (topic.compact, topic.delete) == (False, True)
    assert topic.retention_ms == 604800000


def test_every_key_is_read_or_said_to_have_no_effect() -> None:
    code = [path.read_text() for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE / "config"]
    keys: list[tuple[str, BrokerKey | TopicKey]] = [*BROKER_KEYS.items(), *TOPIC_KEYS.items()]
    named = {key.field for _, key in keys if key.field}
    read = {field for field in named if any(re.search(rf"\.{field}\b", text) for text in code)}
    fed = {name for key in TOPIC_KEYS.values() if key.field for name in key.synonyms}
    used = {name for name, key in keys if key.field in read or name in FEEDING or name in fed}
    assert {name for name, key in keys if key.field and key.field not in read} == set()
    assert {name for name, _ in keys} - used == INERT_KEYS
    rows = dict(re.findall(r"(?m)^\| `([a-z.]+)` \|.*\| ([^|]*) \|$", render_reference()))
    assert {name for name, doc in rows.items() if doc.endswith("*No effect.*")} == INERT_KEYS & rows.keys()
