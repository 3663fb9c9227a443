"""The pace of cleaning beside neighbours: its bounds for any history, and on a machine that it loads itself."""

import math

from hypothesis import given
from hypothesis import strategies as st

from cleanerd.policy.pace import FLOOR_BYTES_PER_S, FREE, STEPS, Pace

MB = 1e6
moved = st.floats(0, 1e12)
histories = st.lists(st.tuples(moved, st.booleans()), max_size=60)


def after(history: list[tuple[float, bool]]) -> Pace:
    pace = FREE
    for bytes_per_s, is_over in history:
        pace = pace.after(min(bytes_per_s, pace.bytes_per_s), is_over=is_over)
    return pace


@given(histories, moved)
def test_load_above_the_limit_halves_it_down_to_a_floor(
    history: list[tuple[float, bool]], bytes_per_s: float
) -> None:
    before = after(history)
    now = before.after(bytes_per_s, is_over=True)
    assert now.bytes_per_s == max(min(before.bytes_per_s, bytes_per_s) / 2, FLOOR_BYTES_PER_S)


@given(histories, moved)
def test_whatever_was_nothing_holds_it_back_after_so_many_calm_intervals(
    history: list[tuple[float, bool]], bytes_per_s: float
) -> None:
    pace = after(history)
    for _ in range(STEPS):
        faster = pace.after(bytes_per_s, is_over=False)
        assert faster.bytes_per_s > pace.bytes_per_s or faster == pace == FREE
        pace = faster
    assert pace == FREE


@given(
    capacity=st.floats(10 * MB, 10_000 * MB),
    limit=st.floats(0.05, 0.9),
    neighbours=st.floats(0, 1),
    wants=st.floats(0.01, 1),
)
def test_on_a_machine_that_cleaning_loads_itself_the_mean_stays_below_the_limit_and_not_far(
    capacity: float, limit: float, neighbours: float, wants: float
) -> None:
    """The load is what neighbours and cleaning move, as a share of what the machine can."""
    pace, loads, ours = FREE, [], 0.0
    for interval in range(600):
        ours = min(pace.bytes_per_s, wants * capacity)
        load = neighbours + ours / capacity
        loads.append(load)
        pace = pace.after(ours, is_over=load > limit)
        if interval == 100:
            loads.clear()
    allowed = max(limit - neighbours, 0)
    floor = FLOOR_BYTES_PER_S / capacity
    mean = sum(loads) / len(loads)
    # Now and then it is free for an interval, as TCP tries for more: when it has come back to where it once was.
    assert mean <= max(limit, neighbours + floor) + wants / STEPS
    assert mean >= neighbours + min(allowed, wants) / 2 - wants / STEPS
    assert math.isfinite(mean)
