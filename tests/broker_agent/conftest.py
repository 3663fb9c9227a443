"""A broker of their own for the tests of the agent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.swapping import Swapping


@pytest.fixture
def swapping(tmp_path: Path) -> Iterator[Swapping]:
    with Swapping(tmp_path) as world:
        yield world
