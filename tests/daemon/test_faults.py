"""Faults of the machine under a real daemon and a real `cleanerd clean`.

Nothing is lost, the right log is blamed, the rest goes on. Errors of system calls are injected by strace, for files of one
log alone. What else can fail is listed in `tests/faults.py`.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cleaning.logs import TRUTH, assert_settled, newest, write_logs
from tests.daemon.processes import DaemonProcess, running, wait_until
from tests.daemon.test_process import committed
from tests.operate.tools import need

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

PATIENCE_S = 300
STAGED_KINDS = (".log", ".index", ".timeindex", ".part")


@dataclass(frozen=True)
class Injected:
    """An error of system calls on files of a log: on `.log` files themselves, or on what is staged."""

    calls: str
    error: int
    is_staged: bool


INJECTED = {
    "source cannot be opened": Injected("openat", errno.EACCES, is_staged=False),
    "source cannot be read": Injected("read,pread64,preadv", errno.EIO, is_staged=False),
    "sync fails": Injected("fsync,fdatasync", errno.EIO, is_staged=True),
}


def names_of(partition: Path, *, is_staged: bool) -> list[Path]:
    """Files of a log, or those that its cleaning stages."""
    logs = sorted(partition.glob("*.log"))
    if not is_staged:
        return logs
    bases = {int(log.stem) + one for log in logs for one in range(3)}
    return [partition / f"{base:020d}{kind}.cleanerd" for base in sorted(bases) for kind in STAGED_KINDS]


class Traced(DaemonProcess):
    """A daemon below strace; its pid is its own."""

    tracing: tuple[str, ...] = ()
    start_s = PATIENCE_S

    def arguments(self) -> list[str]:
        return [*self.tracing, *super().arguments()]


@contextmanager
def traced(directory: Path, tracing: tuple[str, ...], *log_dirs: Path) -> Iterator[DaemonProcess]:
    directory.mkdir()
    daemon = Traced(directory, list(log_dirs), {"cleanerd.retry.max": 100})
    daemon.tracing = tracing
    try:
        yield daemon.start()
    finally:
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.process.kill()
            daemon.process.wait()


def failures(daemon: DaemonProcess, name: str) -> list[str]:
    """Reasons of its failed cleanings, the youngest first."""
    return [event["reason"] for event in daemon.history(name) if event["outcome"] == "failed"]


@pytest.mark.parametrize("fault", INJECTED)
def test_a_failing_call_is_the_trouble_of_its_log_and_passes(fault: str, tmp_path: Path) -> None:
    injected = INJECTED[fault]
    good, bad = write_logs(tmp_path / "good", "one"), write_logs(tmp_path / "bad", "two")
    paths = names_of(bad / "two-0", is_staged=injected.is_staged)
    inject = f"inject={injected.calls}:error={errno.errorcode[injected.error]}"
    tracing = (
        need("strace", "strace"),
        "-f",
        "-D",
        "--seccomp-bpf",
        "-o",
        "/dev/null",
        "-e",
        f"trace={injected.calls}",
    )
    tracing += ("-e", inject, *(word for path in paths for word in ("-P", str(path))))
    with traced(tmp_path / "d", tracing, good, bad) as daemon:
        wait_until(lambda: committed(daemon, "one-0") and _complaints(daemon, bad), PATIENCE_S, daemon.output)
        assert any(os.strerror(injected.error) in told for told in _complaints(daemon, bad)), daemon.output()
        assert newest(bad / "two-0") == TRUTH
        assert newest(good / "one-0") == TRUTH
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.output()
    with running(tmp_path / "d", good, bad) as daemon:
        daemon.ctl("retry", "*", check=False)
        wait_until(lambda: committed(daemon, "two-0"), PATIENCE_S, daemon.output)
        assert_settled(bad / "two-0")
        assert newest(bad / "two-0") == TRUTH


def _complaints(daemon: DaemonProcess, place: Path) -> list[str]:
    """What it says about a log directory or a log in it."""
    told = [str(event["reason"]) for event in daemon.events() if "reason" in event]
    return [reason for reason in told if str(place) in reason]
