"""A broker writes, cleanerd cleans, the broker goes on: nobody may notice but by what is gone."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from cleanerd.env.clock import SystemClock
from cleanerd.format.producer_snapshot import parse_producer_snapshot
from cleanerd.tools.insight.findings import Severity
from cleanerd.tools.insight.verify import verify
from tests.harness.broker.agreement import check_with_broker, clean_and_compare, compare_with_model, dumps
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.logdump import dump_partition
from tests.harness.broker.model import open_transactions
from tests.harness.broker.origin import ONE_PHASE, Origin, clean_by_broker, write_phases
from tests.harness.broker.producers import Message, Style, WriterPool
from tests.harness.broker.tools import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    clean,
    first_dirty_offset,
    forget_checkpoint,
    read_all,
    segment_files,
)
from tests.harness.broker.workload import DAY_MS, Phase, TopicPlan, create_topics

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]

STAGED = ".cleanerd"


def test_three_passes(origin: Origin, log_dir: Path, tmp_path: Path) -> None:
    """Superseded records go in the first pass, tombstones in the second, emptied markers in the third."""
    now_ms = SystemClock().now_ms()
    markers = [marker_count(log_dir, origin.plans)]
    for number in range(3):
        if number > 0:
            forget_checkpoint(log_dir)
        before = dumps(log_dir, origin.plans)
        result = clean_and_compare(log_dir, origin.plans, now_ms=now_ms + number * 2 * DAY_MS)
        assert {row["outcome"] for row in result.rows.values()} <= {"committed", "unchanged", "skipped"}
        check_with_broker(tmp_path / f"pass-{number}", log_dir, before)
        markers.append(marker_count(log_dir, origin.plans))
    assert markers[-1] < markers[0]


def test_what_a_brokers_cleaner_stamped_goes_though_nothing_is_dirty(
    origin: Origin, log_dir: Path, tmp_path: Path
) -> None:
    """Nobody writes any more, the checkpoint stays, and the horizons are the broker's."""
    clean_by_broker(tmp_path / "cleaning", log_dir, [plan.directory for plan in origin.plans])
    before, now_ms = dumps(log_dir, origin.plans), SystemClock().now_ms() + 2 * DAY_MS
    result = clean_and_compare(log_dir, origin.plans, now_ms=now_ms)
    rows = [row for row in result.rows.values() if row["outcome"] == "committed"]
    assert {reason for row in rows for reason in row["removed"]} >= {"tombstone", "control"}
    assert all(row["first_dirty_offset"] == row["end_offset"] for row in rows)
    check_with_broker(tmp_path / "reading", log_dir, before)
    again = clean(log_dir, origin.plans, "--now-ms", str(now_ms))
    assert {row["outcome"] for row in again.rows.values()} == {"skipped"}


def test_broker_writes_on_after_a_cleaning(log_dir: Path, tmp_path: Path) -> None:
    """Producers, transactions and a second cleaning work on a cleaned log, from its checkpoint."""
    now_ms = SystemClock().now_ms()
    clean_and_compare(log_dir, ONE_PHASE, now_ms=now_ms)
    write_phases(tmp_path / "writing", log_dir, [(plan, Phase.SECOND) for plan in ONE_PHASE])
    before = dumps(log_dir, ONE_PHASE)
    clean_and_compare(log_dir, ONE_PHASE, now_ms=now_ms)
    check_with_broker(tmp_path / "reading", log_dir, before)


def test_a_log_that_was_rolled_is_loaded_and_written_on(log_dir: Path, tmp_path: Path) -> None:
    """Its last segment is cleaned with the others; offsets and producers go on where they were."""
    before, now_ms = dumps(log_dir, ONE_PHASE), SystemClock().now_ms()
    starts = {topic: first_dirty_offset(log_dir, log) for topic, log in before.items()}
    result = clean(log_dir, ONE_PHASE, "--roll", "--now-ms", str(now_ms))
    assert result.exit_code == 0, result.messages
    ends = {log.name: result.rows[log.name]["end_offset"] for log in before.values()}
    assert all(ends[log.name] >= log.bases[-1] for log in before.values() if not open_transactions(log)), ends
    compare_with_model(log_dir, before, now_ms=now_ms, starts=starts, ends=ends)
    for log in before.values():
        active = max((log_dir / log.name).glob("*.log"))
        assert (active.stat().st_size, int(active.stem)) == (0, log.end_offset)
    check_with_broker(tmp_path / "reading", log_dir, before)
    write_phases(tmp_path / "writing", log_dir, [(plan, Phase.SECOND) for plan in ONE_PHASE])
    after = dumps(log_dir, ONE_PHASE)
    assert all(log.end_offset > before[topic].end_offset for topic, log in after.items())
    check_with_broker(tmp_path / "reading again", log_dir, after)


def test_broker_recovers_a_log_that_was_cleaned_after_a_crash(log_dir: Path, tmp_path: Path) -> None:
    """After SIGKILL the indexes are preallocated and the checkpoints old: no error, and cleaning loses nothing."""
    plans = ONE_PHASE[::3]
    now_ms = SystemClock().now_ms()
    write_phases(tmp_path / "writing", log_dir, [(plan, Phase.SECOND) for plan in plans], kill=True)
    findings = verify([str(log_dir)]).findings
    assert [finding for finding in findings if finding.kind.severity is Severity.ERROR] == []
    before = dumps(log_dir, plans)
    starts = {topic: first_dirty_offset(log_dir, log) for topic, log in before.items()}
    result = clean(log_dir, plans, "--now-ms", str(now_ms))
    assert result.exit_code == 0, result.messages
    rows = [result.rows[log.name] for log in before.values()]
    assert "committed" in {row["outcome"] for row in rows}
    ends = {log.name: row["end_offset"] for log, row in zip(before.values(), rows, strict=True)}
    compare_with_model(log_dir, before, now_ms=now_ms, starts=starts, ends=ends)
    with KafkaBroker(tmp_path / "reading", [log_dir]) as broker:
        uncommitted = read_all(broker, list(before), READ_UNCOMMITTED)
        assert not [line for line in broker.troubles() if not line.startswith("INFO")]
    assert {topic: log.records for topic, log in dumps(log_dir, plans).items()} == uncommitted


def test_producer_state_can_be_rebuilt_from_a_cleaned_log(
    origin: Origin, log_dir: Path, tmp_path: Path
) -> None:
    """Without snapshots and after a crash the broker finds the same producers in what is left (rule 4.17)."""
    plans = [plan for plan in origin.plans if plan.scenario.name != "expired-producers"]
    expected = {plan.topic: producers(log_dir, plan) for plan in plans}
    clean(log_dir, origin.plans)
    for path in log_dir.glob("*-*/*.snapshot"):
        if not path.parent.name.startswith("__"):
            path.unlink()
    (log_dir / ".kafka_cleanshutdown").unlink()
    (log_dir / "recovery-point-offset-checkpoint").write_bytes(b"")
    with KafkaBroker(tmp_path / "broker", [log_dir]):
        pass
    assert expected == {plan.topic: producers(log_dir, plan) for plan in plans}


def test_live_broker_keeps_its_directory(origin: Origin, log_dir: Path, tmp_path: Path) -> None:
    """While a broker holds `.lock` the result is staged; after its stop it can be committed.

    Both runs have the same clock: no delete horizon passes in between, which would take a second visit along.
    """
    before, now_ms = dumps(log_dir, origin.plans), SystemClock().now_ms()
    at = ("--now-ms", str(now_ms))
    broker = KafkaBroker(tmp_path / "broker", [log_dir])
    with broker:
        files = live_files(log_dir, origin.plans)
        result = clean(log_dir, origin.plans, *at)
        assert result.exit_code == 0, result.messages
        outcomes = {result.rows[plan.directory]["outcome"] for plan in origin.plans}
        assert "staged" in outcomes
        assert outcomes <= {"staged", "unchanged"}
        assert live_files(log_dir, origin.plans) == files
    staged = staged_files(log_dir)
    assert staged
    with broker:
        assert broker.troubles() == []
    assert staged_files(log_dir) == staged
    result = clean(log_dir, origin.plans, *at)
    assert result.exit_code == 0, result.messages
    assert staged_files(log_dir) == {}
    compare_with_model(log_dir, before, now_ms=now_ms, starts=starts_of(origin))


def test_broker_leaves_staged_files_alone(log_dir: Path, origin: Origin, tmp_path: Path) -> None:
    """A broker loads, writes and stops beside files whose suffix it does not know (spec disk A6)."""
    for plan in origin.plans[:3]:
        for path in segment_files(log_dir / plan.directory)[:6]:
            path.with_name(path.name + STAGED).write_bytes(path.read_bytes()[::2])
    staged = staged_files(log_dir)
    broker = KafkaBroker(tmp_path / "broker", [log_dir])
    for _ in range(2):
        with broker, WriterPool(broker.bootstrap) as pool:
            pool.writer(Style(), "").send(origin.plans[0].topic, [Message(b"key", b"value", 1)])
            assert broker.troubles() == []
    assert staged_files(log_dir) == staged
    assert len(staged) == 18


def test_retention_of_a_compacted_log(tmp_path: Path) -> None:
    """What the policy `compact,delete` lets go goes; the broker starts on the rest (rule 1.28)."""
    log_dir = tmp_path / "logs"
    now_ms = SystemClock().now_ms()
    config = {
        "cleanup.policy": "compact,delete",
        "retention.ms": str(10 * DAY_MS),
        "segment.ms": str(1000 * DAY_MS),
        "internal.segment.bytes": "8192",
    }
    # The broker's own retention of compacted logs is part of its cleaner's loop: keep it from a second round.
    broker = KafkaBroker(tmp_path / "broker", [log_dir], {"log.cleaner.backoff.ms": str(DAY_MS)})
    with broker, WriterPool(broker.bootstrap) as pool:
        create_topics(broker.admin(), {"t": config})
        for number in range(200):
            age_ms = (200 - number) * DAY_MS // 10
            message = Message(b"%d" % number, b"x" * 300, now_ms - age_ms)
            pool.writer(Style(), "").send("t", [message])
    before = dump_partition(log_dir / "t-0")
    assert before.bases[0] == 0
    topic_sets = [f"--topic-set=t:{key.removeprefix('internal.')}={value}" for key, value in config.items()]
    result = clean(log_dir, (), "--now-ms", str(now_ms), *topic_sets)
    assert result.exit_code == 0, result.messages
    after = dump_partition(log_dir / "t-0")
    oldest = [max(batch.max_timestamp_ms for batch in segment.batches) for segment in after.segments]
    assert after.bases[0] > 0
    assert min(oldest) >= now_ms - 10 * DAY_MS
    assert [record for record in before.records if record.offset >= after.bases[0]] == after.records
    with broker:
        assert broker.troubles() == []
        assert read_all(broker, ["t"], READ_COMMITTED)["t"] == after.records


def marker_count(log_dir: Path, plans: Iterable[TopicPlan]) -> int:
    return sum(batch.control for log in dumps(log_dir, plans).values() for batch in log.batches)


def starts_of(origin: Origin) -> dict[str, int]:
    """First dirty offset of each topic of the origin."""
    return {
        topic: first_dirty_offset(origin.log_dir, log)
        for topic, log in dumps(origin.log_dir, origin.plans).items()
    }


def producers(log_dir: Path, plan: TopicPlan) -> dict[int, tuple[int, ...]]:
    """What the newest snapshot says of each producer that a rebuild must find again."""
    newest = max((log_dir / plan.directory).glob("*.snapshot"))
    return {
        entry.producer_id: (
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.offset_delta,
            entry.current_txn_first_offset,
        )
        for entry in parse_producer_snapshot(newest.read_bytes(), int(newest.stem))
    }


def live_files(log_dir: Path, plans: Iterable[TopicPlan]) -> dict[str, tuple[int, int, int]]:
    """Identity of every segment file and snapshot of the topics."""
    found = [path for plan in plans for path in segment_files(log_dir / plan.directory)]
    stats = {str(path): path.stat() for path in found}
    return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def staged_files(log_dir: Path) -> dict[str, bytes]:
    """Staged files of all partitions and what they hold."""
    return {str(path): path.read_bytes() for path in sorted(log_dir.glob(f"*-*/*{STAGED}"))}
