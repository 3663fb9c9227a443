"""What a broker reports about its topics, where there is no metadata log: a ZooKeeper cluster has none on disk.

1. The agent in the broker that lives in the log directories (`cleanerd.commit.live`): what that broker itself goes by.
2. Else, where `cleanerd.kafka.bootstrap.servers` is set, any broker of the cluster.

Both know the values that hold. Those that a topic does not have of its own are the broker's, and have the names of its keys.
"""

from collections.abc import Iterable, Sequence
from uuid import UUID

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.config.keys import TOPIC_KEYS
from cleanerd.config.model import CleanerdConfig, ClusterMetadata
from cleanerd.daemon.kafka_admin import AnsweredTopic, KafkaAdmin
from cleanerd.env.files import Files
from cleanerd.errors import CleanerdError, ClusterRefused, guarded
from cleanerd.format.names import DirKind, TopicPartition, parse_partition_dir
from cleanerd.format.uuid_text import parse_uuid
from cleanerd.storage.scan import is_kafka_dir


def answer_of(topics: Iterable[AnsweredTopic]) -> ClusterMetadata:
    """As layers: the topics' own values, and the broker's for all others."""
    ids, own, defaults = dict[str, UUID | None](), dict[str, dict[str, str]](), dict[str, str]()
    for topic in topics:
        ids[topic.name] = topic.topic_id
        own[topic.name] = {key: text for key, text in topic.values.items() if key in topic.own}
        for name, key in TOPIC_KEYS.items():
            if name in topic.values and name not in topic.own and key.synonyms:
                defaults[key.synonyms[0]] = topic.values[name]
    return ClusterMetadata(ids, own, {"": defaults}, is_whole=False)


def ask_brokers(brokers: LiveBrokers, files: Files, log_dirs: Sequence[str]) -> ClusterMetadata | None:
    """The answer of those that live in these log directories, by their agents; None where none answers."""
    answers: list[AnsweredTopic] = []
    for log_dir in log_dirs:
        logs = _one_of_each_topic(files, log_dir)
        described = brokers.describe_if_live(log_dir, logs) if logs is not None else None
        for log in described or ():
            topic_id = None if log.identity.topic_id is None else parse_uuid(log.identity.topic_id)
            answers.append(AnsweredTopic(log.topic_partition.topic, topic_id, log.config, log.overridden))
    return answer_of(answers) if answers else None


def ask_cluster(config: CleanerdConfig, files: Files, log_dirs: Sequence[str]) -> ClusterMetadata | None:
    """The cluster's answer about the topics in these log directories; None where it cannot be asked."""
    topics = {tp.topic for log_dir in log_dirs for tp in _one_of_each_topic(files, log_dir) or ()}
    if not (topics and config.kafka_bootstrap_servers):
        return None
    try:
        with KafkaAdmin.of(config) as admin:
            return answer_of(admin.topics(topics))
    except ClusterRefused:
        return None


def _one_of_each_topic(files: Files, log_dir: str) -> list[TopicPartition] | None:
    """A log of each topic in a broker's directory; None for one that is no broker's, or does not work."""

    def look() -> list[TopicPartition] | None:
        if not is_kafka_dir(files, log_dir):
            return None
        parsed = filter(None, map(parse_partition_dir, files.list_names(log_dir)))
        return list({tp.topic: tp for tp, kind in parsed if kind is DirKind.CURRENT}.values())

    found = guarded(look, log_dir)
    return None if isinstance(found, CleanerdError) else found
