"""Replicas that an earlier version has left out of their partitions come back, on three real brokers."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from cleanerd.daemon.loops.left_installs import LeftInstall, Replicas
from cleanerd.format.partition_metadata import parse_partition_metadata
from cleanerd.format.uuid_text import render_uuid
from cleanerd.tools.client.reader import read_records
from tests.broker.cluster import NODES, KafkaCluster
from tests.broker.traffic import retried
from tests.daemon.processes import running, wait_until

pytestmark = [
    pytest.mark.broker,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:.*_text is deprecated"),  # in the client library
]

LIST = [2, 1, 3]
PATIENCE_S = 90


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path / "cluster") as cluster:
        yield cluster


def create(cluster: KafkaCluster, topic: str) -> None:
    """A topic of several segments on all of them."""
    config = {"cleanup.policy": "compact", "internal.segment.bytes": "20000", "min.insync.replicas": "2"}
    admin = cluster.admin()  # the future ends with it
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[LIST], config=config)])[topic].result(60)
    write(cluster, topic, b"first")


def write(cluster: KafkaCluster, topic: str, value: bytes) -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "batch.size": 2000, "log_level": 0}
    )
    for number in range(400):
        producer.produce(topic, value * 20, b"k%d" % (number % 20))
    assert producer.flush(60) == 0


def replicas(cluster: KafkaCluster, topic: str) -> tuple[list[int], list[int]]:
    admin = cluster.admin()
    found = retried(lambda: admin.list_topics(topic, timeout=10)).topics[topic].partitions[0]
    return list(found.replicas), sorted(found.isrs)


def contents(directory: Path) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in read_records(str(directory))]


def leave(cluster: KafkaCluster, topic: str, node: int) -> int:
    """As an earlier version was killed when the prepared log was in place of the replica; the inode of its first segment."""
    log_dir = cluster.log_dir(node)
    live, area = log_dir / f"{topic}-0", log_dir.parent / f".cleanerd-install-{log_dir.name}"
    topic_id = render_uuid(parse_partition_metadata((live / "partition.metadata").read_bytes()))
    (area / "prepared").mkdir(parents=True)
    for path in sorted(live.iterdir()):
        shutil.copy(path, area / "prepared")
    (area / "prepared" / "cleanerd-install").write_text("f00")
    install = {
        "id": "f00", "topic": topic, "partition": 0, "topic_id": topic_id, "broker": node, "log_dir": str(log_dir),
        "replicas": LIST, "was_leader": False, "controller": [1, 1], "end_offset": 400, "round_end": 400, "freed_bytes": 0,
        "tail_bytes": 0, "began_ms": 1, "step": "adding", "step_ms": 1, "is_moved": True, "reason": None, "outcome": None,
    }  # fmt: skip
    (area / "journal").write_text(json.dumps({"version": 1, "install": install}))
    with Replicas(cluster.bootstrap.split(","), "") as asked:
        left = LeftInstall("f00", topic, 0, topic_id, node, tuple(LIST), "adding")
        asked.reassign(left, [one for one in LIST if one != node])
    wait_until(lambda: node not in replicas(cluster, topic)[0] and not live.exists(), PATIENCE_S)
    os.rename(area / "prepared", live)
    return (live / f"{0:020}.log").stat().st_ino


def test_a_replica_that_was_left_out_comes_back_with_the_log_of_its_leader(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    """Without a cluster to ask it stays out, with a warning that has everything that is to be done; a reload brings one."""
    node, topic, partition = 1, "left", "left-0"
    create(cluster, topic)
    inode = leave(cluster, topic, node)
    write(cluster, topic, b"second")
    log_dir = cluster.log_dir(node)
    area = log_dir.parent / f".cleanerd-install-{log_dir.name}"
    with running(tmp_path / "daemon", log_dir, topics={}) as daemon:
        wait_until(lambda: any(event["event"] == "install_waits" for event in daemon.events()), 30)
        (told,) = [event for event in daemon.events() if event["event"] == "install_waits"]
        assert (
            f"restore the replicas {LIST} of {partition} with kafka-reassign-partitions.sh" in told["reason"]
        )
        assert replicas(cluster, topic)[0] == [2, 3]
        assert area.exists()

        daemon.configure(cleanerd_kafka_bootstrap_servers=cluster.bootstrap)
        wait_until(lambda: not area.exists(), PATIENCE_S, daemon.output)
        assert replicas(cluster, topic) == (LIST, sorted(NODES))
        assert [e["outcome"] for e in daemon.history(partition) if e["kind"] == "install"] == ["returned"]
        live = log_dir / partition
        assert (live / f"{0:020}.log").stat().st_ino != inode
        assert not (live / "cleanerd-install").exists()
        wait_until(lambda: contents(live) == contents(cluster.log_dir(2) / partition), PATIENCE_S)
        assert len(contents(live)) == 800
