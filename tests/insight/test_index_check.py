"""The indexes of a segment that is still written to."""

import struct

import pytest

from cleanerd.insight.index_check import OffsetIndexCheck


def complaints(*entries: tuple[int, int], is_settled: bool) -> list[tuple[object, ...]]:
    """What is wrong with an offset index of these entries, allocated in advance."""
    content = b"".join(struct.pack(">ii", *entry) for entry in entries) + bytes(80)
    found: list[tuple[object, ...]] = []
    OffsetIndexCheck(content, len(content), 56, lambda *what: found.append(what), is_settled=is_settled)
    return found


@pytest.mark.parametrize("before", [(), ((3, 400),)])
def test_the_half_of_an_entry_is_one_that_is_being_written(before: tuple[tuple[int, int], ...]) -> None:
    """Kafka puts the offset into the mapped file, then the position (spec disk B2)."""
    at = 8 * len(before)
    assert complaints(*before, (8, 0), is_settled=False) == []
    assert complaints(*before, (8, 0), is_settled=True) == [
        (at, "rising offsets and positions", "offset +8, position 0")
    ]


def test_only_the_last_entry_can_be_half() -> None:
    """One before it is wrong."""
    assert len(complaints((8, 0), (16, 800), is_settled=False)) == 1
