"""The key table against spec behaviour section 8 and against the models that it fills."""

import re
from pathlib import Path

import pytest

import cleanerd
from cleanerd.config.keys import (
    BROKER_KEYS,
    MS_PER_UNIT,
    TOPIC_KEYS,
    WITHOUT_EFFECT,
)
from cleanerd.config.model import CleanerdConfig, TopicConfig
from cleanerd.config.reference import render_reference
from cleanerd.config.settings import Key, Scope, declared_keys
from tests.citations import BEHAVIOUR, REFERENCE

PACKAGE = Path(cleanerd.__file__).parent
BY_NAME = {"node.id", "broker.id"}
"""Keys that the loader reads by name."""


def rows(section: str) -> list[list[str]]:
    """Cells of the table of a section of the specification."""
    text = (REFERENCE / BEHAVIOUR).read_text().partition(f"\n### {section}. ")[2]
    (table,) = re.findall(r"(?:^\|.*\n)+", text.partition("\n### ")[0], re.MULTILINE)
    return [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]


def names(cell: str) -> list[str]:
    return re.findall(r"`([a-z][a-z.]+)`", cell)


def has_default(key: Key, cell: str) -> bool:
    text = cell.replace("\N{MINUS SIGN}", "-").replace("2^63-1", str(2**63 - 1))
    return key.default == (None if text == "null" else key.type.parse(text))


@pytest.mark.parametrize("row", rows("8B"), ids=lambda row: row[0])
def test_8b_topic_keys_with_their_synonyms_and_defaults(row: list[str]) -> None:
    """Of the broker keys only the first can be changed at run time (N5); N6 among the defaults."""
    topic_keys, synonyms, _, default, _, dynamic = row
    keys = names(topic_keys)
    for place, (name, text) in enumerate(zip(keys, default.split(" / "), strict=True)):
        if name in WITHOUT_EFFECT:
            assert name not in TOPIC_KEYS
            assert WITHOUT_EFFECT.keys() >= set(names(synonyms)[place :: len(keys)])
            continue
        key = TOPIC_KEYS[name]
        assert list(key.synonyms) == names(synonyms)[place :: len(keys)]
        assert has_default(key, text)
        scopes = [BROKER_KEYS[synonym].scope for synonym in key.synonyms]
        assert scopes == [Scope.RELOADABLE] + [Scope.STATIC] * (len(scopes) - 1)
    assert dynamic.startswith("cluster")


@pytest.mark.parametrize("row", [*rows("8A"), *rows("8C")], ids=lambda row: row[0])
def test_8a_8c_broker_keys_with_their_defaults_or_the_reason_why_they_have_no_effect(row: list[str]) -> None:
    """The seven of 7.18 can be changed at run time."""
    for name, text in zip(names(row[0]), row[2].split(" / "), strict=True):
        if name in WITHOUT_EFFECT:
            assert name not in BROKER_KEYS
            assert WITHOUT_EFFECT[name]
        else:
            assert has_default(BROKER_KEYS[name], text)
            assert (BROKER_KEYS[name].scope is Scope.RELOADABLE) == row[4].startswith("cluster")


def test_defaults_of_synonyms_agree_with_their_topic_key() -> None:
    """A default is the same whichever way one comes to it."""
    for key in TOPIC_KEYS.values():
        defaults = [
            default * MS_PER_UNIT[BROKER_KEYS[name].unit] if len(key.synonyms) > 1 else default
            for name in key.synonyms
            if (default := BROKER_KEYS[name].default) is not None
        ]
        assert defaults == ([key.default] if key.synonyms and key.default is not None else [])


@pytest.mark.parametrize("key", [*BROKER_KEYS.values(), *TOPIC_KEYS.values()], ids=lambda key: key.name)
def test_every_declaration_is_sound(key: Key) -> None:
    """The default passes the key's own check and survives its own text; what the key is for is in the reference."""
    assert key.default is None or key.check.accepts(key.default)
    assert key.default is None or key.type.parse(_shown(key.default)) == key.default
    assert key.doc.endswith(".")
    assert f"`{key.name}`" in render_reference()
    assert key.name.endswith(".ms") == (key.unit == "ms")


def _shown(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def test_every_key_is_read() -> None:
    """What is declared is used: what has no effect is in a list of names."""
    code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "model.py")
    code += "\n".join(re.findall(r"self\.\w+", (PACKAGE / "config" / "model.py").read_text()))
    for key in (*declared_keys(CleanerdConfig).values(), *declared_keys(TopicConfig).values()):
        assert re.search(rf"\.{key.field}\b", code) or key.name in BY_NAME, key.name
