"""Text to value exactly as Kafka's ConfigDef reads it, plus the checks of the key table.

=========  =========================================================================================
type       what is accepted (blanks around the text are dropped first)
=========  =========================================================================================
boolean    `true` or `false` in any case
int, long  decimal digits with an optional sign, 32 or 64 bit
double     as Java's `Double.parseDouble`: decimal or exponent form, with or without a trailing f or d
string     the trimmed text
list       split at commas with blanks around them; empty text is the empty list
paths      as list, empty entries dropped (Kafka's `Csv.parseCsvList`)
=========  =========================================================================================

Deliberate differences: NaN and infinity are refused (no range check holds for NaN), digits are ASCII only.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

Value = bool | int | float | str | tuple[str, ...]
"""The types of a parsed configuration value."""

BLANKS = "".join(map(chr, range(0x21)))  # Java's String.trim drops every character up to U+0020
_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")  # Python converts no more than 4,300 digits
_DECIMAL = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_COMMA = re.compile(r"\s*,\s*", re.ASCII)  # a blank that is not Java's is a part of its word


class ParseError(ValueError):
    """The text is not a value of the type; the message names the expected form."""


def _boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ParseError("true or false")
    return text.lower() == "true"


def _integer(text: str, bits: int) -> int:
    limit = 1 << (bits - 1)
    if not _INTEGER.fullmatch(text) or not -limit <= int(text) < limit:
        raise ParseError(f"a {bits}-bit integer")
    return int(text)


DOUBLE_MAX = 1.7976931348623157e308
"""Kafka's word for no limit."""
UNLIMITED = "unlimited"


def _double(text: str) -> float:
    decimal = _DECIMAL.fullmatch(text)
    if decimal is None or not math.isfinite(float(decimal[1])):
        raise ParseError("a finite number")
    return float(decimal[1])


def _list(text: str) -> tuple[str, ...]:
    return tuple(_COMMA.split(text)) if text else ()


class ValueType(Enum):
    """Type of a key; the value is the word that documentation uses."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    RATE = "rate"
    STRING = "string"
    LIST = "list"
    PATHS = "paths"

    def parse(self, text: str) -> Value:
        """Value of `text`. Raises `ParseError`."""
        return _PARSERS[self](text.strip(BLANKS))

    def __get_pydantic_core_schema__(self, _: object, __: GetCoreSchemaHandler) -> CoreSchema:
        """A pydantic validator that parses texts as Kafka does, and passes values that are parsed already."""
        return core_schema.no_info_plain_validator_function(
            lambda value: self.parse(value) if isinstance(value, str) else value
        )


_PARSERS: dict[ValueType, Callable[[str], Value]] = {
    ValueType.BOOLEAN: _boolean,
    ValueType.INT: lambda text: _integer(text, 32),
    ValueType.LONG: lambda text: _integer(text, 64),
    ValueType.DOUBLE: _double,
    ValueType.RATE: lambda text: DOUBLE_MAX if text.lower() == UNLIMITED else _double(text),
    ValueType.STRING: lambda text: text,
    ValueType.LIST: _list,
    ValueType.PATHS: lambda text: tuple(filter(None, _list(text))),
}


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on a parsed value and the words for it."""

    expected: str
    accepts: Callable[[Value], bool]

    def passed(self, value: Value) -> Value:
        """The value. Raises `ParseError` if it is not accepted."""
        if not self.accepts(value):
            raise ParseError(self.expected)
        return value

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A pydantic validator that runs a check of the key table on a parsed value."""
        return core_schema.no_info_after_validator_function(self.passed, handler(source))


ANY = Check("any value", lambda _: True)


def at_least(minimum: float) -> Check:
    """Numbers from `minimum` up."""
    return Check(f"a number ≥ {minimum}", lambda value: _number(value) >= minimum)


def more_than(bound: float) -> Check:
    """Numbers above `bound`."""
    return Check(f"a number > {bound}", lambda value: _number(value) > bound)


def between(low: float, high: float) -> Check:
    """Numbers from `low` to `high`, both included."""
    return Check(f"a number in [{low}, {high}]", lambda value: low <= _number(value) <= high)


def one_of(*choices: str) -> Check:
    """A check for one of the given words, in exactly this spelling."""
    return Check("one of " + ", ".join(choices), lambda value: value in choices)


def some_of(*choices: str) -> Check:
    """A list of none, some or all of the given words, in exactly this spelling."""
    expected = "a list out of " + ", ".join(choices)
    return Check(expected, lambda value: isinstance(value, tuple) and set(value) <= set(choices))


def matching(pattern: str, what: str) -> Check:
    """A text, or a list of texts, that each match the whole regular expression."""
    whole = re.compile(pattern)
    return Check(what, lambda value: all(whole.fullmatch(text) for text in _texts(value)))


def address_or_nothing() -> Check:
    """`host:port`, IPv6 in brackets, or the empty text."""
    form = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")

    def accepts(value: Value) -> bool:
        (text,) = _texts(value)
        found = form.fullmatch(text)
        return not text or (found is not None and int(found[1]) < 65536)

    return Check("host:port or nothing", accepts)


def not_empty(what: str) -> Check:
    """A text or list with something in it."""
    return Check(what, bool)


def _texts(value: Value) -> tuple[str, ...]:
    assert isinstance(value, str | tuple)
    return value if isinstance(value, tuple) else (value,)


def _number(value: Value) -> float:
    assert isinstance(value, int | float)
    return value
