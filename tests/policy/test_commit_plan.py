"""The pure parts of commit and recovery, as tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.policy.commit_plan import epochs_contradiction, uncovered_sources
from cleanerd.policy.recovery_plan import Found, Leftovers, Remedy, choose_remedy, objection

OLD = ((0, 0), (2, 10), (5, 40))


@pytest.mark.parametrize(
    "found",
    [
        ((0, 0), (5, 40)),  # a hole
        ((0, 0), (2, 11), (5, 40)),  # starts higher, but not at the front
        ((2, 9), (5, 40)),
        ((0, 60), (2, 70)),  # the log start lies behind the group
    ],
)
def test_epochs_of_another_history_contradict(found: tuple[tuple[int, int], ...]) -> None:
    """Spec disk G: any entry removed or start lowered below the end of the group."""
    reason = epochs_contradiction(OLD, found, next_base_offset=50)
    assert reason is not None
    assert "0 from 0, 2 from 10, 5 from 40" in reason


epochs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), max_size=5).map(
    lambda entries: tuple(zip(sorted({e for e, _ in entries}), sorted({s for _, s in entries}), strict=False))
)


@given(epochs, st.integers(0, 99), st.integers(0, 120))
def test_fold_at_any_log_start_below_the_group_end_is_harmless(
    planned: tuple[tuple[int, int], ...], log_start: int, end: int
) -> None:
    """What LeaderEpochFileCache.truncateFromStart does: the newest entry at or below the start is moved there."""
    below = [entry for entry in planned if entry[1] <= log_start]
    folded = (*((epoch, log_start) for epoch, _ in below[-1:]), *planned[len(below) :])
    if log_start < end:
        assert epochs_contradiction(planned, folded, next_base_offset=end) is None


@given(epochs, st.integers(0, 99), st.integers(0, 9), st.integers(0, 120))
def test_truncation_below_the_group_end_is_found(
    planned: tuple[tuple[int, int], ...], truncated_to: int, new_epoch: int, end: int
) -> None:
    """Divergence: entries from an offset on are replaced by a newer epoch that starts there."""
    left = tuple(entry for entry in planned if entry[1] < truncated_to)
    newest = max((epoch for epoch, _ in planned), default=0)
    found = (*left, (newest + 1 + new_epoch, truncated_to))
    reason = epochs_contradiction(planned, found, next_base_offset=end)
    assert (reason is not None) == (truncated_to < end or any(truncated_to <= s < end for _, s in planned))


def test_uncovered_sources_are_those_above_the_last_batch() -> None:
    """D2 pass 3: a base p is deleted if first base <= p < last offset + 1; the first is replaced by name."""
    assert uncovered_sources([0, 70, 141], 69) == (70, 141)  # X6
    assert uncovered_sources([0, 70, 141], 70) == (141,)
    assert uncovered_sources([0, 70, 141], 141) == ()
    assert uncovered_sources([5, 70], -1) == (70,)  # X5e, rule 5.16


N, O, F = Found.NOTHING, Found.OURS, Found.FOREIGN  # noqa: E741


@pytest.mark.parametrize(
    ("guard", "swap", "live", "remedy"),
    [
        (O, N, N, Remedy.ROLL_BACK),
        (O, N, F, Remedy.ROLL_BACK),
        (N, O, F, Remedy.FINISH),
        (N, O, N, Remedy.FINISH),
        (N, N, O, Remedy.FINISH),
        (N, N, F, Remedy.DISCARD),
        (N, N, N, Remedy.DISCARD),
        (F, N, O, Remedy.DISCARD),
        (N, F, O, Remedy.DISCARD),
        (F, O, F, Remedy.DISCARD),
        (O, F, F, Remedy.DISCARD),
        (O, O, F, Remedy.DISCARD),
    ],
)
def test_remedy_of_a_begun_group(guard: Found, swap: Found, live: Found, remedy: Remedy) -> None:
    """The table of `policy.recovery_plan`."""
    assert choose_remedy(staged_log=False, staged_whole=False, guard=guard, swap=swap, live=live) is remedy


@given(st.sampled_from(Found), st.sampled_from(Found), st.sampled_from(Found), st.booleans())
def test_group_that_was_not_begun_is_never_finished(
    guard: Found, swap: Found, live: Found, whole: bool
) -> None:
    """While its `.log` is staged, whatever else lies there is somebody else's."""
    remedy = choose_remedy(staged_log=True, staged_whole=whole, guard=guard, swap=swap, live=live)
    assert remedy is (Remedy.WAIT if whole else Remedy.DISCARD)


@pytest.mark.parametrize(
    ("cleaned", "swaps", "deleted_logs", "kafka", "elsewhere"),
    [
        ([], [], [], True, True),
        ([], [], [0, 10], True, True),
        ([0], [], [10], False, True),
        ([], [0], [0, 10], False, True),
        ([10], [10], [], False, True),
        ([10], [0], [0], False, True),  # the swap at 0 is valid, its source may be gone
        ([10], [10], [0], False, True),  # retention deleted 0 before
        ([10], [10, 20], [20], False, False),  # rule 5.19b
    ],
)
def test_leftovers_that_may_be_settled(
    cleaned: list[int], swaps: list[int], deleted_logs: list[int], kafka: bool, elsewhere: bool
) -> None:
    """Rules 5.12 and 5.19b: a broker's directory only without them, another unless both copies would go."""
    leftovers = Leftovers(cleaned, swaps, deleted_logs)
    assert (objection(leftovers, is_kafka=True) is None) == kafka
    assert (objection(leftovers, is_kafka=False) is None) == elsewhere
