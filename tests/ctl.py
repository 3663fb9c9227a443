"""cleanerctl in this process: what it prints and how it would exit, but no start of Python for each of hundreds of calls."""

import contextlib
import io
import os
import subprocess
from unittest import mock

from structlog.testing import capture_logs

from cleanerd.cli.ctl.main import main


def ctl(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """As a process would end. For the main thread only: what other threads print meanwhile would be among its output; what a
    daemon in this process logs is not.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        capture_logs(),
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
