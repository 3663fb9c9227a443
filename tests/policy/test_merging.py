"""Which neighbours become one although nothing goes (`policy.merging`): the rules, and what it costs."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.policy.cleanable import SegmentFacts
from cleanerd.policy.grouping import group_segments
from cleanerd.policy.merging import merge_runs

sizes = st.lists(st.one_of(st.just(0), st.integers(1, 40), st.integers(1, 10_000)), max_size=9)


@pytest.mark.parametrize(
    ("segments", "runs"),
    [
        ([], []),
        ([5], []),
        ([5] * 41, [range(41)]),
        ([0, 0], [range(2)]),  # C065
        ([0, 5], []),  # five bytes written for none
        ([5, 5], [range(2)]),
        ([5, 6], []),
        ([100, 5, 5, 5], [range(1, 4)]),  # the large one is not written for its small neighbours
        ([5, 5, 100, 5, 5], []),  # five become three
        ([5, 5, 5, 100, 5, 5, 5], [range(3), range(4, 7)]),
        ([100, 0, 0, 0], [range(1, 4)]),
        ([8, 4, 2, 1, 1], [range(5)]),
        ([9, 4, 2, 1, 1], [range(1, 5)]),
    ],
)
def test_which_segments_become_one(segments: list[int], runs: list[range]) -> None:
    assert merge_runs(segments) == runs


@given(sizes)
def test_the_rules_hold_and_no_other_runs_leave_fewer_segments(segments: list[int]) -> None:
    runs = merge_runs(segments)
    assert all(len(run) >= 2 for run in runs)
    assert all(before.stop <= after.start for before, after in itertools.pairwise(runs))
    for run in runs:
        written = [segments[place] for place in run]
        assert sum(written) <= 2 * (sum(written) - max(written))
    after = len(segments) - sum(len(run) - 1 for run in runs)
    assert not runs or 2 * after <= len(segments)
    fewest = _fewest(tuple(segments))
    assert after == (fewest if 2 * fewest <= len(segments) else len(segments))


def _fewest(segments: tuple[int, ...]) -> int:
    """By trying everything that the first rule allows."""
    best = [0]
    for end in range(1, len(segments) + 1):
        lasts = [segments[begin:end] for begin in range(end)]
        allowed = [last for last in lasts if len(last) == 1 or 2 * max(last) <= sum(last)]
        best.append(min(best[end - len(last)] + 1 for last in allowed))
    return best[-1]


@given(
    st.lists(st.lists(st.integers(1, 500), min_size=1, max_size=6), min_size=1, max_size=40),
    st.integers(500, 4000),
)
def test_a_log_that_grows_is_not_written_again_and_again(rounds: list[list[int]], segment_bytes: int) -> None:
    """Every byte that is merged lies in a segment twice as large afterwards; without growth there is soon nothing to do."""
    log: list[int] = []
    written = appended = 0
    for new in rounds:
        log += new
        appended += sum(new)
        log, cost = _clean(log, segment_bytes)
        written += cost
    smallest = min(size for new in rounds for size in new)
    assert written <= appended * math.floor(math.log2(segment_bytes / smallest))
    for _ in range(len(log)):
        log, cost = _clean(log, segment_bytes)
    assert cost == 0, "a fixed point, after fewer cleanings than there are segments"
    assert sum(log) == appended


def _clean(log: list[int], segment_bytes: int) -> tuple[list[int], int]:
    """Sizes after a cleaning that removes nothing, and the bytes that it wrote."""
    facts = [SegmentFacts(base, size, 0, 0, 0, None) for base, size in enumerate(log)]
    groups = group_segments(
        facts, segment_bytes=segment_bytes, index_bytes=1 << 20, first_uncleanable_offset=len(log)
    )
    after: list[int] = []
    written = 0
    for group in groups:
        members = [segment.size_bytes for segment in group]
        runs = merge_runs(members)
        inside = {place for run in runs for place in run[1:]}
        for place, size in enumerate(members):
            if place in inside:
                after[-1] += size
            else:
                after.append(size)
        written += sum(members[place] for run in runs for place in run)
    return after, written
