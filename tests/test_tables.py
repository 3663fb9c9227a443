"""The tables of traps and faults name tests that exist and run."""

from pathlib import Path

import pytest

from tests.faults import FAULTS
from tests.test_cases import functions_of
from tests.traps import TRAPS

TESTS = Path(__file__).parent
TABLES = {
    **{f"fault: {name}": tests for name, tests in FAULTS.items()},
    **{f"trap: {n}": t for n, t in TRAPS.items()},
}


def test_no_entry_is_in_both() -> None:
    assert len(TABLES) == len(FAULTS) + len(TRAPS)


@pytest.mark.parametrize("entry", TABLES)
def test_what_an_entry_names_exists_and_runs(entry: str) -> None:
    assert TABLES[entry]
    for test in TABLES[entry]:
        path, _, name = test.partition("::")
        _, decorators = functions_of(TESTS / path)[name]
        assert not [one for one in decorators if one.startswith(("pytest.mark.skip(", "pytest.mark.xfail"))]
