"""Records as columns, against a real consumer: record by record, in both isolation levels."""

from pathlib import Path

import pytest

from cleanerd.insight.records import open_log
from tests.broker.conftest import Origin
from tests.broker.kafka import KafkaBroker
from tests.broker.tools import READ_COMMITTED, READ_UNCOMMITTED, read_all
from tests.insight.test_records import records

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("isolation", [READ_UNCOMMITTED, READ_COMMITTED])
def test_columns_hold_what_a_consumer_reads(
    isolation: str, origin: Origin, log_dir: Path, tmp_path: Path
) -> None:
    """Beside the live broker, and of the stopped one: offset, timestamp, key, value and headers of every record."""
    topics = [plan.topic for plan in origin.plans]

    def columns() -> dict[str, list]:
        return {
            plan.topic: records(open_log(str(log_dir / plan.directory), isolation=isolation))
            for plan in origin.plans
        }

    with KafkaBroker(tmp_path / "broker", [log_dir]) as broker:
        consumed = read_all(broker, topics, isolation)
        assert columns() == consumed
    assert columns() == consumed
    assert sum(map(len, consumed.values())) > 1000
