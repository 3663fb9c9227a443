"""A disk that fills up in the middle of an install."""

import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest
from confluent_kafka.admin import AdminClient

from cleanerd.daemon.kafka_replicas import KafkaReplicas
from cleanerd.errors import ClusterRefused
from cleanerd.pipeline.lazy_spark import LazySpark
from tests.broker.cluster import KafkaCluster
from tests.broker.installing import Child, check_back, create, finished, partition_of, stage
from tests.cleaning.test_bad_input import mounted
from tests.daemon.processes import wait_until

pytestmark = [
    pytest.mark.broker,
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:.*_text is deprecated"),  # in the client library
]

NODE = 1
LIST = [2, 1, 3]
PATIENCE_S = 60
STEPS = ("offer", "removing")
TOPICS = {f"full-{step}": [LIST] for step in STEPS}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Each broker has two log directories; the second one of broker 1 is on a disk of its own, which is small."""
    root = tmp_path_factory.mktemp("cluster")
    small = root / str(NODE) / "small"
    small.mkdir(parents=True)
    with (
        mounted(small, "-t", "tmpfs", "-o", "size=64m", "none"),
        KafkaCluster(root, log_dirs=("logs", "small/logs")) as cluster,
    ):
        yield cluster


@pytest.fixture(scope="module")
def admin(cluster: KafkaCluster, spark: LazySpark) -> AdminClient:
    """All topics are there, those of broker 1 on its small disk, with results staged."""
    small = str(cluster.brokers[NODE].log_dirs[1])
    with KafkaReplicas(cluster.bootstrap.split(","), "") as replicas:
        for topic in TOPICS:
            with suppress(ClusterRefused):  # remembered, although there is no such topic yet
                replicas.prefer_log_dir(topic, 0, NODE, small)
    admin = create(cluster, TOPICS)
    stage(spark, cluster, NODE, list(TOPICS))
    return admin


@pytest.mark.parametrize("step", STEPS)
def test_the_disk_is_full_after_a_step(cluster: KafkaCluster, admin: AdminClient, step: str) -> None:
    """The broker takes a log directory offline in which it cannot write, until its next start.

    An install whose replica the cluster cannot bring back for that reason waits for it: the list has to come back.
    """
    topic = f"full-{step}"
    child = Child(cluster, NODE, topic)
    assert child.log_dir == cluster.brokers[NODE].log_dirs[1]
    wait_until(lambda: partition_of(admin, topic) == (LIST, sorted(LIST)), 60)
    process = child.spawn(f"fill={step}")
    with suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE_S)
    (child.log_dir.parent / "filler").unlink(missing_ok=True)
    cluster.brokers[NODE].stop()
    cluster.brokers[NODE].start()
    outcome = finished(process)
    expected = ("abandoned: [Errno 28]",) if step == "offer" else ("installed", "returned")
    assert outcome.startswith(expected), outcome
    check_back(admin, cluster, topic, LIST)
    assert child.is_clear()
