"""Citations of the documents in etc/reference, found in the text of the repository.

==================================  =======================================================================
spelling                            document
==================================  =======================================================================
rule 4.16, rules 1.9-1.25 and 2.8   cleaner-behaviour.md; in a docstring or comment also "(4.16)"
spec behaviour 2A                   cleaner-behaviour.md, a section
C118, D04                           cleaner-behaviour.md, a case of section 9
spec disk B4, D4.6                  disk-format.md (there and in its neighbours also "disk-format B4");
                                    in a docstring or comment also "(B4)"
X6                                  disk-format.md, an experiment
architecture 3                      architecture.md, a section
==================================  =======================================================================
"""

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "etc/reference"
BEHAVIOUR, DISK, ARCHITECTURE = "cleaner-behaviour.md", "disk-format.md", "architecture.md"
TREES = ("cleanerd", "tests", "etc", "systemd", ".ci")
FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "Dockerfile", "pyproject.toml")
_LEFT_OUT = {"golden", "__pycache__", "citations", "test_citations"}
SUFFIXES = {
    ".py",
    ".md",
    ".properties",
    ".yaml",
    ".yml",
    ".conf",
    ".service",
    ".socket",
    ".sh",
    ".1",
    ".8",
    "",
}

_NUMBER = r"(?:\d{1,2}\.[1-9]\d?(?: ?[a-d]\b)?|A\.\d|8\.N\d|\d{1,2}[A-J]\b)"
_SECTION = r"(?:\d{1,2}[A-Z]?\b)"
_PLACE = r"(?:[A-H]\d(?:\.\d)?\b|[A-H]\b|X\d{1,2}[a-h]?\b)"
_SHORT_PLACE = r"[A-H]\d(?:\.\d)?\b"
_DIGIT = r"\d\b"
_AND = r"(?:\s*[,;/-]\s*|\s+(?:and|to|or)\s+)"


def _list(item: str) -> str:
    return rf"({item}(?:{_AND}{item})*)"


# Anywhere in a text.
_NAMED = (
    (BEHAVIOUR, re.compile(rf"\b[Rr]ules? {_list(_NUMBER)}"), _NUMBER),
    (BEHAVIOUR, re.compile(rf"\b[Ss]pec behaviour (?:section )?{_list(_SECTION)}"), _SECTION),
    (BEHAVIOUR, re.compile(r"\b(C\d{3}|D[0-3]\d)\b"), r"\w+"),
    (DISK, re.compile(rf"\b(?:[Ss]pec disk|disk-format) {_list(_PLACE)}"), _PLACE),
    (ARCHITECTURE, re.compile(rf"\b[Aa]rchitecture (?:section )?{_list(_DIGIT)}"), r"\d"),
)
# In prose: comments, docstrings, Markdown.
_BARE = (
    (BEHAVIOUR, re.compile(rf"\({_list(_NUMBER)}(?=[),;]| with\b)"), _NUMBER),
    (BEHAVIOUR, re.compile(r"(?m)^ *(?:\([A-Z]\) +)?(\d{1,2}\.[1-9]\d?) {2,}\S"), r".+"),
    (DISK, re.compile(rf"\({_list(_SHORT_PLACE)}(?=[),; ])"), r"[A-H]\d(?:\.\d)?"),
    (DISK, re.compile(r"\b(X\d{1,2}[a-h]?)\b"), r".+"),
)
_FACT = re.compile(r'\brule="([^"]*)"')
AMBIGUOUS = re.compile(r"\b[Rr]ules? [A-HX]\d|\bissue:? ?\d|\(issue\b")
"""A place of the disk format called a rule; a number of something that is not in the repository."""


@dataclass(frozen=True, slots=True)
class Citation:
    """`number` as it stands in `document`, cited in `where`."""

    document: str
    number: str
    where: str


def files() -> Iterator[Path]:
    """Every text file that may cite."""
    yield from (ROOT / name for name in FILES if (ROOT / name).is_file())
    for tree in TREES:
        for path in sorted((ROOT / tree).rglob("*")):
            if path.is_file() and path.suffix in SUFFIXES and not _LEFT_OUT & {path.stem, *path.parts}:
                yield path


def citations(text: str, where: str) -> list[Citation]:
    """What a text cites; `where` ends in `.py` for Python source, in `.md` for prose."""
    if not where.endswith(".py"):
        return _cited(text, where, is_prose=where.endswith(".md"))
    found = [Citation(BEHAVIOUR, match[1], where) for match in _FACT.finditer(text)]
    for part, is_prose in _strings_and_comments(text):
        found += _cited(part, where, is_prose)
    return found


def _cited(text: str, where: str, is_prose: bool) -> list[Citation]:
    flat = re.sub(r"\s*\n\s*", " ", text)
    found = []
    for document, pattern, item in (*_NAMED, *(_BARE if is_prose else ())):
        for match in pattern.finditer(text if pattern.pattern.startswith("(?m)") else flat):
            numbers = re.findall(item, match[1])
            found += [Citation(document, number.replace(" ", ""), where) for number in numbers]
    return found


def _strings_and_comments(source: str) -> Iterator[tuple[str, bool]]:
    """(text, whether it is prose): runs of comments, docstrings and other strings."""
    comments: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.append(token.string.lstrip("#: "))
        elif token.type not in {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}:
            if comments:
                yield "\n".join(comments), True
                comments = []
            if token.type == tokenize.STRING:
                yield token.string, '"""' in token.string


def anchors(document: str, text: str) -> set[str]:
    """Every number that one of the documents gives to something."""
    return {BEHAVIOUR: _rules, DISK: _places, ARCHITECTURE: _sections}[document](text)


def _rules(text: str) -> set[str]:
    found, rule = set(), ""
    for line in text.splitlines():
        if match := re.match(r"\*\*((?:\d+|A)\.N?\d+[a-z]?)\*\* ", line) or re.match(
            r"\| (\d+\.\d+[a-z]?) \|", line
        ):
            rule = match[1]
            found.add(rule)
        elif match := re.match(r"(?:- |\| )([a-d])(?:\.| \|)", line):
            found.add(rule + match[1])
        elif match := re.match(r"#+ (\d+[A-J]?)\.? ", line) or re.match(r"- \*\*([CD]\d+)\*\* ", line):
            found.add(match[1])
    return found


def _places(text: str) -> set[str]:
    found, place = set(), ""
    for line in text.splitlines():
        if match := re.match(r"#+ ([A-H]\d?)\. ", line):
            place = match[1]
            found.add(place)
        elif match := re.match(r"(\d)\. ", line):
            found.add(f"{place}.{match[1]}")
        elif match := re.match(r"\| X(\d+)(\w?)([/\w ]*) \|", line):  # X1; X5c/d; X12 / X12b
            rest = re.findall(r"(?<![A-Z\d])[a-h]\b|(?<=\d)[a-h]\b", match[3])
            found |= {f"X{match[1]}{letter}" for letter in [match[2], *rest]}
    return found


def _sections(text: str) -> set[str]:
    return set(re.findall(r"(?m)^## (\d)\. ", text))
