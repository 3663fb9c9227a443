"""A cluster of three with planted faults: `doctor` finds each of them, and nothing else; before they are planted, nothing.

Each fault is real, on a real directory. Time alone is not: a day later (`--now-ms`) the brokers are asked once more.
"""

import json
import os
import subprocess
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from cleanerd.broker_agent import session as sessions
from cleanerd.broker_agent.live_logs import OwnCleaner
from cleanerd.broker_agent.session import Session
from cleanerd.cli.main import main
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.format.batch import iterate_batches
from cleanerd.tools.cli import doctor
from cleanerd.tools.insight.doctor.facts import DAY_MS, HOUR_MS, Limits
from tests.harness.broker.cluster import NODES, KafkaCluster
from tests.harness.broker.live import BATCH_RECORDS, COMPACT, PATIENCE_S, Entry, records
from tests.harness.broker.releases import required_program, run_tool
from tests.harness.broker.replicas import Replicas
from tests.harness.broker.swapping import build_agent
from tests.harness.broker.traffic import Groups, again_and_again
from tests.harness.broker.workload import alter_config
from tests.harness.ctl import captured
from tests.harness.daemon.processes import wait_until
from tests.harness.damage.batches import sealed
from tests.harness.disks.mounts import mounted

MINUTES = float(os.environ.get("CLEANERD_TEST_MINUTES", "0.3"))
"""How long the healthy cluster lives."""

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900 + MINUTES * 120)]

JAR = Path(sessions.__file__).parent / "cleanerd-agent.jar"
PROPERTIES = {
    "log.segment.delete.delay.ms": "100",
    "log.cleaner.dedupe.buffer.size": str((2 << 20) + 2),  # a MiB for each of two threads: 39,321 keys
    "log.retention.check.interval.ms": "86400000",
}
LATER_MS = 26 * HOUR_MS
LIMITS = partial(Limits, least_bytes=1 << 20)
KILLER = """
public class Killer {
    public static void agentmain(String argument) {
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            if (thread.getName().startsWith("kafka-log-cleaner-thread")) {
                thread.interrupt();
            }
        }
    }
}
"""
"""What its thread does not expect ends it."""


class Cluster(Replicas):
    """Three brokers with the agent, of which the second has a small disk."""

    def __init__(self, cluster: KafkaCluster, root: Path) -> None:
        super().__init__(cluster)
        self._root = root
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "acks": "1", "log_level": 0, "linger.ms": 5}
        )

    def put(self, topic: str, node: int, config: Mapping[str, str], *entries: Entry, at_ms: int = 0) -> None:
        """A topic on one node, with these records, each few of them in a batch."""
        self.create(topic, {**COMPACT, **config}, [node])
        self.append(topic, *entries, at_ms=at_ms)

    def append(self, topic: str, *entries: tuple[bytes | None, bytes | None], at_ms: int = 0) -> None:
        for at, (key, value) in enumerate(entries, 1):
            self._producer.produce(topic, value, key, 0, timestamp=at_ms)
            if at % (BATCH_RECORDS * (1 if len(entries) < 1000 else 400)) == 0:
                assert self._producer.flush(PATIENCE_S) == 0
        assert self._producer.flush(PATIENCE_S) == 0

    def report(self, node: int, now_ms: int) -> Path:
        """What `doctor -o json` says of a node, in a new file."""
        report = self._root / f"{node}-{now_ms}.json"
        config = self._root / str(node) / "server.properties"
        words = ["doctor", f"--config={config}", f"--now-ms={now_ms}", "-o", "json", "--io=unlimited"]
        ran = captured(partial(main), words)
        assert ran.returncode in {0, 3}, ran.stderr
        report.write_text(ran.stdout)
        return report

    def digest(self, node: int, topic: str) -> Path:
        report = self._root / f"{node}-digest.json"
        words = ["digest", f"--log-dir={self.cluster.log_dir(node)}", f"--topic={topic}", "-o", "json"]
        ran = captured(partial(main), words)
        assert ran.returncode == 0, ran.stderr
        report.write_text(ran.stdout)
        return report

    def own_cleaner(self, node: int) -> OwnCleaner:
        log_dir, pid = str(self.cluster.log_dir(node)), self.cluster.brokers[node].pid
        assert pid is not None
        session = Session(pid, log_dir, RealFiles(), SystemClock(), loads=False)
        try:
            found = OwnCleaner.of(session, log_dir)
        finally:
            session.close()
        assert found is not None
        return found


def merged(reports: Sequence[Path]) -> list[dict[str, Any]]:
    ran = captured(partial(main), ["doctor", "--merge", *map(str, reports), "-o", "json"])
    assert ran.returncode in {0, 3}, ran.stderr
    return list(json.loads(ran.stdout)["findings"])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    build_agent()
    monkeypatch.setattr(doctor, "Limits", LIMITS)
    small = tmp_path / "2" / "logs"
    small.mkdir(parents=True)
    with (
        mounted(small, "-t", "tmpfs", "-o", "size=40m", "none"),
        KafkaCluster(tmp_path, PROPERTIES, jvm_options=("-Xmx256m", f"-javaagent:{JAR}")) as cluster,
    ):
        yield Cluster(cluster, tmp_path)


def clean_by_broker(world: Cluster, node: int, topic: str) -> None:
    """Its own cleaner takes the log now, and then no more."""
    alter_config(world.admin, topic, {"min.cleanable.dirty.ratio": "0.0"})
    wait_until(lambda: world.is_cleaned(node, topic), PATIENCE_S)
    alter_config(world.admin, topic, {"min.cleanable.dirty.ratio": "1.0"})


def kill_cleaner(world: Cluster, node: int, root: Path) -> None:
    (root / "Killer.java").write_text(KILLER)
    subprocess.run(
        [required_program("javac"), "--release", "11", "-d", str(root), str(root / "Killer.java")], check=True
    )
    with zipfile.ZipFile(root / "killer.jar", "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\nAgent-Class: Killer\n")
        jar.write(root / "Killer.class", "Killer.class")
    pid = str(world.cluster.brokers[node].pid)
    run_tool([required_program("jcmd"), pid, "JVMTI.agent_load", str(root / "killer.jar")])
    wait_until(lambda: world.own_cleaner(node).dead_threads == 2, PATIENCE_S)


def break_batch(world: Cluster, node: int, topic: str) -> None:
    """The size in the head of the first batch: Kafka's cleaner fails on it, and gives the log up."""
    first = world.home(node, topic) / f"{0:020d}.log"
    with first.open("r+b") as file:
        file.seek(8)
        file.write(bytes(4))
    alter_config(world.admin, topic, {"min.cleanable.dirty.ratio": "0.0"})
    wait_until(lambda: {one.topic for one in world.own_cleaner(node).uncleanable} == {topic}, PATIENCE_S)


def change_value(world: Cluster, node: int, topic: str) -> None:
    """Of the last record of the second batch of the log, whose CRC is right: it lies in a closed segment."""
    first = world.home(node, topic) / f"{0:020d}.log"
    data = bytearray(first.read_bytes())
    start, size_bytes, _ = list(iterate_batches(bytes(data)))[1]
    batch = bytearray(data[start : start + size_bytes])
    batch[-2] ^= 1  # the last byte is the number of headers
    with first.open("r+b") as file:
        file.seek(start)
        file.write(sealed(bytes(batch)))


def lose_first_segment(world: Cluster, node: int, topic: str) -> None:
    first, *_ = sorted(world.home(node, topic).glob("*.log"))
    for path in first.parent.glob(f"{first.stem}.*"):
        path.unlink()


def plant_stray(world: Cluster, node: int, root: Path) -> None:
    """A replica of which the cluster knows nothing any more: its broker puts it aside when it starts."""
    broker = world.cluster.brokers[node]
    left = world.cluster.log_dir(node) / "left-0"
    broker.stop()
    left.mkdir()
    (left / f"{0:020d}.log").touch()
    (left / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAew\n")
    broker.start()
    wait_until(lambda: not left.exists(), PATIENCE_S)


def fill(world: Cluster) -> None:
    """All faults but those that a stopped broker brings."""
    few, now_ms = records("few", range(100)), SystemClock().now_ms()
    large = [(b"%d" % (number % 10), b"x" * 10_000) for number in range(150)]
    segments = {"internal.segment.bytes": "65536"}
    # node 1, whose cleaner dies
    world.put("future", 1, {}, *few, at_ms=now_ms + 400 * DAY_MS)
    world.put("active", 1, {"internal.segment.bytes": str(1 << 30)}, *large)
    world.put("first", 1, segments, *large)
    world.create("open", {**COMPACT}, [1])
    world.follow("open")
    world.transactions["open"].write()
    # node 2, which cleans
    world.put("superseded", 2, segments, *large[:20])
    clean_by_broker(world, 2, "superseded")
    world.append("superseded", *large)
    world.put("deadline", 2, {"max.compaction.lag.ms": str(HOUR_MS)}, *few)
    world.put("retention", 2, {"cleanup.policy": "delete", "retention.ms": str(HOUR_MS)}, *few)
    graves = [(key, None) for key, _ in few]
    world.put("tombstones", 2, {"delete.retention.ms": "1"}, *few, *graves, *records("more", range(200, 300)))
    clean_by_broker(world, 2, "tombstones")
    world.put("broken", 2, {}, *few)
    break_batch(world, 2, "broken")
    # node 3
    world.put("no-keys", 3, {"cleanup.policy": "delete"}, *few)
    world.append("no-keys", (None, b"x"))
    alter_config(world.admin, "no-keys", {"cleanup.policy": "compact"})
    keys = [(b"%d" % number, b"x") for number in range(40_000)]
    world.put("many-keys", 3, {"internal.segment.bytes": str(1 << 20)}, *keys)
    world.put("connect-offsets", 3, {"cleanup.policy": "delete"}, *few)
    world.put("schema-changes.shop", 3, {}, *few)


EXPECTED = {
    (1, "cleaner_dead", None), (1, "open_transaction", "open"), (1, "future_timestamps", "future"),
    (1, "active_segment", "active"), (1, "first_cleaning", "first"), (1, "held_back", "held"),
    (2, "cleaner_stuck", "broken"), (2, "deadline_missed", "deadline"), (2, "retention_overdue", "retention"),
    (2, "tombstones_overdue", "tombstones"), (2, "superseded", "superseded"), (2, "full_soon", None),
    (3, "no_keys", "no-keys"), (3, "dedupe_buffer", "many-keys"), (3, "state_is_deleted", "connect-offsets"),
    (3, "history_is_lost", "schema-changes.shop"), (3, "stray_directory", None),
    (None, "log_starts_differ", "cut"), (None, "digests_differ", "compared"),
}  # fmt: skip


def test_every_planted_fault_is_found_and_nothing_else(world: Cluster, tmp_path: Path) -> None:
    world.create("healthy", COMPACT)
    world.fill("healthy")
    world.create("compared", COMPACT)
    world.create("cut", COMPACT, [1, 3])
    world.create("held", COMPACT, [1, 3])
    few = records("few", range(100))
    world.append("cut", *few)
    world.append("held", *few)
    world.append("compared", *few)
    wait_until(lambda: all(map(world.is_even, ("cut", "held", "compared"))), PATIENCE_S)
    now_ms = SystemClock().now_ms()
    before = [world.report(node, now_ms) for node in NODES]
    assert merged([*before, *(world.digest(node, "compared") for node in NODES)]) == []
    fill(world)
    plant_stray(world, 3, tmp_path)
    change_value(world, 2, "compared")
    world.cluster.brokers[3].stop()
    lose_first_segment(world, 3, "cut")
    world.append("held", *few)
    kill_cleaner(world, 1, tmp_path)
    digests = [world.digest(node, "compared") for node in (1, 2)]
    after = [world.report(node, now_ms + LATER_MS) for node in NODES]
    found = merged([*before, *after, *digests])
    shown = json.dumps(found, indent=1)
    assert {(one["node_id"], one["code"], one["topic"]) for one in found} == EXPECTED, shown
    assert len(found) == len(EXPECTED), shown


# -- a healthy cluster -----------------------------------------------------------------------------------------------

PAUSE_S = max(2.0, MINUTES)
SOON = partial(Limits, due_ms=5 * 60_000, leftover_ms=5 * 60_000, open_transaction_ms=60_000)
"""Sooner than for users: within some minutes nothing is late otherwise."""
CLEANS = {"log.cleaner.min.cleanable.ratio": "0.5", "log.segment.delete.delay.ms": "1000"}
HEALTHY = {
    "state": {**COMPACT, "delete.retention.ms": "1000"},
    "both": {**COMPACT, "cleanup.policy": "compact,delete", "retention.ms": "30000"},
    "events": {**COMPACT, "cleanup.policy": "delete", "retention.ms": "30000"},
    "on-time": {**COMPACT, "max.compaction.lag.ms": "60000", "min.cleanable.dirty.ratio": "1.0"},
}


@contextmanager
def traffic(world: Replicas) -> Iterator[None]:
    """Of idempotent and transactional producers and of groups, all the time."""
    groups, numbers = Groups(world.cluster.bootstrap, ["readers"], list(HEALTHY)), count()

    def write() -> None:
        number = next(numbers)
        for topic, transactions in world.transactions.items():
            world.ledgers[topic].send()
            world.ledgers[topic].flush()
            transactions.write()
            transactions.end(commit=number % 3 > 0)
        groups.commit()

    try:
        with again_and_again(write, 0.5):
            yield
    finally:
        groups.close()


def test_nothing_is_found_on_a_healthy_cluster_under_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While segments roll, are cleaned and deleted. Digests of its replicas at one offset are equal, or nobody can say."""
    monkeypatch.setattr(doctor, "Limits", SOON)
    with KafkaCluster(tmp_path, CLEANS) as cluster:
        world = Cluster(cluster, tmp_path)
        for topic, config in HEALTHY.items():
            world.create(topic, config)
            world.follow(topic)
        looked, equal, until_s = 0, 0, time.monotonic() + 60 * MINUTES

        def are_cleaned() -> bool:
            return all(
                world.first_dirty_offset(node, topic)
                for node in NODES
                for topic in ("state", "both", "on-time")
            )

        with traffic(world):
            while time.monotonic() < until_s or not (equal and are_cleaned()):
                now_ms = SystemClock().now_ms()
                assert merged([world.report(node, now_ms) for node in NODES]) == []
                equal += is_one_state(world, "state")
                looked += 1
                threading.Event().wait(PAUSE_S)
        print(f"{looked} times nothing was found, {equal} digests were equal")


def is_one_state(world: Cluster, topic: str) -> bool:
    """Whether all replicas have a digest at one offset; it is one then, also of each that is asked alone."""

    def asked(*words: str) -> tuple[int, list[dict[str, Any]], str]:
        ran = captured(partial(main), ["digest", *words, f"--topic={topic}", "-o", "json"])
        return ran.returncode, json.loads(ran.stdout)["logs"], ran.stderr

    dirs = [f"--log-dir={world.cluster.log_dir(node)}" for node in NODES]
    code, found, why = asked(*dirs)
    for at in {one["at"] for one in found}:
        found += [one for log_dir in dirs for one in asked(log_dir, f"--at={at}")[1]]
    assert len({one["digest"] for one in found}) <= 1, (found, why)
    return code == 0
