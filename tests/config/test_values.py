"""Text to value as Kafka's ConfigDef.parseType reads it."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.config.values import ParseError, ValueType, between, one_of, some_of

GOOD = [
    (ValueType.BOOLEAN, " TRUE\t", True),
    (ValueType.BOOLEAN, "False", False),
    (ValueType.INT, "+2147483647", 2**31 - 1),
    (ValueType.INT, " -2147483648 ", -(2**31)),
    (ValueType.LONG, "9223372036854775807", 2**63 - 1),
    (ValueType.DOUBLE, "1.7976931348623157E308", 1.7976931348623157e308),
    (ValueType.DOUBLE, ".5f", 0.5),
    (ValueType.DOUBLE, "1.", 1.0),
    (ValueType.STRING, "  a b ", "a b"),
    (ValueType.LIST, "", ()),
    (ValueType.LIST, "compact , delete", ("compact", "delete")),
    (ValueType.LIST, "compact,", ("compact", "")),
    # Java's \\s is ASCII.
    (ValueType.LIST, "compact,\u00a0delete\u2003,x", ("compact", "\u00a0delete\u2003", "x")),
    (ValueType.PATHS, "/a, /b,,", ("/a", "/b")),
]
BAD = [
    (ValueType.BOOLEAN, "yes"),
    (ValueType.BOOLEAN, ""),
    (ValueType.INT, "2147483648"),
    (ValueType.INT, "1.0"),
    (ValueType.INT, "1_000"),
    (ValueType.INT, "0x10"),
    (ValueType.INT, "\u0663"),
    (ValueType.LONG, "9223372036854775808"),
    (ValueType.LONG, "9" * 5000),
    (ValueType.LONG, ""),
    (ValueType.LONG, "- 1"),
    (ValueType.DOUBLE, "NaN"),
    (ValueType.DOUBLE, "1e999"),
    (ValueType.DOUBLE, "."),
]


@pytest.mark.parametrize(("kind", "text", "value"), GOOD)
def test_parses_what_kafka_parses(kind: ValueType, text: str, value: object) -> None:
    """Blanks are trimmed, signs and suffixes of Java are understood."""
    parsed = kind.parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(("kind", "text"), BAD)
def test_refuses_what_is_no_value_of_the_type(kind: ValueType, text: str) -> None:
    """No text is bent into a value."""
    with pytest.raises(ParseError):
        kind.parse(text)


@given(st.integers(-(2**70), 2**70))
def test_long_is_exactly_64_bit(number: int) -> None:
    """Every integer of 64 bits and no other."""
    if -(2**63) <= number < 2**63:
        assert ValueType.LONG.parse(str(number)) == number
    else:
        with pytest.raises(ParseError):
            ValueType.LONG.parse(str(number))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_double_survives_its_own_text(number: float) -> None:
    """Python's and Java's shortest texts of a double read back as that double."""
    assert ValueType.DOUBLE.parse(repr(number)) == number
    assert ValueType.DOUBLE.parse(repr(number).replace("e", "E")) == number


@given(st.text())
def test_any_text_is_a_value_or_a_parse_error(text: str) -> None:
    """No text makes a parser fail in another way."""
    for kind in ValueType:
        with suppress(ParseError):
            kind.parse(text)


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_ranges_include_their_ends_and_refuse_nan(number: float) -> None:
    """[0, 1] of min.cleanable.dirty.ratio."""
    assert between(0, 1).accepts(number) == (0 <= number <= 1)


def test_words_are_taken_in_exactly_their_spelling() -> None:
    """Kafka's ValidList and ValidString compare before anything is lower-cased (1.3)."""
    assert some_of("compact", "delete").accepts(())
    assert some_of("compact", "delete").accepts(("delete", "compact"))
    assert not some_of("compact", "delete").accepts(("Compact",))
    assert not some_of("compact", "delete").accepts(("compact", ""))
    assert not one_of("CreateTime").accepts("createtime")
