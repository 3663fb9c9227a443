"""The indexes of a segment that is still written to."""

import struct

import pytest

from cleanerd.format.offset_index import parse_offset_index
from cleanerd.tools.insight.index_check import OffsetIndexCheck


@pytest.mark.parametrize("before", [(), ((3, 400),)])
def test_the_half_of_an_entry_is_one_that_is_being_written(before: tuple[tuple[int, int], ...]) -> None:
    """Kafka puts the offset into the mapped file, then the position (spec disk B2)."""
    content = b"".join(struct.pack(">ii", *entry) for entry in (*before, (8, 0))) + bytes(80)
    is_written, is_settled = (
        OffsetIndexCheck(parse_offset_index(content, 56), is_settled=is_settled)
        for is_settled in (False, True)
    )
    assert is_written.flaw is None
    assert str(is_settled.flaw) == (
        f"at byte {8 * len(before)}: expected rising offsets and positions, found relative offset 8, position 0"
    )
