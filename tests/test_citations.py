"""Every number that code, tests and documents cite stands in etc/reference."""

from collections import defaultdict

from tests.citations import (
    AMBIGUOUS,
    ARCHITECTURE,
    BEHAVIOUR,
    DISK,
    REFERENCE,
    ROOT,
    anchors,
    citations,
    files,
)

ANCHORS = {
    name: anchors(name, (REFERENCE / name).read_text(encoding="utf-8"))
    for name in (BEHAVIOUR, DISK, ARCHITECTURE)
}


def test_every_cited_number_exists() -> None:
    missing = defaultdict(list)
    count = 0
    for path in files():
        found = citations(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
        count += len(found)
        for citation in found:
            if citation.number not in ANCHORS[citation.document]:
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
