"""What the number of logs costs: 20,000 partitions with 100,000 empty segments are looked through in time that is linear."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from cleanerd.daemon.inventory.inventory import Inventory
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.format.names import FileKind, SegmentFileName
from tests.harness.daemon.processes import running

pytestmark = pytest.mark.soak

SMALL, LARGE = 2_500, 20_000
SEGMENTS = 5
LINEAR_MAX = 2 * LARGE // SMALL
"""What is linear takes 8 times as long for LARGE as for SMALL, what is quadratic 64 times."""
BYTES_A_LOG_MAX = 16 << 10


def empty_logs(log_dir: Path, count: int) -> Path:
    """Partitions of a hundred topics; all segments are empty."""
    for number in range(count):
        partition = log_dir / f"topic{number % 100}-{number // 100}"
        partition.mkdir(parents=True)
        for base in range(SEGMENTS):
            (partition / str(SegmentFileName(base * 10, FileKind.LOG))).touch()
    return log_dir


def cpu_seconds(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def test_twenty_thousand_partitions_cost_eight_times_what_2500_do(tmp_path: Path) -> None:
    """The first scan reads everything, the next one two stats for each log."""
    spent: dict[int, tuple[float, float]] = {}
    for count in (SMALL, LARGE):
        log_dir = str(empty_logs(tmp_path / str(count), count))
        inventory = Inventory(RealFiles(), SystemClock())
        before_bytes = psutil.Process().memory_info().rss
        scan = partial(inventory.scan, [log_dir])
        first_s = cpu_seconds(scan)
        assert len(inventory.logs()) == count
        assert not any(entry.error for entry in inventory.entries())
        grown_bytes = psutil.Process().memory_info().rss - before_bytes
        assert grown_bytes < count * BYTES_A_LOG_MAX + (16 << 20), grown_bytes / count
        scan()  # whatever changed a moment before the first is listed once more
        again_s = cpu_seconds(scan)
        spent[count] = (first_s, again_s)
        print(f"{count} logs: {first_s:.2f} s, then {again_s:.2f} s, {grown_bytes / count:.0f} bytes a log")
    for small_s, large_s in zip(spent[SMALL], spent[LARGE], strict=True):
        assert large_s < max(small_s, 0.05) * LINEAR_MAX, spent


def test_a_daemon_with_five_thousand_logs_idles(tmp_path: Path) -> None:
    """What etc/reference/operating.md says under "How much memory?"."""
    log_dir = empty_logs(tmp_path / "logs", 5_000)
    with running(
        tmp_path / "daemon", log_dir, cleanerd_scan_interval_ms=30_000, log_cleaner_backoff_ms=15_000
    ) as daemon:
        process = psutil.Process(daemon.pid)
        time.sleep(10)  # noqa: TID251 - what comes after the start
        before_s, began_s = sum(process.cpu_times()[:2]), time.monotonic()
        time.sleep(30)  # noqa: TID251 - one scan
        share = (sum(process.cpu_times()[:2]) - before_s) / (time.monotonic() - began_s)
        assert share < 0.05, share  # less than 0.02 where nothing else runs
        assert process.memory_info().rss < 120 << 20, process.memory_info().rss
