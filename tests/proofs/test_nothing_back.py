"""What was deleted stays deleted, for replicas too that were away.

A replica is away for longer than delete.retention.ms: the others keep their tombstones until it is back (architecture 2).

Kafka's own cleaner drops those of a log that is written on, and the replica that returns keeps the values for good.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.harness.broker.cluster import NODES, KafkaCluster
from tests.harness.broker.live import PATIENCE_S
from tests.harness.broker.replicas import Replicas
from tests.harness.broker.swapping import QUICK, build_agent
from tests.harness.daemon.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

QUIET, WRITTEN = "quiet", "written"
RETENTION_S = 3.0
CONFIG = {**QUICK, "delete.retention.ms": str(round(RETENTION_S * 1000)), "internal.segment.bytes": "4096"}
AWAY = 3
OTHERS = [node for node in NODES if node != AWAY]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Replicas]:
    build_agent()
    with KafkaCluster(tmp_path / "cluster", {"metadata.log.max.snapshot.interval.ms": "1000"}) as cluster:
        world = Replicas(cluster)
        for topic in (QUIET, WRITTEN):
            world.create(topic, CONFIG)
        yield world


def write(world: Replicas, topic: str, *records: tuple[bytes, bytes | None]) -> None:
    """These, and enough behind them to close their segment."""
    settings = {"bootstrap.servers": world.cluster.bootstrap, "log_level": 0, "batch.num.messages": 5}
    producer, refused = Producer(settings), list[object]()
    padding = [(b"padding %d" % number, b"x" * 200) for number in range(40)]
    for key, value in [*records, *padding]:
        producer.produce(topic, value, key, 0, on_delivery=lambda error, _: refused.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert set(refused) == {None}


def clean(world: Replicas, node: int, topic: str) -> dict[str, Any]:
    """By what the node's metadata log says, which names the settings as well."""
    retention = ["--topic-set", f"{topic}:delete.retention.ms={CONFIG['delete.retention.ms']}"]
    _, (row,) = world.clean(node, topic, *retention)
    return row


def wait_committed(world: Replicas, node: int, topic: str) -> dict[str, int]:
    """What goes as soon as a live broker lets it: high watermark and recovery point follow what is written."""
    rows: list[dict[str, Any]] = []

    def is_committed() -> bool:
        rows.append(clean(world, node, topic))
        return rows[-1]["outcome"] == "committed"

    wait_until(is_committed, PATIENCE_S, lambda: str(rows[-1]["reason"]))
    return dict(rows[-1]["removed"])


def victims(world: Replicas, node: int, topic: str) -> list[bytes | None]:
    return [record.value for record in world.dump(node, topic).records if record.key == b"victim"]


@pytest.mark.trap("tombstones that go while a replica is away")
def test_tombstones_wait_for_a_replica_that_is_away(world: Replicas) -> None:
    for topic in (QUIET, WRITTEN):
        write(world, topic, (b"victim", b"secret"))
        wait_until(lambda topic=topic: world.is_even(topic), PATIENCE_S)
    world.cluster.brokers[AWAY].stop()
    for topic in (QUIET, WRITTEN):
        write(world, topic, (b"victim", None))
        wait_until(lambda t=topic: len({world.dump(n, t).end_offset for n in OTHERS}) == 1, PATIENCE_S)
        for node in OTHERS:
            removed = wait_committed(world, node, topic)
            assert removed.keys() == {"superseded"}, removed
    for _ in range(2):  # the first one is past the horizon that was stamped before
        threading.Event().wait(RETENTION_S)
        write(world, WRITTEN)
        for node in OTHERS:
            for topic in (QUIET, WRITTEN):
                row = clean(world, node, topic)
                assert "tombstone" not in row["removed"], row
                assert row["tombstones_stay"].startswith(f"replica {AWAY} is not in sync since "), row
                assert victims(world, node, topic) == [None]
    world.cluster.brokers[AWAY].start()
    wait_until(lambda: all(map(world.is_in_sync, (QUIET, WRITTEN))), PATIENCE_S)
    for topic in (QUIET, WRITTEN):
        assert victims(world, AWAY, topic)[-1] is None, "it has met the tombstone"

    def is_gone(node: int, topic: str) -> bool:
        row = clean(world, node, topic)
        assert row["outcome"] in ("committed", "skipped", "unchanged"), row
        return victims(world, node, topic) == []

    for topic in (QUIET, WRITTEN):
        for node in OTHERS:
            wait_until(lambda n=node, t=topic: is_gone(n, t), PATIENCE_S)
    assert world.complaints() == []
