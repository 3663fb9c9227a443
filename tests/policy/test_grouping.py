"""Which segments become one (rules 4.7, 4.8): cases C062-C065 and invariants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.policy.cleanable import SegmentFacts
from cleanerd.policy.grouping import MAX_RELATIVE_OFFSET, group_segments

HUGE = 2**31 - 1


def segment(base: int, size: int = 100, *, offset_index: int = 8, time_index: int = 12) -> SegmentFacts:
    """A closed segment."""
    return SegmentFacts(base, size, offset_index, time_index, 0, None)


def groups_of(
    segments: list[SegmentFacts], end: int, *, segment_bytes: int = HUGE, index_bytes: int = HUGE
) -> list[list[int]]:
    """Base offsets per group."""
    found = group_segments(
        segments, segment_bytes=segment_bytes, index_bytes=index_bytes, first_uncleanable_offset=end
    )
    return [[s.base_offset for s in group] for group in found]


TEN = [segment(base, 100 + base) for base in range(10)]


def test_c062_huge_limits() -> None:
    """One group."""
    assert groups_of(TEN, 10) == [list(range(10))]


@pytest.mark.parametrize("limits", [{"segment_bytes": 1}, {"index_bytes": 1}])
def test_c062_limits_of_one(limits: dict[str, int]) -> None:
    """Singletons: a group always takes its first segment (4.7)."""
    assert groups_of(TEN, 10, **limits) == [[base] for base in range(10)]


def test_c062_size_of_the_first_three() -> None:
    """All but the last group have three segments; order is kept."""
    equal = [segment(base) for base in range(10)]
    assert groups_of(equal, 10, segment_bytes=301) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert groups_of(equal, 10, segment_bytes=300) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert groups_of(equal, 10, segment_bytes=299) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


@pytest.mark.parametrize("index", ["offset_index", "time_index"])
def test_c062_index_of_the_first_three(index: str) -> None:
    """The same with the bytes of either index."""
    sizes = {"offset_index": 1, "time_index": 1} | {index: 16}
    equal = [segment(base, **sizes) for base in range(10)]
    assert groups_of(equal, 10, index_bytes=49) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_c063_sparse_offsets() -> None:
    """The last offset of a segment is estimated by the base of the next, or by the bound."""
    segments = [segment(0), segment(1)]
    assert groups_of(segments, MAX_RELATIVE_OFFSET + 1) == [[0, 1]]
    assert groups_of(segments, MAX_RELATIVE_OFFSET + 2) == [[0], [1]]
    more = [*segments, segment(MAX_RELATIVE_OFFSET + 2), segment(MAX_RELATIVE_OFFSET + 3)]
    end = MAX_RELATIVE_OFFSET + 4
    found = groups_of(more, end)
    assert found == [[0], [1], [MAX_RELATIVE_OFFSET + 2, MAX_RELATIVE_OFFSET + 3]]


def test_c064_range_beyond_half() -> None:
    """[0,1] and one based at 2^30-1 that reaches to 2^31: still two groups."""
    assert groups_of([segment(0), segment(2**30 - 1)], 2**31 + 1) == [[0], [2**30 - 1]]


def test_c065_empty_segments_can_be_merged_away() -> None:
    """Rule 4.8: segments that span 2^31 offsets each are singletons until they are empty."""
    bases = [0, 2**31, 2 * 2**31]
    end = 3 * 2**31
    full = [segment(base) for base in bases]
    assert groups_of(full, end) == [[base] for base in bases]
    emptied = [segment(bases[0], 0), segment(bases[1], 0), segment(bases[2])]
    assert groups_of(emptied, end) == [bases[:2], bases[2:]]


def test_no_segments() -> None:
    """No groups."""
    assert groups_of([], 10) == []


@given(
    gaps=st.lists(st.sampled_from([1, 10, 2**30, 2**31 - 1, 2**31]), min_size=1, max_size=12),
    data=st.data(),
    segment_bytes=st.integers(1, 400),
    index_bytes=st.integers(1, 60),
)
def test_invariants(gaps: list[int], data: st.DataObject, segment_bytes: int, index_bytes: int) -> None:
    """Groups cover the segments exactly, in order, within the limits, and none could have taken one more."""
    bases = [sum(gaps[:n]) for n in range(len(gaps))]
    end = sum(gaps)
    sizes = st.integers(0, 200)
    segments = [
        SegmentFacts(
            b, data.draw(sizes), data.draw(st.integers(0, 30)), data.draw(st.integers(0, 30)), 0, None
        )
        for b in bases
    ]
    groups = group_segments(
        segments, segment_bytes=segment_bytes, index_bytes=index_bytes, first_uncleanable_offset=end
    )
    assert [s for group in groups for s in group] == segments
    ends = dict(zip(bases, [*bases[1:], end], strict=True))

    def fits(group: tuple[SegmentFacts, ...]) -> bool:
        last = group[-1]
        return (
            sum(s.size_bytes for s in group) <= segment_bytes
            and sum(s.offset_index_bytes for s in group) <= index_bytes
            and sum(s.time_index_bytes for s in group) <= index_bytes
            and (last.size_bytes == 0 or ends[last.base_offset] - 1 - group[0].base_offset < 2**31)
        )

    for number, group in enumerate(groups):
        assert len(group) >= 1
        for length in range(2, len(group) + 1):
            assert fits(group[:length])
        if number + 1 < len(groups):
            assert not fits((*group, groups[number + 1][0]))
