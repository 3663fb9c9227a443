"""What may be installed, when, and whether it is worth it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.policy.installing import is_allowed, is_in_window, why_not_worth

MINUTE_MS = 60_000


@pytest.mark.parametrize(
    ("topic", "globs", "allowed"),
    [
        ("orders", (), True),
        ("orders", ("pay*", "orders"), True),
        ("orders", ("pay*",), False),
        ("__consumer_offsets", (), False),
        ("__consumer_offsets", ("*",), False),
        ("__consumer_offsets", ("__*",), True),
        ("__consumer_offsets", ("*", "__transaction_state"), False),
        ("_schemas", (), True),
    ],
)
def test_internal_topics_have_to_be_named(topic: str, globs: tuple[str, ...], allowed: bool) -> None:
    assert is_allowed(topic, globs) is allowed


@pytest.mark.parametrize(
    ("window", "inside", "outside"),
    [
        ("22:00-05:30", ("22:00", "23:59", "00:00", "05:29"), ("05:30", "12:00", "21:59")),
        ("01:00-02:00", ("01:00", "01:59"), ("00:59", "02:00")),
        ("03:00-03:00", ("03:00", "02:59", "15:00"), ()),
        ("", ("00:00", "13:00"), ()),
    ],
)
def test_a_window_may_pass_midnight(window: str, inside: tuple[str, ...], outside: tuple[str, ...]) -> None:
    day_ms = 20_000 * 86_400_000

    def at(text: str) -> int:
        return day_ms + (60 * int(text[:2]) + int(text[3:])) * MINUTE_MS

    assert [one for one in inside if not is_in_window(window, at(one))] == []
    assert [one for one in outside if is_in_window(window, at(one))] == []


@given(st.integers(0, 1000), st.integers(1, 1000), st.integers(0, 1000))
def test_it_is_worth_what_all_three_limits_allow(freed: int, size: int, tail: int) -> None:
    reason = why_not_worth(
        freed_bytes=freed, size_bytes=size, tail_bytes=tail,
        min_reclaim_bytes=100, min_reclaim_ratio=0.2, max_tail_bytes=500,
    )  # fmt: skip
    assert (reason is None) == (freed >= 100 and freed >= 0.2 * size and tail <= 500)
