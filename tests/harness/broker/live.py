"""A broker and a daemon that share a log directory, and a journal of everything that the broker acknowledged.

The broker is node 2. Node 1, the hub, is the controller: it lives on while node 2 restarts, and has no partitions.
"""

import os
import random
import signal
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Delivery
from confluent_kafka.admin import AdminClient, NewTopic

from cleanerd.cli.ctl.client import Client
from cleanerd.env.clock import SystemClock
from cleanerd.format.record import Record
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.releases import current_release
from tests.harness.broker.tools import READ_UNCOMMITTED, read_all, served_from
from tests.harness.broker.workload import DAY_MS, TIMEOUT_S, YEARS_MS, create_topics
from tests.harness.daemon.processes import DaemonProcess, wait_until

SEGMENT_BYTES = 8192
VALUE_BYTES = 200
BATCH_RECORDS = 5
PATIENCE_S = 180.0
BROKER_NODE = 2
OTHER_NODE = 3
CREATED_MAX = 12

Entry = tuple[bytes, bytes | None]
"""Key and value of a record."""

COMPACT = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": str(SEGMENT_BYTES),
    "segment.ms": str(YEARS_MS),
    "retention.ms": "-1",
    "delete.retention.ms": str(DAY_MS),
}
"""A compacted topic of small segments that never roll by time."""
COMPACT_DELETE = {**COMPACT, "cleanup.policy": "compact,delete"}
EVENTS = {**COMPACT, "cleanup.policy": "delete"}

DAEMON = {
    "log.cleaner.min.cleanable.ratio": "1.0",  # as the broker has it: its own cleaner stays away
    "cleanerd.min.cleanable.dirty.ratio": "0.0",
    "log.cleaner.backoff.ms": "500",
    "cleanerd.scan.interval.ms": "500",
    "cleanerd.staged.commit.interval.ms": "200",
}
"""Quick."""


class Journal:
    """An idempotent producer that keeps what was acknowledged: `written[topic][offset]`.

    With one request in flight, the broker still knows the offsets of a batch that is sent again after its kill.
    """

    def __init__(self, bootstrap: str, *, in_flight: int = 5) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "max.in.flight.requests.per.connection": in_flight,
            "linger.ms": 10_000,
            "batch.num.messages": BATCH_RECORDS,
            "reconnect.backoff.max.ms": 500,
            "retry.backoff.max.ms": 500,
            "log_level": 0,
        }
        self.written: dict[str, dict[int, Entry]] = {}
        self._producer = Producer(settings)
        self._errors: list[str] = []

    def send(self, topic: str, entry: Entry, timestamp_ms: int | None = None) -> None:
        """Hand over one record for partition 0, and wait for nothing."""
        key, value = entry

        def delivered(error: KafkaError | None, delivery: Delivery) -> None:
            offset = delivery.offset()
            if error is not None or offset is None:
                self._errors.append(f"{topic}: {error}")
            else:
                self.written.setdefault(topic, {})[offset] = entry

        stamp_ms = SystemClock().now_ms() if timestamp_ms is None else timestamp_ms
        self._producer.produce(
            topic, key=key, value=value, timestamp=stamp_ms, partition=0, on_delivery=delivered
        )
        self._producer.poll(0)

    def flush(self, timeout_s: float = PATIENCE_S) -> None:
        left = self._producer.flush(timeout_s)
        assert left == 0, f"{left} are not acknowledged after {timeout_s} s; {self._errors}"
        assert not self._errors, self._errors

    def fill(self, topic: str, entries: Sequence[Entry], timestamp_ms: int | None = None) -> int:
        """Write records batch by batch and wait for them; returns the log end offset."""
        for at in range(0, len(entries), BATCH_RECORDS):
            for entry in entries[at : at + BATCH_RECORDS]:
                self.send(topic, entry, timestamp_ms)
            self.flush()
        return max(self.written[topic]) + 1

    def forget(self, topic: str, from_offset: int = 0) -> None:
        """The topic was deleted, or its log cut at this offset: these records are gone by right."""
        kept = {offset: entry for offset, entry in self.written[topic].items() if offset < from_offset}
        self.written[topic] = kept


def records(seed: str, keys: Iterable[int]) -> list[Entry]:
    """A record for each of these keys, in this order, with values that no codec makes smaller."""
    rng = random.Random(seed)
    return [(b"key-%d" % key, rng.randbytes(VALUE_BYTES)) for key in keys]


def check_nothing_is_lost(
    written: Mapping[int, Entry], read: Sequence[Record], *, log_start: int = 0, why: object = ""
) -> None:
    """What consumers see was written, in its order and at its offsets, and of each key at least the newest.

    A tombstone may go, but not before everything that it deletes.
    """
    offsets = [record.offset for record in read]
    assert offsets == sorted(set(offsets)), why
    assert not offsets or offsets[0] >= log_start, why
    seen = {record.offset: (record.key, record.value) for record in read}
    assert seen == {offset: written.get(offset) for offset in offsets}, why
    newest = {written[offset][0]: offset for offset in sorted(written) if offset >= log_start}
    keys_seen = {record.key for record in read}
    lost = {
        key: offset
        for key, offset in newest.items()
        if offset not in seen and (written[offset][1] is not None or key in keys_seen)
    }
    assert not lost, why


class Place:
    """The broker, the daemon, their log directory and the journal."""

    def __init__(self, root: Path) -> None:
        hub_port, controller_port, port, other_port = fixed_ports(4)
        self.root = root
        self.log_dir = root / "logs"
        self.hub = KafkaBroker(root / "hub", [root / "hub-logs"], ports=(hub_port, controller_port))
        self.broker = _node(BROKER_NODE, root / "broker", self.log_dir, port, controller_port)
        self.other = _node(OTHER_NODE, root / "other", root / "other-logs", other_port, controller_port)
        self.daemon = DaemonProcess(root / "daemon", [self.log_dir], DAEMON)
        self.control = Client(str(self.daemon.socket))
        self.bootstrap = f"127.0.0.1:{port},127.0.0.1:{hub_port}"
        self.journal = Journal(self.bootstrap)

    def start_broker(self) -> None:
        """Start it, and wait until the controller has taken it in."""
        self.broker.start()
        wait_until(lambda: is_in_cluster(self.hub, BROKER_NODE), PATIENCE_S)

    def close(self) -> None:
        for broker in (self.broker, self.other, self.hub):
            if broker.pid is not None:
                broker.kill()
        self.daemon.kill()

    def directory(self, topic: str) -> Path:
        """Of partition 0."""
        return self.log_dir / f"{topic}-0"

    def create(self, topics: Mapping[str, Mapping[str, str]], nodes: Sequence[int] = (BROKER_NODE,)) -> None:
        """Create topics of one partition on these nodes, the first of which leads, and tell the daemon of them."""
        release = current_release()
        new = [
            NewTopic(topic, 1, replica_assignment=[list(nodes)], config=release.topic_config(config))
            for topic, config in topics.items()
        ]
        admin = self.hub.admin()
        for created in admin.create_topics(new).values():
            created.result(TIMEOUT_S)
        wait_until(
            lambda: all((self.directory(topic) / "partition.metadata").exists() for topic in topics), 30
        )
        self.reload()

    def reload(self) -> None:
        self.control.send("POST", "/v1/reload", {})

    @contextmanager
    def paused(self, pattern: str = "*") -> Iterator[None]:
        """Hold what matches: nothing of it is cleaned or committed."""
        self.pause(pattern)
        yield
        self.resume(pattern)

    def pause(self, pattern: str) -> None:
        body = {"pattern": pattern, "owner": "test", "reason": "", "ttl_ms": None, "timeout_ms": 30_000}
        self.control.send("POST", "/v1/pause", body, 30)

    def resume(self, pattern: str) -> None:
        self.control.send("POST", "/v1/resume", {"selector": pattern})

    def states(self) -> dict[str, str]:
        return {log["topic"]: log["state"] for log in self.control.get("/v1/logs")["logs"]}

    def wait_staged(self, topics: Iterable[str]) -> None:
        wanted = set(topics)
        wait_until(
            lambda: {self.states().get(topic) for topic in wanted} == {"staged"},
            PATIENCE_S,
            lambda: f"{self.states()} {self.daemon.output()}",
        )

    def wait_settled(self, topics: Iterable[str], timeout_s: float = PATIENCE_S) -> None:
        """Until nothing waits and nothing is being cleaned of these."""
        wanted = set(topics)
        wait_until(
            lambda: not {self.states().get(topic) for topic in wanted} & {"staged", "cleaning", "dirty"},
            timeout_s,
            lambda: f"{self.states()} {self.daemon.output()}",
        )

    def commits(self, topic: str) -> list[tuple[str, str]]:
        """(outcome, reason) of what became of staged results of a topic, oldest first."""
        events = self.control.get("/v1/history", pattern=f"{topic}-0", limit=1000)["events"]
        found = [(e["outcome"], str(e["reason"])) for e in events if e["kind"] == "commit"]
        return found[::-1]

    def log_start(self, topic: str) -> int:
        """First offset that the broker serves."""
        return served_from(self.broker.bootstrap, topic)

    def visible(self, topics: Sequence[str]) -> dict[str, list[Record]]:
        return read_all(self.broker, topics, READ_UNCOMMITTED)


def _node(node: int, work_dir: Path, log_dir: Path, port: int, controller_port: int) -> KafkaBroker:
    """A broker that is no controller."""
    properties = {
        "process.roles": "broker",
        "node.id": str(node),
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        # Not twice a second: then a new file does not mean that somebody else wrote it.
        "log.flush.start.offset.checkpoint.interval.ms": "60000",
    }
    return KafkaBroker(work_dir, [log_dir], properties, ports=(port, controller_port))


def is_in_cluster(broker: KafkaBroker, node: int) -> bool:
    try:
        return node in broker.admin().list_topics(timeout=1).brokers
    except KafkaException:
        return False


def leader_and_isr(broker: KafkaBroker, topic: str) -> tuple[int, set[int]]:
    """Node that leads partition 0, -1 for none, and the nodes in sync with it."""
    partition = broker.admin().list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions[0]
    return partition.leader, set(partition.isrs)


@contextmanager
def frozen(broker: KafkaBroker) -> Iterator[None]:
    """Stopped in the middle of everything, to go on afterwards."""
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def elect(node: int, broker: KafkaBroker, topic: str, entries: Sequence[Entry]) -> dict[int, Entry]:
    """An unclean election: this broker starts while the leader is frozen, leads and is written to. Returns what it took.

    A broker shows a leader before it has ended the fetcher of the old one, who may be thawed only when what it has to send
    is no longer taken: what is acknowledged proves that.
    """
    broker.start()
    wait_until(lambda: leader_and_isr(broker, topic)[0] == node, PATIENCE_S)
    journal = Journal(broker.bootstrap)
    journal.fill(topic, entries)
    return journal.written[topic]


def home(topic: str, log_dirs: Iterable[Path]) -> Path | None:
    """The log directory in which partition 0 lies, if it does yet."""
    return next((path for path in log_dirs if (path / f"{topic}-0/partition.metadata").exists()), None)


_fillers = count()


def create_elsewhere(admin: AdminClient, topic: str, log_dirs: Sequence[Path]) -> None:
    """Another topic of the same name, in the other directory: a broker takes that which has fewer partitions."""
    before = home(topic, log_dirs)
    for _ in range(CREATED_MAX):
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        wait_until(lambda: not any((path / f"{topic}-0").exists() for path in log_dirs), PATIENCE_S)
        create_topics(admin, {f"filler-{next(_fillers)}": COMPACT})
        create_topics(admin, {topic: COMPACT})
        wait_until(lambda: home(topic, log_dirs), PATIENCE_S)
        if home(topic, log_dirs) != before:
            return
    raise AssertionError("the partition never lay elsewhere")


def fixed_ports(count: int) -> list[int]:
    """Ports of loopback that are free now, outside of the range from which clients get theirs."""
    found: list[int] = []
    for port in random.sample(range(12_000, 30_000), 100):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("no free ports")


def troubles(broker: KafkaBroker) -> list[str]:
    """What the broker complained about since its last start; its coordinators, who come and go, have no say in logs."""
    return [line for line in broker.troubles() if " org.apache.kafka.coordinator." not in line]


def warnings(broker: KafkaBroker) -> list[str]:
    """Those that are more than information: a recovery after a kill may speak of itself."""
    return [line for line in troubles(broker) if not line.startswith("INFO")]
