"""What a real broker keeps in its internal topics, decoded as its own tool decodes it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import NewTopic

from cleanerd.cli.main import main
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.insight.coordinator_records import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    TRANSACTION_STATES,
    parse_coordinator_record,
)
from cleanerd.tools.insight.coordinators import CoordinatorEntry, groups, read_coordinator, transactionals
from tests.broker.kafka import KafkaBroker
from tests.broker.tools import run_dump_log_segments

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]
MODES = {CONSUMER_OFFSETS: "--offsets-decoder", TRANSACTION_STATE: "--transaction-log-decoder"}
EXPANDED = ("subscription", "assignment")  # bytes of the clients, which the tool decodes further
RECORDS = 12


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two groups, one of each protocol, have read and committed; a transaction is open."""
    root = tmp_path_factory.mktemp("coordinators")
    few = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "1"}
    with KafkaBroker(root / "broker", [root / "logs"], few) as broker:
        admin = broker.admin()  # the futures end with it
        for future in admin.create_topics([NewTopic("t", 2, 1)]).values():
            future.result()
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for i in range(RECORDS):
            producer.produce("t", key=f"k{i}", value=b"v")
        producer.flush()
        for group, protocol in (("billing", "classic"), ("reports", "consumer")):
            _consume(broker, group, protocol)
        writer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "tx-orders"})
        writer.init_transactions()
        for is_committed in (True, False):
            writer.begin_transaction()
            writer.produce("t", b"x")
            writer.flush()
            if is_committed:
                writer.commit_transaction()
    return root / "logs"


def _consume(broker: KafkaBroker, group: str, protocol: str) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.subscribe(["t"])
    read = 0
    for _ in range(60):
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            read += 1
            consumer.commit(message, asynchronous=False)
        if read == RECORDS:
            break
    consumer.close()
    assert read == RECORDS


def test_every_record_as_kafkas_own_decoder_has_it(log_dir: Path, tmp_path: Path) -> None:
    seen = set()
    for topic, mode in MODES.items():
        for partition in sorted(log_dir.glob(f"{topic}-*")):
            theirs = _dumped(partition, tmp_path, mode)
            for record in read_records(str(partition)):
                key, value = theirs[record.offset]
                assert record.key is not None
                mine = parse_coordinator_record(topic, record.key, record.value)
                assert key == {"type": str(mine.type), "data": mine.key}
                assert (mine.value is None) == (value is None)
                seen.add((topic, mine.type))
                if value is not None and mine.value:
                    status = value["data"].get("transactionStatus")
                    if isinstance(status, str):  # by its name, from 4.4 on
                        value["data"]["transactionStatus"] = TRANSACTION_STATES.index(status)
                    assert _bare(value) == _bare({"version": str(mine.version), "data": mine.value})
    assert {
        (CONSUMER_OFFSETS, 1),
        (CONSUMER_OFFSETS, 2),
        (CONSUMER_OFFSETS, 3),
        (TRANSACTION_STATE, 0),
    } <= seen


def _dumped(partition: Path, work_dir: Path, mode: str) -> dict[int, tuple[Any, Any]]:
    files = [str(path) for path in partition.glob("*.log") if path.stat().st_size]
    if not files:
        return {}
    output = run_dump_log_segments(work_dir, files, mode, "--deep-iteration").stdout
    found = re.finditer(r"\| offset: (\d+) .*? key: (.*) payload: (.*)", output)
    return {int(m[1]): (json.loads(m[2]), None if m[3].startswith("<") else json.loads(m[3])) for m in found}


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _bare(one) for name, one in value.items() if name not in EXPANDED}
    return [_bare(one) for one in value] if isinstance(value, list) else value


def test_groups_and_transactions(log_dir: Path) -> None:
    """Newest records only; who committed how much, and which transaction is open."""
    entries = _entries(log_dir, CONSUMER_OFFSETS)
    found = {group.group: group for group in groups(entries)}
    assert {name: (one.protocol, one.committed, one.topics, one.members) for name, one in found.items()} == {
        "billing": ("classic", 2, 1, 0),
        "reports": ("consumer", 2, 1, 0),
    }
    offsets = [one.record.value["offset"] for one in entries if one.record.type == 1 and one.record.value]
    assert sum(offsets) == 2 * RECORDS
    (open_one,) = transactionals(_entries(log_dir, TRANSACTION_STATE))
    assert (open_one.transactional_id, open_one.state, open_one.partitions) == ("tx-orders", "Ongoing", 1)
    assert open_one.since_ms > 0


def test_the_command_shows_them(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["inspect", "--log-dir", str(log_dir), "--details"]
    assert main([*where, "--topic", CONSUMER_OFFSETS]) == 0
    assert re.search(r"billing +classic +2 partitions of 1 topics", capsys.readouterr().out)
    assert main([*where, "--topic", TRANSACTION_STATE, "-o", "json"]) == 0
    (log,) = json.loads(capsys.readouterr().out)["logs"]
    assert [entry["key"] for entry in log["entries"]] == [{"transactionalId": "tx-orders"}]


def _entries(log_dir: Path, topic: str) -> list[CoordinatorEntry]:
    read = [read_coordinator(str(partition)) for partition in sorted(log_dir.glob(f"{topic}-*"))]
    assert not sum(one.undecodable for one in read)
    return [entry for one in read for entry in one.entries]
