"""What the daemon holds without an engine."""

import subprocess
import sys

from tests.harness.daemon.processes import environment


def test_an_idle_daemon_imports_neither_numba_nor_pyspark() -> None:
    """They would be half of its memory. Nor does reading its configuration."""
    code = (
        "import sys, cleanerd.daemon.process, cleanerd.cli.run;"
        "from cleanerd.config.sources import read_sources; read_sources();"
        "print([name for name in ('numba', 'llvmlite', 'pyspark', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment()
    )
    assert done.stdout.strip() == "[]"
