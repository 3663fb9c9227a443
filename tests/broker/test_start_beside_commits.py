"""A broker that starts without any hook while cleanerd commits: it always starts (architecture 2).

Most starts are those of a stand-in that does with `.lock` what a broker does with it: open, try once, die if it is taken
(spec disk A3). It starts in a fraction of the time, so it meets more commits.
"""

import contextlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cleanerd.format import names
from cleanerd.storage.lock import LogDirLock, probe
from tests.broker.kafka import START_TIMEOUT_S, KafkaBroker
from tests.cleaning.logs import assert_settled, write_logs
from tests.daemon.processes import DaemonProcess, wait_until

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
    "cleanerd.log.level": "debug",
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


def slices_ms(daemon: DaemonProcess) -> list[float]:
    """How long `.lock` was held, each time something was committed."""
    return [1000 * event["seconds"] for event in daemon.events() if event["event"] == "commit_slice"]


def restart_again_and_again(directory: Path, logs: int, restarts: int) -> None:
    """Kill and start in the middle of commits; later and later on a machine that is too busy to have begun one."""
    rng, took_s, pause_s = random.Random(1), [], 0.1
    with staged(directory, logs) as (daemon, log_dir, broker):
        for _ in range(restarts):
            kill(broker)
            threading.Event().wait(rng.random() * pause_s)
            began = time.monotonic()
            broker = start(log_dir)
            took_s.append(time.monotonic() - began)
            if waiting(log_dir) == logs:
                pause_s = min(1.2 * pause_s, 2.0)
        done = logs - waiting(log_dir)
        assert done, "no start met a commit"
        kill(broker)
        wait_until(lambda: waiting(log_dir) == 0, STAGING_S, daemon.output)
        assert daemon.stop() == 0
        for partition in log_dir.glob("topic-*"):
            assert_settled(partition)
        slices = sorted(slices_ms(daemon))
        print(
            f"{restarts} restarts, {logs} logs, {done} committed between them; start s: max {max(took_s):.3f}; "
            f"slices ms: {len(slices)}, max {slices[-1]:.0f}, p99 {slices[int(len(slices) * 0.99)]:.0f}"
        )


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_killed_broker_starts_again_whatever_is_being_committed(tmp_path: Path) -> None:
    """No hook, no pause: each start finds the lock free, after the steps that were under way at most."""
    restart_again_and_again(tmp_path, 500, 200)


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
