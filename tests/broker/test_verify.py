"""`cleanerd verify` on what a real broker wrote: nothing is wrong with it, stopped, killed, cleaned or while it writes."""

import threading
from collections import Counter
from pathlib import Path

import pytest

from cleanerd.env.clock import SystemClock
from cleanerd.tools.insight.findings import Severity
from cleanerd.tools.insight.verify import verify
from tests.broker.conftest import ONE_PHASE, Origin, write_phases
from tests.broker.kafka import KafkaBroker
from tests.broker.logdump import dump_partition
from tests.broker.producers import Message, Style, WriterPool
from tests.broker.tools import clean
from tests.broker.workload import Phase, create_topics

BUSY_S = 15.0
"""Enough for rolls, deletions and cleanings by the broker."""

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


def test_nothing_is_wrong_after_a_cleaning(origin: Origin, log_dir: Path) -> None:
    """What cleanerd wrote is what the broker would have."""
    assert clean(log_dir, origin.plans).exit_code == 0
    left = verify([str(log_dir)]).findings
    assert {finding.code for finding in left} <= {"deleted_file"}  # it stopped before it came to that


def test_a_killed_broker_leaves_no_errors(log_dir: Path, tmp_path: Path) -> None:
    """Preallocated indexes, old checkpoints, half-written tails."""
    write_phases(tmp_path / "writing", log_dir, [(plan, Phase.SECOND) for plan in ONE_PHASE[::3]], kill=True)
    found = verify([str(log_dir)]).findings
    assert [finding for finding in found if finding.kind.severity is Severity.ERROR] == []


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
            clock, reports = SystemClock(), []
            end_s = clock.monotonic_s() + BUSY_S
            while clock.monotonic_s() < end_s:
                reports.append(verify([str(log_dir)]))
        finally:
            stop.set()
            thread.join()
    problems = [
        finding for report in reports for finding in report.findings if finding.kind.severity is not Severity.INFO
    ]
    assert problems == [], Counter(finding.code for finding in problems)
    assert reports[-1].records > 0
    left = verify([str(log_dir)]).findings
    assert {finding.code for finding in left} <= {"deleted_file"}  # it stopped before it came to that
