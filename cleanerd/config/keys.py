"""All keys by name, as `model.py` declares them; keys of Kafka without effect."""

import re
from dataclasses import replace

from cleanerd.config.model import CleanerdConfig, TopicConfig, TopicDefaults
from cleanerd.config.settings import Key, declared_keys

TOPIC_KEYS = declared_keys(TopicConfig)
BROKER_KEYS = {**declared_keys(CleanerdConfig), **declared_keys(TopicDefaults)}
_SPARK_CONF = BROKER_KEYS.pop("cleanerd.spark.conf.*")
SPARK_CONF_PREFIX = _SPARK_CONF.name.removesuffix("*")
MS_PER_UNIT = {"ms": 1, "minutes": 60_000, "hours": 3_600_000}

WITHOUT_EFFECT = {
    "segment.ms": "its broker rolls the active segment",
    "segment.jitter.ms": "its broker rolls the active segment",
    "log.roll.ms": "its broker rolls the active segment",
    "log.roll.hours": "its broker rolls the active segment",
    "log.roll.jitter.ms": "its broker rolls the active segment",
    "log.roll.jitter.hours": "its broker rolls the active segment",
    "max.message.bytes": "a batch is as large as it is",
    "message.max.bytes": "a batch is as large as it is",
    "preallocate": "new segments are written at their size",
    "log.preallocate": "new segments are written at their size",
    "flush.messages": "all output is synced before its commit",
    "flush.ms": "all output is synced before its commit",
    "log.flush.interval.messages": "all output is synced before its commit",
    "log.flush.interval.ms": "all output is synced before its commit",
    "log.flush.scheduler.interval.ms": "all output is synced before its commit",
    "message.timestamp.before.max.ms": "only its broker appends",
    "message.timestamp.after.max.ms": "only its broker appends",
    "message.timestamp.difference.max.ms": "only its broker appends",
    "message.timestamp.type": "each batch says which it has",
    "log.message.timestamp.before.max.ms": "only its broker appends",
    "log.message.timestamp.after.max.ms": "only its broker appends",
    "log.message.timestamp.type": "each batch says which it has",
    "message.format.version": "each batch says which it has",
    "message.downconversion.enable": "only its broker serves consumers",
    "remote.log.copy.disable": "a tiered log is its broker's",
    "remote.log.delete.on.disable": "a tiered log is its broker's",
    "local.retention.ms": "a tiered log is its broker's",
    "local.retention.bytes": "a tiered log is its broker's",
    "log.local.retention.ms": "a tiered log is its broker's",
    "log.local.retention.bytes": "a tiered log is its broker's",
    "min.insync.replicas": "replication is the brokers'",
    "unclean.leader.election.enable": "replication is the brokers'",
    "leader.replication.throttled.replicas": "replication is the brokers'",
    "follower.replication.throttled.replicas": "replication is the brokers'",
    "log.flush.offset.checkpoint.interval.ms": "recovery points are the broker's",
    "log.flush.start.offset.checkpoint.interval.ms": "a log start is written when retention moves it",
    "log.initial.task.delay.ms": "internal; nothing else starts beside cleanerd",
    "num.recovery.threads.per.data.dir": "logs are recovered by the broker",
    "background.threads": "the daemon has its own threads",
    "producer.id.expiration.check.interval.ms": "internal; ids expire when a log is cleaned",
    "replica.high.watermark.checkpoint.interval.ms": "the high watermark is the broker's",
    "log.dir.failure.timeout.ms": "an offline directory never stops cleanerd",
}
"""Keys of Kafka, of brokers and of topics, that nothing in cleanerd depends on, and why. Their values are not looked at."""


_SECRET = re.compile("secret|password|token|access[.]?key", re.IGNORECASE)  # spark.redaction.regex
_SPARK_KEPT = ("spark.master", "spark.app.name")  # cleanerd.spark.master sets the first


def broker_key(name: str) -> Key | None:
    """The broker key of a name, also of one under `SPARK_CONF_PREFIX` for a property of Spark; None for no key."""
    spark = name.removeprefix(SPARK_CONF_PREFIX)
    if spark != name and spark.startswith("spark.") and spark not in _SPARK_KEPT:
        return replace(_SPARK_CONF, name=name, doc=f"Property {spark} of Spark.", default=None)
    return BROKER_KEYS.get(name)


def is_secret(name: str) -> bool:
    """Whether the value of a key is a secret."""
    return name.startswith(SPARK_CONF_PREFIX) and _SECRET.search(name) is not None
