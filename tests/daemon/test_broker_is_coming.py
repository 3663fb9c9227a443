"""`commit --wait` before a broker's start: it waits for nothing that cannot come, and everything else makes way."""

import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from cleanerd.cleaning.commit.host import Commit
from cleanerd.cleaning.commit.slices import SliceSize
from cleanerd.daemon.inventory.listed_log import Contents, ListedLog, Offsets, StagedResult
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.commits import to_commit
from cleanerd.daemon.work.deletions import PendingDeletions
from cleanerd.env.files import RealFiles
from cleanerd.errors import LockHeld
from cleanerd.format import names
from cleanerd.format.batch import Record, encode_batch
from cleanerd.format.checkpoint import render_offset_checkpoint
from cleanerd.format.names import TopicPartition
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.checkpoints import read_offsets, update_cleaner_checkpoint
from cleanerd.storage.lock import HOLD_S, other_holder, probe
from cleanerd.storage.log_dir import LogDir, Recovered
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.writer import LogWriter
from tests.broker.test_start_beside_commits import QUICK, STAGING_S, kill, start, waiting
from tests.harness.clock import HandClock
from tests.harness.command_line import clean as run_clean
from tests.harness.command_line import results
from tests.harness.daemon.processes import DaemonProcess, running
from tests.harness.daemon.tracing import PATIENCE_S, Traced, injecting, lasting
from tests.harness.daemon.world import World
from tests.harness.disks.leases import without_leases
from tests.harness.logs.troubled import (
    TRUTH,
    assert_settled,
    clean,
    contents,
    lock_of_another,
    newest,
    stop_broker,
    write_logs,
)

BUSY = 75
COMING = "a broker is about to start"
TOPICS = ("one", "two", "three")
EXPIRING = "delete\nretention.ms=60000"
"""A policy, and a limit that names the topic: no other one deletes beside a stopped broker."""
LATE = ("dirty-0", "expires-0", "horizon-0")
SETTINGS = {
    **QUICK,
    "log.cleaner.delete.retention.ms": 1,
    "log.retention.check.interval.ms": 200,
}


@pytest.mark.soak
def test_nothing_begins_until_the_broker_has_come_and_a_forgotten_hold_delays_no_start(
    tmp_path: Path,
) -> None:
    """Announced as by its unit: no job, commit, tombstone pass or retention starts, then all of them do."""
    log_dir = write_logs(tmp_path / "logs", "waits", "dirty", "expires")
    write_graves(log_dir)
    write_expired(log_dir)
    for late in LATE:
        (log_dir / late).rename(tmp_path / late)
    broker, topics = start(log_dir), dict.fromkeys(("waits", "dirty", "graves", "horizon"), "compact")
    with running(tmp_path / "daemon", log_dir, topics=topics | {"expires": EXPIRING}, **SETTINGS) as daemon:
        daemon.wait(lambda: waiting(log_dir) == 2, STAGING_S)
        daemon.ask("pause", "*", "--reason", "forgotten")
        kill(broker)
        began = time.monotonic()
        answer = daemon.ctl("commit", "--wait", "--timeout", "60s", check=False)
        assert time.monotonic() - began < 20
        rows = {row["topic"]: row["outcome"] for row in json.loads(answer.stdout)["commits"]}
        assert (rows, answer.returncode) == (dict.fromkeys(("waits", "graves"), "held"), BUSY)

        daemon.ask("resume", "*")
        daemon.ask("commit", "graves-0")  # an operator may
        for late in LATE:
            (tmp_path / late).rename(log_dir / late)
        update_cleaner_checkpoint(RealFiles(), str(log_dir), {TopicPartition("horizon", 0): 1})
        before = contents(log_dir / "expires-0")
        daemon.wait(lambda: COMING in daemon.ctl("explain", "dirty-0").stdout, 10)
        refused = daemon.ctl("clean", "dirty-0", check=False)
        assert (refused.returncode, COMING in refused.stderr) == (BUSY, True)
        threading.Event().wait(2.0)
        assert waiting(log_dir) == 1, "no commit"
        assert triggers(daemon) == ["schedule"], "no job and no tombstone pass"
        assert contents(log_dir / "expires-0") == before, "no retention"

        broker = start(log_dir)
        # the pass finds nothing to stage: where replicas are not known, tombstones stay (architecture 2)
        daemon.wait(lambda: waiting(log_dir) == 2 and set(triggers(daemon)) == {"schedule", "horizon"}, 20)
        kill(broker)
        daemon.wait(lambda: waiting(log_dir) == 0, 20)
        daemon.wait(lambda: contents(log_dir / "expires-0") != before, 10)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_commit_that_comes_before_the_daemon_is_ready_finds_what_is_staged(tmp_path: Path) -> None:
    """Its socket answers while it recovers; its disk is slow here."""
    logs = write_logs(tmp_path / "logs", "one")
    with lock_of_another(logs / names.LOCK):
        assert results(run_clean(logs))["one"]["outcome"] == "staged"
    daemon = Traced(tmp_path / "d", [logs], {})
    daemon.tracing = injecting("getdents64", lasting(2), [logs / "one-0"])
    with daemon:
        daemon.spawn()
        daemon.wait(lambda: daemon.ctl("status", check=False).returncode == 0, PATIENCE_S)
        assert not daemon.ask("status")["status"]["ready"]
        at_once = daemon.ctl("commit", check=False)
        assert (at_once.returncode, "not ready yet" in at_once.stderr) == (75, True)
        assert daemon.ctl("commit", "--wait", "--timeout", "60s").returncode == 0
        assert_settled(logs / "one-0")
        assert newest(logs / "one-0") == TRUTH
        assert daemon.stop() == 0


def write_expired(log_dir: Path) -> None:
    """A log with a tombstone whose time has come."""
    with LogWriter(str(log_dir), "horizon", 0, segment_bytes=1 << 20) as writer:
        writer.append(encode_batch([Record(0, 1000, b"dead", None)], base_offset=0, delete_horizon_ms=1))
        writer.roll()
    list_end(log_dir, TopicPartition("horizon", 0), 1)


def write_graves(log_dir: Path) -> None:
    """A log with a tombstone, and what a broker that stopped says of its end."""
    with LogWriter(str(log_dir), "graves", 0, segment_bytes=1 << 20) as writer:
        producer = Producer(writer)
        for key, value in ((b"alive", b"1"), (b"dead", b"1"), (b"dead", None)):
            producer.put(key, value, 1000)
        writer.roll()
        end = writer.log_end_offset
    list_end(log_dir, TopicPartition("graves", 0), end)


def list_end(log_dir: Path, tp: TopicPartition, end: int) -> None:
    for name in (names.REPLICATION_CHECKPOINT, names.RECOVERY_POINT_CHECKPOINT):
        offsets = read_offsets(RealFiles(), str(log_dir / name))
        (log_dir / name).write_bytes(render_offset_checkpoint(offsets | {tp: end}))


def triggers(daemon: DaemonProcess) -> list[str]:
    return [job["trigger"] for job in daemon.ask("jobs")["jobs"]]


# -- without leases ------------------------------------------------------------------------------------------------

SYNC_MS = 10
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


class SlowFiles(RealFiles):
    """Every sync takes `SYNC_MS` by the clock of the test, and nothing else any time."""

    def __init__(self, clock: HandClock) -> None:
        self._clock = clock

    def fsync(self, path: str) -> None:
        super().fsync(path)
        self._clock.advance(SYNC_MS)

    def fsync_dir(self, directory: str) -> None:
        super().fsync_dir(directory)
        self._clock.advance(SYNC_MS)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A broker's directory `a`."""
    world = World(tmp_path)
    stop_broker(world.a, dict.fromkeys(TOPICS, 1_000_000))
    for topic in TOPICS:
        world.configure_topic(topic, "compact")
    yield world
    world.close()


@pytest.mark.soak
@NEEDS_ROOT
def test_without_leases_a_slice_ends_in_time_and_three_times_as_long_is_left_to_others(
    world: World, spark: LazySpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock file is of another user. Here one log has several groups, and not all are committed in its first slice."""
    world.parts.ownership.release()
    with lock_of_another(world.a / names.LOCK):
        ran = clean(spark, world.a, options=["--topic-set=one:segment.bytes=4000"])
    assert {ran.outcome(topic, "a") for topic in TOPICS} == {"staged"}, ran.told
    world.scan()
    held_s, paused_s, last_s = list[float](), list[float](), world.clock.monotonic_s()

    def pause(seconds: float) -> None:
        nonlocal last_s
        assert probe(str(world.a)) is None, "the lock is free meanwhile"
        held_s.append(world.clock.monotonic_s() - last_s)
        paused_s.append(seconds)
        last_s = world.clock.monotonic_s()

    monkeypatch.setattr(world.parts.ownership, "files", SlowFiles(world.clock))
    commits = replace(world.parts.commits, pause=pause)
    with without_leases(world.a / names.LOCK):
        views = commits.try_all(map(world.log, TOPICS), lambda _: True)
    assert {(view.topic, view.outcome) for view in views} == {(topic, "committed") for topic in TOPICS}
    assert len(held_s) > 2
    assert max(held_s) <= 2 * HOLD_S
    assert paused_s == pytest.approx([3 * held for held in held_s])


def test_a_log_directory_that_hangs_keeps_no_broker_of_another_one_from_being_announced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log directories fail alone: a loop that looks at it waits, and who commits in the other one does not."""
    look, met, over = other_holder, threading.Event(), threading.Event()

    def hangs(log_dir: str) -> int | None:
        if log_dir == str(world.b):
            met.set()
            assert over.wait(PATIENCE_S)
        return look(log_dir)

    monkeypatch.setattr("cleanerd.daemon.work.ownership.other_holder", hangs)
    ownership, loop = world.parts.ownership, ThreadPoolExecutor(2)
    observing = loop.submit(ownership.observe, [str(world.b)])
    assert met.wait(PATIENCE_S)
    announcing = loop.submit(ownership.yield_to_broker, str(world.a))
    try:
        announcing.result(10)
        assert ownership.is_yielding(str(world.a))
    finally:
        over.set()
        observing.result(PATIENCE_S)
        loop.shutdown()


@NEEDS_ROOT
@pytest.mark.parametrize("loop", ["scanner", "housekeeper"])
def test_without_leases_a_broker_that_ended_has_a_minute_to_start_again(world: World, loop: str) -> None:
    """From when one of the loops has seen that it ended; who asks before that hears that it is coming."""
    lock, ownership = world.a / names.LOCK, world.parts.ownership
    (keeper,) = (one for one in world.daemon.keepers if one.name == f"cleanerd-{loop}")
    look = world.scan if loop == "scanner" else keeper.step
    with lock_of_another(lock):
        look()
    with without_leases(lock):
        assert ownership.is_yielding(str(world.a))
        world.clock.advance(100_000)
        assert ownership.is_yielding(str(world.a)), "nobody has looked"
        look()
        assert [ownership.is_yielding(str(path)) for path in (world.a, world.b)] == [True, False]
        world.clock.advance(59_000)
        assert ownership.is_yielding(str(world.a))
        world.clock.advance(1_000)
        assert not ownership.is_yielding(str(world.a))


def test_a_try_that_meets_a_broker_reads_nothing_of_what_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One follows each result that is staged beside it: reading all that waits each time would cost their square."""
    monkeypatch.setattr(world.parts.ownership, "at", None)
    with lock_of_another(world.a / names.LOCK):
        (view,) = world.parts.commits.try_all([world.log("one")], lambda _: True)
    assert (view.outcome, view.reason) == ("waiting", f"{world.a}: the lock is held")


def test_a_recovery_that_a_broker_interrupts_goes_on_where_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its restarts may each leave time for a few logs only."""
    asked = []

    def one_at_a_time(_: LogDir, names: list[str], __: object) -> Iterator[Recovered]:
        asked.append(sorted(names))
        if names:
            yield Recovered(asked[-1][0], None, ())
            raise LockHeld("a broker has come", 7)

    adopted: list[str] = []
    monkeypatch.setattr(LogDir, "recover", one_at_a_time)
    monkeypatch.setattr(PendingDeletions, "adopt", lambda _, path: adopted.append(os.path.basename(path)))
    ours = world.parts.ownership
    ours.release()
    ours.take([str(world.a)])
    assert [ours.recover(str(world.a)) for _ in range(5)] == [False, False, False, True, True]
    assert asked == [["one-0", "three-0", "two-0"], ["three-0", "two-0"], ["two-0"], []]
    assert adopted == ["one-0", "three-0", "two-0"]


def test_a_recovery_leaves_what_is_being_cleaned_for_the_next_time(world: World) -> None:
    """A broker stops while a job writes: what was interrupted in other logs is recovered, the parts of the job stay."""
    ours = world.parts.ownership
    ours.release()
    ours.take([str(world.a)])
    parts = {name: world.a / name / f"{0:020}.part.cleanerd" for name in ("one-0", "two-0")}
    for path in parts.values():
        path.touch()
    job = world.parts.jobs.request([world.log("one")], force=True)
    assert world.parts.schedule.next().job is job
    assert ours.recover(str(world.a))
    assert [name for name, path in parts.items() if path.exists()] == ["one-0"]
    world.parts.states.done_cleaning(world.log("one"))
    world.parts.jobs.end(job, (), None)
    assert ours.recover(str(world.a))
    assert not parts["one-0"].exists()


def test_a_job_that_was_requested_before_begins_when_the_broker_has_come(world: World) -> None:
    """Or when it has not, within its time."""
    job = world.parts.jobs.request([world.log("one")], force=True)
    world.parts.ownership.yield_to_broker(str(world.a))
    assert world.parts.schedule.next().job is None
    with lock_of_another(world.a / names.LOCK):
        assert world.parts.schedule.next().job is job
    world.parts.states.done_cleaning(world.log("one"))


# -- how much in one hold of the lock ------------------------------------------------------------------------------


def logs(*weights: float) -> list[Commit]:
    return [Commit(TopicPartition("t", number), 0, weight) for number, weight in enumerate(weights)]


def test_a_slice_holds_what_ends_in_time() -> None:
    size, rest = SliceSize(), logs(*[1.0] * 100)
    sizes = []
    for _ in range(20):
        batch = size.next_slice(rest)
        sizes.append(len(batch))
        size.adapt(batch, 0.004 * len(batch))
    assert sizes[0] == 1
    assert max(sizes) * 0.004 <= 2 * HOLD_S
    assert sum(sizes) / len(sizes) * 0.004 > HOLD_S / 3


def test_where_syncs_take_the_time_logs_share_them() -> None:
    size, rest = SliceSize(), logs(*[1.0] * 100)
    for _ in range(10):
        batch = size.next_slice(rest)
        size.adapt(batch, 0.3 + 0.001 * len(batch))
    assert len(batch) > 50


def test_what_takes_longer_than_a_slice_has_one_of_its_own() -> None:
    one, *others = logs(1000.0, 1.0, 1.0)
    assert SliceSize().next_slice([one, *others]) == [one]
    assert SliceSize().next_slice([others[0], one]) == [others[0]]


def test_what_cannot_be_read_has_no_gain(world: World) -> None:
    """It waits all the same: its commit drops it, and says why."""
    (world.a / "one-0" / f"{0:020}.manifest.cleanerd").write_text("no manifest")
    world.parts.inventory.touch(str(world.a), "one-0")
    world.scan()
    log = world.log("one")
    assert world.parts.inventory.staged() == [log]
    assert to_commit(log, world.parts.inventory.facts(log)) == Commit(log.topic_partition)


def test_a_log_is_weighed_by_what_its_commit_replaces(tmp_path: Path) -> None:
    known = ListedLog(
        log := LogId(str(tmp_path), TopicPartition("t", 0)),
        Contents((), 0, 0, StagedResult(1 << 20, 3, 128 << 20, 120 << 20, 7, 0), False),
        Offsets(0, 0, 0, None, None),
    )
    assert to_commit(log, known) == Commit(log.topic_partition, gain_bytes=120 << 20, weight=3 + 2)
