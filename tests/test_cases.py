"""Every conformance case of section 9 of cleaner-behaviour.md has a test that cites it, or a reason why there is none.

Every trap in which other log cleaners lost data or stopped, and everything that can fail around cleanerd, has a test, too:
one with the marker `trap` or `fault` and that name. `pytest -m trap`, `pytest -m fault` runs them.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.citations import BEHAVIOUR, REFERENCE, anchors

TESTS = Path(__file__).parent
_CITED = re.compile(r"(?i)(?<![0-9a-z])([CD])(\d{2,3})(?:(?:-| to )[CD]?(\d{2,3}))?(?![0-9a-z])")
_NEVER = ("skip", "xfail")  # marks with which a test proves nothing; skipif asks for what a machine may lack
_CAN_FAIL = re.compile(r"\bassert\b|pytest\.raises|check|expect")

NOT_APPLICABLE: dict[str, str] = {
    "C003": "the set of keys is as large as the round needs: it is never full, and a round always reaches its bound",
    "C004": "the set of keys knows no latest offset: a round ends at its bound",
    "C005": "the set of keys knows no latest offset: a round ends at its bound",
    "C006": "the set of keys is made for the keys of the round and has no utilization",
    "C008": "the set of keys is as large as the round needs: it is never full, and a round always reaches its bound",
    "C055": "the set of keys is as large as the round needs: it is never full, and a round always reaches its bound",
    "C060": "new segments are written at their size, never preallocated; preallocate has no effect",
    "C099": "there are no output buffers that could be too small: a rebuilt batch is made as large as it is",
    "C108": "cleanerd splits no segment: an overflowed one fails its log with file, offset and remedy (C072)",
    "C109": "cleanerd splits no segment: an overflowed one fails its log with file, offset and remedy (C072)",
    "C110": "cleanerd splits no segment: an overflowed one fails its log with file, offset and remedy (C072)",
    "C111": "cleanerd splits no segment: an overflowed one fails its log with file, offset and remedy (C072)",
    "C112": "cleanerd splits no segment: an overflowed one fails its log with file, offset and remedy (C072)",
    "C113": "an offset beyond the reach of its segment is found before anything is written (C072)",
    "C114": "no segment is filled from another one: only a split needs that (C108)",
    "C116": "loading a log is its broker's; an index without a .log belongs to no segment, and nobody reads it",
    "C117": "loading a log is its broker's, and so are its stray snapshots",
    "C121": "a deleted topic is its broker's: cleanerd deletes no directory",
    "C122": "recovering a segment is its broker's; what was recovered or not is not cleaned (spec disk G)",
    "C123": "a cleaning takes the aborted transactions of the whole log at once (4.22): there is no query by range",
    "D06": "the set of keys is as large as the round needs: it is never full, and a round always reaches its bound",
    "D11": "a round always covers whole segments (1.13): there is no partially mapped one",
}

TRAPS = {
    "control batches treated as keyed",
    "keys compared by a bare hash of 64 bits",
    "null keys",
    "transaction state across groups and partial segments",
    "an offset span beyond 2^31 after a merge",
    "output larger than its input",
    "an endless loop at holes and at dirty offsets inside of batches",
    "a log start above the base of the active segment",
    "tombstones that go too early",
    "a first dirty offset that is no longer there",
    "metrics that are lost when threads are reconfigured",
    "tombstones that go while a replica is away",
    "a stale .cleaned file (rule 5.19b)",
    "checkpoint entries of another directory",
    "a policy that changes between plan and commit",
}
FAULTS = {
    "no room before a write",
    "ENOSPC, EIO, EACCES, EROFS from a system call",
    "a disk that fills up in the middle of a write",
    "a file system that becomes read-only",
    "a slow disk",
    "a log directory that goes away",
    "calls, file systems and processes that a host refuses",
    "a limit on the size of files",
    "descriptors run out",
    "the history cannot be written",
    "the JVM or the engine is killed",
    "the JVM hangs",
    "Python workers are killed",
    "an executor of a cluster is lost",
    "a process that dies whenever it sees one log",
    "the daemon is killed",
    "the power fails",
    "the broker runs out of memory",
    "the broker is killed",
    "SIGTERM and SIGINT at any moment",
    "a client that is slow, or vanishes",
    "a wall clock that jumps",
    "several daemons and one-shots at once",
    "files that change or grow while they are read",
    "no HOME, and a cache that cannot be written",
}


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


def is_skipped(decorators: tuple[str, ...]) -> bool:
    return any(one.removeprefix("pytest.mark.").split("(")[0] in _NEVER for one in decorators)


def test_every_case_has_a_test_or_a_reason() -> None:
    known = {name for name in anchors(BEHAVIOUR, (REFERENCE / BEHAVIOUR).read_text()) if name[0] in "CD"}
    assert len(known) == 176
    proven: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        if path != Path(__file__):
            for source, decorators in functions_of(path).values():
                if _CAN_FAIL.search(source) and not is_skipped(decorators):
                    proven |= cited(source)
    assert known - proven == NOT_APPLICABLE.keys()


@pytest.mark.parametrize(("marker", "names"), [("trap", TRAPS), ("fault", FAULTS)])
def test_every_trap_and_every_fault_has_a_test(marker: str, names: set[str]) -> None:
    decorators = [
        found
        for path in TESTS.rglob("test_*.py")
        for _, found in functions_of(path).values()
        if not is_skipped(found)
    ]
    marked = (one for found in decorators for one in found if one.startswith(f"pytest.mark.{marker}("))
    assert {name for one in marked for name in re.findall(r"'([^']*)'", one)} == names
