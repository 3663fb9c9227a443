"""What a broker reports about its topics, where there is no metadata log: a ZooKeeper cluster has none on disk.

The agent in the broker that lives in the log directories (`cleanerd.commit.live`) knows the values that hold. Those that a
topic does not have of its own are the broker's, and have the names of its keys.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.config.keys import TOPIC_KEYS
from cleanerd.config.model import ClusterMetadata
from cleanerd.env.files import Files
from cleanerd.errors import CleanerdError
from cleanerd.format.names import DirKind, TopicPartition, parse_partition_dir
from cleanerd.format.uuid_text import parse_uuid
from cleanerd.storage.scan import is_kafka_dir


class AnsweredTopic(NamedTuple):
    """A topic: the values that hold, and the names of those that are its own. `topic_id` None: its broker knows of none."""

    name: str
    topic_id: UUID | None
    values: Mapping[str, str]
    own: Collection[str]


def answer_of(topics: Iterable[AnsweredTopic]) -> ClusterMetadata:
    """A broker's answer as metadata of its cluster: overrides of each topic, and the broker's defaults."""
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


def _one_of_each_topic(files: Files, log_dir: str) -> list[TopicPartition] | None:
    """A log of each topic in a broker's directory; None for one that is no broker's, or does not work."""
    try:
        if not is_kafka_dir(files, log_dir):
            return None
        parsed = filter(None, map(parse_partition_dir, files.list_names(log_dir)))
        return list({tp.topic: tp for tp, kind in parsed if kind is DirKind.CURRENT}.values())
    except (CleanerdError, OSError):
        return None
