"""Three KRaft nodes on loopback, each broker and controller, as a context manager."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.harness.broker.kafka import KafkaBroker, free_ports

NODES = (1, 2, 3)
PROPERTIES = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.wait.max.ms": "100",
    "auto.leader.rebalance.enable": "false",
    "unclean.leader.election.enable": "false",
    "log.segment.delete.delay.ms": "60000",
    "background.threads": "2",
    "num.io.threads": "2",
}
_HEAP = ("-Xmx256m",)


class KafkaCluster:
    """Brokers 1 to 3 over `<root>/<node>/logs`, whose heaps are small; `log_dirs` are names in there.

    `properties` win over all others.
    """

    def __init__(
        self,
        root: Path,
        properties: Mapping[str, str] | None = None,
        log_dirs: Sequence[str] = ("logs",),
        jvm_options: Sequence[str] = _HEAP,
    ) -> None:
        ports = free_ports(2 * len(NODES))
        self.ports = dict(zip(NODES, zip(ports[::2], ports[1::2], strict=True), strict=True))
        voters = ",".join(f"{node}@127.0.0.1:{self.ports[node][1]}" for node in NODES)
        self.brokers = {
            node: KafkaBroker(
                root / str(node),
                [root / str(node) / name for name in log_dirs],
                {
                    **PROPERTIES,
                    **(properties or {}),
                    "node.id": str(node),
                    "controller.quorum.voters": voters,
                },
                ports=self.ports[node],
                jvm_options=jvm_options,
            )
            for node in NODES
        }

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers, running or not."""
        return ",".join(f"127.0.0.1:{broker}" for broker, _ in self.ports.values())

    def admin(self) -> AdminClient:
        """Of whichever brokers run."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def log_dir(self, node: int) -> Path:
        return self.brokers[node].log_dirs[0]

    def __enter__(self) -> "KafkaCluster":
        with ThreadPoolExecutor(len(NODES)) as pool:  # none answers alone: two make a quorum
            for started in [pool.submit(broker.start) for broker in self.brokers.values()]:
                started.result()
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            if broker.pid is not None:
                broker.kill()  # the last two would wait for each other's quorum
