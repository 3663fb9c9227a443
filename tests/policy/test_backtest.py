"""What another setting would have done over a recorded history."""

from hypothesis import given
from hypothesis import strategies as st

from cleanerd.policy.backtest import CleaningSetting, SizeSample, replay, stayed

NO_LAG = 0
growth = st.lists(st.integers(0, 1000), min_size=1, max_size=60)


def recorded(written: list[int], clean_bytes: int = 1000) -> list[SizeSample]:
    """A log that was never cleaned, a sample each second."""
    size, seen = clean_bytes, [SizeSample(0, clean_bytes, clean_bytes, 0)]
    for i, more in enumerate(written):
        size += more
        seen.append(SizeSample(1000 * (i + 1), size, clean_bytes, 0))
    return seen


def cleaned(written: list[int], setting: CleaningSetting) -> tuple[list[SizeSample], int, int]:
    """The samples of a log that is cleaned by a setting to what it was, how often, and what that read."""
    size, cleanings, read, seen = 1000, 0, 0, [SizeSample(0, 1000, 1000, 0)]
    for i, more in enumerate(written):
        size += more
        seen.append(SizeSample(1000 * i + 500, size, 1000, 0))
        if size - 1000 > setting.min_cleanable_dirty_ratio * size:
            cleanings, read, size = cleanings + 1, read + size, 1000
        seen.append(SizeSample(1000 * i + 999, size, 1000, 0))
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
    seen = [SizeSample(0, 1000, 1000, 0), SizeSample(1, 3000, 1000, 0), SizeSample(2, 1500, 1500, 0)]
    assert stayed(seen) == 0.25
    assert stayed([]) == stayed(seen[:1]) == 0


def test_retention_by_time_keeps_what_was_written_in_it() -> None:
    """Rule 6.5. 100 bytes a second that no cleaning takes: ten seconds of them stay, and no more."""
    seen = recorded([100] * 50, clean_bytes=0)
    kept = replay(seen, CleaningSetting(1.0, NO_LAG, 100, retention_ms=10_000))
    assert kept.max_bytes == 1200  # before the run that got too old goes
    assert kept.mean_bytes < replay(seen, CleaningSetting(1.0, NO_LAG, 100)).mean_bytes


def test_retention_by_size_leaves_at_least_that() -> None:
    """Rule 6.4: what goes leaves `retention.bytes` or more."""
    seen = recorded([100] * 50, clean_bytes=0)
    kept = replay(seen, CleaningSetting(1.0, NO_LAG, 100, retention_bytes=950))
    assert kept.max_bytes == 1100
    assert replay(seen, CleaningSetting(1.0, NO_LAG, 100, retention_bytes=10_000)).max_bytes == 5000


@given(growth, st.sampled_from((0.1, 0.5)), st.integers(0, 60_000), st.integers(0, 60_000))
def test_less_time_is_never_larger(written: list[int], ratio: float, one_ms: int, other_ms: int) -> None:
    seen = recorded(written)
    less, more = sorted((one_ms, other_ms))
    sizes = [
        replay(seen, CleaningSetting(ratio, NO_LAG, 1, retention_ms=ms)).max_bytes for ms in (less, more)
    ]
    assert sizes == sorted(sizes)


def test_a_segment_that_is_written_to_is_young() -> None:
    """Its largest timestamp is the last one (rule 6.5), so it stays."""
    seen = recorded([100] * 5, clean_bytes=0)
    assert replay(seen, CleaningSetting(1.0, NO_LAG, 1000, retention_ms=0)).max_bytes == 500
