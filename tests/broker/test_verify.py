"""`cleanerd verify` on what a real broker wrote: nothing is wrong with it, stopped or while it writes.

Killed: `test_roundtrip`; cleaned: `tests/proofs/test_what_goes.py`.
"""

import threading
from collections import Counter
from pathlib import Path

import pytest

from cleanerd.tools.insight.findings import Severity
from cleanerd.tools.insight.verify import verify
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.live import PATIENCE_S
from tests.harness.broker.logdump import dump_partition
from tests.harness.broker.origin import Origin
from tests.harness.broker.producers import Message, Style, WriterPool
from tests.harness.broker.tools import offset_checkpoint
from tests.harness.broker.workload import create_topics
from tests.harness.daemon.processes import wait_until

LOOKS = 10

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]


def test_nothing_is_wrong_after_a_clean_stop(origin: Origin) -> None:
    """All codecs, transactions, compacted by the broker, records deleted; every record was walked."""
    report = verify([str(origin.log_dir)])
    assert report.findings == []
    walked = verify([str(origin.log_dir)], topics={plan.topic for plan in origin.plans})
    logs = [dump_partition(origin.log_dir / plan.directory) for plan in origin.plans]
    assert walked.records == sum(len(log.records) + markers(log) for log in logs)
    assert walked.batches == sum(len(log.batches) for log in logs)


def markers(log) -> int:
    """Control records, which the dump does not count as records."""
    return sum(len(batch.records) for batch in log.batches if batch.control)


@pytest.mark.fault("files that change or grow while they are read")
def test_a_live_broker_that_writes_rolls_and_deletes(tmp_path: Path) -> None:
    """Verified again and again while it does: no finding about what comes and goes."""
    log_dir = tmp_path / "logs"
    config = {
        "internal.segment.bytes": "16384",
        "retention.bytes": "65536",
        "retention.ms": "-1",
        "cleanup.policy": "delete",
    }
    compact = {"internal.segment.bytes": "16384", "cleanup.policy": "compact"}
    broker = KafkaBroker(
        tmp_path / "broker",
        [log_dir],
        {"log.cleaner.min.cleanable.ratio": "0.0", "log.retention.check.interval.ms": "200"},
    )
    stop = threading.Event()
    with broker:
        create_topics(broker.admin(), {"deleted": config, "compacted": compact})

        def write() -> None:
            with WriterPool(broker.bootstrap) as pool:
                writer = pool.writer(Style(), "")
                number = 0
                while not stop.is_set():
                    for topic in ("deleted", "compacted"):
                        writer.send(
                            topic, [Message(b"%d" % (number % 50), b"x" * 500, 1_700_000_000_000 + number)]
                        )
                    number += 1

        thread = threading.Thread(target=write)
        thread.start()
        try:
            reports = []

            def is_seen() -> bool:
                """Often, over deletions and cleanings by the broker."""
                reports.append(verify([str(log_dir)]))
                cleaned = offset_checkpoint(log_dir / "cleaner-offset-checkpoint").get("compacted-0", 0)
                is_deleted = not (log_dir / "deleted-0" / f"{0:020}.log").exists()
                return len(reports) >= LOOKS and cleaned > 0 and is_deleted

            wait_until(is_seen, PATIENCE_S)
        finally:
            stop.set()
            thread.join()
    problems = [
        finding
        for report in reports
        for finding in report.findings
        if finding.kind.severity is not Severity.INFO
    ]
    assert problems == [], Counter(finding.code for finding in problems)
    assert reports[-1].records > 0
    left = verify([str(log_dir)]).findings
    assert {finding.code for finding in left} <= {"deleted_file"}  # it stopped before it came to that
