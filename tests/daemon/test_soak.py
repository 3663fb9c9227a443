"""C156: a minute of a daemon, a writer and everything that an operator may do to them, at random but from a seed.

After every step the newest value of every key is there and offsets rise; whatever is killed, paused, aborted, truncated or
reconfigured meanwhile.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter
from tests.harness.daemon.processes import DaemonProcess, running

SECONDS = float(os.environ.get("CLEANERD_SOAK_S", "60"))
KEYS = 60
SEGMENT_BYTES = 6000


class Writing:
    """A writer and what it wrote last for every key."""

    def __init__(self, log_dir: Path, dice: random.Random) -> None:
        self.directory = str(log_dir / "soak-0")
        self.writer = LogWriter(str(log_dir), "soak", 0, segment_bytes=SEGMENT_BYTES)
        self.newest: dict[bytes, tuple[int, bytes | None]] = {}
        self.truncated = 0
        self._dice = dice
        self._count = 0

    def put(self, key: bytes) -> None:
        self._count += 1
        value = None if self._dice.random() < 0.1 else b"%d" % self._count * 5
        Producer(self.writer).put(key, value, 1_000_000 + self._count)
        self.newest[key] = (self.writer.log_end_offset - 1, value)

    def burst(self) -> None:
        for _ in range(self._dice.randrange(5, 60)):
            self.put(b"key %d" % self._dice.randrange(KEYS))

    def truncate(self) -> None:
        """Cut something off the end, as a follower does, and write it anew, as its leader makes it."""
        first = min(read_records(self.directory), key=lambda r: r.offset).offset
        offset = max(first, self.writer.log_end_offset - self._dice.randrange(1, 150))
        self.writer.truncate(offset)
        self.truncated += 1
        for key in [key for key, (at, _) in self.newest.items() if at >= offset]:
            self.put(key)

    def check(self) -> None:
        found: dict[bytes, bytes | None] = {}
        last = -1
        for record in read_records(self.directory):
            assert record.offset > last, "offsets rise"
            last = record.offset
            assert record.key is not None
            found[record.key] = record.value
        for key, (_, value) in self.newest.items():
            assert found.get(key) == value, key  # a tombstone may be gone: then there is nothing, as it says


@pytest.mark.fault("the daemon is killed", "files that change or grow while they are read")
@pytest.mark.soak
def test_nothing_is_lost_whatever_happens(tmp_path: Path) -> None:
    """C156: the last value of every key is the one written last."""
    dice = random.Random(20)
    log_dir = tmp_path / "logs"
    log_dir.mkdir()
    settings = {
        "cleanerd_spark_idle_timeout_ms": 600_000,
        "log_cleaner_min_cleanable_ratio": 0.1,
        "log_cleaner_delete_retention_ms": 2000,
        "cleanerd_scan_interval_ms": 300,
    }
    with running(tmp_path / "d", log_dir, topics={"soak": "compact"}, **settings) as daemon:
        writing = Writing(log_dir, dice)
        deadline, kills, steps = time.monotonic() + SECONDS, 0, 0
        while time.monotonic() < deadline:
            steps += 1
            kills += one_step(daemon, writing, dice)
            writing.check()
        daemon.ctl("resume", "soak", check=False)
        writing.writer.roll()
        daemon.wait(lambda: daemon.log("soak-0")["state"] == "clean", 60)
        writing.check()
        outcomes = daemon.outcomes("soak-0")
        print(
            f"{steps} steps, {writing.truncated} truncations, {kills} kills, "
            f"{ {outcome: outcomes.count(outcome) for outcome in set(outcomes)} }"
        )
        assert "committed" in outcomes
        assert daemon.log("soak-0")["failures"] == 0


def one_step(daemon: DaemonProcess, writing: Writing, dice: random.Random) -> int:
    """Do something; whether it was to kill the daemon."""
    writing.burst()
    chance = dice.random()
    if chance < 0.06:
        writing.truncate()
    elif chance < 0.10:
        daemon.ctl("pause", "soak", "--owner", "soak", "--reason", "dice", "--ttl", "2s", check=False)
    elif chance < 0.15:
        daemon.ctl("resume", "soak", check=False)
    elif chance < 0.20:
        daemon.ctl("abort", "soak-0", check=False)
    elif chance < 0.25:
        daemon.ctl("clean", "soak-0", "--force", check=False)
    elif chance < 0.28:
        daemon.configure(log_cleaner_io_max_bytes_per_second=dice.choice([1e5, 1e6, 1e12]))
    elif chance < 0.30:
        daemon.stop(signal.SIGKILL)
        daemon.start()
        return 1
    else:
        time.sleep(dice.random() / 4)  # noqa: TID251  # the daemon has its turn
    return 0
