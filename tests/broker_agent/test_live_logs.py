"""What the agent reports of a running broker's logs is what the broker goes by; a roll is the broker's own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from cleanerd.broker_agent.live_logs import (
    LiveLog,
    LiveSegment,
    describe,
    live_checkpoints,
    named_log,
    roll,
)
from cleanerd.broker_agent.session import Session
from cleanerd.env.clock import SystemClock
from cleanerd.errors import SourceChanged
from cleanerd.format.names import TopicPartition
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import Checkpoints
from tests.harness.broker.live import PATIENCE_S
from tests.harness.broker.releases import current_release
from tests.harness.broker.swapping import FILES, QUICK, TOPIC, TXN_TOPIC, Swapping
from tests.harness.broker.tools import offset_checkpoint
from tests.harness.broker.workload import create_topics
from tests.harness.daemon.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

TP = TopicPartition(TOPIC, 0)


@pytest.fixture
def session(swapping: Swapping) -> Iterator[Session]:
    session = swapping.session()
    yield session
    session.close()


def one(session: Session, swapping: Swapping, topic: str = TOPIC) -> LiveLog:
    (found,) = describe(session, str(swapping.log_dir), [TopicPartition(topic, 0)])
    return found


def told_of_a_new_one(session: Session, log_dir: LogDir, tp: TopicPartition) -> Checkpoints:
    """A thread of the broker writes files of a log before another one has taken it in."""
    wait_until(lambda: describe(session, log_dir.path, [tp]), PATIENCE_S)
    wait_until((Path(log_dir.path) / str(tp) / "partition.metadata").exists, PATIENCE_S)
    return live_checkpoints(describe(session, log_dir.path, [tp]), log_dir.checkpoints())


def on_disk(directory: Path) -> list[LiveSegment]:
    return [LiveSegment(int(path.stem), path.stat().st_size) for path in sorted(directory.glob("*.log"))]


def checkpointed(swapping: Swapping, name: str, topic: str) -> int | None:
    return offset_checkpoint(swapping.log_dir / name).get(f"{topic}-0")


def test_a_log_is_described_as_the_broker_has_it(swapping: Swapping, session: Session) -> None:
    """Against its files, its checkpoints once it has written them, and what the topic was created with."""
    found = one(session, swapping)
    assert (found.topic_partition, found.directory, found.is_future) == (TP, f"{TOPIC}-0", False)
    assert list(found.segments) == on_disk(swapping.directory())
    assert found.log_start_offset == 0
    assert found.log_end_offset == 1 + max(swapping.ledgers[TOPIC].written)
    assert found.high_watermark == found.last_stable_offset == found.log_end_offset
    for name, value in (
        ("replication-offset-checkpoint", found.high_watermark),
        ("recovery-point-offset-checkpoint", found.recovery_point),
    ):
        wait_until(lambda name=name, value=value: checkpointed(swapping, name, TOPIC) == value, PATIENCE_S)
    metadata = (swapping.directory() / "partition.metadata").read_text()
    assert f"topic_id: {found.identity.topic_id}" in metadata
    assert found.identity.directory_inode == swapping.directory().stat().st_ino
    expected = current_release().topic_config(QUICK)
    assert found.overridden == set(expected)
    assert {key: found.config[key] for key in expected} == expected
    assert found.config["message.timestamp.type"] == "CreateTime"


def test_the_last_stable_offset_stops_at_an_open_transaction(swapping: Swapping, session: Session) -> None:
    found = one(session, swapping, TXN_TOPIC)
    assert found.last_stable_offset < found.high_watermark == found.log_end_offset


def test_all_logs_of_a_directory_come_in_pages(swapping: Swapping, session: Session) -> None:
    """However many there are: an answer has a bound."""
    topics = [
        NewTopic("many", 300, 1, config=current_release().topic_config(QUICK)),
        NewTopic("other", 1, 1, config={"cleanup.policy": "delete"}),
    ]
    admin = swapping.broker.admin()
    for created in admin.create_topics(topics).values():
        created.result(PATIENCE_S)
    made = [TopicPartition("other", 0), *(TopicPartition("many", number) for number in range(300))]
    wait_until(lambda: len(describe(session, str(swapping.log_dir), made)) == len(made), PATIENCE_S)
    asked = list[dict[str, Any]]()

    class Counting:
        def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
            asked.append(request)
            return session.ask(request, timeout_s)

    expected = {path.parent.name for path in swapping.log_dir.glob("*/*.log")} - {"__cluster_metadata-0"}
    found = describe(Counting(), str(swapping.log_dir))  # type: ignore[arg-type]
    assert [log.directory for log in found] == sorted(expected)
    assert len(asked) > 1
    assert {log.config["cleanup.policy"] for log in found if log.topic_partition.topic == "other"} == {
        "delete"
    }
    assert describe(session, str(swapping.log_dir.parent)) == ()


def test_a_roll_closes_the_active_segment_as_the_broker_does(swapping: Swapping, session: Session) -> None:
    """With a producer snapshot; what was dirty in it can be cleaned then. An empty one stays, and another log as well."""
    partition = PartitionDir(FILES, str(swapping.directory()))
    swapping.ledgers[TOPIC].send()
    swapping.ledgers[TOPIC].flush()
    before = one(session, swapping)
    rolled = roll(session, partition, TP)
    assert (rolled.outcome, rolled.active_base_offset) == ("rolled", before.log_end_offset)
    after = one(session, swapping)
    assert after.segments == (*before.segments, LiveSegment(before.log_end_offset, 0))
    assert (swapping.directory() / f"{before.log_end_offset:020}.snapshot").exists()
    wait_until(lambda: one(session, swapping).recovery_point == before.log_end_offset, PATIENCE_S)
    assert roll(session, partition, TP).outcome == "unchanged"
    named = named_log(partition, TP)
    for change, outcome in (
        ({"topic_id": "AAAAAAAAAAAAAAAAAAAAAA"}, "changed"),
        ({"directory": str(swapping.log_dir)}, "changed"),
        ({"topic": "nowhere"}, "later"),
    ):
        assert session.ask({"request": "roll", **named, **change}, 30)["outcome"] == outcome
    assert one(session, swapping).segments == after.segments
    swapping.transactions.end(commit=True)
    swapping.check()
    assert [line for line in swapping.complaints() if "QuorumController" not in line] == []  # it may be slow


def test_what_was_told_of_a_topic_is_no_bound_of_the_one_that_is_created_again(
    swapping: Swapping, session: Session
) -> None:
    """However short a time between: a high watermark, or a log start, of other records."""
    log_dir, admin = LogDir.at(FILES, str(swapping.log_dir), SystemClock()), swapping.broker.admin()
    create_topics(admin, {"reborn": QUICK})
    tp, directory = TopicPartition("reborn", 0), swapping.directory("reborn")
    told = told_of_a_new_one(session, log_dir, tp)
    found = log_dir.scan(tp, told)
    assert found is not None
    assert found.log_end_offset == 0
    admin.delete_topics(["reborn"])["reborn"].result(PATIENCE_S)
    wait_until(lambda: not directory.exists(), PATIENCE_S)
    create_topics(admin, {"reborn": QUICK})
    now = told_of_a_new_one(session, log_dir, tp)
    with pytest.raises(SourceChanged, match="the topic was created again"):
        log_dir.scan(tp, told)
    assert log_dir.scan(tp, now) is not None
