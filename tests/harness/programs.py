"""Programs of the system that some tests need; where they must be there, CLEANERD_TEST_OPERATE=1 says so."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[2]
MUST_RUN = os.environ.get("CLEANERD_TEST_OPERATE") == "1"


def need(program: str, package: str) -> str:
    """Path of a program; skips the test without it, or fails it where nothing may be skipped."""
    beside_python = os.path.dirname(sys.executable)
    path = shutil.which(program, path=f"{beside_python}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        missing(f"{program} is missing: install {package}")
    return str(path)


def missing(what: str) -> NoReturn:
    """Skip the test, or fail it where nothing may be skipped."""
    if MUST_RUN:
        pytest.fail(what)
    pytest.skip(what)


def run(
    *command: object,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60,
    check: bool = True,
    given: str | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run a command in the source tree, with nothing to read but what is given; a failure shows what it says."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        input=given or "",
        timeout=timeout_s,
        check=False,
    )
    assert not check or done.returncode == 0, (
        command,
        done.returncode,
        done.stdout[-4000:],
        done.stderr[-4000:],
    )
    return done
