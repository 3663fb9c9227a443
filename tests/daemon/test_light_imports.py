"""What the supervising process imports: an idle daemon must stay small."""

import subprocess
import sys
from pathlib import Path

import cleanerd

MODULES = (
    "cleanerd.cli.configuration",
    "cleanerd.config.reload",
    "cleanerd.daemon.configuration.watch",
    "cleanerd.daemon.configuration.reload",
    "cleanerd.storage.metadata_log",
    "cleanerd.storage.metadata_tail",
    "cleanerd.storage.topic_id",
)


def test_configuration_needs_neither_numba_nor_spark() -> None:
    """Reading, checking, watching and reloading."""
    code = (
        f"import sys, importlib; [importlib.import_module(name) for name in {MODULES}];"
        "from cleanerd.config.sources import read_sources; read_sources();"
        "print([name for name in ('numba', 'llvmlite', 'pyspark', 'pandas') if name in sys.modules])"
    )
    environment = {"PYTHONPATH": str(Path(cleanerd.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
