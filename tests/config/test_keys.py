"""The key table against spec behaviour section 8 and against the models that it fills."""

import re
from pathlib import Path

import pytest

import cleanerd
from cleanerd.config.keys import (
    BROKER_KEYS,
    IGNORED_BROKER_KEYS,
    IGNORED_TOPIC_KEYS,
    MS_PER_UNIT,
    TOPIC_KEYS,
)
from cleanerd.config.model import CleanerdConfig, TopicConfig
from cleanerd.config.settings import Key, Scope, declared_keys

INT64_MAX = 2**63 - 1
PACKAGE = Path(cleanerd.__file__).parent
BY_NAME = {"node.id", "broker.id"}
"""Keys that the loader reads by name."""
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
        assert (BROKER_KEYS[name].scope is Scope.RELOADABLE) == (name in DYNAMIC_8A), name


def test_keys_of_cleanerd_that_need_a_restart() -> None:
    """Where the process lives and what it listens on; all others may be changed while it runs."""
    own = {name.removeprefix("cleanerd."): key for name, key in BROKER_KEYS.items() if "cleanerd." in name}
    assert {name for name, key in own.items() if key.scope is Scope.STATIC} == OWN_STATIC


def test_n5_only_the_first_synonym_is_dynamic() -> None:
    """Hours and minutes variants cannot be changed at run time."""
    for key in TOPIC_KEYS.values():
        first, *others = key.synonyms or ("log.segment.bytes",)
        assert BROKER_KEYS[first].scope is Scope.RELOADABLE
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
def test_every_declaration_is_sound(key: Key) -> None:
    """The default passes the key's own check, survives its own text, and the key says what it is for."""
    assert key.default is None or key.check.accepts(key.default)
    assert key.default is None or key.type.parse(_shown(key.default)) == key.default
    assert key.doc.endswith(".")
    assert key.name.endswith(".ms") == (key.unit == "ms")


def _shown(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def test_no_key_is_both_used_and_ignored() -> None:
    """The list of names without effect holds only such."""
    assert TOPIC_KEYS.keys().isdisjoint(IGNORED_TOPIC_KEYS)


def test_every_key_is_read_or_said_to_have_no_effect() -> None:
    """What is declared is used, and what is declared to have no effect is not."""
    code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "model.py")
    code += "\n".join(re.findall(r"self\.\w+", (PACKAGE / "config" / "model.py").read_text()))
    for key in (*declared_keys(CleanerdConfig).values(), *declared_keys(TopicConfig).values()):
        is_read = re.search(rf"\.{key.field}\b", code) is not None or key.name in BY_NAME
        assert is_read == key.has_effect, key.name
