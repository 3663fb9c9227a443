"""Logs of magic 0 and 1 before a real broker and its own cleaner.

No broker of today takes such records from a producer, but every broker reads and cleans what an old one left. The logs
here are random, lie in a log directory as an upgraded broker finds them, and get their indexes from a broker.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from cleanerd.env.clock import SystemClock
from cleanerd.format.record import Record
from tests.broker.agreement import Pass, disagreements, make_passes
from tests.broker.kafka import KafkaBroker
from tests.broker.logdump import LogDump, dump_partition
from tests.broker.old_logs import KINDS, old_plan, write_old_log
from tests.broker.tools import (
    READ_COMMITTED,
    clean,
    copy_log_dir,
    dump_log_segments,
    read_all,
    segment_files,
)
from tests.broker.workload import DAY_MS, create_topics

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]

PASSES = (1, 2, 3)
PLANS = tuple(
    old_plan(2 * number + place, name, retention_ms)
    for number, name in enumerate(KINDS)
    for place, retention_ms in enumerate((1, DAY_MS))
)
READABLE = tuple(plan for plan in PLANS if plan.scenario.name != "of-both-magics")
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
    with KafkaBroker(root / "creating", [log_dir]) as broker:
        create_topics(broker.admin(), {plan.topic: plan.config for plan in PLANS})
    now_ms = SystemClock().now_ms()
    for plan in PLANS:
        write_old_log(log_dir / plan.directory, plan, now_ms)
    with KafkaBroker(root / "loading", [log_dir]) as broker:
        read = read_all(broker, [plan.topic for plan in READABLE], READ_COMMITTED)
    _set_checkpoint(log_dir)
    return OldLogs(log_dir, read)


def _set_checkpoint(log_dir: Path) -> None:
    """The second of two logs of a kind was cleaned up to its middle."""
    bases = {plan.directory: dump_partition(log_dir / plan.directory).bases for plan in PLANS[1::2]}
    lines = [f"{name[:-2]} 0 {found[len(found) // 2]}" for name, found in bases.items()]
    text = "\n".join(["0", str(len(lines)), *lines, ""])
    (log_dir / "cleaner-offset-checkpoint").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def passes(old: OldLogs, tmp_path_factory: pytest.TempPathFactory) -> list[Pass]:
    return make_passes(old.log_dir, PLANS, tmp_path_factory.mktemp("broker-cleaner"), [0] * len(PASSES))


def _magics(log: LogDump) -> set[int]:
    return {batch.magic for batch in log.batches}


def test_a_broker_reads_the_old_logs(old: OldLogs) -> None:
    """The logs are what they claim to be: every magic is there, and a consumer gets every record."""
    logs = {plan.topic: dump_partition(old.log_dir / plan.directory) for plan in READABLE}
    assert all(_magics(log) == {0, 1, 2} for log in logs.values())
    for topic, log in logs.items():
        different = [pair for pair in zip(old.read[topic], log.records, strict=True) if pair[0] != pair[1]]
        assert different == []


@pytest.mark.parametrize("number", PASSES)
def test_cleanerd_agrees_with_the_broker(passes: list[Pass], number: int, tmp_path: Path) -> None:
    """Old batches become batches of magic 2, field by field those of the broker (rules 4.25-4.33)."""
    made = passes[number - 1]
    assert disagreements(made, PLANS, tmp_path / "ours") == []
    for plan in PLANS:
        assert _magics(dump_partition(tmp_path / "ours" / plan.directory)) == {2}


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
