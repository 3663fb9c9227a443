"""A broker without a cleaner leaves the first dirty offset of a topic that is deleted (rules 2.9, 2.11)."""

from pathlib import Path

import pytest

from cleanerd.env.clock import SystemClock
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.broker.test_one_checkpoint_entry import CHECKPOINT, KEYS, NO_CLEANER, TOPIC
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.live import COMPACT, PATIENCE_S, Journal, records
from tests.harness.broker.tools import READ_UNCOMMITTED, offset_checkpoint, read_all
from tests.harness.broker.workload import DAY_MS, TIMEOUT_S, create_topics
from tests.harness.daemon.processes import wait_until
from tests.harness.logs.troubled import clean

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

SECRET = b"secret"
OPTIONS = [f"--topic-set={TOPIC}:{key}={value}" for key, value in COMPACT.items()]


def entry(log_dir: Path) -> int:
    return offset_checkpoint(log_dir / CHECKPOINT)[f"{TOPIC}-0"]


@pytest.mark.trap("a first dirty offset that is no longer there")
def test_what_is_deleted_in_a_topic_that_was_created_again_stays_deleted(
    tmp_path: Path, spark: LazySpark
) -> None:
    """The new log grows past the entry of the old one; below it, no cleaning has seen anything."""
    log_dir = tmp_path / "logs"
    with KafkaBroker(tmp_path / "broker", [log_dir], NO_CLEANER) as broker:
        create_topics(broker.admin(), {TOPIC: COMPACT})
        Journal(broker.bootstrap).fill(TOPIC, records("first", KEYS))
        broker.stop()
        clean(spark, log_dir, options=OPTIONS)
        left = entry(log_dir)

        broker.start()
        admin = broker.admin()
        admin.delete_topics([TOPIC])[TOPIC].result(TIMEOUT_S)
        wait_until(lambda: not (log_dir / f"{TOPIC}-0").exists(), PATIENCE_S)
        create_topics(admin, {TOPIC: COMPACT})
        journal = Journal(broker.bootstrap)
        journal.fill(TOPIC, [(SECRET, b"value"), *records("gone", [1]), (SECRET, None)])
        journal.fill(TOPIC, records("second", KEYS + KEYS))
        broker.stop()
        assert entry(log_dir) == left, "the broker leaves it"
        assert max(journal.written[TOPIC]) > left > 100

        for day in range(3):
            now_ms = SystemClock().now_ms() + 2 * day * DAY_MS
            result = clean(spark, log_dir, options=[*OPTIONS, f"--now-ms={now_ms}", "--assume=now"]).results[
                "logs", TOPIC
            ]
            assert result["outcome"] == "committed"
            assert day > 0 or result["first_dirty_offset"] == 0
            broker.start()
            journal = Journal(broker.bootstrap)
            journal.fill(TOPIC, records(f"day {day}", KEYS))
            seen = [r for r in read_all(broker, [TOPIC], READ_UNCOMMITTED)[TOPIC] if r.key == SECRET]
            assert all(record.value is None for record in seen), day
            broker.stop()
        assert not seen, "nothing is left of it"
