"""The tables of cases, traps and faults name tests that exist and run; each case has a test that cites it."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.cases import CASES, NOT_APPLICABLE
from tests.citations import BEHAVIOUR, REFERENCE, anchors
from tests.faults import FAULTS
from tests.traps import TRAPS

TESTS = Path(__file__).parent
_CITED = re.compile(r"(?i)(?<![0-9a-z])([CD])(\d{2,3})(?:(?:-| to )[CD]?(\d{2,3}))?(?![0-9a-z])")
_NEVER = ("skip", "xfail")  # marks with which a test proves nothing; skipif asks for what a machine may lack


@cache
def functions_of(path: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Source and decorators of the test functions of a file."""
    source = path.read_text()
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            decorators = tuple(ast.unparse(one) for one in node.decorator_list)
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            found[node.name] = "\n".join(source.splitlines()[first - 1 : node.end_lineno]), decorators
    return found


def cited(text: str) -> set[str]:
    """The cases that a text names; a range names all that are in it."""
    found = set()
    for letter, first, last in _CITED.findall(text.replace("_", " ")):
        if (letter in "Cc") == (len(first) == 3):
            numbers = range(int(first), int(last or first) + 1)
            found |= {f"{letter.upper()}{number:0{len(first)}}" for number in numbers}
    return found


def test_every_case_is_in_the_table_once() -> None:
    known = {name for name in anchors(BEHAVIOUR, (REFERENCE / BEHAVIOUR).read_text()) if name[0] in "CD"}
    assert len(known) == 176
    assert CASES.keys() | NOT_APPLICABLE.keys() == known
    assert not CASES.keys() & NOT_APPLICABLE.keys()


@pytest.mark.parametrize("case", CASES)
def test_what_proves_a_case_exists_runs_and_cites_it(case: str) -> None:
    assert CASES[case]
    for test in CASES[case]:
        path, _, name = test.partition("::")
        source, decorators = functions_of(TESTS / path)[name]
        assert case in cited(source), f"{test} does not say that it is about {case}"
        assert not [one for one in decorators if one.removeprefix("pytest.mark.").split("(")[0] in _NEVER]
        assert re.search(r"\bassert\b|pytest\.raises|check|expect", source), f"{test} cannot fail"


def test_every_test_that_is_named_after_a_case_is_in_the_table() -> None:
    """A test whose name begins with a case was written for it."""
    missing = [
        (case, f"{path.relative_to(TESTS)}::{name}")
        for path in sorted(TESTS.rglob("test_*.py"))
        for name in functions_of(path)
        for case in cited(name)
        if f"{path.relative_to(TESTS)}::{name}" not in CASES.get(case, ())
    ]
    assert not missing


@pytest.mark.parametrize("entry", [*FAULTS, *TRAPS])
def test_what_a_fault_or_a_trap_names_exists_and_runs(entry: str) -> None:
    tests = [*FAULTS.get(entry, ()), *TRAPS.get(entry, ())]
    assert tests
    for path, _, name in (test.partition("::") for test in tests):
        decorators = functions_of(TESTS / path)[name][1]
        assert not [one for one in decorators if one.startswith(("pytest.mark.skip(", "pytest.mark.xfail"))]
