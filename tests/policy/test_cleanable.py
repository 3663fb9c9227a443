"""Which part of a log may be cleaned, and how much of it is dirty: cases and D02-D05 as arithmetic, and invariants.

C012 to C029 on directories, and which log goes first, are in tests/daemon/test_due_logs.py and test_urgency.py.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.policy.cleanable import (
    CleanableRange,
    CompactionConfig,
    LogFacts,
    RangeLimit,
    SegmentFacts,
    cleanable_range,
    first_dirty_offset,
    is_filthy,
    non_active_from,
    range_query,
)

HOUR_MS = 3_600_000
NEVER_MS = 2**63 - 1
NOW_MS = 1_700_000_000_000
CONFIG = CompactionConfig(
    min_cleanable_dirty_ratio=0.05, min_compaction_lag_ms=0, max_compaction_lag_ms=NEVER_MS
)


def segment(
    base: int, size: int = 100, *, largest_ms: int = NOW_MS, first_batch_ms: int | None = NOW_MS
) -> SegmentFacts:
    """A segment; indexes do not matter here."""
    return SegmentFacts(base, size, 8, 12, largest_ms, first_batch_ms)


def log_of(
    *segments: SegmentFacts,
    end: int,
    start: int = 0,
    stable: int | None = None,
    checkpoint: int | None = None,
    recovery_point: int | None = None,
) -> LogFacts:
    """A log; the last stable offset is its end unless said otherwise."""
    return LogFacts(segments, start, end, end if stable is None else stable, recovery_point, checkpoint)


def bounds(found: CleanableRange) -> tuple[int, int]:
    return found.first_dirty_offset, found.first_uncleanable_offset


THREE = [segment(0), segment(10), segment(20)]


@pytest.mark.parametrize(
    ("start", "end", "bases"),
    [
        (10, 10, []),
        (15, 15, []),
        (0, 21, [0, 10, 20]),
        (1, 5, [0]),
        (13, 21, [10, 20]),
        (13, 17, [10]),
        (-1, 10, [0]),
        (25, 99, [20]),
    ],
)
def test_c031_range_query(start: int, end: int, bases: list[int]) -> None:
    """Rule 0.4: from the segment that contains the start; nothing for an empty range, even inside a segment."""
    assert [s.base_offset for s in range_query(THREE, start, end)] == bases


def test_c031_range_query_backwards() -> None:
    """An end below the start is an error; no segments are no segments."""
    with pytest.raises(ValueError, match="ends before it starts"):
        range_query(THREE, 10, 0)
    assert range_query([], 0, 10) == ()


@pytest.mark.parametrize(("start", "bases"), [(0, [0, 1, 2, 3, 4]), (2, [2, 3, 4]), (5, []), (6, [])])
def test_c032_non_active_from(start: int, bases: list[int]) -> None:
    """The active segment is never among them."""
    segments = [segment(base) for base in range(6)]
    assert [s.base_offset for s in non_active_from(segments, start)] == bases


@pytest.mark.parametrize(
    ("start", "end", "checkpoint", "expected"),
    [
        (0, 20, 200, (0, True)),  # C017
        (10, 20, 0, (10, True)),  # C018
        (10, 20, 15, (15, False)),  # C027
        (20, 20, 15, (20, True)),  # C027
        (0, 20, 25, (0, True)),  # C027
        (0, 20, 20, (20, False)),  # valid at the log end
        (5, 20, None, (5, False)),  # never cleaned
        (15, 20, 10, (15, True)),  # C022, log A
        (5, 20, 5, (5, False)),
    ],
)
def test_first_dirty_offset(start: int, end: int, checkpoint: int | None, expected: tuple[int, bool]) -> None:
    """C017, C018, C022, C027: Rule 1.5: a checkpoint outside of the log is reset to its start."""
    log = log_of(segment(0), end=end, start=start, checkpoint=checkpoint)
    assert first_dirty_offset(log, NOW_MS) == expected
    assert cleanable_range(log, CONFIG, NOW_MS).checkpoint_reset is expected[1]


@pytest.mark.parametrize(
    ("modified_ms", "checkpoint", "start", "now_ms", "expected"),
    [
        ((-9, 0, 900), 20, 0, HOUR_MS, (20, False)),  # all were there when the checkpoint was written
        ((0, 1_000, 9_999), 20, 0, HOUR_MS, (20, False)),  # the last is above it; a second tells nothing
        ((0, 1_001, 0), 20, 0, HOUR_MS, (10, True)),  # truncated in the second, and filled up again
        ((5_000, 5_000, 5_000), 20, 0, HOUR_MS, (0, True)),  # another log of that name
        ((5_000, 5_000, 5_000), 20, 4, HOUR_MS, (4, True)),
        ((0, 5_000, 5_000), 25, 0, HOUR_MS, (10, True)),
        ((0, 0, 5_000), 25, 0, HOUR_MS, (20, True)),  # the active segment, too
        ((0, HOUR_MS + 1, 0), 20, 0, HOUR_MS, (20, False)),  # of the future: the clock was set back
        ((5_000, 5_000, 5_000), 20, 0, 0, (20, False)),  # the same
        (
            (5_000, 5_000, 5_000),
            20,
            0,
            -HOUR_MS,
            (0, True),
        ),  # the checkpoint is of the future, too: `--now-ms`
        ((5_000, 5_000, 5_000), None, 0, HOUR_MS, (0, False)),  # never cleaned
        ((5_000, 5_000, 5_000), 200, 0, HOUR_MS, (0, True)),  # C017, and no more than that
    ],
)
def test_2_11_what_was_written_after_the_checkpoint_is_dirty(
    modified_ms: tuple[int, ...], checkpoint: int | None, start: int, now_ms: int, expected: tuple[int, bool]
) -> None:
    """A broker without a cleaner leaves the first dirty offset of a log that it truncates or deletes as it is."""
    segments = [replace(s, modified_ms=NOW_MS + ms) for s, ms in zip(THREE, modified_ms, strict=True)]
    log = replace(log_of(*segments, end=30, start=start, checkpoint=checkpoint), checkpoint_written_ms=NOW_MS)
    assert first_dirty_offset(log, NOW_MS + now_ms) == expected


NINE = [segment(base) for base in range(0, 90, 10)]
LAG_MS = HOUR_MS


def aged(*ages_ms: int) -> list[SegmentFacts]:
    """Segments whose newest records are so old, and an active one."""
    ages = [*ages_ms, 0]
    return [segment(10 * place, largest_ms=NOW_MS - age_ms) for place, age_ms in enumerate(ages)]


@pytest.mark.parametrize(
    ("log", "lag_ms", "expected", "limit"),
    [
        (log_of(*NINE, end=90, stable=50), 0, (0, 50), RangeLimit.LAST_STABLE_OFFSET),
        (log_of(*NINE, end=90, stable=57), 0, (0, 50), RangeLimit.LAST_STABLE_OFFSET),
        (log_of(*NINE[:6], end=60, stable=22), 0, (0, 20), RangeLimit.LAST_STABLE_OFFSET),
        (log_of(*THREE, end=25, checkpoint=15, stable=17), 0, (15, 10), RangeLimit.LAST_STABLE_OFFSET),
        (log_of(*THREE, end=25, recovery_point=15), 0, (0, 10), RangeLimit.RECOVERY_POINT),
        (log_of(*THREE, end=25, recovery_point=25), 0, (0, 20), RangeLimit.ACTIVE_SEGMENT),
        (log_of(*aged(*[LAG_MS + 1] * 7), end=80), LAG_MS, (0, 70), RangeLimit.ACTIVE_SEGMENT),
        (log_of(*aged(LAG_MS + 1, 0, LAG_MS + 1), end=40), LAG_MS, (0, 10), RangeLimit.MIN_COMPACTION_LAG),
        (log_of(*aged(LAG_MS), end=20), LAG_MS, (0, 10), RangeLimit.ACTIVE_SEGMENT),
        (log_of(*aged(LAG_MS - 1), end=20), LAG_MS, (0, 0), RangeLimit.MIN_COMPACTION_LAG),
        (log_of(*aged(-HOUR_MS), end=20), 0, (0, 10), RangeLimit.ACTIVE_SEGMENT),
        (log_of(*aged(-HOUR_MS), end=20), -1, (0, 10), RangeLimit.ACTIVE_SEGMENT),
    ],
    ids=[
        "C023 the high watermark",
        "1.13 rounded down to a segment",
        "C056 the segment that contains the bound stays",
        "10.3 rounded down below the first dirty offset",
        "spec disk G: what a broker will recover",
        "not past the active segment",
        "C026 all are old enough",
        "1.11 older segments behind a young one wait",
        "D04 exactly as old as the lag",
        "D04 a millisecond younger",
        "a lag of 0 is none, also for records of the future",
        "a negative lag is none",
    ],
)
def test_c023_c026_c056_d04_where_the_cleanable_range_ends(
    log: LogFacts, lag_ms: int, expected: tuple[int, int], limit: RangeLimit
) -> None:
    found = cleanable_range(log, replace(CONFIG, min_compaction_lag_ms=lag_ms), NOW_MS)
    assert bounds(found) == expected
    assert found.limit is limit
    assert found.is_empty == (expected[0] >= expected[1])


@pytest.mark.parametrize(
    ("log", "clean_bytes", "cleanable_bytes"),
    [
        (log_of(*(segment(b, 100 + b) for b in range(6)), end=6, checkpoint=2, stable=4), 201, 205),
        (log_of(*THREE, end=25, checkpoint=5), 100, 200),
        (log_of(*THREE, end=25, start=10, checkpoint=10), 100, 100),
    ],
    ids=[
        "C030 dirty from the third segment, uncleanable from the fifth",
        "1.15 a segment with the first dirty offset inside counts twice",
        "1.16 segments below the log start are clean",
    ],
)
def test_c030_sizes_of_the_sections(log: LogFacts, clean_bytes: int, cleanable_bytes: int) -> None:
    found = cleanable_range(log, CONFIG, NOW_MS)
    assert (found.clean_bytes, found.cleanable_bytes) == (clean_bytes, cleanable_bytes)
    assert found.dirty_ratio == pytest.approx(cleanable_bytes / (clean_bytes + cleanable_bytes))


def overdue(delay_ms: int, *, dirty: int, clean: int) -> CleanableRange:
    return CleanableRange(0, 10, RangeLimit.ACTIVE_SEGMENT, False, clean, dirty, delay_ms)


@pytest.mark.parametrize(
    ("threshold", "dirty", "clean", "delay_ms", "qualifies"),
    [
        (0.5, 50, 50, 0, False),  # D02: exactly equal
        (0.5, 51, 49, 0, True),
        (1.0, 100, 0, 0, False),  # D03
        (1.0, 100, 0, 1, True),
        (0.0, 1, 1 << 40, 0, True),
        (0.0, 0, 100, 0, False),
        (0.0, 0, 100, 99, False),  # overdue, and nothing to clean
        (0.9, 1, 99, 1, True),
        (0.0, 0, 0, 0, False),
    ],
)
def test_d02_d03_threshold(threshold: float, dirty: int, clean: int, delay_ms: int, qualifies: bool) -> None:
    """Rule 1.21: strictly above, or overdue with something to clean."""
    config = replace(CONFIG, min_cleanable_dirty_ratio=threshold)
    assert is_filthy(overdue(delay_ms, dirty=dirty, clean=clean), config) is qualifies


@pytest.mark.parametrize(
    ("first_batch_ms", "delay_ms"),
    [
        (0, 0),  # D05
        (-1, 0),  # D05
        (None, 0),
        (NOW_MS - HOUR_MS, 0),
        (NOW_MS - HOUR_MS - 1, 1),
        (NOW_MS - 3 * HOUR_MS, 2 * HOUR_MS),
        (NOW_MS + HOUR_MS, 0),
    ],
)
def test_d05_compaction_delay(first_batch_ms: int | None, delay_ms: int) -> None:
    """Rules 1.18, 1.19: timestamps of 0 or below and unknown ones never make a log overdue."""
    log = log_of(segment(0, first_batch_ms=first_batch_ms), segment(10), end=20)
    config = replace(CONFIG, max_compaction_lag_ms=HOUR_MS)
    assert cleanable_range(log, config, NOW_MS).compaction_delay_ms == delay_ms


def test_compaction_delay_looks_at_closed_dirty_segments_only() -> None:
    """The oldest of them; neither the clean ones nor the active one count."""
    ancient, old, fresh = (NOW_MS - n * HOUR_MS for n in (9, 3, 1))
    times = {0: ancient, 10: fresh, 20: old, 30: ancient}
    segments = [segment(base, first_batch_ms=time) for base, time in times.items()]
    config = replace(CONFIG, max_compaction_lag_ms=HOUR_MS)
    found = cleanable_range(log_of(*segments, end=40, checkpoint=10), config, NOW_MS)
    assert found.compaction_delay_ms == 2 * HOUR_MS
    assert cleanable_range(log_of(*segments, end=40, checkpoint=10), CONFIG, NOW_MS).compaction_delay_ms == 0


@st.composite
def logs(draw: st.DrawFn) -> LogFacts:
    """Any log whose numbers fit together."""
    bases = sorted(draw(st.sets(st.integers(0, 200), min_size=1, max_size=8)))
    end = bases[-1] + draw(st.integers(0, 20))
    times = st.integers(NOW_MS - 100, NOW_MS + 100)
    segments = tuple(
        segment(
            base, draw(st.integers(0, 100)), largest_ms=draw(times), first_batch_ms=draw(st.none() | times)
        )
        for base in bases
    )
    start = draw(st.integers(bases[0], end))
    return LogFacts(
        segments,
        start,
        end,
        draw(st.integers(start, end)),
        draw(st.none() | st.integers(0, end)),
        draw(st.none() | st.integers(0, end + 10)),
    )


configs = st.builds(
    CompactionConfig,
    min_cleanable_dirty_ratio=st.floats(0, 1),
    min_compaction_lag_ms=st.integers(-1, 100),
    max_compaction_lag_ms=st.integers(0, 200) | st.just(NEVER_MS),
)


@given(log=logs(), config=configs)
def test_invariants(log: LogFacts, config: CompactionConfig) -> None:
    """What is cleaned is closed, stable, old enough, not to be recovered, and whole segments."""
    found = cleanable_range(log, config, NOW_MS)
    bases = [s.base_offset for s in log.segments]
    assert log.log_start_offset <= found.first_dirty_offset <= log.log_end_offset
    assert found.first_uncleanable_offset in bases
    assert found.first_uncleanable_offset <= log.active.base_offset
    assert 0 <= found.dirty_ratio <= 1
    assert found.compaction_delay_ms >= 0
    if found.is_empty:
        assert found.cleanable_bytes == 0
        assert not is_filthy(found, config)
        return
    assert found.first_uncleanable_offset <= log.last_stable_offset
    assert log.recovery_point is None or found.first_uncleanable_offset <= log.recovery_point
    dirty = range_query(log.segments, found.first_dirty_offset, found.first_uncleanable_offset)
    assert sum(s.size_bytes for s in dirty) == found.cleanable_bytes
    assert log.active not in dirty
    if config.min_compaction_lag_ms > 0:
        assert all(NOW_MS - s.largest_timestamp_ms >= config.min_compaction_lag_ms for s in dirty)


@given(log=logs(), config=configs)
def test_a_larger_bound_never_cleans_less(log: LogFacts, config: CompactionConfig) -> None:
    before = cleanable_range(log, config, NOW_MS)
    after = cleanable_range(replace(log, last_stable_offset=log.log_end_offset), config, NOW_MS)
    assert after.first_uncleanable_offset >= before.first_uncleanable_offset
    assert after.first_dirty_offset == before.first_dirty_offset
