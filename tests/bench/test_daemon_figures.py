"""Figures of the daemon: idle cost with 5 000 logs, accuracy of the throttle."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.daemon.processes import DaemonProcess, running, wait_until
from tests.daemon.test_process import committed
from tests.synthetic import Shape, write_log

LOGS = 5_000
WATCHED_S = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(daemon: DaemonProcess) -> float:
    assert daemon.process is not None
    fields = Path(f"/proc/{daemon.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mib(daemon: DaemonProcess) -> float:
    assert daemon.process is not None
    lines = Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


@pytest.mark.bench
def test_idle_with_5000_logs(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    for number in range(LOGS):
        partition = logs / f"t{number % 50}-{number // 50}"
        partition.mkdir(parents=True)
        for base in (0, 100, 200, 300):
            for kind in ("log", "index", "timeindex"):
                (partition / f"{base:020}.{kind}").touch()
    settings = {"cleanerd_scan_interval_ms": 30_000, "log_cleaner_backoff_ms": 15_000}
    with running(tmp_path / "d", logs, **settings) as daemon:
        time.sleep(20)  # noqa: TID251  # what comes after the start
        before = cpu_s(daemon)
        time.sleep(WATCHED_S)  # noqa: TID251
        share = (cpu_s(daemon) - before) / WATCHED_S
        print(f"\nidle, {LOGS} logs: {share:.2%} of a core, {rss_mib(daemon):.0f} MiB RSS")
        assert share < 0.02
        assert rss_mib(daemon) < 120


@pytest.mark.bench
def test_accuracy_of_the_throttle(tmp_path: Path) -> None:
    """Over ten seconds of a real cleaning on two cores, within 5 % of log.cleaner.io.max.bytes.per.second."""
    logs, rate = tmp_path / "logs", 20e6
    write_log(logs / "big-0", 4_000_000, Shape(keys=50_000))
    with running(tmp_path / "d", logs, log_cleaner_io_max_bytes_per_second=rate) as daemon:
        wait_until(lambda: any(j["bytes_done"] > 20e6 for j in daemon.ask("jobs")["jobs"]), 150)
        first, began = daemon.ask("jobs")["jobs"][-1]["bytes_done"], time.perf_counter()
        time.sleep(10)  # noqa: TID251
        last, seconds = daemon.ask("jobs")["jobs"][-1]["bytes_done"], time.perf_counter() - began
        share = (last - first) / seconds / rate
        print(f"\nthrottle: {share:.1%} of {rate / 1e6:.0f} MB/s over {seconds:.1f} s")
        assert 0.95 < share < 1.05
        assert not committed(daemon, "big-0")
        daemon.stop(signal.SIGKILL)
