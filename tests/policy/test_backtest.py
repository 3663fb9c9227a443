"""What another setting would have done over a recorded history."""

from hypothesis import given
from hypothesis import strategies as st

from cleanerd.policy.backtest import CleaningSetting, RecordedLog, replay, stayed

NO_LAG = 0
growth = st.lists(st.integers(0, 1000), min_size=1, max_size=60)


def recorded(written: list[int], clean_bytes: int = 1000) -> list[RecordedLog]:
    """A log that was never cleaned, a sample each second."""
    size, seen = clean_bytes, [RecordedLog(0, clean_bytes, clean_bytes)]
    for i, more in enumerate(written):
        size += more
        seen.append(RecordedLog(1000 * (i + 1), size, clean_bytes))
    return seen


def cleaned(written: list[int], setting: CleaningSetting) -> tuple[list[RecordedLog], int, int]:
    """The samples of a log that is cleaned by a setting to what it was, how often, and what that read."""
    size, cleanings, read, seen = 1000, 0, 0, [RecordedLog(0, 1000, 1000)]
    for i, more in enumerate(written):
        size += more
        seen.append(RecordedLog(1000 * i + 500, size, 1000))
        if size - 1000 > setting.min_cleanable_dirty_ratio * size:
            cleanings, read, size = cleanings + 1, read + size, 1000
        seen.append(RecordedLog(1000 * i + 999, size, 1000))
    return seen, cleanings, read


@given(growth, st.sampled_from((0.1, 0.3, 0.5, 0.9)))
def test_with_the_setting_of_then_it_is_what_was(written: list[int], ratio: float) -> None:
    """As often, as much read, as large; all that was written was superseded."""
    setting = CleaningSetting(ratio, NO_LAG, 1)
    seen, cleanings, read = cleaned(written, setting)
    again = replay(seen, setting)
    assert (again.cleanings, again.read_bytes) == (cleanings, read)
    assert again.max_bytes == max(one.size_bytes for one in seen)


@given(growth)
def test_a_lower_ratio_keeps_a_log_smaller(written: list[int]) -> None:
    """And cleans it no less often. What is never cleaned grows by all that was written."""
    seen = recorded(written)
    results = [replay(seen, CleaningSetting(ratio, NO_LAG, 1)) for ratio in (0.05, 0.5, 1.0)]
    counts = [one.cleanings for one in results]
    assert counts == sorted(counts, reverse=True)
    assert results[0].max_bytes <= results[2].max_bytes == 1000 + sum(written)
    assert results[2].cleanings == 0


def test_a_lag_cleans_what_no_ratio_does() -> None:
    seen = recorded([100] * 50)
    assert (
        replay(seen, CleaningSetting(1.0, 10_000, 1)).cleanings == 4
    )  # whenever the oldest has waited for more than 10 s
    assert replay(seen, CleaningSetting(1.0, NO_LAG, 1)).cleanings == 0


def test_a_larger_segment_holds_back_what_is_dirty() -> None:
    seen = recorded([100] * 50)
    small, large = (replay(seen, CleaningSetting(0.1, NO_LAG, size)) for size in (100, 2000))
    assert small.cleanings > large.cleanings == 2
    assert small.mean_bytes < large.mean_bytes


def test_what_stays_of_what_is_written() -> None:
    seen = [RecordedLog(0, 1000, 1000), RecordedLog(1, 3000, 1000), RecordedLog(2, 1500, 1500)]
    assert stayed(seen) == 0.25
    assert stayed([]) == stayed(seen[:1]) == 0
