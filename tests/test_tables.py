"""The table of traps names tests that exist and run."""

from pathlib import Path

import pytest

from tests.test_cases import functions_of
from tests.traps import TRAPS

TESTS = Path(__file__).parent
TABLES = {f"trap: {name}": tests for name, tests in TRAPS.items()}


@pytest.mark.parametrize("entry", TABLES)
def test_what_an_entry_names_exists_and_runs(entry: str) -> None:
    assert TABLES[entry]
    for test in TABLES[entry]:
        path, _, name = test.partition("::")
        _, decorators = functions_of(TESTS / path)[name]
        assert not [one for one in decorators if one.startswith(("pytest.mark.skip(", "pytest.mark.xfail"))]
