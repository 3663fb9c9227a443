"""Every number that code, tests and documents cite stands in etc/reference."""

import ast
import re
from collections import defaultdict

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
