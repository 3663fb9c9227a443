"""The pure parts of the benchmark: statistics, and what is read from the broker's log and from /proc."""

import os
import subprocess
import sys

import pytest

from cleanerd.cleaning.result import LogResult
from tests.bench.figures import Row
from tests.bench.kafka_side import Span, find_span
from tests.bench.processes import Meter
from tests.bench.sides import Round
from tests.bench.worker import phases


def row(**sides: list[Round]) -> Row:
    return Row("W1", "small", 2_000_000, 1000, 10, sides)


def rounds(*seconds: float) -> list[Round]:
    return [Round(one, cpu_s=2 * one, peak_rss_bytes=int(one) << 20) for one in seconds]


def test_ratio_of_the_medians_and_its_range_by_round() -> None:
    found = row(Kafka=rounds(9, 8, 20), cleanerd=rounds(2, 4, 2), floor=rounds(1, 1, 1))
    assert found.rival == "Kafka"
    assert found.median("cleanerd") == 2
    assert found.ratio("Kafka") == 4.5
    assert found.ratio_range("Kafka") == (2, 10)
    assert found.document()["records_per_s"] == 500


def test_phases_and_what_is_in_none_of_them() -> None:
    found = row(cleanerd=[Round(2, phases={"index": 1.0, "stage": 0.25}), Round(4, phases={"index": 2.0})])
    assert found.phase_medians() == {"index": 1.5, "stage": 0.125, "other": 1.375}


def test_logs_of_a_job_share_its_phases() -> None:
    def result(partition: int, **seconds: float) -> LogResult:
        return LogResult("t", partition, "/d", "committed", phase_seconds=seconds)

    found = phases(
        [
            result(0, plan=0.5, index=1.0, rewrite=2.0, stage=0.1, commit=0.3),
            result(1, plan=0.5, index=1.0, rewrite=2.0, stage=0.1, commit=0.2),
            result(2, plan=0.25, index=1.0, rewrite=2.0, stage=0.2, checkpoint=0.1),
        ]
    )
    expected = {"plan": 0.75, "index": 2.0, "rewrite": 4.0, "stage": 0.3, "commit": 0.5, "checkpoint": 0.1}
    assert found == pytest.approx(expected)
    assert list(found) == list(expected)


def test_a_span_takes_in_all_passes_over_all_logs() -> None:
    def lines(began_ms: int, ended_ms: int, log: str, begin: int, end: int) -> list[str]:
        thread = "INFO org.apache.kafka.storage.internals.log.LogCleaner$CleanerThread"
        return [
            f"INFO org.apache.kafka.storage.internals.log.Cleaner {began_ms} Cleaner 0: Beginning cleaning of log {log}",
            f"{thread} {ended_ms} [kafka-log-cleaner-thread-0]: ",
            f"\tLog cleaner thread 0 cleaned log {log} (dirty section = [{begin}, {end}])",
            "\t63.9 MB of log processed in 2.0 seconds (31.9 MB/sec).",
        ]

    t = 1795325980000
    said = lines(t, t + 100, "warm-0", 0, 10) + lines(t + 200, t + 300, "round0-0", 0, 60)
    ends = {"round0-0": 100, "round0-1": 50}
    assert find_span(said, ends) is None
    said += lines(t + 400, t + 500, "round0-1", 0, 50)
    assert find_span(said, ends) is None, "the first log needs another pass"
    said += lines(t + 600, t + 700, "round0-0", 60, 100)
    assert find_span(said, ends) == Span(t + 200, t + 700)


def test_a_meter_counts_descendants_that_are_gone() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\ninput()"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE) as process:
        with Meter(process.pid) as meter:
            while meter.cpu_seconds < 0.3:
                os.sched_yield()
        process.communicate(b"\n")
    assert 0.3 <= meter.cpu_seconds < 5
    assert meter.peak_rss_bytes > 5 << 20
