"""A broker for the tests of each file."""

from collections.abc import Iterator

import pytest

from tests.harness.broker.swapping import Swapping


@pytest.fixture(scope="module")
def swapping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swapping]:
    """All tests of a file share it; a transaction is open until one of them ends it."""
    with Swapping(tmp_path_factory.mktemp("swapping")) as world:
        yield world
