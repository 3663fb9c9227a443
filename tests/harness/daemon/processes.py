"""A real daemon process, and cleanerctl to talk to it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from tests.harness.ctl import ctl

ROOT = Path(__file__).parents[3]
START_S = 60.0


class DaemonProcess:
    """One `cleanerd run`; everything it needs lies below `directory`."""

    start_s = START_S

    def __init__(
        self,
        directory: Path,
        log_dirs: list[Path],
        settings: Mapping[str, object],
        topics: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.config = directory / "server.properties"
        self.socket = directory / "control.sock"
        self.told = directory / "stderr.log"
        self.log_dirs = log_dirs
        self.settings = dict(settings)
        self.topics = topics  # cleanup.policy by topic; None: compact for all that have a log
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def configure(self, **more: object) -> None:
        """Write the configuration file; underscores in names stand for dots."""
        self.settings |= {name.replace("_", "."): value for name, value in more.items()}
        rows = {
            "log.dirs": ",".join(map(str, self.log_dirs)),
            "cleanerd.state.dir": self.directory / "state",
            "cleanerd.control.socket": self.socket,
            "cleanerd.metrics.listen": "",
            "log.cleaner.backoff.ms": 200,
            "cleanerd.scan.interval.ms": 500,
            "cleanerd.retry.backoff.ms": 200,
            "cleanerd.log.format": "json",
            **self.settings,
        }
        topics = self.directory / "topics.d"
        topics.mkdir(parents=True, exist_ok=True)
        for topic, policy in self.policies().items():
            (topics / f"{topic}.properties").write_text(f"cleanup.policy={policy}\n")
        new = self.config.with_suffix(".new")
        new.write_text("".join(f"{name}={value}\n" for name, value in rows.items()))
        new.rename(self.config)

    def policies(self) -> dict[str, str]:
        if self.topics is not None:
            return dict(self.topics)
        found = {name.rpartition("-")[0] for log_dir in self.log_dirs for name in os.listdir(log_dir)}
        return {topic: "compact" for topic in found if topic}

    def start(self) -> "DaemonProcess":
        """Start it and wait until it says that it is ready."""
        self.spawn()
        self.wait(self.is_ready, self.start_s)
        return self

    def wait(self, is_so: Callable[[], object], timeout_s: float) -> None:
        """Poll until it is so; fails after the time limit, with what the daemon said."""
        wait_until(is_so, timeout_s, self.output)

    def wait_committed(self, *names: str, timeout_s: float = 60) -> None:
        """Until a cleaning of each of these logs was committed."""
        self.wait(lambda: all(map(self.has_committed, names)), timeout_s)

    def has_committed(self, name: str) -> bool:
        return "committed" in self.outcomes(name)

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start it and wait for nothing."""
        self.directory.mkdir(exist_ok=True)
        if not self.config.exists():
            self.configure()
        with self.told.open("ab") as told:
            self.process = subprocess.Popen(self.arguments(), cwd=ROOT, stderr=told, env=environment())
        return self.process

    def arguments(self) -> list[str]:
        return [sys.executable, "-m", "cleanerd.cli.main", "run", "--config", str(self.config)]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.output()
        answer = self.ctl("status", check=False)
        return answer.returncode == 0 and bool(json.loads(answer.stdout)["status"]["ready"])

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 30) -> int:
        """Stop it; the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """kill -9, if it still lives."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def output(self) -> str:
        return self.told.read_text()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output().splitlines() if line.startswith("{")]

    def metrics_address(self) -> str:
        """Where it serves metrics, if it was told to at any port."""
        return next(str(event["address"]) for event in self.events() if event["event"] == "metrics_listening")

    def ctl(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run cleanerctl with JSON output."""
        done = ctl("--socket", str(self.socket), *arguments, "-o", "json")
        assert not check or done.returncode == 0, (arguments, done.stdout, done.stderr, self.output()[-3000:])
        return done

    def ask(self, *arguments: str) -> Any:
        """The JSON document that a verb answers with."""
        return json.loads(self.ctl(*arguments).stdout)

    def history(self, name: str) -> list[dict[str, Any]]:
        """Events of a log, the youngest first."""
        found = self.ask("history", name)
        return list(found["events"])

    def outcomes(self, name: str) -> list[str]:
        """What became of its cleanings, the oldest first."""
        return [event["outcome"] for event in reversed(self.history(name)) if event["kind"] == "cleaning"]

    def log(self, name: str) -> dict[str, Any]:
        return dict(self.ask("log", name)["logs"][0])


def descendants(pid: int) -> list[int]:
    """A process and all below it."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [pid, *(d for child in map(int, found.stdout.split()) for d in descendants(child))]


def cmdline(pid: int) -> bytes:
    """Of a process; empty when there is none of that number."""
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_bytes() if path.exists() else b""


def environment() -> dict[str, str]:
    """Of a child: finds the source tree."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def customise(monkeypatch: pytest.MonkeyPatch, site: Path, code: str) -> None:
    """Have every Python process that a test starts run this first."""
    site.mkdir()
    (site / "sitecustomize.py").write_text(code)
    path = os.pathsep.join([str(ROOT), str(site)])
    monkeypatch.setattr(
        "tests.harness.daemon.processes.environment", lambda: {**os.environ, "PYTHONPATH": path}
    )


def wait_until(is_so: Callable[[], object], timeout_s: float, explain: Callable[[], str] = str) -> None:
    """Poll until it is so; fails after the time limit. To ask takes a third of the time at most: it may start processes."""
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        if is_so():
            return
        now = time.monotonic()
        assert now < deadline, f"not within {timeout_s} s; {explain()[-4000:]}"
        time.sleep(max(0.05, 2 * (now - began)))  # noqa: TID251  # another process is waited for


@contextmanager
def running(
    directory: Path, *log_dirs: Path, topics: Mapping[str, str] | None = None, **settings: object
) -> Iterator[DaemonProcess]:
    """A daemon that is ready; killed at the end, if it still lives."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    with DaemonProcess(directory, list(log_dirs), named, topics) as daemon:
        yield daemon.start()
