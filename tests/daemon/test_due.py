"""Which log is due, why, in which order, and when the next one will be (rules 1.1-1.25; cases C012-C036, D01-D05).

The arithmetic of these cases is in `tests/policy/test_policy_cleanable.py`; here they are files on a disk. What the daemon
knows without reading a segment is an upper bound, and that it is one is the first thing to prove.
"""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cleanerd.client.producer import Producer
from cleanerd.client.writer import LogWriter
from cleanerd.config.model import TopicConfig
from cleanerd.daemon.inventory.known_log import (
    ClosedSegment,
    Contents,
    KnownLog,
    compaction_config,
    offsets_of,
)
from cleanerd.daemon.inventory.urgency import FOREVER_MS, Due, DueReason, estimate
from cleanerd.daemon.values.log_id import LogId
from cleanerd.format import names
from cleanerd.format.names import TopicPartition
from cleanerd.policy.cleanable import (
    CleanableRange,
    Limit,
    LogFacts,
    SegmentFacts,
    cleanable_range,
    is_filthy,
    urgency,
)
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.scan import Checkpoints, scan_partition
from tests.daemon.inventories import (
    CONFIG,
    HOUR_MS,
    OLD_MS,
    Fixture,
    batch,
    file_name,
    stamp_first_batch,
    write_checkpoint,
    write_cleaner_checkpoint,
    write_log,
)

NOW_MS = 1_700_000_000_000
TP = TopicPartition("t", 0)

# -- the estimate is an upper bound ---------------------------------------------------------------------------


@st.composite
def disks(draw: st.DrawFn) -> tuple[KnownLog, LogFacts, dict[int, int | None]]:
    """A log as the daemon knows it, and one of the logs that it may be: any log end, any last stable offset."""
    bases = sorted(draw(st.sets(st.integers(0, 60), min_size=1, max_size=7)))
    times = st.integers(NOW_MS - 100, NOW_MS + 100)
    segments = [
        SegmentFacts(
            base, draw(st.integers(0, 100)), 8, 12, draw(times), draw(st.none() | st.just(0) | times)
        )
        for base in bases
    ]
    end = bases[-1] + draw(st.integers(0, 20))
    is_kafka = draw(st.booleans())
    offsets = st.dictionaries(st.just(TP), st.integers(-1, 90))
    checkpoints = Checkpoints(draw(offsets), draw(offsets), draw(offsets), draw(offsets))
    start = max(checkpoints.log_start.get(TP, 0), bases[0])
    high_watermark = end
    if is_kafka:
        high_watermark = min(max(checkpoints.high_watermark.get(TP, 0), start), end)
    truth = LogFacts(
        segments=tuple(segments),
        log_start_offset=start,
        log_end_offset=end,
        last_stable_offset=draw(st.integers(-1, high_watermark)),
        recovery_point=checkpoints.recovery_point.get(TP, 0) if is_kafka else None,
        checkpoint=checkpoints.cleaner.get(TP),
    )
    closed = tuple(ClosedSegment(1, 1, replace(s, first_batch_timestamp_ms=None)) for s in segments[:-1])
    contents = Contents(closed, bases[-1], segments[-1].size_bytes, is_staged=False, in_transition=False)
    seen_end = draw(st.sampled_from([end, bases[-1]]))  # it may have grown, or nobody looked
    offsets_known = offsets_of(
        TP, contents, checkpoints, is_kafka=is_kafka, reaches=lambda offset: offset <= seen_end
    )
    known = KnownLog(LogId("/d", TP), contents, offsets_known)
    return known, truth, {s.base_offset: s.first_batch_timestamp_ms for s in segments[:-1]}


configs = st.builds(
    replace,
    st.just(CONFIG),
    min_cleanable_dirty_ratio=st.floats(0, 1),
    min_compaction_lag_ms=st.integers(-1, 100),
    max_compaction_lag_ms=st.integers(0, 200) | st.just(FOREVER_MS),
)
Disk = tuple[KnownLog, LogFacts, dict[int, int | None]]


@given(disk=disks(), config=configs)
def test_estimate_is_never_below_the_truth(disk: Disk, config: TopicConfig) -> None:
    """With any log end and any last stable offset up to the high watermark."""
    known, truth, first_batches_ms = disk
    exact = cleanable_range(truth, compaction_config(config), NOW_MS)
    bound = known.upper_bound(config, NOW_MS, first_batches_ms)
    assert bound.cleanable_bytes >= exact.cleanable_bytes
    assert bound.dirty_ratio >= exact.dirty_ratio
    if not exact.is_empty:
        assert bound.compaction_delay_ms >= exact.compaction_delay_ms
        assert bound.first_uncleanable_offset >= exact.first_uncleanable_offset
    if is_filthy(exact, compaction_config(config)):
        assert estimate(known, config, NOW_MS, first_batches_ms).reason(NOW_MS) is not None


@given(disk=disks(), config=configs)
def test_estimate_without_open_transactions_is_exact(disk: Disk, config: TopicConfig) -> None:
    """Nobody visits a log for nothing, but when the log end could not be told quickly."""
    known, truth, first_batches_ms = disk
    truth = replace(truth, last_stable_offset=known.offsets.high_watermark)
    if known.offsets.log_end < (truth.checkpoint or 0) <= truth.log_end_offset:
        return
    exact = cleanable_range(truth, compaction_config(config), NOW_MS)
    bound = known.upper_bound(config, NOW_MS, first_batches_ms)
    assert (bound.clean_bytes, bound.cleanable_bytes) == (exact.clean_bytes, exact.cleanable_bytes)
    assert bound.is_empty == exact.is_empty
    qualifies = estimate(known, config, NOW_MS, first_batches_ms).reason(NOW_MS) is not None
    assert qualifies == is_filthy(bound, compaction_config(config))


@given(disk=disks(), config=configs, later_ms=st.integers(0, 400))
def test_estimate_stands_until_it_says_so(disk: Disk, config: TopicConfig, later_ms: int) -> None:
    """Between two estimates the reason only changes at the instants that `next_change_ms` names."""
    known, _, first_batches_ms = disk
    first = estimate(known, config, NOW_MS, first_batches_ms)
    later = NOW_MS + later_ms
    second = estimate(known, config, later, first_batches_ms)
    if first.holds(known, config, later):
        assert second.range.cleanable_bytes == first.range.cleanable_bytes
        assert second.reason(later) == first.reason(later)
    if later < first.next_change_ms(NOW_MS):
        assert second.reason(later) == first.reason(NOW_MS)


ranges = st.builds(
    CleanableRange,
    st.just(0), st.just(9), st.just(Limit.ACTIVE_SEGMENT), st.just(False), st.integers(0, 9), st.integers(1, 9),
    st.just(0) | st.integers(0, 5),
)  # fmt: skip


@given(found=st.lists(ranges, max_size=8))
@example([])
def test_1_23_order_is_that_of_policy(found: list[CleanableRange]) -> None:
    """Earliest deadline first is greatest delay first; whoever is not overdue is sorted by ratio alone."""
    dues = [
        Due(
            LogId("/d", TopicPartition("t", number)),
            DueReason.MAX_LAG if r.compaction_delay_ms else DueReason.RATIO,
            r,
            NOW_MS - r.compaction_delay_ms if r.compaction_delay_ms else None,
        )
        for number, r in enumerate(found)
    ]
    ordered = [urgency(due.range) for due in sorted(dues, key=lambda due: due.urgency)]
    assert ordered == sorted(ordered, reverse=True)


@pytest.mark.parametrize("is_kafka", [False, True])
def test_estimate_of_a_real_log_agrees_with_an_exact_scan(tmp_path: Path, is_kafka: bool) -> None:
    """Same files, same numbers, also for first batch timestamps (1.19) and time indexes (1.10)."""
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=1 << 20, index_interval_bytes=100) as writer:
        producer = Producer(writer)
        for offset in range(12):
            if offset % 3 == 0 and offset:
                writer.roll()
            producer.put(b"k%d" % offset, b"v" * 60, OLD_MS + 100 * offset)
    if is_kafka:
        (tmp_path / names.META_PROPERTIES).touch()
        write_checkpoint(tmp_path, names.REPLICATION_CHECKPOINT, {"t-0": 8})
        write_checkpoint(tmp_path, names.RECOVERY_POINT_CHECKPOINT, {"t-0": 12})
    write_cleaner_checkpoint(tmp_path, {"t-0": 3})
    fixture = Fixture([tmp_path])
    now_ms = OLD_MS + HOUR_MS
    fixture.clock.wall_ms = now_ms
    config = replace(CONFIG, min_compaction_lag_ms=HOUR_MS - 600, max_compaction_lag_ms=HOUR_MS - 1000)
    fixture.configs["t"] = config
    fixture.scan()
    snapshot = scan_partition(
        fixture.files, str(tmp_path), TP, read_checkpoints(fixture.files, str(tmp_path)), is_kafka=is_kafka,
        first_batch_timestamps=True,
    )  # fmt: skip
    assert snapshot is not None
    segments = tuple(segment.facts for segment in snapshot.segments)
    truth = LogFacts(
        segments, snapshot.log_start_offset, snapshot.log_end_offset, snapshot.high_watermark,
        snapshot.recovery_point, snapshot.checkpoint,
    )  # fmt: skip
    (due,) = fixture.due()
    exact = cleanable_range(truth, compaction_config(config), now_ms)
    assert (due.range, due.reason) == (exact, DueReason.MAX_LAG)
    assert (exact.first_dirty_offset, exact.first_uncleanable_offset, exact.compaction_delay_ms) == (
        3,
        6,
        700,
    )


# -- the cases of Kafka's tests, as far as they choose among logs ---------------------------------------------


def log_of(fixture: Fixture, name: str, records: int, first: int = 0) -> None:
    """Single-record batches of 100 bytes from offset `first` on, two in a segment; the active one has real ones."""
    write_log(fixture.root / name, {base: 100 * min(2, records - base) for base in range(first, records, 2)})
    active = first + (records - first - 1) // 2 * 2
    (fixture.root / name / file_name(active)).write_bytes(b"".join(map(batch, range(active, records))))


@pytest.fixture
def fixture(tmp_path: Path) -> Fixture:
    """An empty log directory; logs qualify with a ratio above 0.05."""
    found = Fixture([tmp_path])
    config = replace(CONFIG, min_cleanable_dirty_ratio=0.05)
    found.configs = {f"log{number}": config for number in (20, 25, 30)}
    return found


@pytest.fixture
def three(fixture: Fixture) -> Fixture:
    """C012: logs of 20, 25 and 30 records, all checkpointed at 20."""
    for records in (20, 25, 30):
        log_of(fixture, f"log{records}-0", records)
    write_cleaner_checkpoint(fixture.root, {f"log{records}-0": 20 for records in (20, 25, 30)})
    fixture.scan()
    return fixture


@pytest.mark.parametrize(
    ("busy", "expected"),
    [
        (set(), ["log30-0", "log25-0"]),  # C012
        ({"log30-0"}, ["log25-0"]),  # C013 uncleanable, C014 in progress: the caller knows
        ({"log30-0", "log25-0"}, []),  # C015
    ],
)
def test_c012_to_c015_dirtiest_free_log_first(three: Fixture, busy: set[str], expected: list[str]) -> None:
    three.busy = busy
    assert three.due_names() == expected


def test_c016_log_whose_first_batches_cannot_be_read_does_not_stop_the_others(three: Fixture) -> None:
    """Deviation from 1.27, where it ends the whole selection."""
    three.configs["log30"] = replace(three.configs["log30"], max_compaction_lag_ms=1)
    (three.root / "log30-0" / file_name(20)).unlink()
    assert three.due_names() == ["log25-0"]
    assert three.scan() == ["~ log30-0"]
    assert three.due_names() == ["log30-0", "log25-0"]


def test_c017_checkpoint_beyond_the_log_end_may_have_to_be_reset(fixture: Fixture) -> None:
    """All of the log counts as dirty."""
    log_of(fixture, "log20-0", 20)
    write_cleaner_checkpoint(fixture.root, {"log20-0": 200})
    fixture.scan()
    (due,) = fixture.due()
    assert (due.range.first_dirty_offset, due.range.dirty_ratio) == (0, 1.0)


def test_1_6_checkpoint_in_the_active_segment_is_left_alone(fixture: Fixture) -> None:
    """The log end decides, and it is read only for that; a longer log is still as clean."""
    log_of(fixture, "log20-0", 20)
    active = fixture.root / "log20-0" / file_name(18)
    for checkpoint, is_due in ((20, False), (21, True)):
        write_cleaner_checkpoint(fixture.root, {"log20-0": checkpoint})
        fixture.scan()
        assert bool(fixture.due()) is is_due
    write_cleaner_checkpoint(fixture.root, {"log20-0": 20})
    with active.open("ab") as file:
        file.write(batch(20))
    fixture.scan()
    assert fixture.due_names() == []


def test_c018_checkpoint_below_the_log_start(fixture: Fixture) -> None:
    log_of(fixture, "log20-0", 20)
    write_cleaner_checkpoint(fixture.root, {"log20-0": 0})
    write_checkpoint(fixture.root, names.LOG_START_CHECKPOINT, {"log20-0": 10})
    fixture.scan()
    (due,) = fixture.due()
    assert due.range.first_dirty_offset == 10


@pytest.mark.parametrize("checkpoint", [0, 3])
def test_c019_c020_nothing_but_an_active_segment(fixture: Fixture, checkpoint: int) -> None:
    """Log start or checkpoint inside of it: nothing is selected."""
    write_log(fixture.root / "log20-0", {0: 450})
    write_cleaner_checkpoint(fixture.root, {"log20-0": checkpoint})
    write_checkpoint(fixture.root, names.LOG_START_CHECKPOINT, {"log20-0": 2})
    fixture.scan()
    assert fixture.due_names() == []


def test_c021_log_that_was_deleted_up_to_its_end(fixture: Fixture) -> None:
    write_log(fixture.root / "log20-0", {20: 0})
    write_cleaner_checkpoint(fixture.root, {"log20-0": 15})
    write_checkpoint(fixture.root, names.LOG_START_CHECKPOINT, {"log20-0": 20})
    fixture.scan()
    assert fixture.due_names() == []


def test_c022_log_with_a_bad_checkpoint_beside_a_dirtier_one(fixture: Fixture) -> None:
    log_of(fixture, "log20-0", 20)
    log_of(fixture, "log25-0", 25)
    write_checkpoint(fixture.root, names.LOG_START_CHECKPOINT, {"log20-0": 15})
    write_cleaner_checkpoint(fixture.root, {"log20-0": 10, "log25-0": 5})
    fixture.scan()
    assert fixture.due_names()[0] == "log25-0"


def test_c023_high_watermark_that_a_broker_checkpointed_is_the_bound(fixture: Fixture) -> None:
    (fixture.root / names.META_PROPERTIES).touch()
    write_log(fixture.root / "log30-0", dict.fromkeys(range(0, 90, 10), 100))
    write_checkpoint(fixture.root, names.REPLICATION_CHECKPOINT, {"log30-0": 50})
    write_checkpoint(fixture.root, names.RECOVERY_POINT_CHECKPOINT, {"log30-0": 90})
    fixture.scan()
    (due,) = fixture.due()
    assert (due.range.first_uncleanable_offset, due.range.cleanable_bytes) == (50, 500)
    write_checkpoint(fixture.root, names.RECOVERY_POINT_CHECKPOINT, {"log30-0": 30})
    fixture.scan()
    (due,) = fixture.due()
    assert due.range.first_uncleanable_offset == 30


def test_c024_active_segment_is_the_bound(fixture: Fixture) -> None:
    write_log(fixture.root / "log30-0", dict.fromkeys(range(0, 90, 10), 100))
    fixture.scan()
    (due,) = fixture.due()
    assert (due.range.first_uncleanable_offset, due.range.cleanable_bytes) == (80, 800)


def test_c025_min_lag_makes_a_log_due_by_the_mere_passing_of_time(fixture: Fixture) -> None:
    """Rules 1.9, 1.11 and D04: exactly `now - lag` is cleanable."""
    now_ms = fixture.clock.wall_ms
    times = {
        0: now_ms - HOUR_MS - 1,
        10: now_ms - HOUR_MS,
        20: now_ms - HOUR_MS + 5,
        30: now_ms - 2 * HOUR_MS,
        40: 0,
    }
    fixture.configs["log30"] = replace(CONFIG, min_compaction_lag_ms=HOUR_MS)
    write_log(fixture.root / "log30-0", dict.fromkeys(times, 100), largest_ms=times.__getitem__)
    fixture.scan()
    (due,) = fixture.due()
    assert (due.range.first_uncleanable_offset, due.range.limit) == (20, Limit.MIN_COMPACTION_LAG)
    fixture.clock.advance(5)
    (due,) = fixture.due()
    assert due.range.first_uncleanable_offset == 40


def test_c027_checkpoint_between_log_start_and_active_segment_counts(fixture: Fixture) -> None:
    log_of(fixture, "log20-0", 20)
    write_checkpoint(fixture.root, names.LOG_START_CHECKPOINT, {"log20-0": 10})
    write_cleaner_checkpoint(fixture.root, {"log20-0": 14})
    fixture.scan()
    (due,) = fixture.due()
    assert due.range.first_dirty_offset == 14


def test_c029_c030_sizes_are_those_of_the_files(fixture: Fixture) -> None:
    write_log(fixture.root / "log30-0", {base: 100 + base for base in range(6)})
    write_cleaner_checkpoint(fixture.root, {"log30-0": 2})
    fixture.scan()
    (due,) = fixture.due()
    assert (due.range.clean_bytes, due.range.cleanable_bytes) == (201, 102 + 103 + 104)
    write_cleaner_checkpoint(fixture.root, {"log30-0": 5})
    fixture.scan()
    assert fixture.due_names() == []
    totals = fixture.inventory.totals(fixture.clock.now_ms(), fixture.config)
    assert totals[str(fixture.root)].size_bytes == sum(range(100, 106))


def overdue_log(fixture: Fixture, name: str, first_batch_ms: int, *, clean: int, dirty: int) -> None:
    """A log with one clean and one dirty segment, whose oldest dirty batch has this time."""
    write_log(fixture.root / name, {0: clean, 10: dirty, 20: 0})
    stamp_first_batch(fixture.root / name, 10, first_batch_ms)
    fixture.configs[fixture.log(name).topic_partition.topic] = replace(CONFIG, max_compaction_lag_ms=HOUR_MS)


def test_c033_d01_overdue_logs_go_first_and_the_earliest_deadline_before_all(fixture: Fixture) -> None:
    """Wanted deviation from 1.23."""
    now_ms = fixture.clock.wall_ms
    overdue_log(fixture, "late-0", now_ms - HOUR_MS - 1, clean=900, dirty=100)
    overdue_log(fixture, "later-0", now_ms - HOUR_MS - 5, clean=9900, dirty=100)
    overdue_log(fixture, "intime-0", now_ms - HOUR_MS, clean=900, dirty=100)
    write_log(fixture.root / "dirty-0", {0: 400, 10: 600, 20: 0})
    write_cleaner_checkpoint(fixture.root, dict.fromkeys(("late-0", "later-0", "intime-0", "dirty-0"), 10))
    fixture.scan()
    assert [(str(due.log), due.reason, due.at_ms) for due in fixture.due()] == [
        ("later-0", DueReason.MAX_LAG, now_ms - 4),
        ("late-0", DueReason.MAX_LAG, now_ms),
        ("dirty-0", DueReason.RATIO, None),
    ]
    assert fixture.next_due_in_ms() == 1
    fixture.clock.advance(1)
    assert fixture.due_names() == ["later-0", "late-0", "intime-0", "dirty-0"]


@pytest.mark.parametrize("first_batch_ms", [0, -1])
def test_d05_first_batches_without_a_time_are_never_overdue(fixture: Fixture, first_batch_ms: int) -> None:
    overdue_log(fixture, "odd-0", first_batch_ms, clean=900, dirty=100)
    write_cleaner_checkpoint(fixture.root, {"odd-0": 10})
    fixture.scan()
    assert (fixture.due_names(), fixture.next_due_in_ms()) == ([], None)


@pytest.mark.parametrize(
    ("ratio", "clean", "dirty", "is_due"), [(0.5, 50, 50, False), (0.5, 49, 51, True), (1.0, 0, 100, False)]
)
def test_d02_d03_ratio_must_be_above_the_threshold(
    fixture: Fixture, ratio: float, clean: int, dirty: int, is_due: bool
) -> None:
    fixture.configs["t"] = replace(CONFIG, min_cleanable_dirty_ratio=ratio)
    write_log(fixture.root / "t-0", {0: clean, 10: dirty, 20: 0})
    write_cleaner_checkpoint(fixture.root, {"t-0": 10})
    fixture.scan()
    assert bool(fixture.due()) is is_due


@pytest.mark.parametrize(
    ("policy", "is_due"),
    [(("delete",), False), (("compact", "delete"), True), (("compact",), True), ((), False)],
)
def test_c034_to_c036_only_compacted_logs_are_looked_at(
    fixture: Fixture, policy: tuple[str, ...], is_due: bool
) -> None:
    """1.2, 1.3; the retention of these logs is another matter."""
    write_log(fixture.root / "t-0", {0: 100, 10: 0})
    fixture.configs["t"] = replace(CONFIG, cleanup_policy=policy)
    fixture.scan()
    fixture.inventory.note_horizon(fixture.log("t-0"), 0)
    assert bool(fixture.due()) is is_due


# -- what an examination found --------------------------------------------------------------------------------


@pytest.fixture
def one(fixture: Fixture) -> Fixture:
    """One log, wholly dirty."""
    log_of(fixture, "log20-0", 20)
    fixture.scan()
    return fixture


def test_examined_log_is_not_offered_again_until_something_is_other(one: Fixture) -> None:
    log = one.log("log20-0")
    assert one.due_names() == ["log20-0"]
    one.inventory.note_examined(log, None)
    assert (one.due_names(), one.next_due_in_ms()) == ([], None)
    one.clock.advance(1000 * HOUR_MS)
    one.scan()
    assert one.due_names() == []

    write_cleaner_checkpoint(one.root, {"log20-0": 4})
    one.scan()
    assert one.due_names() == ["log20-0"]
    one.inventory.note_examined(log, None)

    (one.root / "log20-0" / file_name(30)).touch()
    one.scan()
    assert one.due_names() == ["log20-0"]
    one.inventory.note_examined(log, None)

    one.configs["log20"] = replace(CONFIG, min_cleanable_dirty_ratio=0.07)
    assert one.due_names() == ["log20-0"]
    one.inventory.note_examined(log, None)
    assert one.due_names() == []


def test_examined_log_is_offered_again_at_the_time_given(one: Fixture) -> None:
    """For what cannot be seen from here: a transaction that is open today."""
    one.due()
    one.inventory.note_examined(one.log("log20-0"), one.clock.now_ms() + 500)
    assert (one.due_names(), one.next_due_in_ms()) == ([], 500)
    one.clock.advance(500)
    assert one.due_names() == ["log20-0"]


def test_change_during_an_examination_is_not_lost(one: Fixture) -> None:
    """What was examined is what was offered, not what is known by now."""
    one.due()
    write_cleaner_checkpoint(one.root, {"log20-0": 4})
    one.scan()
    one.inventory.note_examined(one.log("log20-0"), None)
    assert one.due_names() == ["log20-0"]


def test_examined_log_becomes_due_for_another_reason(fixture: Fixture) -> None:
    """Dirty enough, held back by something; then its deadline passes."""
    overdue_log(fixture, "t-0", fixture.clock.wall_ms - HOUR_MS, clean=10, dirty=100)
    write_cleaner_checkpoint(fixture.root, {"t-0": 10})
    fixture.scan()
    assert [due.reason for due in fixture.due()] == [DueReason.RATIO]
    fixture.inventory.note_examined(fixture.log("t-0"), None)
    assert (fixture.due_names(), fixture.next_due_in_ms()) == ([], 1)
    fixture.clock.advance(1)
    assert [due.reason for due in fixture.due()] == [DueReason.MAX_LAG]


# -- horizons, reserved topics, time --------------------------------------------------------------------------


def test_horizon_that_passes_is_worth_a_visit_though_nothing_is_dirty(one: Fixture) -> None:
    log = one.log("log20-0")
    write_cleaner_checkpoint(one.root, {"log20-0": 18})
    one.scan()
    assert (one.due_names(), one.next_due_in_ms()) == ([], None)
    at_ms = one.clock.now_ms() + 50
    one.inventory.note_horizon(log, at_ms)
    assert (one.due_names(), one.next_due_in_ms()) == ([], 50)
    one.clock.advance(50)
    assert [(due.reason, due.at_ms) for due in one.due()] == [(DueReason.HORIZON, at_ms)]
    one.inventory.note_horizon(log, None)
    assert (one.due_names(), one.next_due_in_ms()) == ([], None)


def test_horizons_come_after_dirty_logs_and_the_oldest_first(three: Fixture) -> None:
    write_cleaner_checkpoint(three.root, {"log20-0": 18, "log25-0": 24, "log30-0": 20})
    three.scan()
    for name, ago_ms in (("log20-0", 5), ("log25-0", 7)):
        three.inventory.note_horizon(three.log(name), three.clock.now_ms() - ago_ms)
    assert three.due_names() == ["log30-0", "log25-0", "log20-0"]


def test_reserved_topic_does_not_wait_longer_than_it_should(three: Fixture) -> None:
    three.inventory.reserve(["log25"], 60_000)
    assert three.due_names() == ["log30-0", "log25-0"]
    assert three.next_due_in_ms() == 60_000
    three.clock.advance(59_999)
    assert [due.late_s for due in three.due()] == [None, None]
    three.clock.advance(1)
    assert [(str(due.log), due.late_s) for due in three.due()] == [("log25-0", 0.0), ("log30-0", None)]
    assert three.next_due_in_ms() is None


def test_wait_of_a_reserved_topic_begins_anew_when_it_was_served(three: Fixture) -> None:
    three.inventory.reserve(["log25"], 60_000)
    three.due()
    three.clock.advance(60_000)
    write_cleaner_checkpoint(three.root, {"log20-0": 20, "log25-0": 24, "log30-0": 20})
    three.scan()
    assert three.due_names() == ["log30-0"]
    write_cleaner_checkpoint(three.root, {"log20-0": 20, "log25-0": 20, "log30-0": 20})
    three.scan()
    assert three.due_names() == ["log30-0", "log25-0"]


def test_next_due_is_when_min_lag_has_passed(fixture: Fixture) -> None:
    """Nobody has to ask again and again."""
    now_ms = fixture.clock.wall_ms
    fixture.configs["t"] = replace(CONFIG, min_compaction_lag_ms=HOUR_MS)
    write_log(fixture.root / "t-0", {0: 100, 10: 0}, largest_ms=lambda _: now_ms - 10)
    fixture.scan()
    assert (fixture.due_names(), fixture.next_due_in_ms()) == ([], HOUR_MS - 10)
    fixture.clock.advance(HOUR_MS - 10)
    assert (fixture.due_names(), fixture.next_due_in_ms()) == (["t-0"], None)


def test_clock_that_goes_back_is_believed(fixture: Fixture) -> None:
    now_ms = fixture.clock.wall_ms
    fixture.configs["t"] = replace(CONFIG, min_compaction_lag_ms=HOUR_MS)
    write_log(fixture.root / "t-0", {0: 100, 10: 0}, largest_ms=lambda _: now_ms - HOUR_MS)
    fixture.scan()
    assert fixture.due_names() == ["t-0"]
    fixture.clock.wall_ms -= 1
    assert fixture.due_names() == []


def test_first_batches_are_read_once(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not at all where nobody asks for max.compaction.lag.ms."""
    read = itertools.count()
    monkeypatch.setattr("cleanerd.daemon.inventory.inventory.first_batch_timestamp_ms", lambda _: next(read))
    log_of(fixture, "log20-0", 20)
    fixture.scan()
    fixture.due()
    assert next(read) == 0
    fixture.configs["log20"] = replace(CONFIG, max_compaction_lag_ms=FOREVER_MS - 1)
    fixture.due()
    assert next(read) == 10
    (fixture.root / "log20-0" / file_name(40)).touch()
    fixture.scan()
    fixture.due()
    assert next(read) == 12


def test_1_25_totals_of_a_log_directory(three: Fixture) -> None:
    """The highest ratio of any compacted log, whether or not it qualifies; 0 when there is none."""
    (totals,) = three.inventory.totals(three.clock.now_ms(), three.config).values()
    assert totals.size_bytes == 100 * (20 + 25 + 30)
    assert totals.cleanable_bytes == 100 * (0 + 4 + 8)
    assert totals.max_dirty_ratio == pytest.approx(8 / 28)
    for topic in three.configs:
        three.configs[topic] = replace(CONFIG, cleanup_policy=("delete",))
    (totals,) = three.inventory.totals(three.clock.now_ms(), three.config).values()
    assert (totals.cleanable_bytes, totals.max_dirty_ratio) == (0, 0.0)
