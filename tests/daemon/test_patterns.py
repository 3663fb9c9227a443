"""Which logs a pattern means."""

import pytest

from cleanerd.daemon.patterns import matches


@pytest.mark.parametrize(
    ("pattern", "topic", "partition", "expected"),
    [
        (None, "a", 0, True),
        ("*", "a", 0, True),
        ("orders-3", "orders", 3, True),
        ("orders-3", "orders-3", 0, False),  # the name of a log is never taken for a topic
        ("orders-3-*", "orders-3", 0, True),
        ("orders", "orders", 3, True),
        ("orders", "orders-eu", 3, False),
        ("ord*", "orders", 3, True),
        ("orders-[0-2]", "orders", 1, True),
        ("orders-[0-2]", "orders", 3, False),
        ("Orders", "orders", 3, False),
    ],
)
def test_patterns(pattern: str | None, topic: str, partition: int, expected: bool) -> None:
    """The table in patterns.py."""
    assert matches(pattern, topic, partition) == expected
