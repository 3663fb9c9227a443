"""The indexes of a segment that is still written to."""

import struct

import pytest

from cleanerd.format.errors import FormatError
from cleanerd.format.offset_index import parse_offset_index
from cleanerd.tools.insight.index_check import OffsetIndexCheck


@pytest.mark.parametrize("before", [(), ((3, 400),)])
def test_the_half_of_an_entry_is_one_that_is_being_written(before: tuple[tuple[int, int], ...]) -> None:
    """Kafka puts the offset into the mapped file, then the position (spec disk B2)."""
    content = b"".join(struct.pack(">ii", *entry) for entry in (*before, (8, 0))) + bytes(80)
    found: list[FormatError] = []
    for is_settled in (False, True):
        assert not found
        OffsetIndexCheck(parse_offset_index(content, 56), found.append, is_settled=is_settled)
    assert str(found[0]) == (
        f"at byte {8 * len(before)}: expected rising offsets and positions, found relative offset 8, position 0"
    )
