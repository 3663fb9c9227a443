"""`cleanerd salvage` before a real broker: it starts on the copies and serves exactly the records that survived."""

import random
import shutil
from pathlib import Path

import pytest

from cleanerd.format.batch import iterate_batches
from cleanerd.tools.insight.salvage import salvage
from cleanerd.tools.insight.verify import verify
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.logdump import dump_partition
from tests.harness.broker.model import committed
from tests.harness.broker.origin import ONE_PHASE, Origin
from tests.harness.broker.producers import Message, Style, WriterPool
from tests.harness.broker.tools import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    dump_log_segments,
    log_start_offset,
    read_all,
    segment_files,
)

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]


def damage_a_batch(rng: random.Random, partition: Path) -> int:
    """A flipped bit in a batch that is no control batch and not transactional; returns its base offset."""
    logs = [log for log in sorted(partition.glob("*.log")) if log.stat().st_size]
    log = rng.choice(logs)
    data = bytearray(log.read_bytes())
    plain = [at for at, size, magic in iterate_batches(bytes(data)) if size > 61 and not data[at + 22] & 0x30]
    if not plain:
        return -1
    at = rng.choice(plain)
    data[at + 61] ^= 0x40
    log.write_bytes(data)
    return int.from_bytes(data[at : at + 8])


def test_a_broker_serves_what_was_salvaged(origin: Origin, log_dir: Path, tmp_path: Path) -> None:
    """Damaged logs go through `salvage`; the broker starts without a word, and goes on writing them."""
    rng = random.Random(7)
    before = {plan.topic: dump_partition(log_dir / plan.directory) for plan in origin.plans}
    copies = tmp_path / "copies"
    lost: dict[str, int] = {}
    for plan in origin.plans:
        lost[plan.topic] = damage_a_batch(rng, log_dir / plan.directory)
        copies.mkdir(exist_ok=True)
        report = salvage(str(log_dir / plan.directory), str(copies / plan.directory))
        assert len(report.damage) == (lost[plan.topic] >= 0), (plan, report)
    assert max(lost.values()) > 0
    for plan in origin.plans:
        shutil.rmtree(log_dir / plan.directory)
        shutil.move(copies / plan.directory, log_dir / plan.directory)
    assert verify([str(log_dir)], topics={plan.topic for plan in origin.plans}).is_sound
    after = {plan.topic: dump_partition(log_dir / plan.directory) for plan in origin.plans}
    assert (
        dump_log_segments(
            tmp_path, [path for plan in origin.plans for path in segment_files(log_dir / plan.directory)]
        )
        == []
    )
    with KafkaBroker(tmp_path / "broker", [log_dir]) as broker:
        uncommitted = read_all(broker, list(after), READ_UNCOMMITTED)
        of_committed = read_all(broker, list(after), READ_COMMITTED)
        assert broker.troubles() == []
        with WriterPool(broker.bootstrap) as pool:
            for plan in ONE_PHASE:
                pool.writer(Style(), "").send(plan.topic, [Message(b"key", b"value", 1_900_000_000_000)])
    for topic, log in after.items():
        gone = [batch for batch in before[topic].batches if batch.base_offset == lost[topic]]
        expected = [
            record for record in before[topic].records if all(record not in batch.records for batch in gone)
        ]
        assert log.records == expected, topic
        start = log_start_offset(log_dir, log)
        visible = [record for record in expected if record.offset >= start]
        assert uncommitted[topic] == visible, topic
        assert of_committed[topic] == committed(before[topic], visible), topic
