"""Closed segments whose indexes end in zeros, as they were allocated: cleaned by cleanerd and by a broker (spec disk B8).

Also what a broker makes of the age of such a segment (X32), and what is left of that after a cleaning by cleanerd.
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from cleanerd.tools.insight.verify import verify
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.tools import (
    READ_UNCOMMITTED,
    clean,
    copy_log_dir,
    dump_log_segments,
    read_all,
    segment_files,
    wait_until_cleaned,
    wait_until_deleted,
)
from tests.harness.broker.workload import DAY_MS, TIMEOUT_S, YEARS_MS, create_topics

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

COMPACTED, AGED = "compacted", "aged"
SEGMENTS = {"internal.segment.bytes": "2000", "segment.ms": str(YEARS_MS), "index.interval.bytes": "200"}
TOPICS = {
    COMPACTED: {**SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"},
    AGED: {**SEGMENTS, "cleanup.policy": "compact,delete", "retention.ms": str(7 * DAY_MS)},
}
"""The second is not cleaned by the broker, which has a ratio of 1.0."""
PADDED = {".index": 10485760, ".timeindex": 10485756}
KEYS = 20


def write(broker: KafkaBroker) -> None:
    create_topics(broker.admin(), TOPICS)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "log_level": 0})
    for number in range(6):
        for topic in TOPICS:
            for key in range(KEYS):
                producer.produce(topic, key=b"%03d" % key, value=b"%d" % number + b"x" * 40, partition=0)
        assert producer.flush(TIMEOUT_S) == 0


def closed(place: Path, topic: str) -> list[Path]:
    return sorted((place / f"{topic}-0").glob("*.log"))[:-1]


def pad(logs: Iterable[Path]) -> None:
    for log in logs:
        for suffix, size in PADDED.items():
            os.truncate(log.with_suffix(suffix), size)


def active_base(place: Path, topic: str) -> int:
    return max(int(path.stem) for path in (place / f"{topic}-0").glob("*.log"))


def test_x32_both_cleaners_agree_and_only_the_broker_takes_the_records_for_old(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    with KafkaBroker(tmp_path / "a", [theirs], {"log.cleaner.enable": "false"}) as broker:
        write(broker)
        whole = read_all(broker, [AGED], READ_UNCOMMITTED)[AGED]
    logs = [log for topic in TOPICS for log in closed(theirs, topic)]
    assert len(closed(theirs, COMPACTED)) >= 3
    pad(logs)
    copy_log_dir(theirs, ours)
    found = {
        Path(finding.path) for finding in verify([str(ours)]).findings if finding.code.endswith("_padded")
    }
    assert found == {ours / log.relative_to(theirs).with_suffix(suffix) for log in logs for suffix in PADDED}

    cleaned = clean(ours, [], *(f"--topic={topic}" for topic in TOPICS))
    assert {row["outcome"] for row in cleaned.rows.values()} == {"committed"}, cleaned
    assert cleaned.messages.count("damaged indexes, without which the log was read") == len(TOPICS)
    assert verify([str(ours)]).findings == []
    files = [path for topic in TOPICS for path in segment_files(ours / f"{topic}-0")]
    assert dump_log_segments(tmp_path, files) == []

    with KafkaBroker(tmp_path / "b", [theirs]) as broker:
        end = active_base(theirs, COMPACTED)
        wait_until_cleaned(broker, theirs, {f"{COMPACTED}-0": end})
        wait_until_deleted(broker, theirs / f"{AGED}-0", active_base(theirs, AGED))
        expected = read_all(broker, [COMPACTED], READ_UNCOMMITTED)[COMPACTED]
        deletions = [line for line in broker.messages() if "due to log retention time" in line]
    assert sum("largestRecordTimestamp=0)" in line for line in deletions) >= 3

    with KafkaBroker(tmp_path / "c", [ours]) as broker:
        time.sleep(3)  # noqa: TID251  # some of its retention passes
        seen = read_all(broker, list(TOPICS), READ_UNCOMMITTED)
        assert broker.troubles() == []
    assert seen[COMPACTED] == expected
    assert {record.key for record in seen[AGED]} == {record.key for record in whole}
    assert seen[AGED][-1] == whole[-1]
