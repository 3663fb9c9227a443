"""The log directories of all brokers of a cluster, as they lie on volumes side by side, cleaned in one run."""

from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from cleanerd.env.clock import SystemClock
from cleanerd.format.names import RECOVERY_POINT_CHECKPOINT, REPLICATION_CHECKPOINT
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.broker.cluster import NODES, KafkaCluster
from tests.broker.live import COMPACT, EVENTS, PATIENCE_S, Journal, check_nothing_is_lost, records, warnings
from tests.broker.logdump import dump_partition
from tests.broker.model import survivors
from tests.broker.tools import READ_UNCOMMITTED, offset_checkpoint, read_all
from tests.cleaning.logs import clean
from tests.daemon.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

CHECKPOINT_MS = 300
QUICK = {
    "log.cleaner.min.cleanable.ratio": "1.0",  # its own cleaner stays away
    "replica.high.watermark.checkpoint.interval.ms": str(CHECKPOINT_MS),
    "log.flush.offset.checkpoint.interval.ms": str(CHECKPOINT_MS),
}
TOPICS = {"table": COMPACT, "events": EVENTS}
RECORDS, KEYS = 400, 40
CHECKPOINTS = (REPLICATION_CHECKPOINT, RECOVERY_POINT_CHECKPOINT)


def knows_all(log_dir: Path) -> bool:
    """Whether its checkpoint files let all but the active segment be cleaned."""
    end, bases = RECORDS, dump_partition(log_dir / "table-0").bases
    found = [offset_checkpoint(log_dir / name).get("table-0", 0) for name in CHECKPOINTS]
    return found[0] == end and found[1] >= bases[-1]


def test_three_brokers_that_lost_power_are_cleaned_in_one_run(spark: LazySpark, tmp_path: Path) -> None:
    """Each replica by its own node's metadata log; every broker starts on its directory, and no key is lost."""
    cluster = KafkaCluster(tmp_path, QUICK)
    with cluster:
        journal, admin = Journal(cluster.bootstrap), cluster.brokers[1].admin()
        new = [NewTopic(topic, 1, len(NODES), config=config) for topic, config in TOPICS.items()]
        for created in admin.create_topics(new).values():
            created.result(PATIENCE_S)
        for topic in TOPICS:
            journal.fill(topic, records(topic, [number % KEYS for number in range(RECORDS)]))
        for node in NODES:
            wait_until(partial(knows_all, cluster.log_dir(node)), PATIENCE_S)
    volumes = [tmp_path / f"volume-{node}" for node in NODES]
    for node, volume in zip(NODES, volumes, strict=True):
        volume.symlink_to(cluster.log_dir(node))
    before = {path: dump_partition(path / "table-0") for path in volumes}
    ran = clean(spark, *volumes, options=[f"--topic={topic}" for topic in TOPICS])
    assert ran.code == 0, ran.told
    assert {ran.outcome("table", path.name) for path in volumes} == {"committed"}
    assert {ran.outcome("events", path.name) for path in volumes} == {"skipped"}
    now_ms = SystemClock().now_ms()
    for path, log in before.items():
        assert dump_partition(path / "table-0").records == survivors(
            log, first_dirty_offset=0, now_ms=now_ms
        ), path
        assert len(dump_partition(path / "events-0").records) == RECORDS, path
    with cluster:
        for broker in cluster.brokers.values():
            seen = read_all(broker, tuple(TOPICS), READ_UNCOMMITTED)
            check_nothing_is_lost(journal.written["table"], seen["table"])
            assert len(seen["table"]) < len(seen["events"]) == RECORDS
            assert warnings(broker) == []
