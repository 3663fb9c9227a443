"""What Kafka's cleaner says of a cleaning, for people and programs that grep for it.

Source: LogCleaner.java of Kafka 4, CleanerThread.recordStats. Kafka's numbers and ours:

====================  ===========================================================================================
in Kafka              here
====================  ===========================================================================================
bytes and messages    those of the cleaned logs from their start to the end of the dirty section; both index and
read                  rewrite go by them, though groups in which nothing has to go are not copied
bytes and messages    what is left of them
written
elapsed               seconds of the cleaning; with other logs of the same job
index                 plan and index
buffer utilization    the most that the keys of the dirty section could have needed; above 100% they are resolved
                      a bucket at a time
====================  ===========================================================================================
"""

import math
from decimal import ROUND_HALF_UP, Decimal

from cleanerd.cleaning.result import LogResult


def kafka_summary(thread: int, result: LogResult, buffer_ratio: float) -> str:
    """The text, with the prefix of Kafka's cleaner threads. Offsets of the result are known."""
    read, written = result.bytes_read, result.bytes_read - (result.bytes_before - result.bytes_after)
    index_s = sum(result.phase_seconds.get(phase, 0.0) for phase in ("plan", "index"))
    clean_s = result.seconds - index_s
    lines = (
        f"[kafka-log-cleaner-thread-{thread}]: ",
        f"Log cleaner thread {thread} cleaned log {result.topic}-{result.partition} "
        f"(dirty section = [{result.first_dirty_offset}, {result.end_offset}])",
        f"{_mb(read)} MB of log processed in {_number(result.seconds)} seconds ({_rate(read, result.seconds)} MB/sec).",
        f"Indexed {_mb(read)} MB in {_plain(index_s)} seconds "
        f"({_rate(read, index_s)} Mb/sec, {_percent(index_s, result.seconds)} of total time)",
        f"Buffer utilization: {_plain(100 * buffer_ratio)}%",
        f"Cleaned {_mb(read)} MB in {_plain(clean_s)} seconds "
        f"({_rate(read, clean_s)} Mb/sec, {_percent(clean_s, result.seconds)} of total time)",
        f"Start size: {_mb(read)} MB ({result.records_read:,} messages)",
        f"End size: {_mb(written)} MB ({result.records_kept:,} messages)",
        f"{_percent(read - written, read)} size reduction "
        f"({_percent(result.records_read - result.records_kept, result.records_read)} fewer messages)",
    )
    return "\n\t".join(lines) + "\n"


def _mb(size: float) -> str:
    return _number(size / 2**20)


def _rate(size: float, seconds: float) -> str:
    return _mb(_divided(size, seconds))


def _percent(part: float, whole: float) -> str:
    return f"{_plain(100 * _divided(part, whole))}%"


def _divided(part: float, whole: float) -> float:
    """As Java divides: a cleaning may take no measurable time."""
    if whole:
        return part / whole
    return math.copysign(math.inf, part) if part else math.nan


def _number(value: float) -> str:
    """Java's `%,.1f`."""
    return f"{_rounded(value):,}" if math.isfinite(value) else _plain(value)


def _plain(value: float) -> str:
    """Java's `%.1f`."""
    if math.isfinite(value):
        return str(_rounded(value))
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _rounded(value: float) -> Decimal:
    """Half up, of the decimal that stands for the double, as Java's Formatter does; Python's rounds half to even."""
    return Decimal(repr(value)).quantize(Decimal("0.1"), ROUND_HALF_UP)
