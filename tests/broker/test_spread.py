"""A topic that got more partitions, by a real broker: its old copies are found, and the plan repairs it."""

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions, NewTopic

from cleanerd.tools.client.reader import read_records
from cleanerd.tools.insight.spread import Spread, find_spread
from tests.broker.kafka import KafkaBroker

pytestmark = [
    pytest.mark.broker,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.*_text is deprecated"),  # in the client library
]
KEYS = [f"key-{i}" for i in range(300)]


def looked_at(log_dir: Path) -> Spread:
    return find_spread({int(path.name[2:]): str(path) for path in log_dir.glob("t-*")})


def test_the_plan_repairs_an_expanded_topic(tmp_path: Path) -> None:
    """All keys with two partitions, every third again with five; what the producer's hash moved has a copy left behind."""
    log_dir = tmp_path / "logs"
    with KafkaBroker(tmp_path / "broker", [log_dir]) as broker:
        admin = broker.admin()
        admin.create_topics([NewTopic("t", 2, 1)])["t"].result()
        for value, keys in ((b"old", KEYS), (b"new", KEYS[::3])):
            producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
            for key in keys:
                producer.produce("t", key=key, value=value)
            producer.flush()
            if value == b"old":
                admin.create_partitions([NewPartitions("t", 5)])["t"].result()
    found = looked_at(log_dir)
    assert 20 < len(found.listed) <= 100
    assert all(one.home == one.copies[0].partition for one in found.listed)  # as the producer's hash has it
    with KafkaBroker(tmp_path / "again", [log_dir]) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for one in found.listed:
            for step in one.steps():
                assert step["write"] == "tombstone"
                producer.produce("t", key=one.key, value=None, partition=step["partition"])
        producer.flush()
    assert looked_at(log_dir).listed == ()
    newest = {
        r.key: r.value for path in log_dir.glob("t-*") for r in read_records(str(path)) if r.value is not None
    }
    assert newest.keys() == {key.encode() for key in KEYS}
