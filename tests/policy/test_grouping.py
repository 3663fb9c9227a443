"""Which segments become one (rules 4.7, 4.8): cases C062-C065 and invariants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.policy.cleanable import SegmentFacts
from cleanerd.policy.grouping import MAX_RELATIVE_OFFSET, group_segments

HUGE = 2**31 - 1


def segment(base: int, size: int = 100, *, offset_index: int = 8, time_index: int = 12) -> SegmentFacts:
    return SegmentFacts(base, size, offset_index, time_index, 0, None)


def groups_of(
    segments: list[SegmentFacts],
    end: int,
    *,
    segment_bytes: int = HUGE,
    index_bytes: int = HUGE,
    cut_at: int | None = None,
) -> list[list[int]]:
    found = group_segments(
        segments,
        segment_bytes=segment_bytes,
        index_bytes=index_bytes,
        first_uncleanable_offset=end,
        cut_at=cut_at,
    )
    return [[s.base_offset for s in group] for group in found]


TEN = [segment(base) for base in range(10)]
FAR = [segment(base) for base in (0, 2**31, 2 * 2**31)]
BEYOND = MAX_RELATIVE_OFFSET + 2


@pytest.mark.trap("an offset span beyond 2^31 after a merge")
@pytest.mark.parametrize(
    ("segments", "end", "limits", "expected"),
    [
        (TEN, 10, {}, [list(range(10))]),
        (TEN, 10, {"segment_bytes": 1}, [[base] for base in range(10)]),
        (TEN, 10, {"index_bytes": 1}, [[base] for base in range(10)]),
        (TEN, 10, {"segment_bytes": 300}, [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]),
        (TEN, 10, {"segment_bytes": 299}, [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]),
        ([segment(b, offset_index=16) for b in range(4)], 4, {"index_bytes": 49}, [[0, 1, 2], [3]]),
        ([segment(b, time_index=16) for b in range(4)], 4, {"index_bytes": 49}, [[0, 1, 2], [3]]),
        ([segment(0), segment(1)], BEYOND - 1, {}, [[0, 1]]),
        ([segment(0), segment(1)], BEYOND, {}, [[0], [1]]),
        ([segment(b) for b in (0, 1, BEYOND, BEYOND + 1)], BEYOND + 2, {}, [[0], [1], [BEYOND, BEYOND + 1]]),
        ([segment(0), segment(2**30 - 1)], 2**31 + 1, {}, [[0], [2**30 - 1]]),
        (FAR, 3 * 2**31, {}, [[0], [2**31], [2 * 2**31]]),
        ([segment(0, 0), segment(2**31, 0), segment(2 * 2**31)], 3 * 2**31, {}, [[0, 2**31], [2 * 2**31]]),
        ([], 10, {}, []),
    ],
    ids=[
        "C062 huge limits",
        "C062 4.7 a group always takes its first segment",
        "C062 whatever its indexes",
        "C062 the size of three",
        "C062 a byte less",
        "C062 offset indexes of three",
        "C062 time indexes of three",
        "C063 the last offset is estimated by the bound",
        "C063 and does not fit one further on",
        "C063 or by the next base",
        "C064 a range beyond half",
        "C065 4.8 segments that span 2^31 offsets stay alone",
        "C065 until they are empty",
        "no segments",
    ],
)
def test_c062_c063_c064_c065_groups(
    segments: list[SegmentFacts], end: int, limits: dict[str, int], expected: list[list[int]]
) -> None:
    """In order, and as large as the limits allow."""
    assert groups_of(segments, end, **limits) == expected


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


@pytest.mark.parametrize(
    ("cut_at", "expected"),
    [
        (4, [[0, 1, 2], [3], [4, 5, 6], [7, 8, 9]]),
        (3, [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]),
        (0, None),
        (99, None),
    ],
)
def test_a_group_begins_where_it_is_told_to(cut_at: int, expected: list[list[int]] | None) -> None:
    """At the base of a segment; elsewhere that changes nothing."""
    found = groups_of(TEN, 10, segment_bytes=300, cut_at=cut_at)
    assert found == (expected or groups_of(TEN, 10, segment_bytes=300))
