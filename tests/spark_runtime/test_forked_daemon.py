"""The Python daemon that a driver forks: it is used, it keeps nothing of the driver, it ends with it, and is not missed."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cleanerd.spark_runtime import forked_daemon
from cleanerd.spark_runtime.forked_daemon import ForkedDaemon, hand_over
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.harness.daemon.processes import wait_until
from tests.harness.spark import sessions

NOBODY = 65534
DRIVER = """
import sys, time
from cleanerd.spark_runtime.lazy_spark import LazySpark
import cleanerd.pipeline.tasks

def family(rows):
    import os
    list(rows)
    return [os.getpid(), os.getppid()]

session = LazySpark("local[1]")
session.begin()
print(*session.run(lambda context: context.parallelize([1], 1).mapPartitions(family).collect()), flush=True)
time.sleep(600)
"""
CONNECT = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
connection = socket.socket(socket.AF_UNIX)
connection.connect(chr(0) + sys.argv[1])
print(connection.recv(1), flush=True)
"""
LISTEN = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
listening = socket.socket(socket.AF_UNIX)
listening.bind(chr(0) + sys.argv[1])
listening.listen()
print("ready", flush=True)
listening.accept()[0].sendall(b"+")
sys.stdin.read()
"""


def family(rows: Iterable[Any]) -> list[int]:
    list(rows)  # a worker that has read its input to the end stays for the next job
    return [os.getpid(), os.getppid()]


def open_files(pid: int, above: int = -1) -> set[str]:
    """What the descriptors of a process stand for; /dev/null is nothing."""
    found = {os.devnull}
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the list itself
            if int(name) > above:
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found - {os.devnull}


def worker_and_daemon(session: LazySpark) -> tuple[int, int]:
    worker, daemon = session.run(lambda context: context.parallelize([1], 1).mapPartitions(family).collect())
    return worker, daemon


@pytest.fixture
def session(spark: LazySpark) -> Iterator[LazySpark]:
    """One that was begun, so that its context forks."""
    spark.stop()
    with sessions.session() as begun:
        begun.begin()
        yield begun


def forked_by_us(session: LazySpark) -> int:
    session.context()
    found: list[int] = []

    def is_alone() -> bool:  # what is about to become another program is a copy for a moment, too
        found[:] = [child.pid for child in psutil.Process().children() if _is_copy(child)]
        return len(found) == 1

    wait_until(is_alone, 30, lambda: f"copies of this process: {found}")
    return found[0]


def _is_copy(child: psutil.Process) -> bool:
    """Of this process. One that an earlier test has left as a zombie is none."""
    with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
        return child.cmdline() == psutil.Process().cmdline()
    return False


@pytest.mark.soak
def test_workers_of_a_session_that_was_begun_are_forked_from_the_driver_itself(session: LazySpark) -> None:
    ours = forked_by_us(session)
    worker, daemon = worker_and_daemon(session)
    assert daemon == ours
    session.stop()
    assert not psutil.pid_exists(ours)
    wait_until(lambda: not psutil.pid_exists(worker), 10, lambda: "the worker lives")


@pytest.mark.soak
def test_nothing_of_the_driver_is_open_in_it(session: LazySpark, tmp_path: Path) -> None:
    """A lock of a log directory would be held by a process that knows nothing of it; a JVM ends when its input does."""
    with open(tmp_path / "held", "w"), socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        pid = forked_by_us(session)
        before = open_files(pid)
        _, daemon = worker_and_daemon(session)
        assert daemon == pid
        mine, after = open_files(os.getpid(), above=2), open_files(pid)
    assert str(tmp_path / "held") in mine
    assert not after & mine
    assert len(before & mine - {os.readlink("/proc/self/fd/2")}) == 1, "the pipe by which it sees our end"


@pytest.mark.soak
def test_one_that_is_gone_is_not_missed(session: LazySpark) -> None:
    """Killed before it was asked: the daemon that Spark starts serves."""
    ours = forked_by_us(session)
    os.kill(ours, signal.SIGKILL)
    _, daemon = worker_and_daemon(session)
    assert daemon != ours
    assert "cleanerd.spark_runtime.python_daemon" in " ".join(psutil.Process(daemon).cmdline())


@pytest.mark.soak
def test_one_that_ends_under_its_workers_is_replaced(session: LazySpark) -> None:
    ours = forked_by_us(session)
    worker, daemon = worker_and_daemon(session)
    assert daemon == ours
    os.kill(ours, signal.SIGKILL)
    os.kill(worker, signal.SIGKILL)
    with contextlib.suppress(Exception):  # the job that met the dead worker
        worker_and_daemon(session)
    assert worker_and_daemon(session)[1] != ours


@pytest.mark.soak
@pytest.mark.parametrize("is_used", [True, False], ids=["used", "waiting"])
def test_it_ends_with_a_driver_that_is_killed(is_used: bool) -> None:
    script = DRIVER
    if not is_used:
        script = (
            DRIVER[: DRIVER.index("print(")] + "session.context(); print(0, flush=True)\ntime.sleep(600)\n"
        )
    driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline()
        family_of_it = psutil.Process(driver.pid).children(recursive=True)
        assert len(family_of_it) >= (4 if is_used else 2)
    finally:
        driver.kill()
        driver.wait()
    assert psutil.wait_procs(family_of_it, 20)[1] == []


@pytest.mark.soak
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_another_user_gets_no_answer(session: LazySpark) -> None:
    ours = forked_by_us(session)
    assert session._jvm is not None
    assert session._jvm.daemon is not None
    address = session._jvm.daemon.address
    assert f"@{address}\n" in Path("/proc/net/unix").read_text()
    told = subprocess.run(
        [sys.executable, "-c", CONNECT, address], capture_output=True, text=True, timeout=120
    )
    assert told.stdout == "b''\n", told.stderr
    assert worker_and_daemon(session)[1] == ours


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_nothing_is_handed_over_to_another_user() -> None:
    """Who takes an address that is free again hears no secret."""
    address = f"cleanerd-test-{os.getpid()}"
    stranger = subprocess.Popen(
        [sys.executable, "-c", LISTEN, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "ready\n"
        assert not hand_over(address)
    finally:
        stranger.kill()
        stranger.communicate()


def test_one_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_daemon, "_ANSWER_LIMIT_S", 0.2)
    daemon = ForkedDaemon()  # listens, and is not forked
    assert not hand_over(daemon.address)
    daemon.stop()
    assert not hand_over(daemon.address)


def test_a_driver_may_have_more_files_open_than_select_knows() -> None:
    """What the daemon waits for has the driver's numbers, which may be above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    with contextlib.ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while (descriptor := os.dup(0)) < 1024:
            held.callback(os.close, descriptor)
        held.callback(os.close, descriptor)
        daemon = ForkedDaemon()
        held.callback(daemon.stop)
        daemon.fork()
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(60)
            asking.connect(f"\0{daemon.address}")
            assert asking.recv(1) == b"+", "it takes the place of the one that asks"
