"""What can go wrong with brokers in the middle of an install, and transactions that are open meanwhile."""

import pytest
from confluent_kafka.admin import AdminClient

from tests.broker.cluster import NODES, KafkaCluster
from tests.broker.install.installing import (
    Child,
    check_back,
    committed,
    partition_of,
    producer,
    replica,
    truth,
    value,
)
from tests.broker.traffic import retried
from tests.daemon.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

NODE = 1
LIST = [2, 1, 3]
STEPS = ("removing", "moving", "adding", "clearing")
TOPICS = {
    "open": [[1, 2, 3]],
    **{f"killed-{step}": [LIST] for step in STEPS},
}
STAGED = {NODE: list(TOPICS), **{node: ["open"] for node in NODES[1:]}}


def test_transactions_that_are_open_across_an_install_of_every_replica_end_well(
    cluster: KafkaCluster, admin: AdminClient
) -> None:
    """The log that is given to the broker ends within them: what it needs of them is in the producer snapshot."""
    clients = [producer(cluster, **{"transactional.id": f"open-{name}"}) for name in ("kept", "dropped")]
    for client in clients:
        client.init_transactions(60)
        client.begin_transaction()
    for number in range(600):
        for client, key in zip(clients, (b"kept", b"dropped"), strict=True):
            client.produce("open", value(number), key, 0)
    for client in clients:
        assert client.flush(60) == 0
    for node in NODES:
        child = Child(cluster, node, "open")
        assert child.run() == "installed: None"
        assert child.is_clear()
    for client, key in zip(clients, (b"kept", b"dropped"), strict=True):
        client.produce("open", value(600), key, 0)
        assert client.flush(60) == 0
    retried(lambda: clients[0].commit_transaction(60))
    retried(lambda: clients[1].abort_transaction(60))
    expected = truth() | {b"kept": value(600)}
    for node in NODES:
        wait_until(lambda node=node: committed(replica(cluster, node, "open")) == expected, 30)
    assert partition_of(admin, "open") == ([1, 2, 3], [1, 2, 3])


@pytest.mark.soak
@pytest.mark.parametrize("step", STEPS)
def test_the_broker_is_killed_after_a_step(cluster: KafkaCluster, admin: AdminClient, step: str) -> None:
    """And starts with the partition as it then is, without a clean shutdown, before anybody goes on with the install."""
    topic = f"killed-{step}"
    child = Child(cluster, NODE, topic)
    child.killed_at(step)
    cluster.brokers[NODE].kill()
    cluster.brokers[NODE].start()
    outcome = child.run()
    assert outcome.startswith(("installed", "returned")), outcome
    check_back(admin, cluster, topic, LIST)
    assert child.is_clear()
    assert not list(child.log_dir.glob(f"{topic}-0.*-stray"))
    cluster.brokers[NODE].kill()  # what it was given is recovered as any log
    cluster.brokers[NODE].start()
    check_back(admin, cluster, topic, LIST)
