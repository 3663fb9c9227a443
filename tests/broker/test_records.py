"""Records as columns, against a real consumer: record by record, in both isolation levels, by time, with markers."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from cleanerd.tools.insight.records import open_log
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.logdump import dump_partition
from tests.harness.broker.origin import Origin
from tests.harness.broker.tools import READ_COMMITTED, READ_UNCOMMITTED, read_all
from tests.tools.insight.test_records import records

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]


def test_columns_hold_what_a_consumer_reads(origin: Origin, log_dir: Path, tmp_path: Path) -> None:
    """Beside the live broker, and of the stopped one: offset, timestamp, key, value and headers of every record."""
    topics, levels = [plan.topic for plan in origin.plans], (READ_UNCOMMITTED, READ_COMMITTED)

    def columns(isolation: str) -> dict[str, list]:
        return {
            plan.topic: records(open_log(str(log_dir / plan.directory), isolation=isolation))
            for plan in origin.plans
        }

    with KafkaBroker(tmp_path / "broker", [log_dir]) as broker:
        consumed = {isolation: read_all(broker, topics, isolation) for isolation in levels}
        assert {isolation: columns(isolation) for isolation in levels} == consumed
    assert {isolation: columns(isolation) for isolation in levels} == consumed
    assert all(sum(map(len, found.values())) > 1000 for found in consumed.values())


def test_times_and_markers(origin: Origin, log_dir: Path, tmp_path: Path) -> None:
    """A time leads to the offset that the broker leads a consumer to; control records are those of the log."""
    compared = markers = 0
    with KafkaBroker(tmp_path / "broker", [log_dir]) as broker:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "times", "log_level": 0})
        for plan in origin.plans:
            path = str(log_dir / plan.directory)
            log = open_log(path)
            plain = records(log)
            with_control = records(log, with_control=True)
            control = [
                record
                for segment in dump_partition(log_dir / plan.directory).segments
                for batch in segment.batches
                for record in batch.records
                if batch.control and record.offset >= log.start_offset
            ]
            assert with_control == sorted(plain + control, key=lambda record: record.offset)
            markers += len(control)
            every = sorted({record.timestamp_ms for record in with_control if record.timestamp_ms > 0})
            for time in every[:: max(len(every) // 12, 1)]:
                (asked,) = consumer.offsets_for_times([TopicPartition(plan.topic, 0, time)], timeout=30)
                if asked.offset < 0:  # the broker looks at one segment only, and here it had nothing as late
                    continue
                found = open_log(path, start_timestamp_ms=time)
                assert found.start_offset == asked.offset, (plan, time)
                assert records(found) == [record for record in plain if record.offset >= asked.offset]
                compared += 1
        consumer.close()
    assert compared > 50
    assert markers > 20
