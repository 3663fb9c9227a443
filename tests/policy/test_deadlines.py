"""Whether logs are cleaned in time, against every order there is."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from cleanerd.policy.deadlines import (
    NEVER_MS,
    Planned,
    Work,
    grace_ms,
    needed_bytes_per_s,
    plan,
    ratio_reached_ms,
)

RATE = 1000.0  # bytes a second: one a millisecond
works = st.lists(
    st.builds(
        Work, st.just("t-0"), st.integers(1, 20), st.integers(0, 30), st.integers(1, 80) | st.just(NEVER_MS)
    ),
    max_size=6,
)


def at_once(found: list[Work]) -> list[Work]:
    return [Work(one.log, one.size_bytes, 0, one.deadline_ms) for one in found]


def run_in_order(order: tuple[Work, ...]) -> bool:
    """Whether one worker that takes them in this order, each as soon as it is ready, is never late."""
    at = 0
    for one in order:
        at = max(at, one.ready_ms) + one.size_bytes
        if at > one.deadline_ms:
            return False
    return True


@given(works)
def test_one_worker_is_late_only_if_it_is_so_in_every_order(found: list[Work]) -> None:
    """With all logs ready at once the earliest deadline first is the best there is."""
    ready = at_once(found)
    planned = plan(ready, now_ms=0, workers=1, bytes_per_s=RATE)
    in_time = any(run_in_order(order) for order in itertools.permutations(ready))
    assert (not any(one.is_late for one in planned)) == in_time


@given(works, st.integers(1, 3))
def test_planned_as_the_clock_ticks(found: list[Work], workers: int) -> None:
    """The same as by a clock that is asked every millisecond who is free and what is ready."""
    planned = plan(found, now_ms=5, workers=workers, bytes_per_s=RATE)
    left, free_at, expected = list(enumerate(found)), [0] * workers, []
    for now in itertools.count(5):
        for worker in range(workers):
            ready = [(one.deadline_ms, one.ready_ms, i) for i, one in left if one.ready_ms <= now]
            if free_at[worker] <= now and ready:
                i = min(ready)[-1]
                left = [(j, one) for j, one in left if j != i]
                free_at[worker] = now + found[i].size_bytes
                expected.append(Planned(found[i], free_at[worker]))
        if not left:
            break
    assert sorted(map(repr, planned)) == sorted(map(repr, expected))


@given(
    st.integers(0, 10**12),
    st.integers(0, 10**12),
    st.floats(0, 1),
    st.just(0.0) | st.floats(1e-3, 1e9),
    st.integers(0, 10**13),
)
def test_when_a_dirty_ratio_is_reached(
    clean: int, dirty: int, ratio: float, written: float, now_ms: int
) -> None:
    at_ms = ratio_reached_ms(clean, dirty, ratio, written, now_ms)

    def exceeds(when_ms: float) -> bool:
        grown = dirty + written * (when_ms - now_ms) / 1000
        return grown > ratio * (clean + grown)

    if exceeds(now_ms):
        assert at_ms == now_ms
    elif at_ms == NEVER_MS:
        assert written == 0 or ratio == 1 or not exceeds(now_ms + 1e15)
    else:
        assert at_ms > now_ms
        slack = max(1.0, (at_ms - now_ms) * 1e-6, at_ms * 1e-12)
        assert not exceeds(at_ms - 2 - slack)
        assert exceeds(at_ms + slack) or math.isclose(ratio, 1)


def test_a_log_that_hardly_anybody_writes_is_never_dirty_enough() -> None:
    """The least rate that there is: the time would be infinite."""
    assert ratio_reached_ms(2, 0, 0.5, math.ulp(0.0), 1_700_000_000_000) == NEVER_MS


@given(works.map(at_once))
def test_what_is_needed_is_the_least_rate_with_which_all_are_done_in_time(found: list[Work]) -> None:
    """All workers share it, so the earliest deadline first is the best there is."""
    needed = needed_bytes_per_s(found, 0)
    ordered = sorted(found, key=lambda one: one.deadline_ms)
    done = list(itertools.accumulate(one.size_bytes for one in ordered))

    def is_enough(rate: float) -> bool:
        return all(size * 1000 <= rate * one.deadline_ms for size, one in zip(done, ordered, strict=True))

    assert is_enough(needed * 1.000001)
    assert not found or not is_enough(needed * 0.999)


@given(st.floats(0.1, 4), st.integers(10, 2000), st.integers(1, 10**12))
def test_who_moves_what_is_needed_is_in_time_whatever_the_estimate(
    error: float, intervals: int, size_bytes: int
) -> None:
    """The estimate stays as it is while the log is cleaned, and so the rate rises; a log that is late has no limit."""
    left, deadline_ms = size_bytes * error, intervals * 2000
    for now_ms in range(0, deadline_ms, 2000):
        left -= 2 * needed_bytes_per_s([Work("t-0", size_bytes, 0, deadline_ms)], now_ms)
        if left <= 0:
            break
    assert left <= 0 or error > math.log(intervals)
    assert needed_bytes_per_s([Work("t-0", 1, 0, 5), Work("t-1", 1, 0, 500)], 5) == math.inf


def test_the_grace_is_a_hundredth_of_the_lag_from_a_minute_to_an_hour() -> None:
    assert [grace_ms(lag_ms) for lag_ms in (1, 10_000_000, 10**12)] == [60_000, 100_000, 3_600_000]
