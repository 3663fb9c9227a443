"""All keys by name, as `model.py` declares them; keys that do not concern cleanerd."""

import re
from dataclasses import replace

from cleanerd.config.model import CleanerdConfig, TopicConfig, TopicDefaults
from cleanerd.config.settings import Key, declared_keys

TOPIC_KEYS = declared_keys(TopicConfig)
BROKER_KEYS = {**declared_keys(CleanerdConfig), **declared_keys(TopicDefaults)}
_SPARK_CONF = BROKER_KEYS.pop("cleanerd.spark.conf.*")
SPARK_CONF_PREFIX = _SPARK_CONF.name.removesuffix("*")
MS_PER_UNIT = {"ms": 1, "minutes": 60_000, "hours": 3_600_000}

IGNORED_BROKER_KEYS = {
    "log.flush.offset.checkpoint.interval.ms": "recovery points are the broker's",
    "log.flush.start.offset.checkpoint.interval.ms": "a log start is written when retention moves it",
    "log.initial.task.delay.ms": "internal; nothing else starts beside cleanerd",
    "num.recovery.threads.per.data.dir": "logs are recovered by the broker",
    "background.threads": "the daemon has its own threads",
    "producer.id.expiration.check.interval.ms": "internal; ids expire when a log is cleaned",
    "replica.high.watermark.checkpoint.interval.ms": "the high watermark is the broker's",
    "log.dir.failure.timeout.ms": "an offline directory never stops cleanerd",
}
"""Rows of 8C that nothing in cleanerd depends on, and why."""

IGNORED_TOPIC_KEYS = frozenset(
    (
        "unclean.leader.election.enable",
        "min.insync.replicas",
        "message.format.version",
        "message.timestamp.difference.max.ms",
        "message.downconversion.enable",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    )
)
"""Topic keys of Kafka that do not concern cleaning. Any other unknown name is a mistake of its writer."""


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
