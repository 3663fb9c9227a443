"""Logs that are left alone because nothing allows cleanerd to touch them (architecture 2).

Where there is the cluster's metadata log, a log must be of a topic in it. A broker's directory without one (a ZooKeeper
broker's, a restored volume) has no settings of its topics: Kafka's defaults would delete a compacted one after a week, and
compaction under a policy for all would leave a deleted one only the newest record of each key, and no record without a
key. There its broker is asked, or somebody has to set the policy of the topic. A log that the metadata log does not know
is cleaned only if the command line names it.

A log with a part in remote storage is left to its broker, and one whose topic has a value in the cluster that is not valid
is left alone. `__consumer_offsets` is left alone if the broker may not be able to load it once it is compacted (rule A.8),
until `topics.d` or the command line sets its cleanup.policy.

=============================================  =============================================================
where it is set                                for which logs of a broker's directory without a metadata log
=============================================  =============================================================
`topics.d`, `--topic-set`                      those of the topic that is named
`clean --topic`, beside a policy for all       those of the topics that are named
`clean --set log.cleanup.policy` alone         those of no topic that has settings elsewhere: KRaft brokers give each
                                               partition a topic id, so one without is not theirs; and with `compact`
                                               those that have been compacted before, by `cleaner-offset-checkpoint`
=============================================  =============================================================
"""

from collections.abc import Iterable

from cleanerd.config.load import Configuration
from cleanerd.config.settings import Layer
from cleanerd.format.names import PARTITION_METADATA, TopicPartition
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.topic_id import why_not_of_cluster

_ELSEWHERE = ("confluent.tier.enable", "diskless.enable", "inkless.enable")
"""Settings of topics with which other brokers keep records outside of their log directories."""
_SET_BY_OPERATOR = (Layer.COMMAND_LINE, Layer.TOPIC_FILE)
_SET_BY_NOBODY = (Layer.DEFAULT, Layer.BROKER)  # of a topic that is not known
_CONSUMER_OFFSETS = "__consumer_offsets"
_COORDINATORS_MENDED = {"4.0": "4.0.2", "4.1": "4.1.2", "4.2": "4.2.1"}
"""By release, the first whose group coordinator loads what a cleaning has left (rule A.8)."""


def why_foreign(log_dir: LogDir, tp: TopicPartition, configuration: Configuration) -> str | None:
    """Why a log must be left alone, None for those that are ours to clean. Raises OSError."""
    topic = tp.topic
    if log_dir.is_kafka and not is_known(topic, configuration):
        return (
            f"{log_dir.path} is a broker's and has no metadata log: how {topic} is configured is not known; "
            f"set its cleanup.policy in topics.d, or with --topic-set {topic}:cleanup.policy=..."
        )
    not_of_cluster = why_not_of_cluster(log_dir.partition(tp), topic, configuration.metadata)
    return not_of_cluster or _why_never(topic, configuration) or _why_not_loaded(topic, configuration)


def is_known(topic: str, configuration: Configuration) -> bool:
    """Whether the settings of a topic are known: from an operator, the metadata log or the broker itself."""
    metadata = configuration.metadata
    if configuration.has_metadata_log or (metadata is not None and topic in metadata.topic_ids):
        return True
    return "cleanup.policy" in configuration.own_texts(topic)


def _why_never(topic: str, configuration: Configuration) -> str | None:
    """Why a log is left alone whatever an operator sets: its settings are not valid, or it is not all here.

    None: they are, and it is, or it has only retention, which leaves a tiered log to its broker (6.17).
    """
    if topic in configuration.unusable:
        return f"{configuration.unusable[topic]}; topics.d may set another value for cleanerd"
    own = {} if configuration.metadata is None else configuration.metadata.topic_configs.get(topic, {})
    elsewhere = [key for key in _ELSEWHERE if own.get(key) == "true"]
    config = configuration.topic(topic)
    if config.remote_storage_enable and config.compact:
        elsewhere.append("remote.storage.enable")
    if not elsewhere:
        return None
    return (
        f"{elsewhere[0]} is set: a part of {topic} is in remote storage, where values would outlive the tombstones that "
        "a cleaning takes from here"
    )


def _why_not_loaded(topic: str, configuration: Configuration) -> str | None:
    """Why the broker may be unable to load a log that was cleaned; None: it can, or an operator wants it cleaned."""
    release = configuration.metadata and configuration.metadata.release
    mended = _COORDINATORS_MENDED.get(release or "")
    if topic != _CONSUMER_OFFSETS or mended is None:
        return None
    if configuration.topic_settings(topic)["cleanup.policy"].origin.layer in _SET_BY_OPERATOR:
        return None
    return (
        f"the broker was last started as Kafka {release}, whose group coordinator before {mended} may fail to load a "
        f"{topic} that was cleaned, and the directory does not show which {release} it is; from {mended} on set "
        f"its cleanup.policy in topics.d, or with --topic-set {topic}:cleanup.policy=compact"
    )


def left_alone(
    log_dir: LogDir,
    found: Iterable[TopicPartition],
    configuration: Configuration | None,
    named: frozenset[str] | None,
) -> dict[TopicPartition, str]:
    """Which of these logs are left alone, and why. Raises OSError, CorruptFile.

    `configuration` None: none, the host has asked. `named`: topics that the command line names; None for none.
    """
    if configuration is None:
        return {}
    reasons = {tp: why_foreign(log_dir, tp, configuration) for tp in found}
    foreign = {tp: reason for tp, reason in reasons.items() if reason is not None}
    if not foreign:
        return {}
    command_line = _CommandLine(log_dir, configuration)
    return {
        tp: f"{reason}{command_line.advice(tp)}"
        for tp, reason in foreign.items()
        if _why_never(tp.topic, configuration)
        or not command_line.covers(tp, is_named=tp.topic in (named or ()))
    }


class _CommandLine:
    """What a command line allows for the foreign logs of a log directory."""

    def __init__(self, log_dir: LogDir, configuration: Configuration) -> None:
        self._log_dir = log_dir
        self._configuration = configuration
        self._is_without_metadata = not configuration.has_metadata_log
        self._compacted = log_dir.checkpoints().cleaner.keys()
        self._is_zookeepers = self._is_without_metadata and log_dir.is_zookeepers()

    def covers(self, tp: TopicPartition, *, is_named: bool) -> bool:
        """Whether it allows us to touch a log."""
        layer = self._layer(tp)
        if not self._is_without_metadata:
            is_named = is_named or "cleanup.policy" in self._configuration.own_texts(tp.topic)
            return is_named and layer is Layer.COMMAND_LINE
        if is_named:
            return layer not in _SET_BY_NOBODY
        return layer is Layer.COMMAND_LINE and self._is_for_all(tp)

    def advice(self, tp: TopicPartition) -> str:
        """What else would do for a log that is not covered."""
        is_set = self._is_without_metadata and self._layer(tp) not in _SET_BY_NOBODY
        return f", or name it with --topic {tp.topic}" if is_set else ""

    def _layer(self, tp: TopicPartition) -> Layer:
        """Who sets the policy."""
        return self._configuration.topic_settings(tp.topic)["cleanup.policy"].origin.layer

    def _is_for_all(self, tp: TopicPartition) -> bool:
        """Whether no settings elsewhere contradict a policy for all logs."""
        has_id = self._log_dir.files.exists(self._log_dir.partition(tp).path_of(PARTITION_METADATA))
        if not has_id and not self._is_zookeepers:
            return True
        return tp in self._compacted and not self._configuration.topic(tp.topic).delete
