"""The room of a round: what an alert on free space has to know of a log that is larger than the space."""

import pytest

from cleanerd.cleaning.round_size import most_written_bytes, round_bytes
from cleanerd.config.model import CleanerdConfig, TopicConfig

GIB = 1 << 30


@pytest.mark.parametrize(
    ("size_bytes", "segment_bytes", "cores", "dedupe_bytes", "expected"),
    [
        (5 << 20, GIB, 2, 1 << 20, 5 << 20),
        (500 * GIB, GIB, 4, 1 << 20, 4 * GIB),
        (500 * GIB, 2 * GIB - 1, 1, 1 << 20, 2 * GIB - 1),
        (500 * GIB, GIB, 1, GIB, 8 * 0.9 * GIB),
    ],
    ids=["all of a small log", "a GiB a core", "a segment", "the keys that tasks share"],
)
def test_a_cleaning_writes_a_round_before_it_deletes(
    size_bytes: int, segment_bytes: int, cores: int, dedupe_bytes: int, expected: float
) -> None:
    broker, topic = (
        CleanerdConfig(dedupe_buffer_size_bytes=dedupe_bytes),
        TopicConfig(topic_segment_bytes=segment_bytes),
    )
    found = most_written_bytes(size_bytes, cores, broker, topic)
    assert found == pytest.approx(expected, abs=8)


def test_a_limit_makes_rounds_of_ten_seconds() -> None:
    limited = CleanerdConfig(io_max_bytes_per_second=2_000_000)
    assert round_bytes(2, limited) == 10_000_000
    assert round_bytes(2, limited, keys_bytes=5_000_000) == 40_000_000
