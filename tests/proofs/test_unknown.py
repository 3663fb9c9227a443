"""What is not known is no permission: without a word of who knows, nothing is removed (the table of architecture 2).

Beside a real broker that has stopped. Each row of the table: `tests/cleaning/test_knowledge.py`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from cleanerd.env.clock import SystemClock
from cleanerd.format.names import META_PROPERTIES
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.tools import READ_UNCOMMITTED, read_all
from tests.harness.broker.workload import DAY_MS, TIMEOUT_S, YEARS_MS, create_topics
from tests.harness.daemon.processes import DaemonProcess, running

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

SEGMENTS = {"internal.segment.bytes": "4096", "segment.ms": str(YEARS_MS)}
OWN, PLAIN, SILENT, NAMED = "own", "plain", "silent", "named"
TOPICS = {
    OWN: {**SEGMENTS, "cleanup.policy": "delete", "retention.ms": str(DAY_MS)},
    PLAIN: {**SEGMENTS, "cleanup.policy": "delete"},
    SILENT: {**SEGMENTS, "retention.ms": str(DAY_MS)},
    NAMED: {**SEGMENTS, "cleanup.policy": "delete"},
}
COUNT = 60
BROKER = {"log.retention.hours": "-1", "log.initial.task.delay.ms": str(DAY_MS)}
"""It deletes nothing itself: not while it writes, and not when it is back."""


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Of a broker, the only voter, that has stopped; all records are a month old."""
    place, old_ms = tmp_path / "logs", SystemClock().now_ms() - 30 * DAY_MS
    with KafkaBroker(tmp_path / "broker", [place], BROKER) as broker:
        create_topics(broker.admin(), TOPICS)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for number in range(COUNT):
            for topic in TOPICS:
                producer.produce(topic, b"x" * 400, b"%d" % number, 0, timestamp=old_ms + number)
            assert producer.flush(TIMEOUT_S) == 0
    return place


@contextmanager
def beside(directory: Path, logs: Path) -> Iterator[DaemonProcess]:
    """A daemon that knows where the logs are and which node it is, as in a container; one topic has a limit of ours."""
    (directory / "topics.d").mkdir(parents=True, exist_ok=True)
    (directory / "topics.d" / f"{NAMED}.properties").write_text(f"retention.ms={DAY_MS}\n")
    settings = {"node_id": 1, "log_retention_check_interval_ms": DAY_MS, "log_retention_bytes": -1}
    with running(directory, logs, topics={}, **settings) as daemon:
        yield daemon


def rows(daemon: DaemonProcess, *options: str) -> dict[str, dict[str, Any]]:
    found = daemon.ask("retention", "*", *options)["retention"]
    return {row["topic"]: row for row in found if row["topic"] in TOPICS}


def deleted_topics(daemon: DaemonProcess) -> set[str]:
    return {topic for topic, row in rows(daemon).items() if row["outcome"] == "deleted"}


def test_only_what_somebody_vouches_for_deletes_beside_a_stopped_broker(tmp_path: Path, logs: Path) -> None:
    """Rules A.1, A.2 and A.3: signs of a broker without meta.properties; voters that are not known; defaults."""
    meta = logs / META_PROPERTIES
    aside = meta.rename(tmp_path / META_PROPERTIES)
    with beside(tmp_path / "damaged", logs) as daemon:
        assert daemon.ctl("retention", "*", check=False).returncode != 0
        assert META_PROPERTIES in daemon.ctl("status").stdout
    aside.rename(meta)
    quorum = logs / "__cluster_metadata-0" / "quorum-state"
    aside = quorum.rename(tmp_path / "quorum-state")
    with beside(tmp_path / "unknown", logs) as daemon:
        planned = rows(daemon, "--dry-run")
        assert {topic for topic, row in planned.items() if row["outcome"] == "planned"} == {NAMED}
        assert "the cluster may have changed the limits since" in planned[OWN]["kept"]
    aside.rename(quorum)
    with beside(tmp_path / "alone", logs) as daemon:
        kept = {topic: row["kept"] for topic, row in rows(daemon, "--dry-run").items()}
        assert "which cleanerd was not given" in kept[PLAIN]
        assert "the broker may have another one" in kept[SILENT]
        assert deleted_topics(daemon) == {OWN, NAMED}
        assert deleted_topics(daemon) == set()
    with KafkaBroker(tmp_path / "again", [logs], BROKER) as broker:
        found = read_all(broker, list(TOPICS), READ_UNCOMMITTED)
    assert [len(found[topic]) for topic in (PLAIN, SILENT)] == [COUNT, COUNT]
    assert max(len(found[topic]) for topic in (OWN, NAMED)) < COUNT
