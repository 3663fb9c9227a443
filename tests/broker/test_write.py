"""Partition directories written by `kafka-segments` before a real broker, which loads them and serves each record."""

import random
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer

from cleanerd.format import names
from cleanerd.format.partition_metadata import parse_partition_metadata
from cleanerd.format.record import Record
from cleanerd.format.uuid_text import render_uuid
from cleanerd.tools.insight.records import open_log
from cleanerd.tools.insight.verify import verify
from tests.broker.kafka import KafkaBroker
from tests.broker.tools import READ_COMMITTED, dump_log_segments, read_all, segment_files
from tests.broker.workload import create_topics
from tests.tools.insight.test_records import records

pytest.importorskip("pyarrow", reason="needs the extra cleanerd[spark]")

from tests.tools.spark.test_write import CODECS, batch, row, writer

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]


def written(seed: int, *, gaps: bool) -> list[Record]:
    """Null and empty keys and values, headers, times that go back, offsets with gaps as a compaction leaves them."""
    rng = random.Random(seed)
    offset, found = 0, []
    for n in range(3000):
        headers = tuple((f"h{i}", rng.choice([None, b"", b"x" * 20])) for i in range(rng.choice([0, 0, 2])))
        key, value = (rng.choice([None, b"", b"some%d" % n, rng.randbytes(60)]) for _ in range(2))
        found.append(Record(offset, 1_700_000_000_000 + rng.randrange(10**6), key, value, headers))
        offset += rng.choice([1, 5, 400]) if gaps else 1
    return found


def test_a_broker_loads_what_was_written(tmp_path: Path) -> None:
    """No word at its start, each record equal for a consumer, then new records behind them; after a kill too."""
    log_dir = tmp_path / "logs"
    topics = {f"{codec}-{kind}": kind == "gaps" for codec in CODECS for kind in ("gaps", "dense")}
    with KafkaBroker(tmp_path / "broker", [log_dir]) as broker:
        create_topics(broker.admin(), {topic: {"retention.ms": "-1"} for topic in topics})
    ids = {}
    for topic in topics:
        metadata = (log_dir / f"{topic}-0" / names.PARTITION_METADATA).read_bytes()
        ids[topic] = render_uuid(parse_partition_metadata(metadata))
        shutil.rmtree(log_dir / f"{topic}-0")
    expected = {topic: written(n, gaps=gaps) for n, (topic, gaps) in enumerate(topics.items())}
    text = "{" + ", ".join(f'"{topic}": "{found}"' for topic, found in ids.items()) + "}"
    for topic, found in expected.items():
        one = writer(
            log_dir, offsets="keep", topicIds=text, compression=topic.split("-")[0], segmentBytes="100000"
        )
        turns = [
            batch([row(topic, 0, record) for record in found[n : n + 1000]]) for n in range(0, 3000, 1000)
        ]
        one.commit([one.write(iter(turns))])
        assert len(list((log_dir / f"{topic}-0").glob("*.log"))) > 1
        assert dump_log_segments(tmp_path, segment_files(log_dir / f"{topic}-0")) == []
    assert verify([str(log_dir)], topics=set(topics)).findings == []
    with KafkaBroker(tmp_path / "broker", [log_dir]) as broker:
        assert read_all(broker, list(topics), READ_COMMITTED) == expected
        assert broker.troubles() == []
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for topic in topics:
            producer.produce(topic, b"new", b"key", partition=0)
        assert producer.flush(60) == 0
        again = read_all(broker, list(topics), READ_COMMITTED)
        for topic, found in expected.items():
            assert again[topic][:-1] == found
            assert again[topic][-1].offset == found[-1].offset + 1
        broker.kill()
    with KafkaBroker(tmp_path / "broker", [log_dir]) as broker:
        assert read_all(broker, list(topics), READ_COMMITTED) == again
    assert {topic: records(open_log(str(log_dir / f"{topic}-0"))) for topic in topics} == again


def test_a_broker_removes_what_a_job_has_left(tmp_path: Path) -> None:
    """Of a writer that was killed before its commit."""
    log_dir = tmp_path / "logs"
    with KafkaBroker(tmp_path / "broker", [log_dir]):
        pass
    one = writer(log_dir)
    one.write(iter([batch([row("t", 0, record) for record in written(1, gaps=False)])]))
    (left,) = [path for path in log_dir.iterdir() if path.name.endswith("-delete")]
    with KafkaBroker(tmp_path / "broker", [log_dir], {"file.delete.delay.ms": "100"}) as broker:
        for _ in range(300):
            if not left.exists():
                break
            broker.poll()
    assert not left.exists()
