"""Three brokers, a partition on all of them, and results swapped into each while clients write and processes are killed."""

import json
import random
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.cluster import NODES, KafkaCluster
from tests.broker.live import PATIENCE_S, check_nothing_is_lost, warnings
from tests.broker.logdump import LogDump, dump_partition
from tests.broker.model import committed
from tests.broker.releases import current_release
from tests.broker.swapping import QUICK, TOPIC, TXN_TOPIC, build_agent, swap_command
from tests.broker.tools import CLEAN_TIMEOUT_S, READ_COMMITTED, offset_checkpoint, read_all
from tests.broker.traffic import Ledger, Traffic, Transactions, retried
from tests.broker.workload import alter_config
from tests.daemon.processes import wait_until

ASSIGNED = {TOPIC: [1, 2, 3], TXN_TOPIC: [2, 3, 1]}
"""The first one leads, as long as it lives."""
STORY = [(1, ""), (2, "broker"), (3, "cleanerd"), (1, "broker"), (2, "cleanerd"), (3, "")]
"""A node whose logs are cleaned, and what is killed as soon as a result is staged."""
DELAYS_S = (0.0, 0.2)

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]


class World:
    """The cluster, its clients, and what they were promised."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.cluster = cluster
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        config = {**current_release().topic_config(QUICK), "min.insync.replicas": "2"}
        new = [
            NewTopic(topic, 1, replica_assignment=[nodes], config=config) for topic, nodes in ASSIGNED.items()
        ]
        for created in self.admin.create_topics(new).values():
            created.result(PATIENCE_S)
        self.ledgers = {topic: Ledger(topic, cluster.bootstrap, random.Random(topic)) for topic in ASSIGNED}
        self.traffic = Traffic(self.ledgers)
        self.transactions = Transactions(self.ledgers[TXN_TOPIC], cluster.bootstrap)
        self.swaps = 0

    def swap(self, node: int) -> None:
        """Each log of a node is cleaned, or had nothing new to be cleaned."""
        done = subprocess.run(
            self._command(node), check=False, capture_output=True, text=True, timeout=CLEAN_TIMEOUT_S
        )
        assert done.returncode == 0, done.stderr
        rows: list[dict[str, Any]] = json.loads(done.stdout)["results"]
        assert {row["outcome"] for row in rows} <= {"committed", "unchanged", "skipped"}, rows
        ways = [row["committed_by"] for row in rows if row["outcome"] == "committed"]
        assert set(ways) <= {"swap"}, rows
        self.swaps += len(ways)

    def kill(self, node: int, victim: str, delay_s: float) -> None:
        """In the middle of a cleaning, when its first result is staged."""
        cleaning = subprocess.Popen(self._command(node), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        log_dir = self.cluster.log_dir(node)
        directories = [log_dir / f"{topic}-0" for topic in ASSIGNED]
        wait_until(
            lambda: cleaning.poll() is not None or any(any(d.glob("*.cleanerd")) for d in directories),
            CLEAN_TIMEOUT_S,
        )
        with suppress(subprocess.TimeoutExpired):
            cleaning.wait(delay_s)
        if victim == "broker":
            self.cluster.brokers[node].kill()
            cleaning.wait(CLEAN_TIMEOUT_S)
            self.cluster.brokers[node].start()
        else:
            cleaning.kill()
            cleaning.wait()

    def check(self) -> None:
        """Consumers of committed records from the beginning, and every replica, while nobody writes."""
        with self.traffic.still():
            wait_until(self._is_in_sync, PATIENCE_S)
            wait_until(self._are_even, PATIENCE_S)
            seen = read_all(self.cluster.brokers[NODES[0]], [*self.ledgers], READ_COMMITTED)
            for topic, ledger in self.ledgers.items():
                ledger.check(seen[topic], 0)
                for node, log in self._dumped(topic).items():
                    check_nothing_is_lost(ledger.written, committed(log, log.records), why=(topic, node))

    def let_own_cleaners_go_on(self) -> None:
        """Each broker's own cleaner over what was swapped in."""
        before = {(node, topic): self._checkpoint(node, topic) for node in NODES for topic in ASSIGNED}
        for topic in ASSIGNED:
            alter_config(self.admin, topic, {"min.cleanable.dirty.ratio": "0.0"})
        wait_until(lambda: all(self._checkpoint(*log) > offset for log, offset in before.items()), PATIENCE_S)

    def complaints(self) -> list[str]:
        """Of all brokers about their logs, since their last start."""
        return [
            line for broker in self.cluster.brokers.values() for line in warnings(broker) if ".log" in line
        ]

    def _command(self, node: int) -> list[str]:
        return swap_command(self.cluster.log_dir(node), ASSIGNED)

    def _checkpoint(self, node: int, topic: str) -> int:
        return offset_checkpoint(self.cluster.log_dir(node) / "cleaner-offset-checkpoint").get(
            f"{topic}-0", 0
        )

    def _is_in_sync(self) -> bool:
        topics = retried(lambda: self.admin.list_topics(timeout=10)).topics
        return all(len(topics[topic].partitions[0].isrs) == len(NODES) for topic in ASSIGNED)

    def _replicas(self, topic: str) -> dict[int, LogDump] | None:
        """None where a broker's own cleaner replaces a segment meanwhile."""
        with suppress(FileNotFoundError):
            return {node: dump_partition(self.cluster.log_dir(node) / f"{topic}-0") for node in NODES}
        return None

    def _dumped(self, topic: str) -> dict[int, LogDump]:
        for _ in range(100):
            if (found := self._replicas(topic)) is not None:
                return found
        raise AssertionError(f"{topic}: its segments never rest")

    def _are_even(self) -> bool:
        found = [self._replicas(topic) for topic in ASSIGNED]
        return all(one is not None and len({log.end_offset for log in one.values()}) == 1 for one in found)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KafkaCluster]:
    build_agent()
    with KafkaCluster(tmp_path / "cluster") as cluster:
        yield cluster


def test_every_replica_has_every_key(cluster: KafkaCluster) -> None:
    """Nothing is lost and nothing is back, on followers and leaders, whoever is killed in the middle of a swap."""
    world, rng = World(cluster), random.Random(33)
    with world.traffic:
        for number, (node, victim) in enumerate(STORY):
            world.transactions.write()
            if victim:
                world.kill(node, victim, rng.uniform(*DELAYS_S))
            world.transactions.write()
            world.transactions.end(commit=number % 3 != 0)
            wait_until(world._is_in_sync, PATIENCE_S)
            world.swap(node)
            world.check()
        world.let_own_cleaners_go_on()
        world.check()
    assert world.swaps >= len(STORY)
    assert world.complaints() == []
