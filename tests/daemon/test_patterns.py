"""Which logs a pattern means."""

import pytest

from cleanerd.daemon.values.patterns import matches, similar
from cleanerd.format.names import TopicPartition


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
        ("orders-*", "orders-eu", 3, True),
        ("orders-*", "my-orders", 3, False),
        ("orders-?", "orders", 30, False),
        ("orders.*", "orders", 3, False),  # a dot is a dot
        ("", "orders", 3, False),
    ],
)
def test_patterns(pattern: str | None, topic: str, partition: int, expected: bool) -> None:
    """The table in patterns.py."""
    assert matches(pattern, topic, partition) == expected


def test_names_that_may_have_been_meant() -> None:
    """Partitions of the topic first, then what is spelt like it; nothing at all rather than a wild guess."""
    logs = [TopicPartition(topic, partition) for topic in ("orders", "payments") for partition in range(5)]
    assert similar("orders-9", logs) == ["orders-0", "orders-1", "orders-2"]
    assert similar("ordres-3", logs)[0] == "orders-3"
    assert similar("payment", logs) == ["payments"]
    assert similar("x", logs) == []
