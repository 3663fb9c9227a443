"""A disk that fills up in the middle of an install."""

import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest
from confluent_kafka.admin import AdminClient

from cleanerd.env.files import RealFiles
from cleanerd.errors import ClusterRefused
from cleanerd.format.names import TopicPartition
from cleanerd.pipeline.lazy_spark import LazySpark
from cleanerd.storage.checkpoints import read_checkpoints
from tests.broker.cluster import KafkaCluster
from tests.broker.install.installing import (
    HISTORY,
    Child,
    check_back,
    connected,
    create,
    finished,
    partition_of,
    stage,
)
from tests.cleaning.test_bad_input import mounted
from tests.daemon.processes import wait_until

pytestmark = [
    pytest.mark.broker,
    pytest.mark.soak,
    pytest.mark.timeout(900),
]

NODE = 1
LIST = [2, 1, 3]
PATIENCE_S = 60
NOTICED_S = 5
CHECKPOINTS = {
    "log.flush.offset.checkpoint.interval.ms": f"{1000 * (NOTICED_S - 1)}",
    "log.flush.start.offset.checkpoint.interval.ms": f"{1000 * (NOTICED_S - 1)}",
    "replica.high.watermark.checkpoint.interval.ms": f"{1000 * (NOTICED_S - 1)}",
}
"""When a broker notices that its disk is full, if it has nothing to write."""
WHEN = ("offer", "removing", "moving", f"moving={NOTICED_S}", "adding", f"adding={NOTICED_S}")
"""The step after which the disk is full, and for how many seconds cleanerd waits then, so that the broker notices it."""
TOPICS = {f"full-{when.replace('=', '-')}": [LIST] for when in WHEN}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Each broker has two log directories; the second one of broker 1 is on a disk of its own, which is small."""
    root = tmp_path_factory.mktemp("cluster")
    small = root / str(NODE) / "small"
    small.mkdir(parents=True)
    with (
        mounted(small, "-t", "tmpfs", "-o", "size=64m", "none"),
        KafkaCluster(root, CHECKPOINTS, log_dirs=("logs", "small/logs")) as cluster,
    ):
        yield cluster


@pytest.fixture(scope="module")
def admin(cluster: KafkaCluster, spark: LazySpark) -> AdminClient:
    """All topics are there, those of broker 1 on its small disk, with results staged."""
    small = str(cluster.brokers[NODE].log_dirs[1])
    with connected(cluster) as replicas:
        for topic in TOPICS:
            with suppress(ClusterRefused):  # remembered, although there is no such topic yet
                replicas.prefer_log_dir(topic, 0, NODE, small)
    admin = create(cluster, TOPICS)
    wait_until(lambda: all(is_checkpointed(small, topic) for topic in TOPICS), 60)
    stage(spark, cluster, NODE, list(TOPICS))
    return admin


def is_checkpointed(log_dir: str, topic: str) -> bool:
    """Whether the broker has written down how far the history is committed and on disk."""
    found, partition = read_checkpoints(RealFiles(), log_dir), TopicPartition(topic, 0)
    is_synced = found.recovery_point.get(partition, 0) > HISTORY - 200
    return is_synced and found.high_watermark.get(partition, 0) == HISTORY


@pytest.mark.parametrize("when", WHEN)
def test_the_disk_is_full_after_a_step(cluster: KafkaCluster, admin: AdminClient, when: str) -> None:
    """The broker takes a log directory offline in which it cannot write, until its next start.

    It has put the replica there by then, or puts it into its other one. An install whose replica it has nowhere waits.
    """
    topic = f"full-{when.replace('=', '-')}"
    child = Child(cluster, NODE, topic)
    assert child.log_dir == cluster.brokers[NODE].log_dirs[1]
    wait_until(lambda: partition_of(admin, topic) == (LIST, sorted(LIST)), 60)
    process = child.spawn(f"fill={when}")
    with suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE_S)
    (child.log_dir.parent / "filler").unlink(missing_ok=True)
    cluster.brokers[NODE].stop()
    cluster.brokers[NODE].start()
    outcome = finished(process)
    print(when, outcome)
    expected = ("abandoned: [Errno 28]",) if when == "offer" else ("installed", "returned")
    assert outcome.startswith(expected), outcome
    check_back(admin, cluster, topic, LIST)
    assert child.is_clear()
