"""Beside a live broker: what its own cleaner does, and what becomes of results that wait too long."""

import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.broker_agent.swap import Swapped
from cleanerd.cleaning.outcomes import Aborted, Basis, Outcome, Planned, Superseded, Unchanged
from cleanerd.cleaning.result import LogResult
from cleanerd.daemon.api.verbs import clean
from cleanerd.daemon.engine.calls import ExamineCall
from cleanerd.daemon.engine.client import Engine
from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.values.job import Job
from cleanerd.daemon.values.log_id import LogId
from cleanerd.env.files import FileStat, RealFiles
from cleanerd.errors import SourceChanged
from cleanerd.format import names
from cleanerd.format.names import FileKind, Suffix
from cleanerd.policy.staging import pays_again
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import Checkpoints
from cleanerd.storage.staged import NO_LIMIT_MS, SourceSegment, StagedGroup, write_manifest
from tests.harness.daemon.inventories import write_cleaner_checkpoint
from tests.harness.daemon.world import World
from tests.harness.logs.troubled import META_PROPERTIES, lock_of_another, stop_broker

GRACE_MS = 900_000
PAUSE_MS = 15_000
"""Of a log whose cleaning another one has ended (10 s), and of a log directory that has just begun a job."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The directory `a` belongs to a live broker."""
    world = World(tmp_path)
    (world.a / names.META_PROPERTIES).write_text(META_PROPERTIES)
    world.configure()
    world.others.enter_context(lock_of_another(world.a / names.LOCK))
    world.parts.obstacles.ignored.clear()
    yield world
    world.close()


def scan(world: World) -> None:
    """Logs of a directory with meta.properties and without a metadata log are foreign: here they are not."""
    world.scan()
    world.parts.obstacles.ignored.clear()
    world.parts.schedule.next_express()  # notes what is due


def bring_closed_segments(world: World, name: str) -> list[Path]:
    """The closed segments of a log, all of which a broker has on stable storage."""
    stop_broker(world.a, dict.fromkeys(world.topics, 10**6))
    return sorted((world.a / name).glob("*.log"))[:-1]


def test_a_broker_that_hangs_does_not_keep_an_explanation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes by the files, and names the silence. An answer in time counts, an error is left to the examination."""
    hangs, examined = threading.Event(), list[ExamineCall]()

    def examine(_: Engine, task: ExamineCall) -> LogResult:
        examined.append(task)
        return LogResult(task.partitions[0], task.log_dir, Planned())

    def facts() -> dict[str, str]:
        return {fact.name: fact.value for fact in world.control.explainer.of(log, exact=True).facts}

    bring_closed_segments(world, "one-0")
    scan(world)
    log, reported = world.log("one"), Checkpoints({}, {}, {}, {})
    monkeypatch.setattr(Engine, "examine", examine)
    monkeypatch.setattr(LiveBrokers, "checkpoints", lambda *_: hangs.wait(60))
    with monkeypatch.context() as patched:
        patched.setattr("cleanerd.daemon.reports.explain._BROKER_S", 0.01)
        assert facts()["broker"].endswith("its files count, which lag behind")
    hangs.set()
    monkeypatch.setattr(LiveBrokers, "checkpoints", lambda *_: reported)
    assert "broker" not in facts()
    monkeypatch.setattr(LiveBrokers, "checkpoints", lambda *_: (world.a / "gone").stat())
    assert "broker" not in facts()
    assert [call.checkpoints for call in examined] == [None, reported, None]


def test_a_log_is_left_to_a_brokers_cleaner_that_is_seen_at_work(world: World) -> None:
    """Not for ever: the broker may have given just this log up. Whoever asks gets it at once."""
    bring_closed_segments(world, "one-0")
    scan(world)
    log = world.log("one")
    assert world.parts.conditions.of(log).obstacle is None, "nothing tells that a cleaner works there"
    write_cleaner_checkpoint(world.a, {"three-0": 1})
    scan(world)
    condition = world.parts.conditions.of(log)
    assert condition.state == "dirty"
    assert "left to the broker's own cleaner" in str(condition.obstacle)
    assert world.parts.schedule.next().job is None
    world.clock.advance(GRACE_MS - 1000)
    assert world.parts.conditions.of(log).obstacle is not None
    (job,) = clean.clean(world.control, "one", force=False)
    assert job.state == "queued"
    world.clock.advance(2000)
    assert world.parts.conditions.of(log).obstacle is None


def test_a_brokers_cleaner_that_is_off_is_waited_for_by_nobody(world: World) -> None:
    """The checkpoint of a log that was swapped in is then our own entry."""
    bring_closed_segments(world, "one-0")
    scan(world)
    cleaner = world.parts.brokers_cleaner
    cleaner.asked_to_swap(
        str(world.a), Swapped("swapped", "other", "", (), str(world.a / "three-0"), has_cleaner=False)
    )
    write_cleaner_checkpoint(world.a, {"three-0": 1})
    scan(world)
    assert world.parts.conditions.of(world.log("one")).obstacle is None
    cleaner.observe(str(world.a), 4711)
    write_cleaner_checkpoint(world.a, {"three-0": 2})
    assert cleaner.is_at_work(str(world.a)), "of the next broker nothing is known yet"


def test_what_the_brokers_cleaner_will_not_take_is_cleaned(world: World) -> None:
    """A topic whose ratio, for the broker, is one that no log exceeds."""
    bring_closed_segments(world, "one-0")
    world.configure(log_cleaner_min_cleanable_ratio="1.0", cleanerd_min_cleanable_dirty_ratio="0.5")
    scan(world)
    write_cleaner_checkpoint(world.a, {"three-0": 1})
    scan(world)
    assert world.parts.conditions.of(world.log("one")).obstacle is None
    assert world.parts.schedule.next().job is not None


def clean_what_is_due(world: World, outcome: Outcome) -> list[LogId]:
    """A job, whose logs all come to this; those logs."""
    job = world.parts.schedule.next().job
    if job is None:
        return []
    for log in job.logs:
        found = LogResult(log.topic_partition, log.log_dir, outcome)
        world.daemon.cleaners.cleanings.cleaned(job, log, found)
        world.parts.states.done_cleaning(log)
    world.parts.jobs.end(job, [outcome.word], None)
    return list(job.logs)


@pytest.mark.parametrize("outcome", [Superseded("is gone"), Aborted("its broker moves it")])
def test_being_second_or_refused_is_no_failure(world: World, outcome: Superseded | Aborted) -> None:
    """No strike, no error metric, however often; the log is looked at again when it is another one, else after a pause."""
    bring_closed_segments(world, "one-0")
    scan(world)
    clean_due = partial(clean_what_is_due, world, outcome)
    for _ in range(2 * world.parts.configuration().broker.retry_max):
        assert clean_due()
        assert clean_due() == [], "not in a circle"
        world.clock.advance(PAUSE_MS)
    assert world.parts.failures.all() == []
    after = world.scrape()
    assert after.total("cleanerd_cleaning_errors_total") == 0
    assert after.total("cleanerd_cleanings_total", outcome=outcome.word) > 0
    (event, *_) = world.parts.store.events("one", 1, None, None)
    assert event.outcome == outcome.word


def test_a_checkpoint_that_a_broker_keeps_is_worth_no_second_cleaning(world: World) -> None:
    """All of a log was read, and nothing in it had to go: until the broker stops, nothing would come of reading it again."""
    bring_closed_segments(world, "one-0")
    scan(world)
    unrecorded = Unchanged(Basis(1, "", None, ()), "checkpoint not written: .lock is held")
    clean_due = partial(clean_what_is_due, world, unrecorded)
    logs = clean_due()
    assert world.log("one") in logs
    assert clean_due() == [], "not in a circle"
    world.clock.advance(3_600_000)
    assert clean_due() == []
    assert "nothing in it has to go" in str(world.parts.conditions.of(world.log("one")).obstacle)

    (world.a / "one-0" / f"{0:020d}.log").touch()
    scan(world)
    assert clean_due() == [world.log("one")], "it is another log"
    world.others.close()
    world.clock.advance(60_000)
    assert sorted(clean_due()) == sorted(logs), "the broker has stopped"


def stage(world: World, source: Path, size_bytes: int, commit_by_ms: int = NO_LIMIT_MS) -> Path:
    """A result for the first segment of a log, as a cleaning leaves it; its manifest."""
    directory = source.parent
    following = min(int(path.stem) for path in directory.glob("*.log") if path != source)
    found = (SourceSegment.of(int(source.stem), FileStat.of(source.stat())),)
    sizes = {FileKind.LOG: size_bytes, FileKind.OFFSET_INDEX: 0, FileKind.TIME_INDEX: 12}
    group = StagedGroup(
        found, following, following, sizes, 0, following - 1, (), is_last=True, commit_by_ms=commit_by_ms
    )
    for kind, size in sizes.items():
        (directory / str(group.name(kind, Suffix.STAGED))).write_bytes(bytes(size))
    write_manifest(PartitionDir(RealFiles(), str(directory)), group)
    world.parts.inventory.touch(str(world.a), directory.name)
    return directory / str(group.name(FileKind.MANIFEST, Suffix.STAGED))


def test_a_result_that_has_aged_is_made_again(world: World) -> None:
    """When the log qualifies again behind it, and no more is thrown away than became dirty."""
    closed = bring_closed_segments(world, "one-0")
    assert len(closed) > 2
    staged_bytes = closed[0].stat().st_size // 2
    manifest = stage(world, closed[0], staged_bytes)
    scan(world)
    log, conditions = world.log("one"), world.parts.conditions
    assert (conditions.of(log).state, conditions.of(log).obstacle) == ("staged", None)
    after, a = world.scrape(), str(world.a)
    assert after.total("cleanerd_staged_results", log_dir=a) == 1
    assert after.total("cleanerd_staged_freeable_bytes", log_dir=a) == closed[0].stat().st_size - staged_bytes
    oldest_s = after.total("cleanerd_staged_oldest_timestamp_seconds", log_dir=a)
    assert oldest_s == pytest.approx(os.stat(manifest).st_mtime, abs=0.01)
    world.configure(log_cleaner_min_cleanable_ratio="1.0")
    world.parts.obstacles.ignored.clear()
    assert conditions.of(log).obstacle is not None, "it does not qualify again"


@pytest.mark.parametrize(("left_ms", "expected"), [(500, True), (5_000, False)])
def test_a_result_that_has_waited_for_half_of_its_time_is_made_again(
    world: World, left_ms: int, expected: bool
) -> None:
    """However much is thrown away: it would be dropped at its commit."""
    closed = bring_closed_segments(world, "one-0")
    now_ms = world.clock.now_ms()
    manifest = stage(world, closed[0], 1 << 20, now_ms + left_ms)
    os.utime(manifest, ns=((now_ms - 1_000) * 1_000_000,) * 2)
    scan(world)
    assert (world.parts.conditions.of(world.log("one")).obstacle is None) is expected


def test_what_is_thrown_away_is_counted(world: World) -> None:
    """At the start of a new cleaning, and when a commit drops it."""
    closed = bring_closed_segments(world, "one-0")
    stage(world, closed[0], 100)
    scan(world)
    log, daemon = world.log("one"), world.daemon
    waiting = sum(path.stat().st_size for path in (world.a / "one-0").glob("*.cleanerd"))
    daemon.cleaners.work(Job("request", [log], force=False), 0.0, Mock())
    assert world.scrape().total("cleanerd_staged_wasted_bytes_total") == waiting
    assert world.parts.states.try_start_all([log])
    world.parts.commits.record(log, SourceChanged("stale"))
    assert world.scrape().total("cleanerd_staged_wasted_bytes_total") == 2 * waiting


def test_what_is_ever_thrown_away_is_within_its_bound() -> None:
    """A log to which bytes are appended one by one, and never committed."""
    wasted = staged = total = since = 0
    for _ in range(5000):
        total, since = total + 1, since + 1
        if pays_again(
            staged_bytes=staged, clean_bytes=total - since, dirty_bytes=since, min_cleanable_dirty_ratio=0.1
        ):
            wasted, staged, since = wasted + staged, total // 2, 0
    assert 0 < wasted <= total


def test_what_is_left_to_the_brokers_cleaner_is_said_with_what_would_change_it(world: World) -> None:
    """At the start and in `status`; one line of log, and another when it becomes another thing."""
    bring_closed_segments(world, "one-0")

    def said() -> tuple[int, int, str]:
        view = world.control.views.log_dir(str(world.a))
        return view.cleans, view.leaves, str(view.share)

    scan(world)
    cleans, leaves, text = said()
    assert (cleans, leaves) == (0, 3)
    assert text.startswith(
        "cleans 0 logs; leaves 3 logs to the broker's own cleaner, once that is seen at work"
    )
    assert (
        "results wait until the running broker stops (cleanerd.commit.live is off). To change that: " in text
    )
    assert text.endswith("cleanerd.commit.live=auto has the broker swap results in")
    write_cleaner_checkpoint(world.a, {"three-0": 1})
    assert "once" not in said()[2]
    world.configure(cleanerd_min_cleanable_dirty_ratio="0.1", cleanerd_commit_live="auto")
    world.parts.obstacles.ignored.clear()
    assert said() == (3, 0, "cleans 3 logs; the running broker swaps results in at once")
    with capture_logs() as lines:
        world.restart()
    (line,) = (one for one in lines if one["event"] == "work_shared" and one["log_dir"] == str(world.a))
    assert line["share"].startswith("cleans 0 logs")


def test_explain_says_who_cleans_a_log_next(world: World) -> None:
    bring_closed_segments(world, "one-0")
    scan(world)

    def said() -> str:
        found = world.control.explainer._cleaned_next_by(world.log("one"))
        world.parts.obstacles.ignored.clear()
        return found

    assert said() == "cleanerd, as soon as a worker is free"
    hold = Hold("1", "one", "me", "because", 0)
    world.parts.states.hold(hold)
    assert said() == "the broker's cleaner, which was not yet seen at work, when its dirty ratio is above 0.5"
    world.parts.states.release("1")
    world.parts.states.try_start_all([world.log("one")])
    assert said() == "cleanerd, which is at work on it"
    job = world.parts.jobs.start("schedule", [world.log("one")])
    found = world.control.explainer.of(world.log("one"), exact=True)
    assert found.decision.startswith("being cleaned since 20")
    assert "examination" not in [fact.name for fact in found.facts], "its files change meanwhile"
    world.parts.jobs.end(job, ["committed"], None)
    world.parts.states.done_cleaning(world.log("one"))
    write_cleaner_checkpoint(world.a, {"three-0": 1})
    scan(world)
    assert said().startswith("left to the broker's own cleaner, which is at work, until 20")
    world.configure(log_cleaner_min_cleanable_ratio="1.0")
    world.parts.obstacles.ignored.clear()
    assert "the broker's cleaner, which is at work, never takes it" in said()
    write_cleaner_checkpoint(world.a, {"one-0": 150, "three-0": 1})
    world.configure(log_cleaner_min_cleanable_ratio="0.5", cleanerd_min_cleanable_dirty_ratio="0.2")
    scan(world)
    assert said().startswith("cleanerd, when its dirty ratio is above 0.2"), "who is first is named first"
    world.configure(log_cleaner_min_cleanable_ratio="1.0", cleanerd_min_cleanable_dirty_ratio="1.0")
    scan(world)
    assert said().startswith(
        "cleanerd, on request or past max.compaction.lag.ms (no dirty ratio is above 1.0)"
    )
