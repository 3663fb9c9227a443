"""A world for those that need one as it is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operate.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()
