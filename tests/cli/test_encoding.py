"""Every command in every format writes to a stream that has no UTF-8: what the work was, the exit code still says."""

import argparse
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cleanerd.cleaning.outcomes import Skipped
from cleanerd.cleaning.result import LogResult
from cleanerd.cli import main as cleanerd_main
from cleanerd.cli.ctl import main as ctl_main
from cleanerd.cli.ctl.parser import make_parser as ctl_parser
from cleanerd.cli.options import FORMATS
from cleanerd.cli.output import prepare_streams, write
from cleanerd.daemon.api.verbs import pause
from cleanerd.format.names import TopicPartition
from tests.harness.command_line import Daemon, FakeCleaning, verbs
from tests.harness.logs.logdirs import GOLDEN

DIRECTORY = f"--log-dir={GOLDEN}"
COMMANDS = {
    "clean": [DIRECTORY],
    "verify": [DIRECTORY, "--topic=plain"],
    "config show": [DIRECTORY, "--origin"],
    "salvage": [str(GOLDEN / "plain-0")],
}
ENCODINGS = ("ascii", "latin-1")


class Streams:
    """Standard output and error of an encoding, in a `with` of the test itself: pytest has its own around each phase."""

    def __init__(self, encoding: str) -> None:
        self.written = io.BytesIO()
        self._patch = pytest.MonkeyPatch()
        self._streams = [io.TextIOWrapper(self.written, encoding, write_through=True) for _ in range(2)]

    def __enter__(self) -> "Streams":
        self._patch.setattr(sys, "stdout", self._streams[0])
        self._patch.setattr(sys, "stderr", self._streams[1])
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def text(self) -> str:
        return self.written.getvalue().decode("ascii")


@pytest.fixture
def plain() -> Streams:
    """What cannot be written in the other encodings cannot be written in this one."""
    return Streams("ascii")


@pytest.fixture(params=ENCODINGS)
def streams(request: pytest.FixtureRequest) -> Streams:
    return Streams(request.param)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("command", COMMANDS)
def test_cleanerd(command: str, form: str, plain: Streams, tmp_path: Path) -> None:
    arguments = [*command.split(), *COMMANDS[command], "-o", form]
    if command == "salvage":
        arguments += ["--output", str(tmp_path / "saved")]
    cleaning = FakeCleaning([LogResult(TopicPartition("t", 0), "/data/\udcff", Skipped("1 \u2265 2 \u4e2d"))])
    with plain:
        code = cleanerd_main.main(arguments, clean_once=cleaning)
    assert code == 0, plain.text()
    assert plain.text()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One whose log orders-0 is paused."""
    daemon = Daemon(tmp_path_factory.mktemp("served"))
    pause.pause(daemon.control, "orders-0", "me", "1 \u2265 2 \u4e2d")
    yield daemon
    daemon.close()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("verb", ["explain orders-0", "holds", "status"])
def test_cleanerctl(verb: str, form: str, plain: Streams, served: Daemon) -> None:
    with plain, capture_logs():  # the daemon logs in this process
        code = ctl_main.main(["--socket", str(served.path), *verb.split(), "-o", form])
    assert code == 0, plain.text()
    assert plain.text()


@pytest.mark.parametrize(
    "parser", [cleanerd_main.make_parser(), ctl_parser()], ids=["cleanerd", "cleanerctl"]
)
def test_every_help(parser: argparse.ArgumentParser, streams: Streams) -> None:
    with streams:
        prepare_streams()
        for _, verb in verbs(parser):
            verb.print_help()
    assert streams.text()


def test_tables_have_lines_of_dashes_and_nothing_is_lost(streams: Streams) -> None:
    """A path that is not UTF-8 is written as Python writes it, under UTF-8 too."""
    with streams:
        prepare_streams()
        write(f"\u2500\u2500 \u22652 {os.fsdecode(bytes([255]))} \u4e2d\n")
    assert streams.text() == "-- >=2 \\udcff \\u4e2d\n"
