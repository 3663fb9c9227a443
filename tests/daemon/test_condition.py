"""The condition of a log: what decides it, by facts alone; then that every reader says the same of it, and asking changes
nothing.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
from structlog.testing import capture_logs

from cleanerd.cleaning.outcomes import Failed
from cleanerd.daemon.api.refusals import Conflict
from cleanerd.daemon.api.verbs import clean, explain, status
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.rules.condition import (
    LEFT_TO_BROKER,
    Condition,
    Known,
    Seen,
    after_a_look,
    at_once,
    left_until_ms,
)
from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.commits import JobHost
from cleanerd.env.space import Space, make_room
from cleanerd.errors import PolicyChanged
from cleanerd.format.names import LOCK, META_PROPERTIES, TopicPartition
from cleanerd.policy.cleanable import CleanableRange, RangeLimit
from cleanerd.policy.lifecycle import Status
from cleanerd.units import size, utc
from tests.harness.daemon.world import World
from tests.harness.logs.troubled import META_PROPERTIES as BROKER
from tests.harness.logs.troubled import RECORDS, lock_of_another, stop_broker

BARRED = {"barred": "not of this cluster"}
SEEN = {"is_compacted": True, "is_staged": False, "is_dirty": False}
DIRTY = {**SEEN, "is_dirty": True}
AWAY = "it is paused; `cleanerctl holds` shows by whom"
LADDER: dict[str, tuple[dict[str, object], Condition]] = {
    "offline": ({"offline": "gone", "barred": "/a: gone"}, Condition("offline", "gone", "/a: gone")),
    "not ours, unread": ({**BARRED, "unread": "bad"}, Condition("uncleanable", "bad", "not of this cluster")),
    "ignored": (
        {**BARRED, "unread": None},
        Condition("ignored", "not of this cluster", "not of this cluster"),
    ),
    "cleaning": ({"status": Status.IN_PROGRESS}, Condition("cleaning")),
    "aborted": ({"status": Status.ABORTED}, Condition("aborted")),
    "paused": ({"status": Status.PAUSED}, Condition("paused", None, AWAY)),
    "unread": ({"is_compacted": True, "unread": "bad"}, Condition("uncleanable", "bad", "bad")),
    "moved": (
        {"is_compacted": True, "moves_to": "/b"},
        Condition("paused", "its broker moves it to /b", "its broker moves it to /b"),
    ),
    "failed too often": (
        {"failure": "why", "is_uncleanable": True},
        Condition("uncleanable", "why", "uncleanable: why", True),
    ),
    "staged": (
        {"is_staged": True, "way": "it waits"},
        Condition("staged", "it waits", "a result is staged and waits for its commit", True),
    ),
    "retained": (
        {"is_compacted": False, "is_staged": False},
        Condition("retained", "not compacted: retention only", "its cleanup.policy does not contain compact"),
    ),
    "broker is coming": (DIRTY | {"coming": "a broker"}, Condition("dirty", None, "a broker")),
    "cleaning is off": (
        DIRTY | {"off_by": "log.cleaner.enable"},
        Condition("dirty", None, "cleaning is off: log.cleaner.enable is false"),
    ),
    "no room": (DIRTY | {"full": "no room"}, Condition("dirty", "no room", "no room")),
    "clean, no room": (SEEN | {"full": "no room"}, Condition("clean", None, "no room")),
    "failed a moment ago": (
        DIRTY | {"backs_off": True, "failure": "why"},
        Condition("dirty", "why", "backing off: why", True),
    ),
    "only its checkpoint": (
        SEEN | {"is_unrecorded": True, "must_wait": True, "way": "it waits"},
        Condition(
            "clean",
            "nothing in it has to go; to write its checkpoint, it waits",
            "nothing in it has to go; to write its checkpoint, it waits",
            True,
        ),
    ),
    "left to its broker": (
        DIRTY | {"left_until_ms": 0},
        Condition(
            "dirty",
            f"{LEFT_TO_BROKER}, which is at work, until {utc(0)}",
            f"{LEFT_TO_BROKER}, which is at work, until {utc(0)}",
            True,
        ),
    ),
    "dirty": (DIRTY, Condition("dirty")),
    "tried again": (DIRTY | {"failure": "why"}, Condition("dirty", "why")),
    "left, but not dirty": (SEEN | {"left_until_ms": 0}, Condition("clean")),
    "checkpoint at once": (SEEN | {"is_unrecorded": True, "way": "it swaps"}, Condition("clean")),
    "clean": (SEEN, Condition("clean")),
}


def decided(facts: Mapping[str, Any]) -> Condition:
    known = Known(**{name: one for name, one in facts.items() if hasattr(Known, name)})
    seen = Seen(**{name: one for name, one in facts.items() if hasattr(Seen, name)})
    return at_once(known) or after_a_look(known, seen)


@pytest.mark.parametrize(("facts", "expected"), LADDER.values(), ids=LADDER)
def test_each_fact_has_its_condition(facts: dict[str, object], expected: Condition) -> None:
    assert decided(facts) == expected


@pytest.mark.parametrize("number", range(list(LADDER).index("dirty")), ids=list(LADDER).__getitem__)
def test_what_comes_first_in_the_table_decides(number: int) -> None:
    """Whatever else holds; only the reason of a failure is told as well."""
    first, *later = list(LADDER.values())[number:]
    facts: dict[str, object] = {}
    for one, _ in [*reversed(later), first]:
        facts |= one
    found, expected = decided(facts), first[1]
    assert (found.state, found.obstacle) == (expected.state, expected.obstacle)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, True),
        ({"way": None}, False),  # nobody holds `.lock`: it is committed
        ({"has_aged": False}, False),
        ({"is_compacted": False}, False),
        ({"left_until_ms": 1}, False),
        ({"full": "the disk is"}, False),  # it would be refused again and again
        ({"backs_off": True}, False),
    ],
)
def test_a_staged_result_is_made_again_once_it_has_aged(facts: dict[str, object], expected: bool) -> None:
    aged = {"is_staged": True, "way": "it waits", "has_aged": True}
    assert (decided({**aged, **facts}).obstacle is None) is expected


@pytest.mark.parametrize(
    ("ratio", "is_late", "due_for_s", "expected"),
    [
        (0.6, False, 0, 11_000),
        (0.6, False, 9.999, 1_001),
        (0.6, False, 10, None),  # it may have given up on the log
        (0.5, False, 0, None),  # it would not take it
        (0.5, True, 0, 11_000),  # it takes it by max.compaction.lag.ms
        (0.0, True, 0, None),
    ],
)
def test_a_log_is_left_to_a_broker_that_would_take_it_for_some_time(
    ratio: float, is_late: bool, due_for_s: float, expected: int | None
) -> None:
    dirty = CleanableRange(
        0, 100, RangeLimit.ACTIVE_SEGMENT, False, round(100 * (1 - ratio)), round(100 * ratio), 0
    )
    deadline_ms = 1_000 if is_late else 1_001
    found = left_until_ms(dirty, deadline_ms, 0.5, due_for_s=due_for_s, grace_ms=10_000, now_ms=1_000)
    assert found == expected


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """With one log for each state that a log can be in while its directory works."""
    world = World(tmp_path)
    world.add("foreign", "held", "busy", "stopped", "garbage", "unreadable", "waiting", "few", "failing")
    world.configure()
    world.scan()
    yield world
    world.close()


def fail(world: World, log: LogId, *, is_retryable: bool = False, remedy: str | None = None) -> None:
    bad = Failed("why", "CorruptFile", is_retryable, remedy)
    config, now_ms = world.parts.configuration().broker, world.clock.now_ms()
    world.parts.failures.failed(log, bad, world.parts.conditions.stamp(log), config, now_ms)


@contextmanager
def b_fails(world: World) -> Iterator[None]:
    """The disk of `b` does."""
    aside = world.b.rename(world.root / "aside")
    world.b.write_text("not a directory")
    yield
    world.b.unlink()
    aside.rename(world.b)


def bring_about(world: World) -> None:
    parts = world.parts
    parts.states.hold(Hold("1", "held", "me", "because", 0))
    parts.states.try_start_all([world.log("busy"), world.log("stopped")])
    parts.states.stop(world.log("stopped"), "the test")
    for _ in range(parts.configuration().broker.retry_max):
        fail(world, world.log("garbage"))
    fail(world, world.log("failing"), is_retryable=True)
    (world.a / "waiting-0" / f"{0:020d}.manifest.cleanerd").write_text("{}")
    (world.a / "unreadable-0").rename(world.root / "elsewhere")
    os.utime(world.root / "elsewhere")
    (world.a / "unreadable-0").symlink_to(world.root / "elsewhere")
    world.scan()
    parts.obstacles.ignored[world.log("foreign")] = "not of this cluster"


def test_every_reader_says_the_same(world: World) -> None:
    bring_about(world)
    views = {view.topic: view for view in world.control.views.logs(world.parts.inventory.logs())}
    expected = {
        "foreign": "ignored", "held": "paused", "busy": "cleaning", "stopped": "aborted", "garbage": "uncleanable",
        "unreadable": "uncleanable", "waiting": "staged", "failing": "dirty",
    }  # fmt: skip
    assert {topic: views[topic].state for topic in expected} == expected
    assert "symbolic link" in str(views["unreadable"].reason)
    counted = {dict(key)["state"]: int(n) for (_, key), n in world.scrape().of("cleanerd_partitions") if n}
    assert counted == Counter(view.state for view in views.values())
    assert status.status(world.control).logs_by_state == counted
    assert "; 2 uncleanable" in world.control.status_line.text()


def test_2_10_a_log_that_its_broker_moves_is_left_alone(world: World) -> None:
    """From when the future replica is there until it is the log."""
    log, future = world.log("few"), world.b / f"few-0.{'0' * 32}-future"
    future.mkdir()
    world.scan()
    found = world.parts.conditions.of(log)
    assert (found.state, found.obstacle) == ("paused", f"its broker moves it to {world.b}")
    future.rmdir()
    world.scan()
    assert world.parts.conditions.of(log).state == "dirty"


@pytest.mark.parametrize("is_seen_at_once", [True, False])
def test_2_10_a_log_that_its_broker_moves_is_left_alone_after_a_restart_too(
    world: World, is_seen_at_once: bool
) -> None:
    """Its future replica lies where nothing can be read now; the broker goes on with it when that works again. The move may
    have begun after the last full scan.
    """
    log, future = world.log("few"), world.b / f"few-0.{'0' * 32}-future"
    future.mkdir()
    if is_seen_at_once:
        world.parts.inventory.touch(str(world.b), future.name)
        world.daemon.scanner.refresh()
    else:
        world.scan()
    with b_fails(world):
        world.restart()
        found = world.parts.conditions.of(log)
        assert (found.state, found.obstacle) == ("paused", f"its broker moves it to {world.b}")
        host = JobHost(world.parts.ownership.at(log.log_dir), world.parts.commits)
        with pytest.raises(PolicyChanged, match=f"its broker moves it to {world.b}"):
            host.check(log.topic_partition, RECORDS)
    future.rmdir()
    world.restart()
    assert world.parts.conditions.of(log).state == "dirty"


@pytest.mark.parametrize("is_seen", [True, False])
def test_2_10_a_move_that_nobody_saw_before_its_directory_failed_is_reported_when_that_is_back(
    world: World, is_seen: bool
) -> None:
    """Until then its log is cleaned, as one dead disk must not stop the others; its copy is to be deleted."""
    log, name = world.log("few"), f"few-0.{'0' * 32}-future"
    (world.b / name).mkdir()
    if is_seen:
        world.scan()
    with b_fails(world):
        world.restart()
        assert world.parts.conditions.of(log).state == ("paused" if is_seen else "dirty")
    with capture_logs() as events:
        world.scan()
        world.scan()
    reported = [(event["topic"], event["path"]) for event in events if event["event"] == "move_unseen"]
    assert reported == ([] if is_seen else [("few", f"{world.b}/{name}")])
    assert world.parts.conditions.of(log).state == "paused"


def test_2_10_nor_is_a_result_committed_while_the_way_leads_to_a_directory_that_is_not_cleaned(
    world: World,
) -> None:
    """`cleanerd run --log-dir` with one of the directories that are configured."""
    for log_dir in (world.a, world.b):
        (log_dir / META_PROPERTIES).write_text(BROKER)
    (world.b / f"few-0.{'0' * 32}-future").mkdir()
    parts, one = world.parts, (str(world.a),)
    other = Parts(parts.configuration, one, parts.store, parts.files, parts.clock)
    assert other.ownership.at(str(world.a)).elsewhere([TopicPartition("few", 0)]) == {
        TopicPartition("few", 0): f"its broker moves it to {world.b}"
    }


def test_a_log_that_lies_in_two_directories_is_left_alone(world: World) -> None:
    """Both copies, from when the second one is there until one is gone, or its directory is."""
    log, twin = world.log("few"), LogId(str(world.b), TopicPartition("few", 0))
    copytree(world.a / "few-0", world.b / "few-0")
    for log_dir in (world.a, world.b):
        stop_broker(log_dir, {"few": RECORDS, "failing": RECORDS})
    world.configure_topic("few", "compact")
    world.configure_topic("failing", "compact")
    world.scan()
    for one, other in ((log, world.b), (twin, world.a)):
        found = world.parts.conditions.of(one)
        assert (found.state, found.obstacle) == ("ignored", found.reason)
        assert f"it lies in {other} as well" in str(found.reason)
    assert world.parts.conditions.of(world.log("failing")).state == "dirty"
    for policy in ("compact", "delete"):
        world.configure_topic("few", policy)
        for explanation in explain.explain(world.control, log.topic_partition):
            assert [fact for fact in explanation.facts if "as well" in fact.value], explanation.facts
    world.configure_topic("few", "compact")
    with b_fails(world):
        world.scan()
        assert world.parts.conditions.of(log).state == "dirty"
    world.scan()
    assert world.parts.conditions.of(log).state == "ignored"
    rmtree(world.b / "few-0")
    world.parts.inventory.touch_log(twin)
    world.daemon.scanner.refresh()
    assert world.parts.conditions.of(log).state == "dirty"


def test_a_log_dir_that_fails_leaves_the_others_alone_and_is_recovered_when_it_is_back(world: World) -> None:
    """It may have failed in the middle of a commit."""
    parts, leftover = world.parts, world.b / "moved-0" / f"{0:020}.log.cleanerd"
    leftover.parent.mkdir()
    with b_fails(world):
        world.scan()
        assert list(parts.obstacles.offline) == [str(world.b)]
        assert parts.conditions.of(world.log("few")).state == "dirty"
    leftover.write_text("half a segment")
    world.scan()
    assert not parts.obstacles.offline
    assert not leftover.exists()


def test_what_cannot_be_read_is_not_offered_for_cleaning_nor_passed_over_in_silence(world: World) -> None:
    """Also where nobody can tell whose it is: its topic id is in the directory that lets nobody in."""
    bring_about(world)
    log = world.log("unreadable")
    assert "symbolic link" in str(world.parts.conditions.of(log).obstacle)
    with pytest.raises(Conflict, match="symbolic link"):
        clean.clean(world.control, "unreadable", force=False)
    world.parts.obstacles.ignored[log] = "expected topic id A, found: Permission denied"
    found = world.parts.conditions.of(log)
    assert (found.state, found.obstacle) == ("uncleanable", world.parts.obstacles.ignored[log])
    assert "symbolic link" in str(found.reason)


def test_a_disk_that_is_too_full_for_results_is_told_with_the_logs_that_wait_for_it(world: World) -> None:
    """Nothing else would say why the disk goes on filling up."""
    why = "0.7% of the file system is free"
    world.parts.obstacles.full[str(world.a)] = why
    few = world.parts.conditions.of(world.log("few"))
    assert (few.state, few.reason, few.obstacle) == ("dirty", why, why)
    assert status.status(world.control).warnings[-1] == f"nothing is cleaned in {world.a}: {why}"
    world.configure(log_cleaner_min_cleanable_ratio="1.0")
    few = world.parts.conditions.of(world.log("few"))
    assert (few.state, few.reason) == ("clean", None)


def test_where_a_disk_is_full_everybody_names_the_rescue_and_its_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status, the logs that wait for room, one that had none, and the metric that the alert shows: one number."""
    log_dir, failing = str(world.a), world.log("failing")
    monkeypatch.setattr("cleanerd.storage.log_dir.space_for", lambda *_: Space(10**9, 10**6))
    with lock_of_another(world.a / LOCK):
        world.scan()
        (directory,) = (one for one in status.status(world.control).log_dirs if one.path == log_dir)
        text = f"`cleanerd rescue` shows what can be freed there without deleting data: up to {size(directory.dirty_bytes)}"
        assert directory.dirty_bytes > 0
        assert text in status.status(world.control).warnings[-1]
        assert text in str(world.parts.conditions.of(world.log("few")).obstacle)
    assert world.scrape().total("cleanerd_cleanable_bytes", log_dir=log_dir) == directory.dirty_bytes
    remedy = make_room(52_100_000, 4_096)
    fail(world, failing, is_retryable=True, remedy=remedy)
    (explained,) = explain.explain(world.control, failing.topic_partition)
    (advice,) = (fact.value for fact in explained.facts if fact.name == "what to do")
    assert "up to 52.1 MB, for which it needs 4.1 kB; it will be tried again at" in advice


def test_a_log_below_its_own_threshold_is_not_dirty(world: World) -> None:
    """Rule 1.21; its dirty ratio is told all the same, and that of a log without a dirty section is 0."""
    log = world.log("few")
    assert world.parts.conditions.of(log).state == "dirty"
    world.configure(log_cleaner_min_cleanable_ratio="1.0")
    assert world.parts.conditions.of(log).state == "clean"
    (view,) = world.control.views.logs([log])
    assert view.dirty_ratio == 1.0
    assert not view.dirty_ratio_exact
    world.configure(log_cleaner_min_compaction_lag_ms=10**13)
    (view,) = world.control.views.logs([log])
    assert (view.dirty_ratio, view.dirty_ratio_exact) == (0.0, True)


def test_only_a_request_that_is_granted_forgets_failures(world: World) -> None:
    """Asking what stands against a cleaning does not."""
    bring_about(world)
    control = world.control
    failing = world.log("failing")
    condition = world.parts.conditions.of(failing)
    assert (condition.obstacle, condition.yields_to_requests) == ("backing off: why", True)
    world.parts.obstacles.full[failing.log_dir] = "the disk is full"
    with pytest.raises(Conflict, match="the disk is full"):
        clean.clean(control, "failing", force=False)
    assert world.parts.failures.of(failing) is not None, "it was refused"
    world.parts.obstacles.full.clear()
    (job,) = clean.clean(control, "failing", force=False)
    assert job.logs == ("failing-0",)
    assert world.parts.failures.of(failing) is None


def test_a_job_that_cleans_several_logs_already_is_answered_once(world: World) -> None:
    logs = [world.log(topic) for topic in ("few", "failing", "foreign")]
    job = world.parts.jobs.start("schedule", logs)
    assert [view.id for view in clean.clean(world.control, "f*")] == [job.id]


def test_a_clock_that_was_set_back_ends_the_pause_after_a_failure(world: World) -> None:
    """The time of the next try is one of the wall clock: a day back would be a day of waiting."""
    failing, failures = world.log("failing"), world.parts.failures
    fail(world, failing, is_retryable=True)
    now_ms = world.clock.now_ms()
    assert failures.blocks(failing, now_ms)
    assert not failures.blocks(failing, now_ms - 1)
