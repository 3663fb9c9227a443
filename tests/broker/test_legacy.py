"""Logs of magic 0 and 1 before a real broker (in `tests/proofs/test_what_goes.py` both cleaners clean them alike).

No broker of today takes such records from a producer, but every broker reads and cleans what an old one left.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from cleanerd.format.record import Record
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.logdump import dump_partition
from tests.harness.broker.old_logs import add_old_logs, old_plans
from tests.harness.broker.tools import (
    READ_COMMITTED,
    clean,
    copy_log_dir,
    dump_log_segments,
    read_all,
    segment_files,
)

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]

PLANS = old_plans(0)
READABLE = [plan for plan in PLANS if plan.scenario.name != "of-both-magics"]
"""Not every client reads wrappers with messages of another magic (KAFKA-4298)."""


@dataclass(frozen=True, slots=True)
class OldLogs:
    """A log directory of a cleanly stopped broker, and what a consumer read of it."""

    log_dir: Path
    read: dict[str, list[Record]]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> OldLogs:
    """The logs of all plans, loaded once by a broker, which cleans nothing yet."""
    root = tmp_path_factory.mktemp("old")
    log_dir = root / "logs"
    add_old_logs(root / "adding", log_dir, PLANS)
    with KafkaBroker(root / "reading", [log_dir]) as broker:
        read = read_all(broker, [plan.topic for plan in READABLE], READ_COMMITTED)
    return OldLogs(log_dir, read)


def test_a_broker_reads_the_old_logs(old: OldLogs) -> None:
    """The logs are what they claim to be: every magic is there, and a consumer gets every record."""
    logs = {plan.topic: dump_partition(old.log_dir / plan.directory) for plan in READABLE}
    assert all({batch.magic for batch in log.batches} == {0, 1, 2} for log in logs.values())
    for topic, log in logs.items():
        different = [pair for pair in zip(old.read[topic], log.records, strict=True) if pair[0] != pair[1]]
        assert different == []


def test_a_broker_serves_what_was_converted(old: OldLogs, tmp_path: Path) -> None:
    """Consumers get the surviving records as they were before, and Kafka's tools find nothing to complain about."""
    log_dir = tmp_path / "logs"
    copy_log_dir(old.log_dir, log_dir)
    assert clean(log_dir, PLANS).exit_code == 0
    files = [path for plan in PLANS for path in segment_files(log_dir / plan.directory)]
    assert dump_log_segments(tmp_path, files) == []
    with KafkaBroker(tmp_path / "broker", [log_dir]) as broker:
        read = read_all(broker, [plan.topic for plan in READABLE], READ_COMMITTED)
        assert broker.troubles() == []
    for plan in READABLE:
        before = {record.offset: record for record in old.read[plan.topic]}
        assert 0 < len(read[plan.topic]) < len(before)
        assert read[plan.topic] == [before[record.offset] for record in read[plan.topic]]
