"""The summary of a cleaning in Kafka's words (LogCleaner.java of Kafka 4, CleanerThread.recordStats)."""

from dataclasses import replace

from cleanerd.cleaning.result import LogResult
from cleanerd.daemon.telemetry.kafka_summary import kafka_summary

MB = 1 << 20
RESULT = LogResult(
    "orders",
    3,
    "/data",
    "committed",
    first_dirty_offset=1200,
    end_offset=1_301_200,
    bytes_read=1500 * MB,
    bytes_before=1700 * MB,
    bytes_after=650 * MB,
    records_read=1_300_000,
    records_kept=325_000,
    seconds=4.0,
    phase_seconds={"examine": 9.0, "plan": 0.25, "index": 0.75, "rewrite": 2.5, "stage": 0.4, "commit": 0.1},
)


def test_the_text_is_kafkas() -> None:
    """Java's formats: `%,.1f` groups thousands, `%.1f` does not."""
    assert kafka_summary(2, RESULT, 0.1234) == (
        "[kafka-log-cleaner-thread-2]: \n"
        "\tLog cleaner thread 2 cleaned log orders-3 (dirty section = [1200, 1301200])\n"
        "\t1,500.0 MB of log processed in 4.0 seconds (375.0 MB/sec).\n"
        "\tIndexed 1,500.0 MB in 1.0 seconds (1,500.0 Mb/sec, 25.0% of total time)\n"
        "\tBuffer utilization: 12.3%\n"
        "\tCleaned 1,500.0 MB in 3.0 seconds (500.0 Mb/sec, 75.0% of total time)\n"
        "\tStart size: 1,500.0 MB (1,300,000 messages)\n"
        "\tEnd size: 450.0 MB (325,000 messages)\n"
        "\t70.0% size reduction (75.0% fewer messages)\n"
    )


def test_numbers_without_a_quotient_are_as_java_says_them() -> None:
    """A log of markers alone, in no time: x/0 is Infinity, 0/0 NaN."""
    nothing = replace(
        RESULT, seconds=0.0, phase_seconds={}, records_read=0, records_kept=0, bytes_before=0, bytes_after=0
    )
    lines = kafka_summary(0, nothing, 0).splitlines()
    assert lines[2] == "\t1,500.0 MB of log processed in 0.0 seconds (Infinity MB/sec)."
    assert lines[3] == "\tIndexed 1,500.0 MB in 0.0 seconds (Infinity Mb/sec, NaN% of total time)"
    assert lines[-1] == "\t0.0% size reduction (NaN% fewer messages)"


def test_halves_go_up_as_in_java() -> None:
    """Python would say 0.2 and 12.2."""
    text = kafka_summary(0, replace(RESULT, seconds=0.25), 0.1225)
    assert "processed in 0.3 seconds" in text
    assert "Buffer utilization: 12.3%" in text
