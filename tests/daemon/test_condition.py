"""The condition of a log is decided in one place: every reader says the same of it, and asking changes nothing."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree, rmtree

import pytest
from structlog.testing import capture_logs

from cleanerd.cleaning.outcomes import Failed
from cleanerd.daemon.api.refusals import Conflict
from cleanerd.daemon.api.verbs import clean, explain, status
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.commits import JobHost
from cleanerd.env.space import Space, make_room
from cleanerd.errors import PolicyChanged
from cleanerd.format.names import LOCK, META_PROPERTIES, TopicPartition
from cleanerd.units import size
from tests.harness.daemon.world import World
from tests.harness.logs.troubled import META_PROPERTIES as BROKER
from tests.harness.logs.troubled import RECORDS, lock_of_another, stop_broker


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
