"""The identity of a log inside the daemon."""

from dataclasses import dataclass
from typing import Any

from cleanerd.format.names import TopicPartition


@dataclass(frozen=True, slots=True, order=True)
class LogId:
    """One log: a partition in one log directory (a partition may be in two of them while it moves)."""

    log_dir: str
    topic_partition: TopicPartition

    def __str__(self) -> str:
        return str(self.topic_partition)

    @property
    def directory(self) -> str:
        """Path of the partition directory."""
        return f"{self.log_dir}/{self.topic_partition}"

    def fields(self) -> dict[str, Any]:
        """The log as plain values, under the names of history and API."""
        return {
            "log_dir": self.log_dir,
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
        }
