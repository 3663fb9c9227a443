"""Functions and files stay small enough to be read at once."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
FUNCTION_LINES = 60
FILE_LINES = 500
FILES = [path for tree in ("cleanerd", "tests") for path in sorted((ROOT / tree).rglob("*.py"))]


def test_functions_are_short() -> None:
    long = {
        f"{path.relative_to(ROOT)}:{node.name}": lines
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    }
    assert long == {}


def test_files_are_short() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    assert {path: count for path, count in lines.items() if count > FILE_LINES} == {}
