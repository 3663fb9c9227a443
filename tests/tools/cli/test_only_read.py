"""Commands that only read, as processes of a user that may not do more: they work, and nothing is another afterwards."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.broker.releases import required_program
from tests.harness.command_line import ENVIRONMENT
from tests.harness.disks.mounts import mounted

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away"),
]
COMMANDS = (("doctor",), ("digest",), ("find", "--key=key-1"), ("verify",))
OWNER = 4711
WITHOUT = "-dac_override,-dac_read_search,-fowner,-chown"
"""Capabilities of root; without them it is any other user to files that are not its own, and still has its cache."""


def stats(root: Path) -> dict[str, tuple[int, ...]]:
    found = {str(path): path.stat() for path in (root, *sorted(root.rglob("*")))}
    return {
        path: (one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_mode)
        for path, one in found.items()
    }


@pytest.mark.parametrize("mount", ["", "ro,bind", "ro,bind,noatime"])
def test_a_user_that_may_only_read(log_dir: Path, mount: str, tmp_path: Path) -> None:
    """Also where the file system is mounted read-only: there, too, each command has its answer."""
    for path in (log_dir, *log_dir.rglob("*")):
        os.chown(path, OWNER, OWNER)
        path.chmod(0o755 if path.is_dir() else 0o644)
    (log_dir / ".lock").touch(0o600)
    before, seen = stats(log_dir), log_dir
    if mount:
        (seen := tmp_path / "seen").mkdir()
        with mounted(seen, "-o", mount, str(log_dir)):
            answers = [answer(seen, *command) for command in COMMANDS]
    else:
        answers = [answer(seen, *command) for command in COMMANDS]
    assert stats(log_dir) == before
    doctor, digest, find, verify = answers
    assert (doctor["findings"], verify["findings"]) == ([], [])
    assert len(digest["logs"]) == 11
    assert {one["state"] for one in find["found"]} >= {"newest", "superseded", "aborted"}
    assert digest["failed"] == find["failed"] == []


def answer(log_dir: Path, command: str, *words: str) -> dict[str, list[dict[str, object]]]:
    who = [
        required_program("setpriv"),
        f"--bounding-set={WITHOUT}",
        sys.executable,
        "-m",
        "cleanerd.cli.main",
    ]
    ran = subprocess.run(
        [*who, command, f"--log-dir={log_dir}", *words, "-o", "json"],
        env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout))
