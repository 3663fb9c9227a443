"""Three replicas of a live cluster, cleaned to different degrees, by the broker's own cleaner and by swaps: one digest."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.harness.broker.cluster import NODES, KafkaCluster
from tests.harness.broker.live import PATIENCE_S
from tests.harness.broker.replicas import DONE, Replicas
from tests.harness.broker.swapping import QUICK, build_agent
from tests.harness.broker.tools import run_cleanerd
from tests.harness.daemon.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

TOPIC = "compared"
BY_KAFKA, BY_SWAPS, NOT_CLEANED = NODES


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Replicas]:
    build_agent()
    with KafkaCluster(
        tmp_path / "cluster", {"replica.high.watermark.checkpoint.interval.ms": "500"}
    ) as cluster:
        world = Replicas(cluster)
        world.create(TOPIC, QUICK)
        yield world


def let_its_own_cleaner_work(world: Replicas, node: int) -> None:
    entry = ConfigEntry("log.cleaner.min.cleanable.ratio", "0.0", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, str(node), incremental_configs=[entry])
    for asked in world.admin.incremental_alter_configs([resource]).values():
        asked.result(PATIENCE_S)


@contextmanager
def traffic(world: Replicas) -> Iterator[None]:
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            world.ledgers[TOPIC].send()
            world.ledgers[TOPIC].flush()
            is_over.wait(0.05)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def digest(world: Replicas, *more: str) -> tuple[int, list[dict[str, object]], str]:
    dirs = [f"--log-dir={world.cluster.log_dir(node)}" for node in NODES]
    ran = run_cleanerd("digest", *dirs, f"--topic={TOPIC}", "-o", "json", *more)
    return ran.returncode, json.loads(ran.stdout)["logs"], ran.stderr


def test_replicas_cleaned_to_different_degrees(world: Replicas) -> None:
    world.fill(TOPIC)
    outcomes, rows = world.clean(BY_SWAPS, TOPIC)
    assert outcomes <= DONE, rows
    world.fill(TOPIC)
    let_its_own_cleaner_work(world, BY_KAFKA)
    wait_until(lambda: world.is_cleaned(BY_KAFKA, TOPIC), PATIENCE_S)
    counts = {node: len(world.dump(node, TOPIC).records) for node in NODES}
    assert len(set(counts.values())) == len(NODES), counts
    assert counts[NOT_CLEANED] == max(counts.values())

    def is_one() -> bool:
        code, logs, errors = digest(world)
        assert len({log["digest"] for log in logs}) <= 1, (logs, errors)
        return code == 0 and len(logs) == len(NODES)

    wait_until(is_one, PATIENCE_S)
    with traffic(world):
        for _ in range(3):  # one may be cleaned beyond what the others have written down: it is refused then
            is_one()
    wait_until(is_one, PATIENCE_S)
    assert world.complaints() == []
