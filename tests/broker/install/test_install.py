"""Installs into running brokers: three of them, clients that go on, and everything that can go wrong."""

import subprocess
from contextlib import suppress

import pytest
from confluent_kafka.admin import AdminClient

from cleanerd.errors import ClusterRefused
from cleanerd.install.values import ClusterView
from tests.broker.cluster import NODES, KafkaCluster
from tests.broker.install.installing import (
    HISTORY,
    Child,
    Clients,
    check_back,
    committed,
    connected,
    create,
    finished,
    given_up,
    partition_of,
    replica,
    truth,
)
from tests.daemon.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

NODE = 1
LIST = [2, 1, 3]
LED = [1, 2, 3]  # broker 1 leads
KILLS = ("prepared", "removing", "moving", "adding", "electing", "clearing")
TOPICS = {
    "busy": [LED, LIST],
    **{f"kill-{step}": [LED if step == "electing" else LIST] for step in KILLS},
    "broker-dies": [LIST],
    "another-dies": [LIST],
    "deleted": [LIST],
    "again": [LIST],
    "rival": [LIST],
    "refused": [LIST],
    "single": [[1]],
}
STAGED = {NODE: list(TOPICS), **{node: ["busy"] for node in NODES[1:]}}
LOG_DIRS = ("logs", "logs1")


def size_of(cluster: KafkaCluster, node: int, topic: str, partition: int = 0) -> int:
    """Bytes of the history but for its end."""
    logs = replica(cluster, node, topic, partition).glob("*.log")
    return sum(path.stat().st_size for path in logs if int(path.stem) < HISTORY - 200)


def test_every_replica_of_a_busy_topic_is_installed(cluster: KafkaCluster, admin: AdminClient) -> None:
    with Clients(cluster, "busy", 2) as clients:
        for node in NODES:
            for partition, replicas in enumerate(TOPICS["busy"]):
                child, before = (
                    Child(cluster, node, "busy", partition),
                    size_of(cluster, node, "busy", partition),
                )
                inode = (replica(cluster, node, "busy", partition)).stat().st_ino
                assert child.run() == "installed: None"
                assert partition_of(admin, "busy", partition)[0] == replicas
                assert replica(cluster, node, "busy", partition).stat().st_ino != inode
                assert replica(cluster, node, "busy", partition).parent == child.log_dir
                assert size_of(cluster, node, "busy", partition) < before / 2
                assert child.is_clear()
    clients.check()
    for partition, replicas in enumerate(TOPICS["busy"]):
        leader = admin.list_topics("busy", timeout=30).topics["busy"].partitions[partition].leader
        assert leader == replicas[0], "preferred leadership is restored"
        for node in replicas:
            expected = truth() | clients.newest[partition]
            wait_until(
                lambda node=node, partition=partition, expected=expected:
                committed(replica(cluster, node, "busy", partition)) == expected, 30,
            )  # fmt: skip
    for node in NODES:
        assert [line for line in cluster.brokers[node].messages() if is_error(line)] == []


def is_error(line: str) -> bool:
    """But for what a broker says of a replica that it gets back as soon as it has lost it."""
    return line.startswith(("ERROR", "FATAL")) and "to exist, but it was missing. Creating..." not in line


@pytest.mark.parametrize("step", KILLS)
def test_a_kill_after_a_step_of_the_journal_changes_nothing_about_the_end(
    cluster: KafkaCluster, admin: AdminClient, step: str
) -> None:
    topic = f"kill-{step}"
    child, before = Child(cluster, NODE, topic), size_of(cluster, NODE, topic)
    child.killed_at(step)
    outcome = child.run()
    is_installed = step not in ("prepared", "removing")
    assert outcome.startswith(
        "installed" if is_installed else ("abandoned" if step == "prepared" else "returned")
    )
    check_back(admin, cluster, topic, TOPICS[topic][0])
    assert child.is_clear()
    assert (size_of(cluster, NODE, topic) < before / 2) == is_installed


def test_a_single_replica_is_refused_with_the_reason(cluster: KafkaCluster, admin: AdminClient) -> None:
    child = Child(cluster, NODE, "single")
    assert (
        child.run()
        == "refused: single-0: it has a single replica, which cannot be taken out while the broker runs"
    )
    assert committed(replica(cluster, NODE, "single")) == truth()


@pytest.mark.filterwarnings("ignore:.*_text is deprecated")  # in the client library
def test_a_rivals_list_stays(cluster: KafkaCluster, admin: AdminClient) -> None:
    child = Child(cluster, NODE, "rival")
    child.killed_at("moving")
    rival = reassign(cluster, "rival", [3])
    assert rival == [3]
    outcome = child.run()
    assert outcome == "foreign: the replicas were (2, 1, 3), they were changed to (3,)"
    assert partition_of(admin, "rival") == ([3], [3])
    assert child.is_clear()


def reassign(cluster: KafkaCluster, topic: str, replicas: list[int]) -> list[int]:
    """As another tool would."""
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient

    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    try:
        client.alter_partition_reassignments({TopicPartition(topic, 0): replicas})
        wait_until(lambda: replicas_of(client, topic) == replicas, 30)
        return replicas_of(client, topic)
    finally:
        client.close()


def replicas_of(client: object, topic: str) -> list[int]:
    found = client.describe_topics([topic])[0]["partitions"][0]  # type: ignore[attr-defined]
    return list(found["replica_nodes"])


def test_a_directory_that_a_broker_would_refuse_is_not_given_to_it(
    cluster: KafkaCluster, admin: AdminClient
) -> None:
    child = Child(cluster, NODE, "refused")
    child.killed_at("moving")
    (prepared,) = child.log_dir.parent.glob(".cleanerd-install-*/prepared")
    (prepared / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAw")
    assert child.run() == "returned: the prepared directory is not there any more"
    check_back(admin, cluster, "refused", LIST)
    assert child.is_clear()


@pytest.mark.soak
def test_the_broker_is_killed_while_its_replica_is_out(cluster: KafkaCluster, admin: AdminClient) -> None:
    child = Child(cluster, NODE, "broker-dies")
    child.killed_at("adding")  # the directory is in, the replica is out: a start makes it a stray one
    cluster.brokers[NODE].kill()
    cluster.brokers[NODE].start()
    outcome = child.run()
    assert outcome.startswith(("installed", "returned")), outcome
    check_back(admin, cluster, "broker-dies", LIST)
    assert child.is_clear()
    assert not list(child.log_dir.glob("broker-dies-0.*-stray"))


@pytest.mark.soak
def test_a_broker_that_was_away_is_asked_again(cluster: KafkaCluster, admin: AdminClient) -> None:
    """The client library remembers for five minutes that it was."""
    with connected(cluster) as asked:

        def view() -> ClusterView | None:
            with suppress(ClusterRefused):
                return asked.view("busy", 0, NODE)
            return None

        def is_hosted(*, wanted: bool) -> bool:
            found = view()
            return found is not None and wanted == (NODE in found.alive) == (found.hosted_in is not None)

        assert is_hosted(wanted=True)
        cluster.brokers[NODE].kill()
        wait_until(lambda: is_hosted(wanted=False), 30)
        cluster.brokers[NODE].start()
        wait_until(lambda: is_hosted(wanted=True), 30)


@pytest.mark.soak
def test_another_replica_dies_while_ours_is_out(cluster: KafkaCluster, admin: AdminClient) -> None:
    child = Child(cluster, NODE, "another-dies")
    child.killed_at("moving")
    cluster.brokers[3].kill()
    process: subprocess.Popen[str] = child.spawn()
    wait_until(
        lambda: partition_of(admin, "another-dies") == (LIST, [1, 2]),
        90,
        lambda: f"{partition_of(admin, 'another-dies')}\n{given_up(process)}",
    )
    cluster.brokers[3].start()
    assert finished(process).startswith(("installed", "returned"))
    check_back(admin, cluster, "another-dies", LIST)
    assert child.is_clear()


@pytest.mark.soak
@pytest.mark.parametrize("topic", ["deleted", "again"])
def test_the_topic_goes_while_its_replica_is_out(
    cluster: KafkaCluster, admin: AdminClient, topic: str
) -> None:
    child = Child(cluster, NODE, topic)
    child.killed_at("adding" if topic == "again" else "moving")
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=30).topics, 30)
    if topic == "again":
        create(cluster, {topic: [LIST]})
    outcome = "returned" if topic == "again" else "dropped"
    assert child.run().startswith(f"{outcome}: the topic was deleted or created again")
    assert child.is_clear()
    if topic == "again":
        check_back(admin, cluster, topic, LIST)
