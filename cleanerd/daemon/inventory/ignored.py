"""Logs that cleanerd does not touch because it does not know that it may."""

from cleanerd.config.load import Configuration
from cleanerd.daemon.values.log_id import LogId
from cleanerd.env.files import Files
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import is_kafka_dir
from cleanerd.storage.topic_id import why_not_of_cluster


def why_foreign(files: Files, log: LogId, configuration: Configuration) -> str | None:
    """Why a log must be left alone, None for those that are ours to clean.

    Either it is not of the topic that the cluster has under its name, or it is a broker's and nothing tells how its topic is
    configured: with Kafka's defaults one that is compacted would be deleted after a week.
    """
    topic = log.topic_partition.topic
    is_told = configuration.metadata is not None or topic in configuration.topics
    if not is_told and is_kafka_dir(files, log.log_dir):
        return (
            f"{log.log_dir} is a broker's and has no metadata log: how {topic} is configured is not known; "
            "name it in topics.d"
        )
    return why_not_of_cluster(PartitionDir(files, log.directory), topic, configuration.metadata)
