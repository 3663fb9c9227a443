"""Topics of a cluster, what was written to them, and what of it has been seen to be gone on each replica."""

import contextlib
import json
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from confluent_kafka.admin import NewTopic

from cleanerd.broker_agent.live_logs import LiveLog, describe
from cleanerd.broker_agent.session import Session
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.format.names import TopicPartition
from tests.harness.broker import live
from tests.harness.broker.cluster import NODES, KafkaCluster
from tests.harness.broker.live import PATIENCE_S, check_nothing_is_lost
from tests.harness.broker.logdump import LogDump, dump_partition
from tests.harness.broker.model import committed
from tests.harness.broker.releases import current_release
from tests.harness.broker.swapping import QUICK, swap_words
from tests.harness.broker.tools import clean_in_process, offset_checkpoint
from tests.harness.broker.traffic import Ledger, Transactions, retried
from tests.harness.daemon.processes import wait_until

DONE = {"committed", "unchanged", "skipped"}
DUMPS_MAX = 100


class Replicas:
    """Of all topics that were created here; `ledgers` and `transactions` are of those that are followed."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.cluster = cluster
        self.admin = cluster.admin()
        self.written: dict[str, Callable[[], Mapping[int, tuple[bytes, bytes | None]]]] = {}
        self.ledgers: dict[str, Ledger] = {}
        self.transactions: dict[str, Transactions] = {}
        self._gone: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._nodes: dict[str, tuple[int, ...]] = {}

    # -- topics -----------------------------------------------------------------------------------------------------

    def create(self, topic: str, config: Mapping[str, str], nodes: Sequence[int] = NODES) -> None:
        """The first node leads."""
        new = NewTopic(
            topic, 1, replica_assignment=[list(nodes)], config=current_release().topic_config(config)
        )
        self.admin.create_topics([new])[topic].result(PATIENCE_S)
        self._nodes[topic] = tuple(nodes)
        wait_until(lambda: self.is_in_sync(topic), PATIENCE_S)

    def follow(self, topic: str) -> None:
        """What is written to it is remembered."""
        ledger = self.ledgers[topic] = Ledger(topic, self.cluster.bootstrap, random.Random(topic))
        self.transactions[topic] = Transactions(ledger, self.cluster.bootstrap)
        self.written[topic] = lambda: ledger.written

    def fill(self, topic: str) -> None:
        """A few segments, of which transactions write a part and abort some."""
        if topic not in self.ledgers:
            self.follow(topic)
        for number in range(4):
            for _ in range(12):
                self.ledgers[topic].send()
            self.ledgers[topic].flush()
            self.transactions[topic].write()
            self.transactions[topic].end(commit=number % 2 == 0)
        wait_until(lambda: self.is_even(topic), PATIENCE_S)

    def recreate(self, topic: str) -> None:
        """Another topic of the same name, with other records at the same offsets."""
        self.admin.delete_topics([topic])[topic].result(PATIENCE_S)
        wait_until(lambda: not any(self.homes(node, topic) for node in NODES), PATIENCE_S)
        self.create(topic, QUICK, self._nodes[topic])
        self.ledgers[topic].restart()
        self._gone = defaultdict(set, {key: gone for key, gone in self._gone.items() if key[0] != topic})
        self.fill(topic)

    # -- looking ----------------------------------------------------------------------------------------------------

    def homes(self, node: int, topic: str) -> list[Path]:
        """Partition directories of partition 0 on a node."""
        return [d / f"{topic}-0" for d in self.cluster.brokers[node].log_dirs if (d / f"{topic}-0").exists()]

    def home(self, node: int, topic: str) -> Path:
        (found,) = self.homes(node, topic)
        return found

    def dump(self, node: int, topic: str) -> LogDump:
        """Between two moments in which the broker's own cleaner replaces a segment."""
        for _ in range(DUMPS_MAX):
            with contextlib.suppress(FileNotFoundError):
                return dump_partition(self.home(node, topic))
        raise AssertionError(f"{topic}: its segments never rest")

    def live(self, node: int, topic: str) -> LiveLog:
        """What the broker itself says."""
        log_dir, pid = str(self.home(node, topic).parent), self.cluster.brokers[node].pid
        assert pid is not None
        with closing(Session(pid, log_dir, RealFiles(), SystemClock())) as session:
            (found,) = describe(session, log_dir, [TopicPartition(topic, 0)])
        return found

    def is_in_sync(self, topic: str) -> bool:
        """Every replica, by what the cluster says."""
        nodes = self._nodes[topic]
        asked = self.cluster.brokers[nodes[0]].admin()
        known = retried(lambda: asked.list_topics(topic, timeout=10)).topics[topic].partitions
        is_known = 0 in known and set(known[0].isrs) == set(nodes)
        return is_known and all(self.homes(node, topic) for node in nodes)

    def is_even(self, topic: str) -> bool:
        """Every replica ends where the others do."""
        return len({self.dump(node, topic).end_offset for node in self._nodes[topic]}) == 1

    def check(self, topic: str) -> None:
        """Nothing is lost, nothing is back, on any replica."""
        wait_until(lambda: self.is_in_sync(topic), PATIENCE_S)
        wait_until(lambda: self.is_even(topic), PATIENCE_S)
        written = self.written[topic]()
        for node in self._nodes[topic]:
            log, start = self.dump(node, topic), self.live(node, topic).log_start_offset
            seen = [record for record in committed(log, log.records) if record.offset >= start]
            check_nothing_is_lost(written, seen, log_start=start, why=(topic, node))
            offsets = {record.offset for record in seen}
            assert not offsets & self._gone[topic, node], (topic, node)
            self._gone[topic, node] = set(written) - offsets

    def has_forgotten(self, node: int, topic: str, offset: int) -> bool:
        """Whether the log starts at this offset or above, and no segment is left that ends below."""
        log = self.live(node, topic)
        behind = [segment.base_offset for segment in log.segments[1:]]
        return log.log_start_offset >= offset and all(base > offset for base in behind)

    def is_cleaned(self, node: int, topic: str) -> bool:
        """Whether nothing but the active segment is left for a cleaner."""
        return self.first_dirty_offset(node, topic) >= self.live(node, topic).segments[-1].base_offset

    def first_dirty_offset(self, node: int, topic: str) -> int:
        """0 without an entry."""
        checkpoint = self.home(node, topic).parent / "cleaner-offset-checkpoint"
        return offset_checkpoint(checkpoint).get(f"{topic}-0", 0)

    def complaints(self) -> list[str]:
        """Of all brokers about their logs, since their last start; but for what an unclean election does."""
        found = [
            line for one in self.cluster.brokers.values() for line in live.warnings(one) if ".log" in line
        ]
        return [line for line in found if "partition=cut-0" not in line]

    # -- cleaning ---------------------------------------------------------------------------------------------------

    def clean(self, node: int, topic: str, *more: str) -> tuple[set[str], list[dict[str, Any]]]:
        """`cleanerd clean --force` of a topic on a node: the outcomes, and the results. A log that moves may have two."""
        words = [f"--log-dir={log_dir}" for log_dir in self.cluster.brokers[node].log_dirs[1:]]
        arguments = [*swap_words(self.cluster.log_dir(node), [topic]), *words, *more]
        rows = json.loads(clean_in_process(*arguments).stdout)["results"]
        assert {row["committed_by"] for row in rows} <= {None, "swap"}, rows
        return {row["outcome"] for row in rows}, rows

    def clean_all(self, topic: str) -> None:
        """On every node; then every key is looked at."""
        for node in self._nodes[topic]:
            outcomes, rows = self.clean(node, topic)
            assert outcomes <= DONE, rows
        self.check(topic)
