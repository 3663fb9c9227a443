"""Which log is due, why, in which order, and when the next one will be (rules 1.1-1.25).

The arithmetic is in `tests/policy/test_cleanable.py`; here are files on a disk, a few of each kind. That what the daemon
knows without reading a segment is an upper bound is proved in `test_urgency.py`, for any log.
"""

import itertools
from pathlib import Path

import pytest

from cleanerd.daemon.inventory.urgency import FOREVER_MS, DueReason
from cleanerd.format import names
from cleanerd.policy.cleanable import RangeLimit
from tests.harness.daemon.inventories import (
    CONFIG,
    HOUR_MS,
    Fixture,
    batch,
    file_name,
    stamp_first_batch,
    write_checkpoint,
    write_cleaner_checkpoint,
    write_log,
)
from tests.harness.logs.troubled import META_PROPERTIES

CLEANER, START = names.CLEANER_OFFSET_CHECKPOINT, names.LOG_START_CHECKPOINT
WATERMARK, RECOVERY = names.REPLICATION_CHECKPOINT, names.RECOVERY_POINT_CHECKPOINT

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
    config = CONFIG.but(own_min_cleanable_dirty_ratio=0.05)
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
    three.configs["log30"] = three.configs["log30"].but(max_compaction_lag_ms=1)
    (three.root / "log30-0" / file_name(20)).unlink()
    assert three.due_names() == ["log25-0"]
    assert three.scan() == ["~ log30-0"]
    assert three.due_names() == ["log30-0", "log25-0"]


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


NINE = dict.fromkeys(range(0, 90, 10), 100)
GROWING = {base: 100 + base for base in range(6)}


@pytest.mark.trap("a log start above the base of the active segment")
@pytest.mark.parametrize(
    ("segments", "checkpoints", "expected"),
    [
        pytest.param({0: 450}, {CLEANER: 0, START: 2}, None, id="C019: only an active segment"),
        pytest.param({0: 450}, {CLEANER: 3, START: 2}, None, id="C020: the checkpoint in it"),
        pytest.param({20: 0}, {CLEANER: 15, START: 20}, None, id="C021: deleted up to its end"),
        pytest.param(NINE, {WATERMARK: 50, RECOVERY: 90}, (0, 500, 50), id="C023: the high watermark"),
        pytest.param(NINE, {WATERMARK: 50, RECOVERY: 30}, (0, 300, 30), id="rule 1.9: the recovery point"),
        pytest.param(NINE, {}, (0, 800, 80), id="C024: the active segment"),
        pytest.param(GROWING, {CLEANER: 2}, (201, 102 + 103 + 104, 5), id="C029, C030: sizes of the files"),
        pytest.param(GROWING, {CLEANER: 5}, None, id="all clean"),
    ],
)
def test_what_may_be_cleaned_of_a_log_on_disk(
    fixture: Fixture,
    segments: dict[int, int],
    checkpoints: dict[str, int],
    expected: tuple[int, int, int] | None,
) -> None:
    """Clean and cleanable bytes and the bound; None: the log is not due. C023: as a broker checkpointed it."""
    if WATERMARK in checkpoints:
        (fixture.root / names.META_PROPERTIES).write_text(META_PROPERTIES)
    write_log(fixture.root / "log30-0", segments)
    for name, offset in checkpoints.items():
        write_checkpoint(fixture.root, name, {"log30-0": offset})
    fixture.scan()
    ranges = [due.range for due in fixture.due()]
    found = [(one.clean_bytes, one.cleanable_bytes, one.first_uncleanable_offset) for one in ranges]
    assert found == ([] if expected is None else [expected])


def test_c025_min_lag_makes_a_log_due_by_the_mere_passing_of_time(fixture: Fixture) -> None:
    """Rules 1.9, 1.11 and D04: exactly `now - lag` is cleanable."""
    now_ms = fixture.clock.wall_ms
    ages_ms = {0: HOUR_MS + 1, 10: HOUR_MS, 20: HOUR_MS - 5, 30: 2 * HOUR_MS, 40: now_ms}
    fixture.configs["log30"] = CONFIG.but(min_compaction_lag_ms=HOUR_MS)
    write_log(
        fixture.root / "log30-0", dict.fromkeys(ages_ms, 100), largest_ms=lambda base: now_ms - ages_ms[base]
    )
    fixture.scan()
    (due,) = fixture.due()
    assert (due.range.first_uncleanable_offset, due.range.limit) == (20, RangeLimit.MIN_COMPACTION_LAG)
    fixture.clock.advance(5)
    (due,) = fixture.due()
    assert due.range.first_uncleanable_offset == 40


def overdue_log(fixture: Fixture, name: str, first_batch_ms: int, *, clean: int, dirty: int) -> None:
    """A log with one clean and one dirty segment, whose oldest dirty batch has this time."""
    write_log(fixture.root / name, {0: clean, 10: dirty, 20: 0})
    stamp_first_batch(fixture.root / name, 10, first_batch_ms)
    fixture.configs[fixture.log(name).topic_partition.topic] = CONFIG.but(max_compaction_lag_ms=HOUR_MS)


def test_d01_overdue_logs_go_first_and_the_earliest_deadline_before_all(fixture: Fixture) -> None:
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


@pytest.mark.parametrize(
    ("policy", "is_due"),
    [(("delete",), False), (("compact", "delete"), True), (("compact",), True), ((), False)],
)
def test_c034_to_c036_only_compacted_logs_are_looked_at(
    fixture: Fixture, policy: tuple[str, ...], is_due: bool
) -> None:
    """1.2, 1.3; the retention of these logs is another matter."""
    write_log(fixture.root / "t-0", {0: 100, 10: 0})
    fixture.configs["t"] = CONFIG.but(cleanup_policy=policy)
    fixture.scan()
    fixture.due_logs.note_horizon(fixture.log("t-0"), 0)
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
    one.due_logs.note_examined(log, None)
    assert (one.due_names(), one.next_due_in_ms()) == ([], None)
    one.clock.advance(1000 * HOUR_MS)
    one.scan()
    assert one.due_names() == []

    other = CONFIG.but(own_min_cleanable_dirty_ratio=0.07)
    for change in (
        lambda: write_cleaner_checkpoint(one.root, {"log20-0": 4}),
        (one.root / "log20-0" / file_name(30)).touch,
        lambda: one.configs.update(log20=other),
    ):
        change()
        one.scan()
        assert one.due_names() == ["log20-0"]
        one.due_logs.note_examined(log, None)
        assert one.due_names() == []


def test_examined_log_is_offered_again_at_the_time_given(one: Fixture) -> None:
    """For what cannot be seen from here: a transaction that is open today."""
    one.due()
    one.due_logs.note_examined(one.log("log20-0"), one.clock.now_ms() + 500)
    assert (one.due_names(), one.next_due_in_ms()) == ([], 500)
    one.clock.advance(500)
    assert one.due_names() == ["log20-0"]


def test_change_during_an_examination_is_not_lost(one: Fixture) -> None:
    """What was examined is what was offered, not what is known by now."""
    one.due()
    write_cleaner_checkpoint(one.root, {"log20-0": 4})
    one.scan()
    one.due_logs.note_examined(one.log("log20-0"), None)
    assert one.due_names() == ["log20-0"]


def test_examined_log_becomes_due_for_another_reason(fixture: Fixture) -> None:
    """Dirty enough, held back by something; then its deadline passes."""
    overdue_log(fixture, "t-0", fixture.clock.wall_ms - HOUR_MS, clean=10, dirty=100)
    write_cleaner_checkpoint(fixture.root, {"t-0": 10})
    fixture.scan()
    assert [due.reason for due in fixture.due()] == [DueReason.RATIO]
    fixture.due_logs.note_examined(fixture.log("t-0"), None)
    assert (fixture.due_names(), fixture.next_due_in_ms()) == ([], 1)
    fixture.clock.advance(1)
    assert [due.reason for due in fixture.due()] == [DueReason.MAX_LAG]


# -- horizons, reserved topics, time --------------------------------------------------------------------------


def test_horizon_that_passes_is_worth_a_visit_though_nothing_is_dirty(one: Fixture) -> None:
    log = one.log("log20-0")
    write_cleaner_checkpoint(one.root, {"log20-0": 18})
    one.scan()
    assert (one.due_names(), one.next_due_in_ms()) == ([], CONFIG.delete_retention_ms)
    at_ms = one.clock.now_ms() + 50
    one.due_logs.note_horizon(log, at_ms)
    assert (one.due_names(), one.next_due_in_ms()) == ([], 50)
    one.clock.advance(50)
    assert [(due.reason, due.at_ms) for due in one.due()] == [(DueReason.HORIZON, at_ms)]
    one.due_logs.note_horizon(log, None)
    assert (one.due_names(), one.next_due_in_ms()) == ([], None)


def test_a_horizon_waits_where_a_cleaning_by_the_ratio_takes_up_what_has_expired(fixture: Fixture) -> None:
    """Else every log whose cycle is about delete.retention.ms long would be cleaned twice in each."""
    log, day_ms = fixture.root / "t-0", CONFIG.delete_retention_ms
    write_log(log, {0: 100, 10: 100, 20: 0})
    write_cleaner_checkpoint(fixture.root, {"t-0": 20})
    fixture.scan()
    fixture.due_logs.note_horizon(fixture.log("t-0"), fixture.clock.now_ms() + 50)
    write_log(log, {20: 50, 30: 0})
    fixture.scan()
    assert fixture.next_due_in_ms() == 50, "a ratio of 0.2 of 0.5 is not half-way"
    write_log(log, {20: 100})
    fixture.scan()
    assert (fixture.due_names(), fixture.next_due_in_ms()) == ([], 50 + day_ms)
    passes_ms, visited_ms = fixture.due_logs.horizons_at_ms(fixture.log("t-0")) or (0, 0)
    assert visited_ms - passes_ms == day_ms
    fixture.clock.advance(50 + day_ms)
    assert [(due.reason, due.at_ms) for due in fixture.due()] == [(DueReason.HORIZON, passes_ms)]
    write_log(log, {30: 150, 40: 0})
    fixture.scan()
    assert [due.reason for due in fixture.due()] == [DueReason.RATIO]


def test_a_new_log_is_looked_at_for_horizons_once_if_it_has_a_clean_section(fixture: Fixture) -> None:
    """They may be a year old, whoever stamped them; the log itself is what tells."""
    fixture.looks = False
    for name in ("clean-0", "dirty-0", "beyond-0"):
        write_log(fixture.root / name, {0: 100, 10: 100, 20: 0})
    write_log(fixture.root / "soon-0", {0: 100, 10: 100, 20: 100, 30: 0})
    (fixture.root / names.META_PROPERTIES).write_text(META_PROPERTIES)
    write_cleaner_checkpoint(fixture.root, {"clean-0": 20, "soon-0": 20, "beyond-0": 20})
    write_checkpoint(
        fixture.root, names.RECOVERY_POINT_CHECKPOINT, {"clean-0": 20, "soon-0": 30, "beyond-0": 20}
    )
    write_checkpoint(
        fixture.root, names.REPLICATION_CHECKPOINT, {"clean-0": 20, "soon-0": 30, "beyond-0": 10}
    )
    fixture.scan()
    assert [(due.reason, due.range.clean_bytes) for due in fixture.due()] == 2 * [(DueReason.HORIZON, 200)]
    # The high watermark holds one back. One half-way to its ratio does not wait: the daemon may be restarted often.
    assert sorted(fixture.due_names()) == ["clean-0", "soon-0"]
    for name in ("clean-0", "soon-0"):
        fixture.due_logs.note_horizon(fixture.log(name), None)
    fixture.clock.advance(1000 * HOUR_MS)
    fixture.scan()
    assert (fixture.due_names(), fixture.next_due_in_ms()) == ([], None)


def test_horizons_are_looked_for_when_the_last_cleaning_is_delete_retention_ms_ago(fixture: Fixture) -> None:
    """Of the broker or cleanerd; retention, and what is appended, is no cleaning."""
    log, day_ms = fixture.root / "t-0", CONFIG.delete_retention_ms
    write_log(log, {0: 100, 10: 100, 20: 100, 30: 0})
    write_cleaner_checkpoint(fixture.root, {"t-0": 30})
    fixture.scan()
    assert fixture.next_due_in_ms() is None
    for _ in range(3):
        write_log(log, {10: 60, 40: 0})
        write_cleaner_checkpoint(fixture.root, {"t-0": 40})
        fixture.scan()
        assert (fixture.due_names(), fixture.next_due_in_ms()) == ([], day_ms)
        fixture.clock.advance(day_ms - 1)
        fixture.scan()
        write_log(log, {10: 50})
    fixture.scan()
    assert fixture.next_due_in_ms() == day_ms, "it was cleaned again"
    fixture.clock.advance(day_ms - 1)
    (log / file_name(0)).unlink()
    write_log(log, {50: 0})
    fixture.scan()
    assert fixture.next_due_in_ms() == 1
    fixture.due_logs.note_cleaned(fixture.log("t-0"))
    assert fixture.next_due_in_ms() == day_ms


def test_horizons_come_after_dirty_logs_and_the_oldest_first(three: Fixture) -> None:
    write_cleaner_checkpoint(three.root, {"log20-0": 18, "log25-0": 24, "log30-0": 20})
    three.scan()
    assert three.due_names() == ["log30-0"]
    for name, ago_ms in (("log20-0", 5), ("log25-0", 7)):
        three.due_logs.note_horizon(three.log(name), three.clock.now_ms() - ago_ms)
    assert three.due_names() == ["log30-0", "log25-0", "log20-0"]


def test_reserved_topic_does_not_wait_longer_than_it_should(three: Fixture) -> None:
    three.reserve("log25")
    assert three.due_names() == ["log30-0", "log25-0"]
    assert three.next_due_in_ms() == 60_000
    three.clock.advance(59_999)
    assert [due.late_s for due in three.due()] == [None, None]
    three.clock.advance(1)
    assert [(str(due.log), due.late_s) for due in three.due()] == [("log25-0", 0.0), ("log30-0", None)]
    assert three.next_due_in_ms() is None


def test_a_look_for_reserved_topics_costs_nothing_for_the_others(three: Fixture) -> None:
    """It is had after each commit, beside any number of other logs."""
    asked: list[str] = []
    three.reserve("log25")
    found = three.due_logs.look(lambda log: not asked.append(log.topic_partition.topic), reserved_only=True)
    assert [one.log.topic_partition.topic for one in found.due] == asked == ["log25"]


def test_wait_of_a_reserved_topic_begins_anew_when_it_was_served(three: Fixture) -> None:
    three.reserve("log25")
    three.due()
    three.clock.advance(60_000)
    write_cleaner_checkpoint(three.root, {"log20-0": 20, "log25-0": 24, "log30-0": 20})
    three.scan()
    assert three.due_names() == ["log30-0"]
    write_cleaner_checkpoint(three.root, {"log20-0": 20, "log25-0": 20, "log30-0": 20})
    three.scan()
    assert three.due_names() == ["log30-0", "log25-0"]


@pytest.mark.fault("a wall clock that jumps")
def test_clock_that_goes_back_is_believed(fixture: Fixture) -> None:
    """And one that goes on is waited for as long as min.compaction.lag.ms takes, without asking again and again."""
    now_ms = fixture.clock.wall_ms
    fixture.configs["t"] = CONFIG.but(min_compaction_lag_ms=HOUR_MS)
    write_log(fixture.root / "t-0", {0: 100, 10: 0}, largest_ms=lambda _: now_ms - 10)
    fixture.scan()
    assert (fixture.due_names(), fixture.next_due_in_ms()) == ([], HOUR_MS - 10)
    fixture.clock.advance(HOUR_MS - 10)
    assert (fixture.due_names(), fixture.next_due_in_ms()) == (["t-0"], None)
    fixture.clock.wall_ms -= 1
    assert fixture.due_names() == []


def test_first_batches_are_read_once(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not at all where nobody asks for max.compaction.lag.ms."""
    read = itertools.count()
    monkeypatch.setattr("cleanerd.daemon.inventory.due_logs.first_batch_timestamp_ms", lambda _: next(read))
    log_of(fixture, "log20-0", 20)
    fixture.scan()
    fixture.due()
    assert next(read) == 0
    fixture.configs["log20"] = CONFIG.but(max_compaction_lag_ms=FOREVER_MS - 1)
    fixture.due()
    assert next(read) == 10
    (fixture.root / "log20-0" / file_name(40)).touch()
    fixture.scan()
    fixture.due()
    assert next(read) == 12
