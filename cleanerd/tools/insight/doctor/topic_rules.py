"""Rules about topics: policies that lose state, and internal topics that have grown too large."""

import re
from collections.abc import Iterator

from cleanerd.cleaning.knowledge import COORDINATORS_MENDED
from cleanerd.units import size

from .facts import BrokerFacts, Finding, Limits, LogFacts, finding, place_of

_STATE = re.compile(
    r"__consumer_offsets|__transaction_state|_schemas"
    r"|(.*[._-])?connect([._-].*)?[._-](configs?|offsets?|status)"
    r"|(.*[._-])?debezium([._-].*)?[._-](configs?|offsets?|status)"
    r"|mm2-(configs|offsets|status)\..*\.internal|.*\.checkpoints\.internal"
)
"""Names that Kafka, Connect, MirrorMaker, Debezium and schema registries give to topics of which each key counts."""
_CHANGELOG = re.compile(r".+-changelog")
"""Of Kafka Streams; those of windows have compact,delete."""
_HISTORY = re.compile(r"(.*[._-])?(db-?history|schema-?history|schema-?changes)([._-].*)?")
"""Of Debezium: a log of statements without keys, of which all count."""
_INTERNAL = ("__consumer_offsets", "__transaction_state")
_ALTER = "`kafka-configs.sh --bootstrap-server HOST:9092 --alter --entity-type topics --entity-name {} --add-config {}`"


def policies(broker: BrokerFacts) -> Iterator[Finding]:
    """Policies under which a topic loses what its name says that it keeps; one finding for a topic."""
    topics: dict[str, LogFacts] = {}
    for directory in broker.directories:
        for log in directory.logs:
            topics.setdefault(log.topic_partition.topic, log)
    for topic, log in topics.items():
        config = log.config
        if config is None:
            continue
        found = (
            f"cleanup.policy is {','.join(config.cleanup_policy) or 'empty'}, retention.ms {config.retention_ms}, "
            f"retention.bytes {config.retention_bytes}"
        )
        is_state = _STATE.fullmatch(topic) is not None
        if (is_state and config.delete) or (
            _CHANGELOG.fullmatch(topic) and config.delete and not config.compact
        ):
            code, set_to = "state_is_deleted", "cleanup.policy=compact"
        elif _HISTORY.fullmatch(topic) and (
            config.compact or (config.delete and max(config.retention_ms, config.retention_bytes) >= 0)
        ):
            code, set_to = "history_is_lost", "cleanup.policy=delete,retention.ms=-1,retention.bytes=-1"
        else:
            continue
        yield finding(code, place_of(log)._replace(partition=None), found, _ALTER.format(topic, set_to))


def large_internal(broker: BrokerFacts, limits: Limits) -> Iterator[Finding]:
    """Partitions that a coordinator reads from their beginning before it answers anybody."""
    for directory in broker.directories:
        for log in directory.logs:
            topic, whole = log.topic_partition.topic, log.snapshot.size_bytes
            if topic not in _INTERNAL or whole <= limits.internal_bytes:
                continue
            remedy = broker.command("clean", log, " --force --roll")
            mended = COORDINATORS_MENDED.get(broker.release or "")
            if topic == _INTERNAL[0] and mended is not None:
                remedy = f"Kafka {broker.release} before {mended} may not load it once it is cleaned: upgrade, then {remedy}"
            text = f"{size(whole)}, which the coordinator reads whenever it takes over the partition"
            yield finding("large_internal", place_of(log), text, remedy, whole)
