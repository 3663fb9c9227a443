"""The command line in this process, with a stand-in for the cleaning."""

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import cleanerd
from cleanerd.cleaning.result import CleanRequest, LogResult, Progress
from cleanerd.cli.main import main
from cleanerd.env.clock import Clock
from tests.harness.ctl import ctl
from tests.harness.daemon import processes
from tests.harness.daemon.served import Served
from tests.harness.daemon.tracing import PATIENCE_S


@dataclass
class FakeCleaning:
    """Answers with `results`, or raises `error`, and remembers what it was asked."""

    results: list[LogResult] = field(default_factory=list)
    error: BaseException | None = None
    request: CleanRequest | None = None  # the first of `requests`
    requests: Sequence[CleanRequest] = ()
    now_ms: int = 0

    def __call__(self, requests: Sequence[CleanRequest], progress: Progress, clock: Clock) -> list[LogResult]:
        self.requests, self.request, self.now_ms = requests, requests[0], clock.now_ms()
        if self.error:
            raise self.error
        for result in self.results:
            tp, found = result.topic_partition, result.statistics
            progress.planned(tp, result.log_dir, 2 * found.bytes_read)
            progress.advanced(tp, result.log_dir, "index", found.bytes_read, found.records_read)
            progress.finished(result)
        return self.results


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(cleanerd.__file__).parents[1])}
"""For a process of its own, which must find the package that is tested, installed or not."""


def python(*arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Another Python, until it ends."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)], env=ENVIRONMENT | environment,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def verbs(parser: argparse.ArgumentParser, before: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The verbs of a parser that are shown, and their verbs, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, verb in action.choices.items():
                if not name.startswith("_"):
                    yield before + name, verb
                    yield from verbs(verb, f"{before}{name} ")


def read_all(master: int) -> bytes:
    """What was written to a terminal whose other end is closed."""
    data = b""
    while True:
        try:
            data += os.read(master, 65536)
        except OSError:  # EIO
            os.close(master)
            return data


def make_log_dir(path: Path) -> None:
    (path / "empty-0").mkdir(parents=True)
    (path / "empty-0" / "00000000000000000000.log").touch()


class Daemon(Served):
    """A daemon and the command line that talks to it."""

    def ctl(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return ctl("--socket", str(self.path), *arguments)

    def json(self, *arguments: str) -> dict[str, Any]:
        ran = self.ctl(*arguments, "-o", "json")
        assert ran.stderr == ""
        found = json.loads(ran.stdout)
        assert found.pop("apiVersion") == "cleanerd/v1"
        return dict(found)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    served = Daemon(tmp_path)
    yield served
    served.close()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stdout is one, 40 columns wide."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("os.get_terminal_size", lambda *_: os.terminal_size((40, 20)))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def cleaning() -> FakeCleaning:
    return FakeCleaning()


@pytest.fixture
def run(
    cleaning: FakeCleaning,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """Run `cleanerd` with some arguments, in a directory and an environment of its own; the directory has an empty log."""
    for name in list(os.environ):
        if name.startswith(("KAFKA_", "CLEANERD_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    make_log_dir(tmp_path)

    def _run(*arguments: str) -> Ran:
        code = main(arguments, clean_once=cleaning)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return _run


CLEANERD = [sys.executable, "-m", "cleanerd.cli.main"]
CTL = [sys.executable, "-m", "cleanerd.cli.ctl.main"]


def clean(log_dir: Path, *options: str, file_bytes: int | None = None) -> "subprocess.Popen[str]":
    """A real `cleanerd clean` in a session of its own, with a limit on the size of files that it may write."""

    def limited() -> None:
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    given = (
        f"--log-dir={log_dir}",
        "--set=log.cleanup.policy=compact",
        "--set=cleanerd.spark.master=local[1]",
    )
    return subprocess.Popen(
        [*CLEANERD, "clean", "--force", "-o", "json", *given, *options],
        cwd=processes.ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=limited,
        env=processes.environment(), start_new_session=True,
    )  # fmt: skip


def results(process: "subprocess.Popen[str]") -> dict[str, dict[str, str]]:
    """By topic, when it is done."""
    out, err = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in err, err
    return {result["topic"]: result for result in json.loads(out)["results"]}
