"""Known facts about the logs of a directory. All code that removes records, segments or files asks here first.

Unknown means no. The table in architecture 2 says for each fact who vouches for it, until when, and what cleanerd does
without it; each row is a method, or a property, of `Knowledge`. It answers as of one moment: make it afresh for each piece
of work, as a `LogDir`.

===============================  ======================================================
what removes                     what it asks
===============================  ======================================================
anything that changes a log      `why_untouched`
compaction                       `why_untouched`
tombstones, markers              `why_tombstones_stay`, when it is planned and committed
retention by time and size       `why_untouched`, `limits`
delete-records                   `why_untouched`
`.deleted` files                 `storage.whose`
===============================  ======================================================
"""

import os
from dataclasses import dataclass, replace

from cleanerd.cleaning.assumed import REPLICAS, SETTINGS, UNCHANGED
from cleanerd.cleaning.causes import Cause
from cleanerd.cleaning.result import CleanRequest
from cleanerd.config.keys import TOPIC_KEYS
from cleanerd.config.load import Configuration
from cleanerd.config.model import ClusterMetadata, TopicConfig
from cleanerd.config.settings import DEFAULT, Layer
from cleanerd.env.clock import latest_ms
from cleanerd.errors import CorruptFile
from cleanerd.format.errors import FormatError
from cleanerd.format.names import PARTITION_METADATA, TopicPartition
from cleanerd.policy.tombstones import KNOWN_FOR_MS, Stay, why_tombstones_stay
from cleanerd.storage.checkpoints import last_written_ms
from cleanerd.storage.doubts import ELSEWHERE, FORBIDDING, Doubts
from cleanerd.storage.lock import other_holder
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.metadata_log import Vouched, last_appended_ms, read_vouched
from cleanerd.storage.replicas import FollowedReplicas
from cleanerd.storage.topic_id import why_not_of_cluster
from cleanerd.storage.whose import partition_sign, why_of_broker
from cleanerd.units import utc

_WAYS_OUT = (
    "start the broker, set the cleanup.policy of the topic in topics.d or with --topic-set, or, if you know that nothing "
    "was changed, run `cleanerd clean --assume settings`"
)
SET_BY_OPERATOR = (Layer.COMMAND_LINE, Layer.TOPIC_FILE)
_LIMITS = ("retention.ms", "retention.bytes")
_SET_LIMITS = "set retention.ms or retention.bytes of the topic in topics.d or with --topic-set"
_LEFT = "deletion by time and size is left to its broker, which is down: "
_OR_SET = f"start the broker; or {_SET_LIMITS}, and its cleanup.policy"
_NO_LIMIT = Cause(
    "no limit of time or size is configured, and Kafka's defaults delete nothing here", _SET_LIMITS
)
_NO_POLICY = Cause(
    "no cleanup.policy is configured, and Kafka's default deletes nothing here",
    "set the cleanup.policy of the topic in topics.d or with --topic-set, or log.cleanup.policy",
)
_LEFT_TO_BROKER = Cause(f"{_LEFT}the cluster may have changed the limits since", _OR_SET)
_LEFT_TO_CONFIGURATION = Cause(
    f"{_LEFT}the limits are in the configuration of the broker, which cleanerd was not given", _OR_SET
)
_DEFAULT_POLICY = Cause(
    f"{_LEFT}that its cleanup.policy is delete is a default of Kafka's, and the broker may have another one",
    _OR_SET,
)
_NOT_TOLD = (
    "a broker of ZooKeeper does not tell which replicas are in sync: leave them to its own cleaner, or take the word for it "
    "with `cleanerd clean --assume replicas`"
)
_CONSUMER_OFFSETS = "__consumer_offsets"
COORDINATORS_MENDED = {"4.0": "4.0.2", "4.1": "4.1.2", "4.2": "4.2.1"}
"""The first release whose group coordinator can load a cleaned log (rule A.8)."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Facts about the logs of `log_dir` under a configuration."""

    log_dir: LogDir
    configuration: Configuration
    assumed: frozenset[str] = frozenset()

    def why_untouched(self, tp: TopicPartition, *, has_begun: bool = False) -> str | None:
        """Why a log must be left alone, None for those that are ours to clean. Raises OSError, CleanerdError.

        `has_begun`: the work on it had begun before too much time had passed since the last sign of life of its broker.
        """
        topic, log_dir = tp.topic, self.log_dir
        never = self.why_never(tp)
        if never is not None:
            return never
        if log_dir.is_kafka and not is_known(topic, self.configuration):
            return (
                f"{log_dir.path} is a broker's and has no metadata log: how {topic} is configured is not known; "
                f"set its cleanup.policy in topics.d, or with --topic-set {topic}:cleanup.policy=..."
            )
        not_of_cluster = why_not_of_cluster(log_dir.partition(tp), topic, self.configuration.metadata)
        return (
            not_of_cluster or self._why_not_loaded(topic) or self.why_not_vouched(topic, has_begun=has_begun)
        )

    def _why_damaged(self, tp: TopicPartition) -> str | None:
        """Why it is not known whose the log is; None: it is."""
        log_dir = self.log_dir
        if log_dir.damage is not None or log_dir.is_kafka:
            return log_dir.damage
        sign = partition_sign(log_dir.files, log_dir.path, str(tp))
        return sign and why_of_broker(log_dir.path, sign)

    def why_never(self, tp: TopicPartition) -> str | None:
        """Why a log is left alone whatever an operator sets: it is not known whose it is, its settings are not valid, or it
        is not all here. Raises OSError.

        None: they are, and it is, or it has only retention, which leaves a tiered log to its broker (6.17).
        """
        configuration, topic = self.configuration, tp.topic
        damaged = self._why_damaged(tp)
        if damaged is not None:
            return damaged
        if topic in configuration.unusable:
            return f"{configuration.unusable[topic]}; topics.d may set another value for cleanerd"
        own = {} if configuration.metadata is None else configuration.metadata.topic_configs.get(topic, {})
        elsewhere = [key for key in ELSEWHERE if own.get(key) == "true"]
        config = configuration.topic(topic)
        if config.remote_storage_enable and config.compact:
            elsewhere.append("remote.storage.enable")
        if not elsewhere:
            return None
        return (
            f"{elsewhere[0]} is set: a part of {topic} is in remote storage, where values would outlive the tombstones "
            "that a cleaning takes from here"
        )

    def limits(self, topic: str) -> TopicConfig:
        """The settings of a topic while no broker runs; limits that do not hold then are -1."""
        left = [TOPIC_KEYS[name].field for name in _LIMITS if self._why_no_limit(topic, name)]
        return self.configuration.topic(topic).but(**dict.fromkeys(left, -1))

    def why_kept(self, topic: str) -> Cause:
        """Why a limit of a topic does not hold, where `limits` leaves one out."""
        return next(filter(None, (self._why_no_limit(topic, name) for name in _LIMITS)))

    def _why_no_limit(self, topic: str, name: str) -> Cause | None:
        """Why a limit of a topic deletes nothing; None if the limit holds.

        Defaults of Kafka never hold, neither a limit nor the policy: nobody has vouched for them, and a topic file may be
        away when a daemon starts. Beside a stopped broker, the cluster may be changing other limits, so only those hold that
        are written for cleanerd and name the topic. The metadata log of the only voter is final; then its limits hold, and
        those of the broker's configuration. A broker that is back deletes by itself.
        """
        configuration, origin = self.configuration, self.configuration.topic_origin(topic, name)
        if configuration.topic_origin(topic, "cleanup.policy").layer is Layer.DEFAULT:
            return _DEFAULT_POLICY if self.log_dir.is_kafka else _NO_POLICY
        if not self.log_dir.is_kafka:
            return _NO_LIMIT if origin.layer is Layer.DEFAULT else None
        if name in configuration.own_texts(topic) and origin.layer in SET_BY_OPERATOR:
            return None
        metadata = configuration.metadata
        is_final = metadata is not None and topic in metadata.topic_ids and self._is_final(metadata)
        if not is_final:
            return _LEFT_TO_BROKER
        return _LEFT_TO_CONFIGURATION if origin.layer is Layer.DEFAULT else None

    def why_tombstones_stay(self, tp: TopicPartition, followed: FollowedReplicas) -> Stay | None:
        """Why tombstones and markers of a log that have expired must stay; None: they may go. Raises OSError.

        In a directory that no broker ever owned nobody but the operator reads. In a broker's, other replicas may be away.
        Where nothing at all is known of the cluster, not even a topic id, who sets the policy on the command line answers
        for the replicas as well: there is nobody else to ask.
        """
        if not self.log_dir.is_kafka or REPLICAS in self.assumed or self._is_operators_alone(tp):
            return None
        if self.log_dir.is_zookeepers():
            return Stay(_NOT_TOLD)
        metadata, node_id = self.configuration.metadata, self.log_dir.node_id()
        topic_id = None if metadata is None else metadata.topic_ids.get(tp.topic)
        if metadata is None or not metadata.is_whole or topic_id is None or node_id is None:
            return Stay("which replicas it has is not known without the metadata log of its cluster")
        retention_ms, now_ms = (
            self.configuration.topic(tp.topic).delete_retention_ms,
            self.log_dir.clock.now_ms(),
        )
        replicas = followed.of(metadata.directory, node_id)
        try:
            found = replicas.of(topic_id, tp.partition, settled_by_ms=now_ms - retention_ms)
        except (CorruptFile, FormatError, OSError) as error:
            return Stay(f"which replicas are in sync cannot be read: {error}")
        if found is None:
            return Stay(f"the metadata log in {metadata.directory} names no replica of it on this node")
        if self._is_final(metadata):
            found = replace(found, known_until_ms=None)
        return why_tombstones_stay(found, node_id, retention_ms, now_ms, latest_ms(self.log_dir.clock))

    def is_only_replica(self, tp: TopicPartition, followed: FollowedReplicas) -> bool:
        """Whether the metadata log names this node alone as a replica of a log: its high watermark is its end."""
        metadata, node_id = self.configuration.metadata, self.log_dir.node_id()
        topic_id = None if metadata is None else metadata.topic_ids.get(tp.topic)
        if metadata is None or not metadata.is_whole or topic_id is None or node_id is None:
            return False
        try:
            found = followed.of(metadata.directory, node_id).of(
                topic_id, tp.partition, settled_by_ms=self.log_dir.clock.now_ms()
            )
        except (CorruptFile, FormatError, OSError):
            return False
        return found is not None and set(found.replicas) == {node_id} and not found.is_moving

    def _is_operators_alone(self, tp: TopicPartition) -> bool:
        """Whether the command line alone says anything of a log: no metadata log, no broker's answer, no topic id."""
        configuration = self.configuration
        return (
            configuration.metadata is None
            and configuration.topic_origin(tp.topic, "cleanup.policy").layer is Layer.COMMAND_LINE
            and not self.log_dir.files.exists(self.log_dir.partition(tp).path_of(PARTITION_METADATA))
        )

    def _is_final(self, metadata: ClusterMetadata) -> bool:
        """Whether nothing in the cluster can change before this node runs again."""
        # voters that this node, which was killed before it took part, has not written down yet
        voters = {voter.partition("@")[0] for voter in self.configuration.broker.quorum_voters}
        return metadata.is_final and voters <= {str(metadata.node_id)}

    def why_stale(self) -> str | None:
        """Why nothing may begin by what the cluster has configured: too much time has passed since the last sign of life of
        the broker. None: it lives, or this is not a stopped broker's directory. Raises OSError, CleanerdError.
        """
        vouched = self._vouched()
        return None if vouched is None else self._why_too_old(vouched)

    def _why_too_old(self, vouched: Vouched) -> str | None:
        if not self._is_long_ago(vouched.until_ms):
            return None
        return (
            f"the broker of {self.log_dir.path} is down or cut off from its controllers, and its last sign of life was at "
            f"{utc(vouched.until_ms)}: the cluster may have changed the settings of its topics since then; {_WAYS_OUT}"
        )

    @property
    def vouched_until_ms(self) -> int | None:
        """Until when in ms a stopped broker's settings are vouched for; None if they hold. Raises OSError, CleanerdError."""
        vouched = self._vouched()
        return None if vouched is None else vouched.until_ms

    def why_not_vouched(self, topic: str, *, has_begun: bool) -> str | None:
        """Why the settings that a topic has from the cluster may be others by now, or may never have been accepted.

        That proves no change: a result that was made by them may wait. Raises OSError, CleanerdError.
        """
        own = self.configuration.own_texts(topic)
        is_set = "cleanup.policy" in own and self._layer(topic, "cleanup.policy") in SET_BY_OPERATOR
        if is_set or SETTINGS in self.assumed:
            return None
        vouched = self._vouched()
        if vouched is None:
            return None
        doubted = self._doubted(topic, vouched.doubts)
        if doubted:
            return (
                f"{topic}: a change of {', '.join(doubted)} at the end of the metadata log of a stopped broker may never "
                f"have been accepted by the cluster: whether it holds is not known; {_WAYS_OUT}"
            )
        return None if has_begun or UNCHANGED in self.assumed else self._why_too_old(vouched)

    def _doubted(self, topic: str, doubts: Doubts) -> list[str]:
        """The keys that decide for a topic, and whose values are not certain. A limit decides nothing without `delete`."""
        own = self.configuration.own_texts(topic)
        found = [key for name, key in sorted(doubts.topics) if name == topic]
        found += [
            key
            for key in FORBIDDING
            if key not in own
            and not doubts.defaults.isdisjoint(TOPIC_KEYS[key].synonyms)
            and self._layer(topic, key) is not Layer.COMMAND_LINE
        ]
        is_deleting = self.configuration.topic(topic).delete
        return [
            key
            for key in found
            if (is_deleting or key not in _LIMITS)
            and not (key in own and self._layer(topic, key) in SET_BY_OPERATOR)
        ]

    def _layer(self, topic: str, key: str) -> Layer:
        return self.configuration.topic_origin(topic, key).layer

    def _vouched(self) -> Vouched | None:
        """How far a broker vouches for settings that has stopped, or lives and hears nothing from its controllers.

        None: it lives and hears, or nobody else can change them.
        """
        log_dir, metadata = self.log_dir, self.configuration.metadata
        if metadata is None or not log_dir.is_kafka or self._is_final(metadata):
            return None
        own = {log_dir.path, *([os.path.dirname(metadata.directory)] if metadata.is_whole else [])}
        lives = any(other_holder(path) is not None for path in own)
        if lives and not (metadata.is_whole and self._hears_nothing(metadata)):
            return None
        if metadata.is_whole:
            return read_vouched(
                log_dir.files, metadata, {*own, *log_dir.log_dirs, *self.configuration.broker.log_dirs}
            )
        return Vouched(last_written_ms(log_dir.files, own), Doubts())

    def _hears_nothing(self, metadata: ClusterMetadata) -> bool:
        """Whether a running broker has no news from its controllers: one that starts without them, or is cut off."""
        return self._is_long_ago(last_appended_ms(self.log_dir.files, metadata.directory))

    def _is_long_ago(self, at_ms: int) -> bool:
        """Or in the future, as far: the clock was set back, and nobody knows how much time has passed."""
        return abs(latest_ms(self.log_dir.clock) - at_ms) > KNOWN_FOR_MS

    def _why_not_loaded(self, topic: str) -> str | None:
        """Why the broker may be unable to load a log that was cleaned; None: it can, or an operator wants it cleaned."""
        configuration = self.configuration
        release = configuration.metadata and configuration.metadata.release
        mended = COORDINATORS_MENDED.get(release or "")
        if topic != _CONSUMER_OFFSETS or mended is None:
            return None
        if configuration.topic_origin(topic, "cleanup.policy").layer in SET_BY_OPERATOR:
            return None
        return (
            f"the broker was last started as Kafka {release}, whose group coordinator before {mended} may fail to load a "
            f"{topic} that was cleaned, and the directory does not show which {release} it is; from {mended} on set "
            f"its cleanup.policy in topics.d, or with --topic-set {topic}:cleanup.policy=compact"
        )


def informed(request: CleanRequest, followed: FollowedReplicas) -> CleanRequest:
    """A request that asks `Knowledge` about replicas; unchanged without a configuration."""
    configuration = request.configuration
    if configuration is None:
        return request

    def why_tombstones_stay(log_dir: LogDir, tp: TopicPartition) -> Stay | None:
        return Knowledge(log_dir, configuration, request.assumed).why_tombstones_stay(tp, followed)

    def is_only_replica(log_dir: LogDir, tp: TopicPartition) -> bool:
        return Knowledge(log_dir, configuration).is_only_replica(tp, followed)

    return replace(request, why_tombstones_stay=why_tombstones_stay, is_only_replica=is_only_replica)


def node_setting(configuration: Configuration) -> str | None:
    """The setting that names the node whose directories these are, with its origin; None where there is none."""
    broker, settings = configuration.broker, configuration.broker_settings
    values = {"node.id": broker.node_id, "broker.id": broker.broker_id, "process.roles": broker.process_roles}
    return next(
        (f"{key} ({settings[key].origin})" for key, value in values.items() if value is not None), None
    )


def is_policy_known(log_dir: LogDir, tp: TopicPartition, configuration: Configuration) -> bool:
    """Whether somebody has said how the topic of a log is configured: a default of Kafka's is nobody's word."""
    if log_dir.is_kafka:
        of_another = why_not_of_cluster(log_dir.partition(tp), tp.topic, configuration.metadata)
        return is_known(tp.topic, configuration) and of_another is None
    return configuration.topic_origin(tp.topic, "cleanup.policy") != DEFAULT


def is_known(topic: str, configuration: Configuration) -> bool:
    """Whether the settings of a topic are known: from an operator, the metadata log or the broker itself."""
    metadata = configuration.metadata
    if configuration.has_metadata_log or (metadata is not None and topic in metadata.topic_ids):
        return True
    return "cleanup.policy" in configuration.own_texts(topic)
