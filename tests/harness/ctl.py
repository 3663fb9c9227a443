"""Commands in this process: what they print and how they would exit, but no start of Python for each of hundreds."""

import contextlib
import io
import os
import subprocess
from collections.abc import Callable, Sequence
from unittest import mock

from structlog.testing import capture_logs

from cleanerd.cli.ctl.main import main


def ctl(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """cleanerctl, as a process would end. What a daemon in this process logs is not among its output."""
    with capture_logs(), mock.patch.dict(os.environ, environment):
        return captured(main, arguments)


def captured(
    command: Callable[[Sequence[str]], int], arguments: Sequence[str]
) -> "subprocess.CompletedProcess[str]":
    """For the main thread only: what other threads print meanwhile would be among its output."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = command(arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
