"""The daemon as a process: what it does by itself, and what it answers."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.writer import LogWriter
from tests.harness.daemon.processes import DaemonProcess, cmdline, descendants, running
from tests.harness.logs.troubled import SEGMENT_BYTES, assert_settled, newest, write_logs

pytestmark = pytest.mark.soak

IDLE_RSS_BYTES_MAX = 120 << 20


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("daemon")


@pytest.fixture(scope="module")
def daemon(place: Path) -> Iterator[DaemonProcess]:
    """One daemon for the tests that leave it as it was."""
    write_logs(place / "logs", "first", "second")
    with running(place / "d", place / "logs") as daemon:
        yield daemon


def test_dirty_logs_are_cleaned_in_one_job_and_nothing_is_left_over(
    daemon: DaemonProcess, place: Path
) -> None:
    """D16 among it."""
    daemon.wait_committed("first-0", "second-0")
    for name in ("first-0", "second-0"):
        assert_settled(place / "logs" / name)
        assert len(newest(place / "logs" / name)) == 7
    _check_times(place / "logs" / "first-0")
    cleanings = [event for event in daemon.history("*") if event["kind"] == "cleaning"]
    assert len({event["job_id"] for event in cleanings}) == 1
    assert daemon.log("first-0")["state"] == "clean"


def _check_times(log: Path) -> None:
    """D16, rule 4.12: a cleaned segment and its indexes are as old as its newest source."""
    first, active = min(log.glob("*.log")), max(log.glob("*.log"))
    times = {first.with_suffix(suffix).stat().st_mtime_ns for suffix in (".log", ".index", ".timeindex")}
    assert len(times) == 1
    assert times.pop() <= active.stat().st_mtime_ns


def test_a_second_daemon_is_refused_with_the_pid_of_the_first(daemon: DaemonProcess, place: Path) -> None:
    """Also where both have the same metrics address: it is the first daemon that is in the way."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        other = DaemonProcess(place / "other", [place / "logs"], {"cleanerd.metrics.listen": address})
        assert other.spawn().wait(60) == 1
    assert f"another cleanerd works in {place / 'logs'} (process {daemon.pid})" in other.output()


def test_a_request_cleans_what_is_not_dirty_enough_and_waits_for_it(
    daemon: DaemonProcess, place: Path
) -> None:
    daemon.wait_committed("first-0")
    with LogWriter(str(place / "logs"), "first", 0, segment_bytes=SEGMENT_BYTES) as writer:
        Producer(writer).put(b"key 1", b"newest", 9_000)
        end = writer.log_end_offset
    jobs = daemon.ask("clean", "first-0", "--force", "--wait")["jobs"]
    assert [job["state"] for job in jobs] == ["done"]
    assert newest(place / "logs" / "first-0")[b"key 1"] == b"newest"
    awaited = daemon.ctl("await", "first-0", str(end + 10_000), "--timeout", "1", check=False)
    assert awaited.returncode == 75


def test_a_rejected_reload_changes_nothing_and_names_all_problems(daemon: DaemonProcess) -> None:
    limits = daemon.ask("throttle")["throttle"]["limits"]
    daemon.configure(log_cleaner_io_max_bytes_per_second=0, cleanerd_retry_max=-1)
    answer = daemon.ctl("reload", check=False)
    assert answer.returncode == 1
    for key in ("log.cleaner.io.max.bytes.per.second", "cleanerd.retry.max"):
        assert key in answer.stdout + answer.stderr
    assert daemon.ask("throttle")["throttle"]["limits"] == limits
    del daemon.settings["cleanerd.retry.max"]
    daemon.configure(log_cleaner_io_max_bytes_per_second=5e6)
    daemon.wait(lambda: daemon.ask("throttle")["throttle"]["limits"]["io_bytes_per_s"] == 5e6, 20)
    del daemon.settings["log.cleaner.io.max.bytes.per.second"]
    daemon.configure()
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait(lambda: daemon.ask("throttle")["throttle"]["limits"]["io_bytes_per_s"] is None, 20)


@pytest.mark.fault("the JVM or the engine is killed")
@pytest.mark.soak
def test_killed_jvm_costs_a_retry_and_a_killed_engine_too(daemon: DaemonProcess, place: Path) -> None:
    daemon.wait_committed("second-0")
    for number, victim in enumerate(["java", "engine.process"]):
        daemon.ask("pause", "second-0", "--owner", "test", "--reason", "nobody else")
        with LogWriter(str(place / "logs"), "second", 0, segment_bytes=SEGMENT_BYTES) as writer:
            Producer(writer).put(b"key 1", b"after %d" % number, 9_000)
            writer.roll()
        assert _kill_children(daemon, victim)
        daemon.ask("resume", "second-0")
        daemon.ask("clean", "second-0", "--force", "--wait")
        daemon.wait(lambda: daemon.log("second-0")["state"] == "clean", 60)
        assert newest(place / "logs" / "second-0")[b"key 1"] == b"after %d" % number
        assert daemon.log("second-0")["failures"] == 0


def test_scratch_files_of_a_killed_cleanerd_go_when_the_daemon_starts(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cleaning has to come first."""
    monkeypatch.setenv("CACHE_DIRECTORY", str(place / "cache"))
    left = place / "cache" / "spark" / "cleanerd-scratch-left"
    left.mkdir(parents=True)
    (left / "blocks").write_bytes(bytes(1 << 20))
    (place / "none").mkdir()
    with running(place / "s", place / "none") as daemon:
        daemon.wait(lambda: not left.exists(), 10)


def _kill_children(daemon: DaemonProcess, what: str) -> list[int]:
    """Kill those of its processes whose command line names this."""
    victims = [pid for pid in descendants(daemon.pid) if what.encode() in cmdline(pid)]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    daemon.wait(lambda: all(map(_has_ended, victims)), 20)
    return victims


def _has_ended(pid: int) -> bool:
    """Also if its parent has not noticed."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.soak
def test_the_idle_daemon_is_small_and_holds_no_compiler(place: Path) -> None:
    """Memory goes back after cleanerd.spark.idle.timeout.ms; 120 MiB are allowed without a session."""
    logs = write_logs(place / "idle", "one")
    with running(place / "i", logs, cleanerd_spark_idle_timeout_ms=100) as daemon:
        daemon.wait_committed("one-0")
        daemon.wait(lambda: not daemon.ask("status")["status"]["spark_session_up"], 20)
        alone = [daemon.pid]
        daemon.wait(lambda: descendants(alone[0]) == alone, 20)  # the engine is given time to end
        assert psutil.Process(daemon.pid).memory_info().rss < IDLE_RSS_BYTES_MAX
        maps = Path(f"/proc/{daemon.pid}/maps").read_text()
        assert "llvmlite" not in maps
        assert daemon.stop() == 0


def test_bad_configuration_ends_with_78_and_names_every_problem(place: Path) -> None:
    daemon = DaemonProcess(place / "b", [place / "logs"], {"log.cleaner.threads": 0, "cleanerd.nonsense": 1})
    assert daemon.spawn().wait(60) == 78
    assert "log.cleaner.threads" in daemon.output()
    assert "cleanerd.nonsense" in daemon.output()
