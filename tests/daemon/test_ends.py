"""A real daemon that is asked to end at any moment, or does not get to: while it starts, cleans, commits, deletes, waits.

Nothing is half done, no traceback is told, no process stays behind. `CLEANERD_TEST_MOMENTS` says how many moments.
"""

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from cleanerd.format import names
from cleanerd.spark_runtime.java import VECTOR_MODULE
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.writer import LogWriter
from tests.harness.daemon.processes import DaemonProcess, running, wait_until
from tests.harness.daemon.tracing import PATIENCE_S, RENAMES, injecting, lasting, traced
from tests.harness.disks.by_hand import RETENTION_MS
from tests.harness.disks.ext4 import Ext4
from tests.harness.logs.troubled import SEGMENT_BYTES, TRUTH, assert_settled, newest, write_logs

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

MOMENTS = int(os.environ.get("CLEANERD_TEST_MOMENTS", "4"))
ENDED_S = 40
TOPICS = {"one": "compact", "two": "compact", "old": "delete"}
SETTINGS = {
    "cleanerd.spark.master": "local[1]",
    "log.retention.ms": RETENTION_MS,
    "log.retention.check.interval.ms": 200,
    "log.segment.delete.delay.ms": 300,
}
INTERRUPTED = 130


def dirty_logs(log_dir: Path) -> Path:
    """Two logs to clean, and one of which all but the last segment has expired. No broker lives there."""
    write_logs(log_dir, *TOPICS)
    for name in (names.META_PROPERTIES, names.REPLICATION_CHECKPOINT, names.RECOVERY_POINT_CHECKPOINT):
        (log_dir / name).unlink()
    return log_dir


def make_dirty(log_dir: Path) -> None:
    """The same records once more, so that there is everything to be done again."""
    for topic in TOPICS:
        with LogWriter(str(log_dir), topic, 0, segment_bytes=SEGMENT_BYTES) as writer:
            producer = Producer(writer)
            for key, value in TRUTH.items():
                for again in (b"once more", value):
                    producer.put(key, again, 2000)
            writer.roll()


def check(log_dir: Path) -> None:
    for topic in ("one", "two"):
        assert newest(log_dir / f"{topic}-0") == TRUTH
    list(newest(log_dir / "old-0"))


def daemon_of(directory: Path, log_dir: Path) -> DaemonProcess:
    return DaemonProcess(directory, [log_dir], SETTINGS, TOPICS)


def all_done(daemon: DaemonProcess, log_dir: Path) -> bool:
    is_cleaned = all(map(daemon.has_committed, ("one-0", "two-0")))
    segments = [path.name for path in (log_dir / "old-0").glob("*.log*")]
    return is_cleaned and len(segments) == 1 and segments[0].endswith(".log")


def measured_s(tmp_path: Path) -> float:
    """Seconds from the start of the process until everything is done."""
    logs, began = dirty_logs(tmp_path / "aside"), time.monotonic()
    daemon = daemon_of(tmp_path / "first", logs)
    daemon.start()
    daemon.wait(lambda: all_done(daemon, logs), PATIENCE_S)
    took_s = time.monotonic() - began
    assert daemon.stop() == 0
    return took_s


def family(daemon: DaemonProcess) -> list[psutil.Process]:
    root = psutil.Process(daemon.pid)
    return [root, *root.children(recursive=True)]


def check_end(daemon: DaemonProcess, logs: Path) -> None:
    """The next start cleans everything, and nothing is lost or left over."""
    daemon.start()
    daemon.wait(lambda: all_done(daemon, logs), PATIENCE_S)
    assert daemon.stop() == 0
    check(logs)
    for topic in TOPICS:
        assert_settled(logs / f"{topic}-0")


@pytest.mark.fault("SIGTERM and SIGINT at any moment")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_daemon_that_is_asked_to_end_at_any_moment_loses_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    chance, took_s = random.Random(int(number)), measured_s(tmp_path)
    logs = dirty_logs(tmp_path / "logs")
    daemon = daemon_of(tmp_path / "d", logs)
    for _ in range(MOMENTS):
        daemon.told.unlink(missing_ok=True)
        process = daemon.spawn()
        time.sleep(0.4 + chance.random() * took_s)  # noqa: TID251  # a random moment; Python needs some to begin
        living = family(daemon)
        # By the signal itself, too: on a slow machine Python has not begun.
        assert daemon.stop(number, ENDED_S) in (0, -number, INTERRUPTED)
        assert process.returncode == 0 or '"ready"' not in daemon.output()
        assert psutil.wait_procs(living[1:], 20)[1] == []
        assert "Traceback" not in daemon.output(), daemon.output()
        check(logs)
        make_dirty(logs)
    check_end(daemon, logs)


NEVER_READY = """#!/bin/sh
case "$*" in
  *--list-modules*) echo "    java.home = {home}" >&2; echo java.base@17; echo {module}@17 ;;
  *) touch {home}/began; exec cat >/dev/null ;;
esac
"""
"""A Java that starts, and ends with the process that started it, as that of Spark does."""


def test_a_daemon_whose_spark_is_still_starting_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow machine that takes longer than the daemon may take to end; there is nothing to cut off."""
    home, logs = tmp_path / "java", dirty_logs(tmp_path / "logs")
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(NEVER_READY.format(home=home, module=VECTOR_MODULE))
    (home / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    daemon = daemon_of(tmp_path / "d", logs)
    daemon.configure(cleanerd_shutdown_timeout_ms=8000)
    daemon.start()
    daemon.wait((home / "began").exists, PATIENCE_S)
    living = family(daemon)
    assert daemon.stop() == 0
    assert daemon.events()[-1]["drained"], daemon.output()
    assert psutil.wait_procs(living[1:], 20)[1] == []
    check(logs)


@pytest.mark.fault("SIGTERM and SIGINT at any moment")
@pytest.mark.parametrize("is_impatient", [False, True], ids=["once", "twice"])
def test_a_daemon_that_is_asked_to_end_in_the_middle_of_a_commit(
    tmp_path: Path, *, is_impatient: bool
) -> None:
    """Every rename lasts: it ends the commit first. The second signal ends the process at once, and the next start mends."""
    logs = dirty_logs(tmp_path / "logs")
    tracing = injecting(RENAMES, lasting(0.5), [logs / "one-0"])
    with traced(tmp_path / "d", tracing, logs, cleanerd_spark_master="local[1]") as daemon:
        daemon.wait(lambda: list((logs / "one-0").glob("*.swap")), PATIENCE_S)
        if is_impatient:
            daemon.process.send_signal(signal.SIGTERM)
            wait_until(lambda: '"stopping"' in daemon.output(), ENDED_S)
            assert daemon.stop() == INTERRUPTED
        else:
            assert daemon.stop(timeout_s=ENDED_S) == 0
            assert not list((logs / "one-0").glob("*.swap"))
        assert "Traceback" not in daemon.output()
    with running(tmp_path / "d", logs) as daemon:
        daemon.wait(lambda: daemon.log("one-0")["state"] == "clean", PATIENCE_S)
        assert_settled(logs / "one-0")
        check(logs)


@pytest.mark.fault("the power fails")
def test_the_power_fails_at_any_moment_of_a_daemon(tmp_path: Path) -> None:
    """Logs and state on an ext4 that forgets what was not synced: no record is lost, and the daemon starts again."""
    chance, took_s = random.Random(9), measured_s(tmp_path)
    disk = Ext4.made(tmp_path)
    with disk.mounted() as place:
        logs = dirty_logs(place / "logs")
    daemon = daemon_of(tmp_path / "d", logs)
    daemon.settings["cleanerd.state.dir"] = disk.place / "state"
    for number in range(MOMENTS):
        with disk.mounted():
            daemon.spawn()
            time.sleep(0.4 + chance.random() * took_s)  # noqa: TID251  # a random moment
            disk.cut(keeps_names=number % 2 == 0)
            living = family(daemon)
            for one in living:
                with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself meanwhile
                    one.kill()
            daemon.process.wait()
            psutil.wait_procs(living, 20)
        with disk.mounted():
            check(logs)
            make_dirty(logs)
    with disk.mounted():
        check_end(daemon, logs)
