"""Which segments retention deletes (rules 6.1-6.6): why, and where the log starts then; and invariants.

Cases that say what that does to files, epochs, snapshots and checkpoints (C124, C126, C127, C132, C134, C137, C138, C141,
C142, D17, D19) are in tests/cleaning/test_retain.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.policy.cleanable import SegmentFacts
from cleanerd.policy.retention import (
    Breach,
    Keeper,
    Kept,
    RetentionConfig,
    RetentionPlan,
    epochs_from,
    plan_retention,
    what_stays,
)

NOW_MS = 1_700_000_000_000
UNLIMITED = RetentionConfig(delete=True, retention_ms=-1, retention_bytes=-1)
COMPACT = replace(UNLIMITED, delete=False)


def segment(base: int, size: int = 500, largest_ms: int = NOW_MS) -> SegmentFacts:
    """A segment; indexes do not matter here."""
    return SegmentFacts(base, size, 8, 12, largest_ms, None)


def segments_of(records: int, per_segment: int = 5, largest_ms: int = NOW_MS) -> list[SegmentFacts]:
    """Records of 100 bytes."""
    return [
        segment(base, 100 * min(per_segment, records - base), largest_ms)
        for base in range(0, records, per_segment)
    ]


def plan(
    segments: list[SegmentFacts],
    config: RetentionConfig,
    *,
    end: int,
    start: int = 0,
    high_watermark: int | None = None,
    now_ms: int = NOW_MS,
) -> RetentionPlan:
    """A plan; the high watermark is the log end unless said otherwise."""
    return plan_retention(
        segments,
        config,
        now_ms=now_ms,
        log_start_offset=start,
        log_end_offset=end,
        high_watermark=end if high_watermark is None else high_watermark,
    )


def deleted(found: RetentionPlan) -> list[int]:
    return [s.base_offset for s, _ in found.deletions]


def reasons(found: RetentionPlan) -> list[Breach]:
    return [breach for _, breach in found.deletions]


EXPIRED = replace(UNLIMITED, retention_ms=1000)
OLD_MS = NOW_MS - 1001


def test_c125_segments_at_or_above_the_high_watermark() -> None:
    """For every high watermark the log start stays at or below it; at the end an empty segment remains."""
    segments = segments_of(100, largest_ms=OLD_MS)
    for high_watermark in range(101):
        found = plan(segments, EXPIRED, end=100, high_watermark=high_watermark)
        assert found.log_start_offset <= high_watermark
        bases = [s.base_offset for s in segments if s.base_offset not in deleted(found)]
        bases += [100] if found.roll else []
        assert found.log_start_offset == bases[0]
        assert all(base > high_watermark for base in bases[1:])
    assert (found.log_start_offset, bases) == (100, [100])


def by_size(limit: int) -> RetentionConfig:
    return replace(UNLIMITED, retention_bytes=limit)


AGED = {age_ms: segments_of(15, largest_ms=NOW_MS - age_ms) for age_ms in (1001, 1000, 0, -5)}
NINE = [segment(n, largest_ms=OLD_MS) for n in range(9)]


@pytest.mark.parametrize(
    ("segments", "config", "end", "start", "goes", "rolls"),
    [
        (segments_of(15), by_size(1000), 15, 0, 1, False),  # C128
        (segments_of(15), by_size(1500), 15, 0, 0, False),
        (segments_of(15), by_size(1501), 15, 0, 0, False),
        (segments_of(15), by_size(0), 15, 0, 3, True),
        (segments_of(200, 10), by_size(5010), 200, 0, 14, False),  # C139
        (AGED[1001], EXPIRED, 15, 0, 3, True),  # C129: strictly older (6.5); C131
        (AGED[1000], EXPIRED, 15, 0, 0, False),
        (AGED[0], EXPIRED, 15, 0, 0, False),
        (AGED[-5], EXPIRED, 15, 0, 0, False),
        (AGED[1001], replace(EXPIRED, delete=False), 15, 0, 0, False),  # C130
        ([*NINE, segment(9, 0)], UNLIMITED, 9, 6, 6, False),  # C135: by log start
        ([*NINE, segment(9, 0, OLD_MS)], EXPIRED, 9, 0, 9, False),  # by time
        ([*NINE, segment(9, 50, OLD_MS)], EXPIRED, 10, 0, 10, True),  # after an append
    ],
)
def test_c128_c129_c130_c131_c135_c139_what_goes_by_a_limit(
    segments: list[SegmentFacts], config: RetentionConfig, end: int, start: int, goes: int, rolls: bool
) -> None:
    found = plan(segments, config, end=end, start=start)
    assert (deleted(found), found.roll) == ([s.base_offset for s in segments[:goes]], rolls)
    expected = Breach.LOG_START_OFFSET if start else Breach.TIME if config is EXPIRED else Breach.SIZE
    assert set(reasons(found)) <= {expected}


def test_c133_idempotent() -> None:
    """One goes by the log start, one by time, and nothing the second time."""
    segments = [segment(n, largest_ms=NOW_MS + shift) for n, shift in ((0, 100), (1, 0), (2, 100))]
    config = replace(UNLIMITED, retention_ms=900)
    found = plan(segments, config, end=3, start=1, now_ms=NOW_MS + 901)
    assert reasons(found) == [Breach.LOG_START_OFFSET, Breach.TIME]
    again = plan(segments[2:], config, end=3, start=found.log_start_offset, now_ms=NOW_MS + 901)
    assert deleted(again) == []


@pytest.mark.parametrize(
    ("epochs", "start", "expected"),
    [
        (((0, 40), (1, 90)), 100, ((1, 100),)),  # C124
        (((1, 0), (2, 10)), 5, ((1, 5), (2, 10))),  # C136
        (((0, 0), (1, 7), (2, 10)), 5, ((0, 5), (1, 7), (2, 10))),  # C136
        (((0, 0), (1, 5), (2, 10)), 5, ((1, 5), (2, 10))),
        (((0, 0),), 0, ((0, 0),)),
        (((3, 8),), 5, ((3, 8),)),  # the log began before its first known epoch
        ((), 5, ()),
    ],
)
def test_c124_c136_leader_epochs_are_trimmed_from_the_start(
    epochs: tuple[tuple[int, int], ...], start: int, expected: tuple[tuple[int, int], ...]
) -> None:
    """Rule 6.9; trimmed once more it stays the same."""
    assert epochs_from(epochs, start) == expected
    assert epochs_from(expected, start) == expected


@given(
    starts=st.sets(st.integers(0, 60), max_size=6).map(sorted),
    log_start=st.integers(0, 60),
    offset=st.integers(0, 70),
)
def test_no_record_that_is_left_changes_its_epoch(starts: list[int], log_start: int, offset: int) -> None:
    """Rule 6.9 put differently."""

    def epoch_of(epochs: Sequence[tuple[int, int]]) -> int | None:
        return max((epoch for epoch, start in epochs if start <= offset), default=None)

    epochs = tuple(enumerate(starts))
    trimmed = epochs_from(epochs, log_start)
    if offset >= log_start:
        assert epoch_of(trimmed) == epoch_of(epochs)
    assert all(start >= log_start for _, start in trimmed)


class LiteralLog:
    """Rules 6.1 to 6.6 word for word, with a log that really changes in each phase."""

    def __init__(
        self, segments: Sequence[SegmentFacts], *, now_ms: int, start: int, end: int, high_watermark: int
    ) -> None:
        self.segments = list(segments)
        self.now_ms, self.start, self.end, self.high_watermark = now_ms, start, end, high_watermark
        self.gone: list[tuple[SegmentFacts, Breach]] = []

    def retain(self, config: RetentionConfig) -> None:
        """6.1"""
        self.phase(
            Breach.LOG_START_OFFSET, lambda _, after: after is not None and after.base_offset <= self.start
        )
        if not config.delete:
            return
        total = sum(s.size_bytes for s in self.segments)
        if not (config.retention_bytes < 0 or total < config.retention_bytes):  # 6.4
            difference = [total - config.retention_bytes]

            def too_large(s: SegmentFacts, _: SegmentFacts | None) -> bool:
                if difference[-1] - s.size_bytes >= 0:
                    difference.append(difference[-1] - s.size_bytes)
                    return True
                return False

            self.phase(Breach.SIZE, too_large)
        if config.retention_ms >= 0:  # 6.5
            self.phase(Breach.TIME, lambda s, _: self.now_ms - s.largest_timestamp_ms > config.retention_ms)

    def phase(self, breach: Breach, predicate: Callable[[SegmentFacts, SegmentFacts | None], bool]) -> None:
        """6.2, then 6.6 and 6.7"""
        taken = []
        for s, following in zip(self.segments, [*self.segments[1:], None], strict=True):
            upper = self.end if following is None else following.base_offset
            is_last_and_empty = following is None and s.size_bytes == 0
            if not (self.high_watermark >= upper and predicate(s, following) and not is_last_and_empty):
                break
            taken.append(s)
        if taken and len(taken) == len(self.segments):
            if taken[-1].base_offset == self.end:
                taken.pop()
            else:
                self.segments.append(segment(self.end, 0, self.now_ms))
        self.segments = self.segments[len(taken) :]
        self.gone += [(s, breach) for s in taken]
        if taken:
            self.start = max(self.start, self.segments[0].base_offset)


@given(data=st.data())
def test_the_plan_is_what_the_rules_say(data: st.DataObject) -> None:
    """Against the rules written down a second time: same segments and reasons, same log start, same roll."""
    bases = sorted(data.draw(st.sets(st.integers(0, 60), min_size=1, max_size=7)))
    end = bases[-1] + data.draw(st.sampled_from([0, 1, 5]))
    sizes, ages = st.sampled_from([0, 1, 40, 50, 100]), st.integers(-10, 50)
    segments = [segment(base, data.draw(sizes), NOW_MS - data.draw(ages)) for base in bases]
    config = RetentionConfig(
        data.draw(st.booleans()),
        data.draw(st.integers(-1, 40)),
        data.draw(st.sampled_from([-1, 0, 50, 100, 120, 300])),
    )
    start = data.draw(st.integers(bases[0], end))
    high_watermark = data.draw(st.integers(0, end))
    log = LiteralLog(segments, now_ms=NOW_MS, start=start, end=end, high_watermark=high_watermark)
    log.retain(config)
    found = plan(segments, config, end=end, start=start, high_watermark=high_watermark)
    assert list(found.deletions) == log.gone
    assert found.roll is (log.segments[0] not in segments)
    assert found.log_start_offset == max(log.start, log.segments[0].base_offset)


def kept(
    segments: list[SegmentFacts], config: RetentionConfig, *, end: int, high_watermark: int | None = None
) -> Kept | None:
    """What the plan for these spares first."""
    mark = end if high_watermark is None else high_watermark
    found = plan(segments, config, end=end, high_watermark=mark)
    return what_stays(segments, config, found, now_ms=NOW_MS, log_end_offset=end, high_watermark=mark)


def test_why_a_segment_stays_and_when_it_goes() -> None:
    """By 6.5 a millisecond after retention.ms has passed, by 6.4 when the log without it reaches retention.bytes."""
    segments = [segment(0, 500, NOW_MS - 2000), segment(5, 500, NOW_MS - 900), segment(10, 500)]
    config = replace(UNLIMITED, retention_ms=1000, retention_bytes=900)
    found = kept(segments, config, end=15)
    assert found == Kept(segments[1], Keeper.LIMITS, NOW_MS + 101, 400)
    assert plan(segments, config, end=15, now_ms=NOW_MS + 100).deletions == ((segments[0], Breach.SIZE),)
    assert deleted(plan(segments, config, end=15, now_ms=NOW_MS + 101)) == [0, 5]
    grown = [*segments[:2], segment(10, 900)]
    assert deleted(plan(grown, config, end=19)) == [0, 5]
    assert deleted(plan([*segments[:2], segment(10, 899)], config, end=19)) == [0]


def test_what_else_keeps_a_segment() -> None:
    """The high watermark and the empty active segment (6.2); a policy without delete and no limit at all."""
    old = segments_of(10, largest_ms=0)
    expired = replace(UNLIMITED, retention_ms=1000)
    behind = kept(old, expired, end=10, high_watermark=7)
    assert behind == Kept(old[1], Keeper.HIGH_WATERMARK, 1001, None)
    for torn_bytes in (0, 40):  # 6.6: neither holds an offset
        empty = [*old, segment(10, torn_bytes, 0)]
        assert kept(empty, expired, end=10) == Kept(empty[2], Keeper.EMPTY, 1001, None)
    assert kept(old, COMPACT, end=10) == Kept(old[0], Keeper.LIMITS, None, None)
    assert kept(old, UNLIMITED, end=10) == Kept(old[0], Keeper.LIMITS, None, None)
    assert kept(old, expired, end=10) is None


@given(st.data())
def test_what_stays_goes_when_it_says(data: st.DataObject) -> None:
    """Whatever stays until an instant is not taken a millisecond earlier, and is taken then."""
    stamps = data.draw(st.lists(st.integers(NOW_MS - 5000, NOW_MS), min_size=1, max_size=6))
    segments = [segment(5 * number, 500, stamp) for number, stamp in enumerate(stamps)]
    config = replace(UNLIMITED, retention_ms=data.draw(st.integers(0, 6000)))
    found = kept(segments, config, end=5 * len(segments))
    if found is not None and found.due_ms is not None:
        base, end = found.segment.base_offset, 5 * len(segments)
        assert base not in deleted(plan(segments, config, end=end, now_ms=found.due_ms - 1))
        assert base in deleted(plan(segments, config, end=end, now_ms=found.due_ms))
