"""The replicas of a partition, through the cluster's admin API: `install.cluster.Cluster` with the Kafka client library.

The claim of an install is the metadata of an offset that a group of its own has committed: every cluster has that register,
and no consumer sees it. It expires like any offset of an empty group, after `offsets.retention.minutes` (7 days).
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from cleanerd.daemon.kafka_admin import KafkaAdmin
from cleanerd.errors import ClusterRefused
from cleanerd.format.uuid_text import render_uuid
from cleanerd.install.values import ClusterView

_GROUP = "cleanerd-install"
_CELL = ("__consumer_offsets", 0)
_PREFERRED = 0
_COORDINATOR_S, _COORDINATOR_PAUSE_S = 10.0, 0.5


class KafkaReplicas(KafkaAdmin):
    """A connection to the cluster, for an install."""

    def view(self, topic: str, partition: int, broker: int) -> ClusterView:
        """What there is to see of a partition, and of a broker's replica of it."""
        return self._ask(lambda: self._view(topic, partition, broker))  # type: ignore[no-any-return]

    def _view(self, topic: str, partition: int, broker: int) -> ClusterView:
        from kafka import TopicPartition  # noqa: PLC0415

        client, tp = self._client, TopicPartition(topic, partition)
        found = client.describe_topics([topic])[0]
        parts = [one for one in found["partitions"] if one["partition_index"] == partition]
        nodes = client.describe_cluster()["brokers"]
        alive = frozenset(one["broker_id"] for one in nodes if not one.get("is_fenced"))
        quorum = client.describe_metadata_quorum()["topics"][0]["partitions"][0]
        controller = (quorum["leader_id"], quorum["leader_epoch"])
        hosted_in, log_dirs = self._hosting(topic, partition, broker) if broker in alive else (None, 0)
        if found["error_code"] or not parts:
            if found["error_code"] not in (0, _UNKNOWN_TOPIC):
                raise ClusterRefused(
                    f"the cluster answers for {topic} with Kafka's error {found['error_code']}"
                )
            return ClusterView(None, (), frozenset(), -1, (), (), alive, controller, hosted_in, log_dirs)
        moving = client.list_partition_reassignments([tp]).get(tp, {})
        return ClusterView(
            topic_id=render_uuid(UUID(str(found["topic_id"]))),
            replicas=tuple(moving.get("replicas", parts[0]["replica_nodes"])),
            isr=frozenset(parts[0]["isr_nodes"]),
            leader=parts[0]["leader_id"],
            adding=tuple(moving.get("adding_replicas", ())),
            removing=tuple(moving.get("removing_replicas", ())),
            alive=alive,
            controller=controller,
            hosted_in=hosted_in,
            log_dirs=log_dirs,
        )

    def _hosting(self, topic: str, partition: int, broker: int) -> tuple[str | None, int]:
        """In which log directory a broker has a partition, and how many directories it has that work."""
        dirs = self._client.describe_log_dirs({topic: [partition]}, brokers=[broker])[0]["log_dirs"]
        working = [one for one in dirs if not one["error_code"]]
        for one in working:
            if any(
                not replica["is_future_key"] and found["name"] == topic
                for found in one["topics"]
                for replica in found["partitions"]
                if replica["partition_index"] == partition
            ):
                return str(one["log_dir"]), len(working)
        return None, len(working)

    def min_isr(self, topic: str) -> int:
        """The min.insync.replicas that holds for a topic."""
        return int(self.value(topic, "min.insync.replicas"))

    def ask_for_replicas(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Ask for a list of replicas. Whether it comes to be shows later."""
        self._reassign(topic, partition, list(replicas))

    def cancel_reassignment(self, topic: str, partition: int) -> None:
        """End the reassignment that is under way: what was to be added goes, and nothing else."""
        self._reassign(topic, partition, None)

    def _reassign(self, topic: str, partition: int, replicas: list[int] | None) -> None:
        from kafka import TopicPartition  # noqa: PLC0415

        tp = TopicPartition(topic, partition)
        refused = self._ask(lambda: self._client.alter_partition_reassignments({tp: replicas}))
        if refused.get(tp) is not None:
            wanted = "to cancel a reassignment" if replicas is None else str(replicas)
            raise ClusterRefused(f"the cluster refuses {wanted}: {refused[tp].__name__}")

    def prefer_log_dir(self, topic: str, partition: int, broker: int, log_dir: str) -> None:
        """Tell a broker without a replica of a partition where to put one. It remembers that, and answers with an error."""
        from kafka.structs import TopicPartitionReplica  # noqa: PLC0415

        replica = TopicPartitionReplica(topic, partition, broker)
        answer = self._ask(lambda: self._client.alter_replica_log_dirs({replica: log_dir}))
        error = answer[replica].__name__
        if error not in ("NoError", "ReplicaNotAvailableError"):
            raise ClusterRefused(
                f"broker {broker} refuses to put {topic}-{partition} into {log_dir}: {error}"
            )

    def elect_preferred(self, topic: str, partition: int) -> None:
        """Make the first replica the leader, if it is in sync."""
        self._ask(lambda: self._client.elect_leaders(_PREFERRED, {topic: [partition]}))

    def read_claim(self) -> str:
        """The register; empty: free."""
        cell = self._cell()
        found = self._patiently(lambda: self._client.list_group_offsets({_GROUP: [cell]}))
        return str(found[_GROUP][cell].metadata)

    def write_claim(self, text: str) -> None:
        """Set the register."""
        from kafka.structs import OffsetAndMetadata  # noqa: PLC0415

        cell, value = self._cell(), OffsetAndMetadata(0, text, -1)

        def write() -> None:
            error = self._client.alter_group_offsets(_GROUP, {cell: value})[cell]
            if error.errno:
                raise error

        self._patiently(write)

    def _patiently(self, ask: Callable[[], Any]) -> Any:
        """What asks the group's coordinator: the first group of a cluster has to wait for one, and one that dies is followed
        by another. The client library goes on asking the first one that it has found: only a new client asks for the next.
        """
        from kafka.errors import CoordinatorNotAvailableError, KafkaError  # noqa: PLC0415

        def ask_again() -> Any:
            ends_s = time.monotonic() + _COORDINATOR_S
            while True:
                try:
                    return ask()
                except KafkaError as error:
                    if not error.retriable or time.monotonic() > ends_s:
                        raise
                    threading.Event().wait(_COORDINATOR_PAUSE_S)
                    if not isinstance(error, CoordinatorNotAvailableError):
                        self._reconnect()

        return self._ask(ask_again)

    def _cell(self) -> Any:
        from kafka import TopicPartition  # noqa: PLC0415

        return TopicPartition(*_CELL)


_UNKNOWN_TOPIC = 3
