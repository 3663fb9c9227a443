"""`python -m tests.bench.status_picture`: a picture of the status page of a daemon at work, for the README.

A daemon cleans logs of the demo in three rounds; one log is damaged, one is paused, and one is being cleaned when Chromium
looks. Needs Chromium and Java; takes two minutes. Writes `etc/reference/status-page.png`.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from cleanerd.tools.demo.topics import TOPICS, Feed
from tests.daemon.test_status_page import CHROMIUM
from tests.harness.daemon.processes import DaemonProcess
from tests.harness.programs import ROOT, need

PICTURE = ROOT / "etc" / "reference" / "status-page.png"
_ADDRESS = "127.0.0.1:11399"
_SIZE = "1100,800"
_NAMES = ("accounts", "carts", "devices", "orders", "page-views", "prices", "sessions", "stock")
_ROUNDS, _BATCHES = 3, 40
_PATIENCE_S = 300.0


def feeds(log_dir: Path) -> list[Feed]:
    """Logs with the records of the demo's topics, under more names."""
    log_dir.mkdir()
    return [
        Feed(str(log_dir), replace(TOPICS[number % len(TOPICS)], name=name), seed=number)
        for number, name in enumerate(_NAMES)
    ]


def write(feed: Feed, batches: int) -> None:
    """Append batches and roll, so that all of them may be cleaned."""
    now_ms = time.time_ns() // 1_000_000
    for _ in range(batches):
        feed.send_batch(now_ms)
    feed.roll(now_ms)


def damage(feed: Feed) -> None:
    """Flip a bit in the first batch, as a bad disk does."""
    first = min(Path(feed.directory).glob("*.log"))
    with first.open("r+b") as file:
        file.seek(100)
        byte = file.read(1)[0]
        file.seek(100)
        file.write(bytes((byte ^ 1,)))


def main() -> int:
    """Make the picture; returns the exit code."""
    chromium = need("chromium", "chromium")
    with tempfile.TemporaryDirectory(prefix="cleanerd-picture-") as place:
        logs = feeds(Path(place) / "kafka-logs")
        settings = {
            "log.segment.bytes": 1 << 24,
            "cleanerd.metrics.listen": _ADDRESS,
            "log.cleaner.threads": 2,
        }
        with DaemonProcess(Path(place), [Path(place) / "kafka-logs"], settings) as daemon:
            for feed in logs:
                write(feed, _BATCHES)
            damage(logs[3])
            daemon.configure()
            daemon.start()
            for round_number in range(_ROUNDS):
                for feed in logs:
                    write(feed, _BATCHES * (1 + round_number))
                daemon.ctl("clean", "*", "--force", "--wait", check=False)
            daemon.ctl("pause", "sessions", "--reason", "restore from backup", "--ttl", "2h")
            daemon.ctl("throttle", "400kB")
            write(logs[0], 10 * _BATCHES)
            daemon.ctl("clean", "accounts", "--force")
            daemon.wait(
                lambda: any(job["bytes_done"] for job in daemon.ask("jobs")["jobs"][-1:]), _PATIENCE_S
            )
            subprocess.run(
                [
                    chromium, *CHROMIUM, f"--window-size={_SIZE}", f"--user-data-dir={place}/chromium",
                    f"--screenshot={PICTURE}", "--blink-settings=preferredColorScheme=1", f"http://{_ADDRESS}/",
                ],
                check=True, capture_output=True, timeout=_PATIENCE_S, env=dict(os.environ),
            )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
