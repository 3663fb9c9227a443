"""Completion scripts in real shells."""

import argparse
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanerd.cli.completion import script
from cleanerd.cli.ctl.main import COMPLETERS
from cleanerd.cli.ctl.parser import make_parser as make_ctl_parser
from cleanerd.cli.main import make_parser
from cleanerd.cli.parser import SHELLS
from tests.harness.command_line import ENVIRONMENT, Daemon, python

BASH = r"""
PATH="$1:$PATH"; source "$1/$2.bash"; shift
COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
_python_argcomplete "$1"
printf '%s\n' "${COMPREPLY[@]}"
"""
PARSERS = {"cleanerctl": make_ctl_parser, "cleanerd": make_parser}
MODULES = {"cleanerctl": "cleanerd.cli.ctl.main", "cleanerd": "cleanerd.cli.main"}


class Shell:
    """Shells with both scripts, and with programs that are these."""

    def __init__(self, directory: Path, socket: Path) -> None:
        self.directory = directory
        self.environment = ENVIRONMENT | {"CLEANERD_SOCKET": str(socket)}
        for prog in PARSERS:
            (directory / f"{prog}.bash").write_text(script(prog, "bash"))
            (directory / prog).write_text(f'#!/bin/sh\nexec {sys.executable} -m {MODULES[prog]} "$@"\n')
            (directory / prog).chmod(0o755)

    def offers(self, *words: str) -> list[str]:
        ran = subprocess.run(
            ["bash", "-c", BASH, "bash", self.directory, *words],
            env=self.environment, capture_output=True, text=True, check=True, timeout=30,
        )  # fmt: skip
        assert ran.stderr == ""
        return ran.stdout.split()


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """With a daemon that has orders-0 and orders-3."""
    daemon = Daemon(tmp_path_factory.mktemp("shell"))
    daemon.parts.jobs.request([daemon.order(3)], force=False).id = "j1"
    yield Shell(daemon.root, daemon.path)
    daemon.close()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("cleanerctl re", ["retry", "resume", "reload", "retention"]),
        ("cleanerctl log or", ["orders-0", "orders-3"]),
        ("cleanerctl explain orders-3", ["orders-3"]),
        ("cleanerctl clean or", ["orders", "orders-0", "orders-3"]),
        ("cleanerctl clean pay", []),
        ("cleanerctl jobs ", ["j1"]),
        ("cleanerctl clean orders --fo", ["--force"]),
        ("cleanerctl logs --state un", ["uncleanable"]),
        ("cleanerctl logs --state=un", ["uncleanable"]),
        ("cleanerctl -o j", ["json", "jsonl"]),
        ("cleanerctl -o json lo", ["logs", "log"]),
        ("cleanerctl pause --reason clean --tt", ["--ttl"]),
        ("cleanerctl pause --ttl 5", []),
        ("cleanerctl completion f", ["fish"]),
        ("cleanerctl --socket /nowhere log o", []),
        ("cleanerctl _na", []),
        ("cleanerd co", ["config", "completion"]),
        ("cleanerd config sh", ["show"]),
        ("cleanerd config show --or", ["--origin"]),
        ("cleanerd clean --dr", ["--dry-run"]),
        ("cleanerd clean --set log.cleaner.thr", ["log.cleaner.threads="]),
        ("cleanerd clean --topic config -o t", ["table"]),
        ("cleanerd run --log-dir /us", ["/usr/"]),
        ("cleanerd run --config /etc/passw", ["/etc/passwd", "/etc/passwd-"]),
    ],
)
def test_tab_offers_what_fits(shell: Shell, words: str, expected: list[str]) -> None:
    """Verbs, options of the verb, values; names as the daemon has them."""
    offered = shell.offers(*words.split(" "))
    assert set(offered) <= set(expected) if "/etc" in words else offered == expected


def test_a_daemon_that_is_away_or_hangs_costs_no_more_than_a_moment(tmp_path: Path) -> None:
    """Silent, nothing to offer."""
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(str(tmp_path / "hangs"))
        hanging.listen()
        for name in ("none", "hangs"):
            began = time.monotonic()
            options = argparse.Namespace(socket=str(tmp_path / name))
            assert COMPLETERS["LOG"](prefix="o", parsed_args=options) == []
            assert time.monotonic() - began < 10


@pytest.mark.parametrize("prog", PARSERS)
@pytest.mark.parametrize("shell_name", SHELLS)
def test_scripts_are_printed_and_parse(prog: str, shell_name: str, tmp_path: Path) -> None:
    """By the shell that they are for, where it is installed."""
    printed = python("-m", MODULES[prog], "completion", shell_name).stdout
    assert printed == script(prog, shell_name)
    if shutil.which(shell_name) is None:
        pytest.skip(f"no {shell_name} here")
    (tmp_path / "script").write_text(printed)
    subprocess.run([shell_name, "-n", tmp_path / "script"], check=True, capture_output=True)
