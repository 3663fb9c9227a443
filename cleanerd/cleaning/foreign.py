"""Which logs a command line allows cleanerd to touch, beside those of which `Knowledge` does (architecture 2).

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

from cleanerd.cleaning.knowledge import Knowledge
from cleanerd.config.load import Configuration
from cleanerd.config.settings import Layer
from cleanerd.errors import CleanerdError, LogUncleanable, each_log
from cleanerd.format.names import PARTITION_METADATA, TopicPartition
from cleanerd.storage.log_dir import LogDir, why_two_copies
from cleanerd.storage.partition_dir import check_no_link

_SET_BY_NOBODY = (Layer.DEFAULT, Layer.BROKER)  # of a topic that is not known


def left_alone(
    log_dir: LogDir,
    found: Iterable[TopicPartition],
    configuration: Configuration | None,
    named: frozenset[str] | None,
    assumed: frozenset[str] = frozenset(),
    *,
    has_begun: bool = False,
) -> dict[TopicPartition, str]:
    """Which of these logs are left alone, and why. Raises OSError, CorruptFile.

    `configuration` None: none, the host has asked. `named`: topics that the command line names; None for none.
    `has_begun`: as `Knowledge.why_untouched`.
    """
    if configuration is None:
        return {}
    knowledge = Knowledge(log_dir, configuration, assumed)
    reasons = {tp: knowledge.why_untouched(tp, has_begun=has_begun) for tp in found}
    foreign = {tp: reason for tp, reason in reasons.items() if reason is not None}
    if not foreign:
        return {}
    command_line = _CommandLine(log_dir, configuration)
    return {
        tp: f"{reason}{command_line.advice(tp)}"
        for tp, reason in foreign.items()
        if knowledge.why_never(tp) or not command_line.covers(tp, is_named=tp.topic in (named or ()))
    }


def left_elsewhere(log_dir: LogDir, found: Iterable[TopicPartition]) -> dict[TopicPartition, CleanerdError]:
    """Which of these logs do not lie here, or not only: behind a link, or in another directory of the same broker as well.

    Raises OSError.
    """
    elsewhere, here = dict[TopicPartition, CleanerdError](), list[TopicPartition]()
    for tp in found:
        with each_log(log_dir.path) as log:
            check_no_link(log_dir.partition(tp).path)
            here.append(tp)
        if log.error is not None:
            elsewhere[tp] = log.error
    copies = log_dir.copies(here)
    return elsewhere | {tp: LogUncleanable(why_two_copies(other)) for tp, other in copies.items()}


class _CommandLine:
    """Decides which foreign logs of a log directory a command line allows to clean."""

    def __init__(self, log_dir: LogDir, configuration: Configuration) -> None:
        self._log_dir = log_dir
        self._configuration = configuration
        self._is_without_metadata = not configuration.has_metadata_log
        self._compacted = log_dir.checkpoints().cleaner.keys()
        self._is_zookeepers = self._is_without_metadata and log_dir.is_known and log_dir.is_zookeepers()

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
        """The end of an error about a log that is not covered: another option that would cover it, or nothing."""
        is_set = self._is_without_metadata and self._layer(tp) not in _SET_BY_NOBODY
        return f", or name it with --topic {tp.topic}" if is_set else ""

    def _layer(self, tp: TopicPartition) -> Layer:
        """The layer that sets the policy of a log."""
        return self._configuration.topic_origin(tp.topic, "cleanup.policy").layer

    def _is_for_all(self, tp: TopicPartition) -> bool:
        """Whether no settings elsewhere contradict a policy for all logs."""
        has_id = self._log_dir.files.exists(self._log_dir.partition(tp).path_of(PARTITION_METADATA))
        if not has_id and not self._is_zookeepers:
            return True
        return tp in self._compacted and not self._configuration.topic(tp.topic).delete
