"""Every number that code, tests and documents cite stands in etc/reference."""

import ast
import re
from collections import defaultdict

import pytest

from tests.citations import (
    AMBIGUOUS,
    ARCHITECTURE,
    BEHAVIOUR,
    DISK,
    REFERENCE,
    ROOT,
    Citation,
    anchors,
    citations,
    files,
)

ANCHORS = {
    name: anchors(name, (REFERENCE / name).read_text(encoding="utf-8"))
    for name in (BEHAVIOUR, DISK, ARCHITECTURE)
}


def unknown(found: list[Citation]) -> list[Citation]:
    return [citation for citation in found if citation.number not in ANCHORS[citation.document]]


def test_every_cited_number_exists() -> None:
    missing = defaultdict(list)
    count = 0
    for path in files():
        found = citations(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
        count += len(found)
        for citation in unknown(found):
            missing[f"{citation.document} {citation.number}"].append(citation.where)
    assert count > 500  # the scanner sees them at all
    assert not missing


def test_numbers_are_cited_in_one_spelling() -> None:
    """A place of the disk format is no rule, and what is cited is in the repository."""
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files()
        for match in AMBIGUOUS.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"""(rules 1.9-1.25, 4.16 b, and A.3)."""', [(BEHAVIOUR, "1.9"), (BEHAVIOUR, "1.25"), (BEHAVIOUR, "4.16b")]),
        ("# as Kafka (7.14)\n", [(BEHAVIOUR, "7.14")]),
        ('x = "rule 4.31 alone (0.25)"', [(BEHAVIOUR, "4.31")]),
        ('Fact(name="x", rule="1.21")', [(BEHAVIOUR, "1.21")]),
        ('"""Table of spec behaviour 2A; cases C012-C036, D04."""',
         [(BEHAVIOUR, "2A"), (BEHAVIOUR, "C012"), (BEHAVIOUR, "C036"), (BEHAVIOUR, "D04")]),
        ('"""(spec\n    disk D4.6, G; (B8)."""', [(DISK, "D4.6"), (DISK, "G"), (DISK, "B8")]),
        ("# X6, X5e: left behind\n", [(DISK, "X6"), (DISK, "X5e")]),
        ("# steps 4 to 7 (architecture 3,\n#     section 4)\n", [(ARCHITECTURE, "3")]),
        ('"""\n(A)  4.31   copied\n1.32            left alone\n"""', [(BEHAVIOUR, "4.31"), (BEHAVIOUR, "1.32")]),
        ("pause(0.5); ratio = 1.25 # waits (0.2 s)\n", []),
    ],
)  # fmt: skip
def test_the_scanner_sees(text: str, expected: list[tuple[str, str]]) -> None:
    found = [(citation.document, citation.number) for citation in citations(text, "x.py")]
    assert set(expected) <= set(found)
    assert expected or not found


@pytest.mark.parametrize(
    "text",
    [
        '"""Rule 4.99."""',
        '"""(4.99)."""',
        "# rules 4.16, 4.99\n",
        'Fact(name="x", rule="99.1")',
        '"""Case C999."""',
        '"""Case D21."""',
        '"""Rule 1.5d."""',
        '"""Spec disk D4.9."""',
        '"""Spec disk B9."""',
        '"""Experiment X99."""',
        '"""Architecture 9."""',
        '"""Spec behaviour 2Z, 2J."""',
    ],
)
def test_a_number_that_does_not_exist_is_found(text: str) -> None:
    assert unknown(citations(text, "x.py"))


def test_numbers_of_the_documents_are_given_once() -> None:
    """A citation means one thing."""
    text = (REFERENCE / BEHAVIOUR).read_text(encoding="utf-8")
    starts = [line.split("**")[1] for line in text.splitlines() if line.startswith(("**", "- **C", "- **D"))]
    numbers = [start for start in starts if start[:1].isdigit() or start[1:].replace(".", "").isdigit()]
    assert len(numbers) > 300
    assert sorted(numbers) == sorted(set(numbers))


def test_the_facts_of_explain_cite_the_rules_that_they_are_about() -> None:
    """An operator who looks a rule up must find the words of the fact there."""
    paths = [ROOT / "cleanerd/daemon/reports" / name for name in ("explain.py", "retention.py")]
    facts = [
        {keyword.arg: ast.unparse(keyword.value).strip("'") for keyword in call.keywords}
        for path in paths
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("Fact")
    ]
    cited = {fact["name"]: fact["rule"] for fact in facts if "rule" in fact}
    assert len(cited) >= 8
    text = (REFERENCE / BEHAVIOUR).read_text(encoding="utf-8").replace("HW", "high watermark")
    for name, rule in cited.items():
        part = re.search(
            rf"(?:\*\*|### ){re.escape(rule)}(?:\*\*|\.)? (.*?)(?=\n\*\*\d|\n#)", text, re.DOTALL
        )
        assert part is not None
        words = re.findall(r"\w+", part[1].lower())
        wanted = re.findall(r"\w+", name.removesuffix(" offset"))
        assert set(wanted) <= set(words), f"{name}: rule {rule} says {part[1]}"
