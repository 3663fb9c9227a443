"""The command line in this process, and what a real broker left."""

from pathlib import Path

import pytest

from tests.harness.command_line import cleaning as cleaning
from tests.harness.command_line import run as run
from tests.harness.logs.logdirs import broker_log_dir


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """The log directory of a broker that stopped in order."""
    return broker_log_dir(tmp_path / "logs")
