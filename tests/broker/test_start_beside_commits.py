"""A broker that starts without any hook while cleanerd commits: it always starts (architecture 2).

Most starts are those of a stand-in that does with `.lock` what a broker does with it: open, try once, die if it is taken
(spec disk A3). It starts in a fraction of the time, so it meets more commits.
"""

import contextlib
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cleanerd.format import names
from cleanerd.storage.lock import LogDirLock, probe
from tests.harness.broker.kafka import START_TIMEOUT_S, KafkaBroker
from tests.harness.daemon.processes import DaemonProcess, wait_until
from tests.harness.logs.troubled import assert_settled, write_logs

STAGING_S = 300.0
BROKER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit("Failed to acquire lock on file .lock")
print("started", flush=True)
sys.stdin.readline()
"""
QUICK = {
    "log.cleaner.min.cleanable.ratio": "0.0",
    "cleanerd.staged.commit.interval.ms": "10",
    "cleanerd.scan.interval.ms": "1000",
}


def start(log_dir: Path) -> "subprocess.Popen[str]":
    """What a broker does first; fails with its message when the lock is taken."""
    command = [sys.executable, "-S", "-c", BROKER, str(log_dir / names.LOCK)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "started\n", process.stderr.read()
    return process


def kill(process: "subprocess.Popen[str]") -> None:
    """As the kernel does when memory runs out: the lock is gone, its file stays."""
    process.kill()
    process.communicate()


@contextlib.contextmanager
def staged(directory: Path, logs: int) -> Iterator[tuple[DaemonProcess, Path, "subprocess.Popen[str]"]]:
    """A daemon with so many results that wait, in the directory of a broker that lives."""
    topics = [f"topic-{number:03}" for number in range(logs)]
    log_dir = write_logs(directory / "logs", *topics)
    broker = start(log_dir)
    daemon = DaemonProcess(directory / "daemon", [log_dir], QUICK)
    try:
        daemon.start()
        wait_until(lambda: told_staged(daemon) == logs, STAGING_S, daemon.output)
        assert waiting(log_dir) == logs
        yield daemon, log_dir, broker
    finally:
        daemon.kill()


def told_staged(daemon: DaemonProcess) -> int:
    """Of how many logs the cleaning is over, so that none commits its result itself."""
    return sum(event["event"] == "cleaning" and event["outcome"] == "staged" for event in daemon.events())


def waiting(log_dir: Path) -> int:
    return len({path.parent for path in log_dir.glob("*/*.manifest.cleanerd")})


@pytest.mark.fault("the broker is killed")
@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_killed_broker_starts_again_whatever_is_being_committed(tmp_path: Path) -> None:
    """No hook: each start finds the lock free, after the steps that were under way at most. Pauses before it grow where a
    machine is too busy to have begun a commit.
    """
    rng, pause_s, logs = random.Random(1), 0.1, 200
    with staged(tmp_path, logs) as (daemon, log_dir, broker):
        for _ in range(100):
            kill(broker)
            threading.Event().wait(rng.random() * pause_s)
            broker = start(log_dir)
            if waiting(log_dir) == logs:
                pause_s = min(1.2 * pause_s, 2.0)
        assert waiting(log_dir) < logs, "no start met a commit"
        kill(broker)
        wait_until(lambda: waiting(log_dir) == 0, STAGING_S, daemon.output)
        assert daemon.stop() == 0
        for partition in log_dir.glob("topic-*"):
            assert_settled(partition)


@pytest.mark.broker
def test_a_real_broker_that_meets_our_lock_waits_for_it(tmp_path: Path) -> None:
    """Its open of the file waits in the kernel, so its only try of the lock comes after ours has gone."""
    log_dir = tmp_path / "logs"
    broker = KafkaBroker(tmp_path / "work", [log_dir])
    with broker:
        broker.kill()
        with ThreadPoolExecutor(1) as pool, LogDirLock(str(log_dir)) as lock:
            started = pool.submit(broker.start)
            wait_until(lambda: lock.is_wanted, START_TIMEOUT_S)
            threading.Event().wait(1.0)
            assert not started.done()
            lock.__exit__(None, None, None)
            started.result(START_TIMEOUT_S)
            assert probe(str(log_dir)) == broker.pid
            broker.stop()
            lock.__enter__()
