"""Parts of a daemon that several files are about."""

import pytest

from cleanerd.daemon.work.states import PartitionStates
from tests.harness.daemon.world import world as world


@pytest.fixture
def states() -> PartitionStates:
    """Nothing recorded yet."""
    return PartitionStates()
