"""Three brokers, a partition on all of them, and results swapped into each while clients write and processes are killed."""

import random
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness.broker.cluster import NODES, KafkaCluster
from tests.harness.broker.live import PATIENCE_S
from tests.harness.broker.replicas import DONE, Replicas
from tests.harness.broker.swapping import QUICK, TOPIC, TXN_TOPIC, build_agent, swap_command
from tests.harness.broker.tools import CLEAN_TIMEOUT_S, READ_COMMITTED, read_all
from tests.harness.broker.traffic import Traffic
from tests.harness.broker.workload import alter_config
from tests.harness.daemon.processes import wait_until

ASSIGNED = {TOPIC: [1, 2, 3], TXN_TOPIC: [2, 3, 1]}
"""The first one leads, as long as it lives."""
STORY = [(1, ""), (2, "broker"), (3, "cleanerd"), (1, "broker"), (2, "cleanerd"), (3, "")]
"""A node whose logs are cleaned, and what is killed as soon as a result is staged."""
DELAYS_S = (0.0, 0.2)

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KafkaCluster]:
    build_agent()
    with KafkaCluster(tmp_path / "cluster") as cluster:
        yield cluster


def kill(cluster: KafkaCluster, node: int, victim: str, delay_s: float) -> None:
    """In the middle of a cleaning, when its first result is staged."""
    cleaning = subprocess.Popen(
        swap_command(cluster.log_dir(node), ASSIGNED), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    directories = [cluster.log_dir(node) / f"{topic}-0" for topic in ASSIGNED]
    wait_until(
        lambda: cleaning.poll() is not None or any(any(d.glob("*.cleanerd")) for d in directories),
        CLEAN_TIMEOUT_S,
    )
    with suppress(subprocess.TimeoutExpired):
        cleaning.wait(delay_s)
    if victim == "broker":
        cluster.brokers[node].kill()
        cleaning.wait(CLEAN_TIMEOUT_S)
        cluster.brokers[node].start()
    else:
        cleaning.kill()
        cleaning.wait()


def check(world: Replicas, traffic: Traffic) -> None:
    """Every replica, and consumers of committed records from the beginning, while nobody writes."""
    with traffic.still():
        for topic in ASSIGNED:
            world.check(topic)
            starts = {world.live(node, topic).log_start_offset for node in ASSIGNED[topic]}
            assert starts == {0}, (topic, "compacted only, so nothing goes from its start")
        seen = read_all(world.cluster.brokers[NODES[0]], [*ASSIGNED], READ_COMMITTED)
        for topic, ledger in world.ledgers.items():
            ledger.check(seen[topic], 0)


def test_every_replica_has_every_key(cluster: KafkaCluster) -> None:
    """Nothing is lost and nothing is back, on followers and leaders, whoever is killed in the middle of a swap."""
    world, rng, swaps = Replicas(cluster), random.Random(33), 0
    for topic, nodes in ASSIGNED.items():
        world.create(topic, {**QUICK, "min.insync.replicas": "2"}, nodes)
        world.follow(topic)
    transactions = world.transactions[TXN_TOPIC]
    with Traffic(world.ledgers) as traffic:
        for number, (node, victim) in enumerate(STORY):
            transactions.write()
            if victim:
                kill(cluster, node, victim, rng.uniform(*DELAYS_S))
            transactions.write()
            transactions.end(commit=number % 3 != 0)
            wait_until(lambda: all(map(world.is_in_sync, ASSIGNED)), PATIENCE_S)
            for topic in ASSIGNED:
                outcomes, rows = world.clean(node, topic)
                assert outcomes <= DONE, rows
                swaps += "committed" in outcomes
            check(world, traffic)
        before = {
            (node, topic): world.first_dirty_offset(node, topic) for node in NODES for topic in ASSIGNED
        }
        for topic in ASSIGNED:
            alter_config(world.admin, topic, {"min.cleanable.dirty.ratio": "0.0"})
        wait_until(
            lambda: all(world.first_dirty_offset(*log) > offset for log, offset in before.items()), PATIENCE_S
        )
        check(world, traffic)
    assert swaps >= len(STORY)
    assert world.complaints() == []
