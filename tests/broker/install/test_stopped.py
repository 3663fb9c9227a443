"""A broker that does not close the log, and one that does not load what it was given."""

import os
import signal
import threading
from contextlib import suppress

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.broker.cluster import KafkaCluster
from tests.broker.install.installing import Child, check_back, finished, journalled, producer, replica, truth
from tests.daemon.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.soak, pytest.mark.timeout(900)]

NODE, OTHER = 1, 3
LIST = [2, 1, 3]
REASONS = (
    f"replicas [{OTHER}] are not in sync any more",
    "the controller was",
    "the broker has not closed the log within",
    "the cluster cannot be asked: RequestTimedOutError",
)
DAMAGES = ("topic-id", "epochs")
TOPICS = {name: [LIST] for name in ("behind", "dead", *DAMAGES)}
STAGED = {NODE: list(TOPICS)}
LOG_DIRS = ("logs", "logs1")


def test_another_replica_falls_behind_while_the_broker_does_not_close_the_log(
    cluster: KafkaCluster, admin: AdminClient
) -> None:
    """It is asked back before its time is over, for what is seen first: the broker that is stopped may be the controller, or
    the one that was asked.
    """
    child, pid = Child(cluster, NODE, "behind"), cluster.brokers[NODE].pid
    throttle(admin, "behind", "1")
    process = child.spawn(f"stop=removing={pid}=60000")
    wait_until(lambda: journalled(child)["step"] == "removing", 60)
    writer = producer(cluster, **{"message.timeout.ms": 120_000, "acks": 1, "enable.idempotence": False})
    try:
        for key, value in truth().items():  # what is there already, so that no reader sees a difference
            writer.produce("behind", value, key, 0)
        wait_until(lambda: journalled(child)["step"] == "adding", 90)
        reason = journalled(child)["reason"]
    finally:
        os.kill(pid or 0, signal.SIGCONT)
        throttle(admin, "behind", "")
    assert writer.flush(120) == 0
    outcome = finished(process)
    check_back(admin, cluster, "behind", LIST)
    assert child.is_clear()
    assert outcome == f"returned: {reason}"
    assert reason.startswith(REASONS), reason


def throttle(admin: AdminClient, topic: str, bytes_a_second: str) -> None:
    """How fast the other replica may follow; empty: as fast as it can."""
    is_on = bool(bytes_a_second)
    changes = [
        (ResourceType.TOPIC, topic, "follower.replication.throttled.replicas", f"0:{OTHER}"),
        (ResourceType.BROKER, str(OTHER), "follower.replication.throttled.rate", bytes_a_second),
    ]
    for kind, name, key, value in changes:
        operation = AlterConfigOpType.SET if is_on else AlterConfigOpType.DELETE
        entry = ConfigEntry(key, value if is_on else None, incremental_operation=operation)
        for done in admin.incremental_alter_configs(
            [ConfigResource(kind, name, incremental_configs=[entry])]
        ).values():
            done.result(60)


def test_another_replica_dies_while_the_broker_does_not_close_the_log(
    cluster: KafkaCluster, admin: AdminClient
) -> None:
    """Two of three controllers are gone then: nothing can be changed until one is back."""
    child, pid = Child(cluster, NODE, "dead"), cluster.brokers[NODE].pid
    process = child.spawn(f"stop=removing={pid}")
    wait_until(lambda: journalled(child)["step"] == "removing", 60)
    cluster.brokers[OTHER].kill()
    threading.Event().wait(5)
    os.kill(pid or 0, signal.SIGCONT)
    with suppress(AssertionError):
        wait_until(lambda: process.poll() is not None, 30)
    cluster.brokers[OTHER].start()
    outcome = finished(process)
    assert outcome.startswith(("installed", "returned")), outcome
    check_back(admin, cluster, "dead", LIST)
    assert child.is_clear()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_directory_that_the_broker_refuses_is_taken_away_again(
    cluster: KafkaCluster, admin: AdminClient, damage: str
) -> None:
    """One with another topic id is kept open, and unused, until the next start. Epochs that cannot be read take the
    log directory offline.
    """
    child = Child(cluster, NODE, damage)
    child.killed_at("adding")
    directory = replica(cluster, NODE, damage)
    if damage == "topic-id":
        (directory / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAw")
    else:
        (directory / "leader-epoch-checkpoint").write_text("no number\n")
    process = child.spawn()
    with suppress(AssertionError):
        wait_until(lambda: process.poll() is not None, 40)
    print(damage, process.poll(), journalled(child))
    cluster.brokers[NODE].stop()
    cluster.brokers[NODE].start()
    outcome = finished(process)
    print(damage, outcome)
    assert outcome.startswith("returned: "), outcome
    check_back(admin, cluster, damage, LIST)
    assert child.is_clear()
    assert not list(child.log_dir.glob(f"{damage}-0.*-stray"))
