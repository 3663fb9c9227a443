"""Replicas of a live cluster, cleaned to different degrees by both cleaners, and copies: one digest."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from cleanerd.cli.main import main
from cleanerd.tools.insight.digest import Question, digest_logs
from cleanerd.tools.insight.digest_report import compare, sides_of
from cleanerd.tools.insight.digest_rows import Terms
from tests.harness.broker.cluster import NODES, KafkaCluster
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.live import PATIENCE_S
from tests.harness.broker.mirror_maker import mirror_maker
from tests.harness.broker.origin import Origin
from tests.harness.broker.replicas import DONE, Replicas
from tests.harness.broker.swapping import QUICK, build_agent
from tests.harness.broker.tools import READ_COMMITTED, offset_checkpoint, read_all, run_cleanerd
from tests.harness.broker.traffic import again_and_again
from tests.harness.broker.workload import alter_config, create_topics
from tests.harness.ctl import captured
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


def traffic(world: Replicas) -> AbstractContextManager[None]:
    def write() -> None:
        world.ledgers[TOPIC].send()
        world.ledgers[TOPIC].flush()

    return again_and_again(write, 0.05)


def digest(world: Replicas, *more: str) -> tuple[int, list[dict[str, object]], str]:
    dirs = [f"--log-dir={world.cluster.log_dir(node)}" for node in NODES]
    ran = run_cleanerd("digest", *dirs, f"--topic={TOPIC}", "-o", "json", *more)
    return ran.returncode, json.loads(ran.stdout)["logs"], ran.stderr


def test_what_was_copied_to_another_cluster(origin: Origin, log_dir: Path, tmp_path: Path) -> None:
    """By a consumer and a producer: other offsets, batches and transactions, the same keys, values and headers."""
    topics = [plan.topic for plan in origin.plans]
    with KafkaBroker(tmp_path / "source", [log_dir]) as source:
        read = read_all(source, topics, READ_COMMITTED)
    with KafkaBroker(tmp_path / "target", [copy := tmp_path / "copy"]) as target:
        create_topics(target.admin(), {topic: {"retention.ms": "-1"} for topic in topics})
        producer = Producer(
            {"bootstrap.servers": target.bootstrap, "log_level": 0, "compression.type": "lz4"}
        )
        for topic, records in read.items():
            for one in records:
                headers = list(one.headers)
                producer.produce(topic, one.value, one.key, 0, timestamp=one.timestamp_ms, headers=headers)
            assert producer.flush(PATIENCE_S) == 0
    question = Question(Terms(with_offsets=False))
    logs = [str(place / f"{topic}-0") for place in (log_dir, copy) for topic in topics]
    found = digest_logs(logs, question)
    assert found.failed == {}
    compared = compare(sides_of(found, question))
    assert [(str(one.topic_partition), one.why) for one in compared if one.result != "equal" or one.why] == []
    assert len(compared) == len(topics)


def test_what_mirror_maker_has_copied(tmp_path: Path) -> None:
    """A compacted topic with tombstones, headers, and transactions of which some were aborted; and a record that was
    changed at the target.
    """
    configs = {"compacted": QUICK, "headers": {}, "transactions": QUICK}
    never = {"log.retention.ms": "-1"}
    with (
        KafkaBroker(tmp_path / "source", [one := tmp_path / "one"], never) as source,
        KafkaBroker(tmp_path / "target", [other := tmp_path / "other"], never) as target,
    ):
        create_topics(source.admin(), configs)
        producer = Producer({"bootstrap.servers": source.bootstrap, "log_level": 0})
        for number in range(600):
            key, value = b"%d" % (number % 50), None if number % 7 == 0 else b"%d" % number
            producer.produce("compacted", value, key, 0)
            producer.produce("headers", value, key, 0, headers=[("a", key), ("a", None), ("b", b"")])
        assert producer.flush(PATIENCE_S) == 0
        in_transactions = Producer(
            {"bootstrap.servers": source.bootstrap, "log_level": 0, "transactional.id": "t"}
        )
        in_transactions.init_transactions(PATIENCE_S)
        for number in range(20):
            in_transactions.begin_transaction()
            for key in range(10):
                in_transactions.produce("transactions", b"%d" % number, b"%d" % (key + number % 3), 0)
            assert in_transactions.flush(PATIENCE_S) == 0
            if number % 4 == 3:
                in_transactions.abort_transaction(PATIENCE_S)
            else:
                in_transactions.commit_transaction(PATIENCE_S)
        read = read_all(source, list(configs), READ_COMMITTED)
        high_watermarks = other / "replication-offset-checkpoint"
        with mirror_maker(tmp_path / "mirror", source, target, list(configs)):
            wanted = {f"{topic}-0": len(records) for topic, records in read.items()}
            wait_until(lambda: wanted.items() <= offset_checkpoint(high_watermarks).items(), PATIENCE_S)

        def compared() -> dict[str, str]:
            """The results of `digest --compare` of reports, as from two machines."""
            reports = []
            for log_dir in one, other:
                words = [f"--topic={topic}" for topic in configs]
                command = ["digest", f"--log-dir={log_dir}", "--no-offsets", *words, "-o", "json"]
                ran = captured(main, command)
                assert ran.returncode == 0, ran.stderr
                reports.append(tmp_path / f"{log_dir.name}.json")
                reports[-1].write_text(ran.stdout)
            ran = captured(main, ["digest", "--compare", *map(str, reports), "-o", "json"])
            return {row["topic"]: row["result"] for row in json.loads(ran.stdout)["compared"]}

        assert compared() == dict.fromkeys(configs, "equal")
        producer = Producer({"bootstrap.servers": target.bootstrap, "log_level": 0})
        producer.produce("headers", b"another", b"3", 0, headers=[("a", b"3"), ("a", None), ("b", b"")])
        assert producer.flush(PATIENCE_S) == 0
        wait_until(lambda: compared()["headers"] == "differs", PATIENCE_S)
        assert compared() == {**dict.fromkeys(configs, "equal"), "headers": "differs"}


def test_beside_a_cleaning_of_the_broker_that_takes_long(tmp_path: Path) -> None:
    """As long as it only writes, the log is whole: nobody waits for its end."""
    slow = {
        "log.cleaner.io.max.bytes.per.second": "2000000",
        "log.cleaner.min.cleanable.ratio": "0.0",
        "log.cleaner.backoff.ms": "500",
        "replica.high.watermark.checkpoint.interval.ms": "500",
    }
    with KafkaBroker(tmp_path / "broker", [tmp_path / "logs"], slow) as broker:
        later = {"min.compaction.lag.ms": str(3_600_000)}
        create_topics(broker.admin(), {TOPIC: {**QUICK, **later, "internal.segment.bytes": str(16 << 20)}})
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for number in range(
            600_000
        ):  # so many records that its throttle, which looks every 300 ms, has to wait
            producer.produce(TOPIC, b"x" * 60, b"%d" % (number % 2000), 0)
            assert number % 10_000 or producer.flush(PATIENCE_S) == 0
        assert producer.flush(PATIENCE_S) == 0
        logs, log = tmp_path / "logs", f"{TOPIC}-0"
        high_watermarks = logs / "replication-offset-checkpoint"
        wait_until(lambda: offset_checkpoint(high_watermarks).get(log) == 600_000, PATIENCE_S)
        alter_config(broker.admin(), TOPIC, {"min.compaction.lag.ms": "0"})
        wait_until(lambda: list((logs / log).glob("*.log.cleaned")), PATIENCE_S)
        for command, *words in (["digest"], ["find", "--key=7"], ["doctor", "--io=unlimited"]):
            ran = captured(main, [command, f"--log-dir={logs}", f"--topic={TOPIC}", *words, "-o", "json"])
            assert ran.returncode in ({0, 3} if command == "doctor" else {0}), (
                ran.stderr
            )  # 3: much is superseded
            assert json.loads(ran.stdout).get("failed", []) == []
        assert list((logs / log).glob("*.log.cleaned")), "it has not ended meanwhile"


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
