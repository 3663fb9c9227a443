"""The harness itself: what it writes is what it says, and its oracles see what is wrong."""

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from cleanerd.env.files import RealFiles
from cleanerd.storage.metadata_log import find_metadata
from tests.broker.conftest import ONE_PHASE, Origin
from tests.broker.kafka import KafkaBroker
from tests.broker.logdump import dump_partition
from tests.broker.model import committed
from tests.broker.releases import current_release
from tests.broker.tools import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    dump_log_segments,
    log_start_offset,
    read_all,
    segment_files,
)

pytestmark = pytest.mark.broker


def test_logs_hold_every_record_that_was_sent(origin: Origin) -> None:
    """No batch is lost before anything is cleaned; control records are not counted."""
    whole = [plan for plan in ONE_PHASE if not plan.scenario.delete_records]
    found = {plan.topic: len(dump_partition(origin.log_dir / plan.directory).records) for plan in whole}
    assert {plan.topic: origin.sent[plan.topic] for plan in whole} == found


def test_a8_the_metadata_log_tells_the_release(origin: Origin) -> None:
    found = find_metadata(RealFiles(), [str(origin.log_dir)], str(origin.log_dir))
    release = current_release().version.rsplit(".", 1)[0]
    assert found is not None
    assert found.release == (release if release >= "4.0" else None)


def test_consumers_see_what_the_dump_and_the_model_say(origin: Origin, log_dir: Path, tmp_path: Path) -> None:
    """Both isolation levels, from the log start; and the broker has nothing to complain about."""
    logs = {plan.topic: dump_partition(log_dir / plan.directory) for plan in origin.plans}
    starts = {topic: log_start_offset(log_dir, log) for topic, log in logs.items()}
    with KafkaBroker(tmp_path / "broker", [log_dir]) as broker:
        uncommitted = read_all(broker, list(logs), READ_UNCOMMITTED)
        of_committed = read_all(broker, list(logs), READ_COMMITTED)
        assert broker.troubles() == []
    for topic, log in logs.items():
        expected = [record for record in log.records if record.offset >= starts[topic]]
        assert expected == uncommitted[topic], topic
        assert committed(log, expected) == of_committed[topic], topic


def test_troubles_show_a_rebuilt_index(origin: Origin, log_dir: Path, tmp_path: Path) -> None:
    """An index that is gone is rebuilt at start, and the broker says so (spec disk B8)."""
    next((log_dir / origin.plans[0].directory).glob("*.index")).unlink()
    with KafkaBroker(tmp_path / "broker", [log_dir]) as broker:
        assert broker.troubles() != []


def test_troubles_show_recovery_after_a_kill(tmp_path: Path) -> None:
    """A broker that did not stop cleanly recovers the logs of all its directories (spec disk D3)."""
    broker = KafkaBroker(tmp_path / "broker", [tmp_path / "a", tmp_path / "b"])
    with broker:
        admin = broker.admin()
        admin.create_topics([NewTopic("t", 4, 1)])["t"].result(30)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for partition in range(4):
            producer.produce("t", b"value", partition=partition)
        assert producer.flush(30) == 0
        broker.kill()
        broker.start()
        assert broker.troubles() != []
    with broker:
        assert broker.troubles() == []
    assert sorted(path.name for path in tmp_path.glob("[ab]/t-*")) == ["t-0", "t-1", "t-2", "t-3"]
    assert all(list((tmp_path / root).glob("t-*")) for root in "ab")


def test_dump_log_segments_finds_nothing_in_an_untouched_log(origin: Origin, tmp_path: Path) -> None:
    """The tool accepts everything that the broker wrote or cleaned, hundreds of files at once."""
    files = [path for plan in origin.plans for path in segment_files(origin.log_dir / plan.directory)]
    assert dump_log_segments(tmp_path, files) == []


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_dump_log_segments_finds_a_flipped_byte(
    origin: Origin, log_dir: Path, tmp_path: Path, suffix: str
) -> None:
    """The last byte of a batch, of an index position, of a time index offset."""
    files = segment_files(log_dir / origin.plans[1].directory)
    spoilt = next(path for path in files if path.suffix == suffix and path.stat().st_size > 0)
    data = bytearray(spoilt.read_bytes())
    data[-1] ^= 1
    spoilt.write_bytes(data)
    assert dump_log_segments(tmp_path, [spoilt]) != []
