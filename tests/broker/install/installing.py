"""Topics with staged results on the brokers of a cluster, clients that go on meanwhile, and what has to hold in the end."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from cleanerd.cleaning.one_shot import clean_once
from cleanerd.cli.main import main
from cleanerd.client.reader import read_records
from cleanerd.daemon.kafka_replicas import KafkaReplicas
from cleanerd.pipeline.lazy_spark import LazySpark
from tests.broker.cluster import KafkaCluster
from tests.broker.traffic import retried
from tests.daemon.processes import ROOT, environment, wait_until

CONFIG = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "1.0",  # as `cleanerctl mute` does
}
KEYS = 20
HISTORY = 1200
VALUE = b"v" * 100


def value(number: int) -> bytes:
    return b"%08d" % number + VALUE


def producer(cluster: KafkaCluster, **more: Any) -> Producer:
    settings = {"enable.idempotence": True, "acks": "all", "linger.ms": 2, "batch.size": 2000, "log_level": 0}
    return Producer({"bootstrap.servers": cluster.bootstrap, **settings, **more})


def create(cluster: KafkaCluster, topics: dict[str, list[list[int]]]) -> AdminClient:
    """Topics by name, with the replicas of each partition; each with a history in many segments."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    new = [
        NewTopic(
            name, num_partitions=len(replicas), replica_assignment=replicas,
            config=CONFIG | {"min.insync.replicas": str(min(len(replicas[0]), 2))},
        )
        for name, replicas in topics.items()
    ]  # fmt: skip
    for created in admin.create_topics(new).values():
        created.result(60)
    client = producer(cluster)
    for number in range(HISTORY):
        for name, replicas in topics.items():
            for partition in range(len(replicas)):
                client.produce(name, value(number), b"h-%d" % (number % KEYS), partition)
        if number % 50 == 0:
            assert client.flush(60) == 0
    assert client.flush(60) == 0
    return admin


def stage(spark: LazySpark, cluster: KafkaCluster, node: int, topics: Sequence[str]) -> None:
    """Leave a result beside the running broker for each of these topics."""
    arguments = ["clean", "--force", "-o", "json", "--set=log.cleanup.policy=compact"]
    arguments += [f"--log-dir={log_dir}" for log_dir in cluster.brokers[node].log_dirs]
    arguments += [f"--topic={name}" for name in topics]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(arguments, clean_once=partial(clean_once, session=spark)) == 0
    results = json.loads(out.getvalue())["results"]
    assert {row["topic"] for row in results} == set(topics)
    assert {row["outcome"] for row in results} == {"staged"}, results


def replica(cluster: KafkaCluster, node: int, topic: str, partition: int = 0) -> Path:
    """The directory that a broker has of a partition."""
    found = [path / f"{topic}-{partition}" for path in cluster.brokers[node].log_dirs]
    there = [path for path in found if path.is_dir()]
    assert len(there) == 1, (node, topic, there)
    return there[0]


def committed(directory: Path) -> dict[bytes | None, bytes | None]:
    """What a read_committed consumer of this replica ends up with."""
    return {record.key: record.value for record in read_records(str(directory), isolation="read_committed")}


def truth() -> dict[bytes, bytes]:
    """Newest values of the history."""
    return {b"h-%d" % (number % KEYS): value(number) for number in range(HISTORY)}


SPAWNED: list["subprocess.Popen[str]"] = []
"""By the tests of this process."""


def clear(cluster: KafkaCluster) -> None:
    """What a test that has failed may have left: processes, brokers that are stopped or dead, things of ours, the claim."""
    while SPAWNED:
        process = SPAWNED.pop()
        process.kill()
        process.communicate()
    for broker in cluster.brokers.values():
        if broker.pid is not None:
            os.kill(broker.pid, signal.SIGCONT)
            with contextlib.suppress(RuntimeError):
                broker.poll()
        if broker.pid is None:
            broker.start()
        for log_dir in broker.log_dirs:
            (log_dir.parent / "filler").unlink(missing_ok=True)
            for area in log_dir.parent.glob(".cleanerd-install-*"):
                shutil.rmtree(area)
            for mark in log_dir.glob("*/cleanerd-install"):
                mark.unlink()
    with connected(cluster) as replicas:
        if replicas.read_claim():
            replicas.write_claim("")


def connected(cluster: KafkaCluster) -> KafkaReplicas:
    """As cleanerd asks a cluster."""
    warnings.filterwarnings("ignore", ".*_text is deprecated")  # in the client library
    return KafkaReplicas(cluster.bootstrap.split(","), "")


@dataclass
class Child:
    """Installs of one replica, each in a process of its own."""

    cluster: KafkaCluster
    node: int
    topic: str
    partition: int = 0
    log_dir: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log_dir = replica(self.cluster, self.node, self.topic, self.partition).parent

    def spawn(self, *event: str) -> "subprocess.Popen[str]":
        arguments = [
            self.cluster.bootstrap,
            str(self.node),
            str(self.log_dir),
            self.topic,
            str(self.partition),
        ]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.broker.install.child", *arguments, *event],
            cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        SPAWNED.append(process)
        return process

    def run(self, *event: str) -> str:
        """To its end; outcome and reason. `event`: what befalls it, see `child`."""
        return finished(self.spawn(*event))

    def killed_at(self, step: str) -> None:
        """Killed when this step is in the journal, and nothing of it was done."""
        process = self.spawn(f"kill={step}")
        out, err = process.communicate(timeout=170)
        assert process.returncode == -9, (step, out, err)
        assert list(self.log_dir.parent.glob(".cleanerd-install-*/journal"))

    def is_clear(self) -> bool:
        """Whether nothing of ours is left."""
        left = list(self.log_dir.parent.glob(".cleanerd-install-*"))
        return not left and not list(self.log_dir.glob("*/cleanerd-install"))


def journalled(child: Child) -> dict[str, Any]:
    """What its journal has; an empty step without one."""
    for path in child.log_dir.parent.glob(f".cleanerd-install-{child.log_dir.name}/journal"):
        with contextlib.suppress(FileNotFoundError):
            return dict(json.loads(path.read_text())["install"])
    return {"step": "", "reason": None}


def finished(process: "subprocess.Popen[str]") -> str:
    out, err = process.communicate(timeout=170)
    assert process.returncode in (0, 1), (out, err)
    assert out, f"no outcome:\n{err}"
    return out.strip()


def given_up(process: "subprocess.Popen[str]") -> str:
    """What a child said that is not waited for any longer."""
    process.kill()
    return "".join(process.communicate())


def partition_of(admin: AdminClient, topic: str, partition: int = 0) -> tuple[list[int], list[int]]:
    """Replicas in their order, and those in sync; asked again while the client has only a dead broker to ask."""
    found = retried(lambda: admin.list_topics(topic, timeout=10)).topics[topic].partitions[partition]
    return list(found.replicas), sorted(found.isrs)


def check_back(
    admin: AdminClient, cluster: KafkaCluster, topic: str, replicas: list[int], partition: int = 0
) -> None:
    """The old list in its order, all in sync, and the same for a reader on every replica's directory."""
    wait_until(lambda: partition_of(admin, topic, partition) == (replicas, sorted(replicas)), 60)
    for node in replicas:
        wait_until(lambda node=node: committed(replica(cluster, node, topic, partition)) == truth(), 30)


class Clients:
    """An idempotent and a transactional producer for each partition of a topic, and a read_committed consumer of all."""

    def __init__(self, cluster: KafkaCluster, topic: str, partitions: int) -> None:
        self.errors: list[str] = []
        self.newest: dict[int, dict[bytes, bytes]] = {p: {} for p in range(partitions)}
        self.promised: set[tuple[int, int]] = (
            set()
        )  # partition and offset of all that was acknowledged or committed
        self.seen: list[tuple[int, int, bytes, bytes]] = []
        self._topic, self._partitions = topic, partitions
        self._stopping = threading.Event()
        self._idempotent = producer(cluster)
        self._transactional = producer(cluster, **{"transactional.id": f"{topic}-tx"})
        self._consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": f"{topic}-group", "isolation.level": "read_committed",
             "enable.auto.commit": False, "log_level": 0}
        )  # fmt: skip
        ends = [self._consumer.get_watermark_offsets(TopicPartition(topic, p))[1] for p in range(partitions)]
        self._consumer.assign([TopicPartition(topic, p, end) for p, end in enumerate(ends)])
        self._transactional.init_transactions(60)
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,))
            for run in (self._send, self._transact, self._read)
        ]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._consumer.close()

    def _guarded(self, run: Any) -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001 - the thread has nobody else to tell
            self.errors.append(f"{run.__name__}: {error!r}")

    def _delivered(self, partition: int, key: bytes, sent: bytes, into: dict[tuple[int, int], Any]) -> Any:
        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self.errors.append(str(error))
            else:
                into[partition, message.offset()] = (key, sent)

        return delivered

    def _send(self) -> None:
        number, done = 0, dict[tuple[int, int], Any]()
        while not self._stopping.wait(0.01):
            for partition in range(self._partitions):
                key = b"i-%d" % (number % KEYS)
                on_delivery = self._delivered(partition, key, value(number), done)
                self._idempotent.produce(self._topic, value(number), key, partition, on_delivery=on_delivery)
                self.newest[partition][key] = value(number)
            self._idempotent.poll(0)
            number += 1
        assert self._idempotent.flush(120) == 0
        self.promised |= done.keys()

    def _transact(self) -> None:
        number = 0
        while not self._stopping.wait(0.05):
            self._transactional.begin_transaction()
            done, sent = dict[tuple[int, int], Any](), []
            is_committed = number % 3 != 0
            for _ in range(5):
                for partition in range(self._partitions):
                    key = b"t-%d" % (number % KEYS)
                    on_delivery = self._delivered(partition, key, value(number), done)
                    self._transactional.produce(
                        self._topic, value(number), key, partition, on_delivery=on_delivery
                    )
                    sent.append((partition, key, value(number)))
                number += 1
            assert self._transactional.flush(120) == 0
            self._stopping.wait(0.1)  # open across what happens meanwhile
            end = (
                self._transactional.commit_transaction
                if is_committed
                else self._transactional.abort_transaction
            )
            retried(lambda end=end: end(60))
            if is_committed:
                self.promised |= done.keys()
                for partition, key, one in sent:
                    self.newest[partition][key] = one

    def _read(self) -> None:
        quiet = 0
        while quiet < 20:
            message = self._consumer.poll(0.2)
            if message is None:
                quiet += self._stopping.is_set()
            elif message.error() is not None:
                if not message.error().retriable():
                    self.errors.append(str(message.error()))
            else:
                quiet = 0
                self.seen.append((message.partition(), message.offset(), message.key(), message.value()))

    def check(self) -> None:
        """No error, everything promised was seen, once and in order, and nothing else."""
        assert self.errors == []
        assert len(self.promised) > 100
        offsets = [(partition, offset) for partition, offset, _, _ in self.seen]
        assert len(set(offsets)) == len(offsets)
        for partition in range(self._partitions):
            own = [offset for p, offset in offsets if p == partition]
            assert own == sorted(own)
        assert set(offsets) == self.promised
