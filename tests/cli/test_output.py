"""What people read: nothing that others have put into it does anything to their terminal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cleanerd import API_VERSION
from tests.harness.command_line import ENVIRONMENT, Run, make_log_dir

HOSTILE = b"\x1b]0;pwned\x07\x1b[2J\xff\ncleanerd: all is well"


@pytest.mark.parametrize(
    "command", ["clean", "verify", "find --key k", "digest", "doctor", "inspect", "rescue"]
)
def test_names_in_a_directory_do_nothing_to_a_terminal(command: str, tmp_path: Path, run: Run) -> None:
    """Of files that anybody may make, in messages as in tables; none passes for a message of its own."""
    (log_dir := tmp_path / "logs").mkdir()
    for name in (HOSTILE, HOSTILE + b"-stray"):
        (Path(os.fsdecode(os.fsencode(log_dir) + b"/" + name))).mkdir()
    ran = run(*command.split(), "--log-dir", str(log_dir))
    assert not {"\x1b", "\x07"} & {*ran.out, *ran.err}
    assert "\ncleanerd: all is well" not in ran.err


def test_texts_of_another_machine_do_nothing_to_a_terminal(tmp_path: Path, run: Run) -> None:
    """In a report that was copied here."""
    hostile = os.fsdecode(HOSTILE)
    finding = {
        "code": "due", "severity": "error", "meaning": hostile, "path": hostile, "topic": None, "partition": None,
        "offset": None, "evidence": hostile, "cost_bytes": None, "cost_per_month": None, "remedy": hostile,
    }  # fmt: skip
    report = {
        "apiVersion": API_VERSION, "at_ms": 0, "node_id": 1, "cluster_id": "c", "is_whole": True,
        "directories": [], "logs": [], "findings": [finding],
    }  # fmt: skip
    (path := tmp_path / "report.json").write_text(json.dumps(report))
    ran = run("doctor", "--merge", str(path))
    assert (ran.code, "remedy: ?]0;pwned" in ran.out) == (3, True)
    assert "\x1b" not in ran.out


def test_what_cannot_be_said_changes_nothing(tmp_path: Path) -> None:
    """The log of a cron job, on the disk that `rescue` is to free: the exit code is that of the work."""
    make_log_dir(tmp_path)
    words = ("find", "--key=nowhere", f"--log-dir={tmp_path}")
    with open("/dev/full", "w", encoding="ascii") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "cleanerd.cli.main", *words],
            env=ENVIRONMENT,
            stderr=full,
            timeout=60,
            check=False,
        )
    assert ran.returncode == 4
