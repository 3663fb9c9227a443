"""Sizes, times and durations, as people read and write them."""

import pytest

from cleanerd import units


@pytest.mark.parametrize(
    ("text", "expected"),
    [("50MB", 5e7), ("1.5GiB", 1.5 * 2**30), ("4096", 4096.0), ("10k", 1e4), ("3 MB", 3e6)],
)
def test_sizes_are_read_as_people_write_them(text: str, expected: float) -> None:
    """Decimal and binary units, with or without one."""
    assert units.parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "MB", "-1", "1 XB", "nan", "inf", "1e999", "1.2.3s"])
def test_what_is_not_a_size_or_a_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        units.parse_size(text)
    with pytest.raises(ValueError, match="is not a"):
        units.parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.04, "0.0s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (59.6, "1m"),
        (61, "1m 1s"),
        (3600, "1h"),
        (90_061, "1d 1h"),
        (86_400, "1d"),
    ],
)
def test_durations_have_two_units(seconds: float, expected: str) -> None:
    assert units.duration(seconds) == expected


def test_one_of_a_thing_has_no_plural() -> None:
    found = [units.counted(number, what) for what in ("directory", "segment") for number in (0, 1, 2000)]
    assert found == [
        "0 directories",
        "1 directory",
        "2,000 directories",
        "0 segments",
        "1 segment",
        "2,000 segments",
    ]


@pytest.mark.parametrize("time_ms", [253_402_300_800_000, 1_764_000_000_000_000, 2**63 - 1])
def test_a_producer_may_write_times_that_no_calendar_has(time_ms: int) -> None:
    """Microseconds in place of milliseconds, for one."""
    assert units.utc(time_ms) == units.instant(time_ms) == f"{time_ms} ms, which no calendar has"


@pytest.mark.parametrize(
    ("words", "expected"), [("", ""), ("a", "a"), ("abc", "a, b, c"), ("abcd", "a, b, c and 1 more")]
)
def test_of_many_words_the_first_are_named(words: str, expected: str) -> None:
    assert units.first_of(words, 3) == expected
