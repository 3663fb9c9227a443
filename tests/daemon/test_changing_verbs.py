"""No verb changes a log that is ignored, out of reach or held: all of them, over logs in every condition.

Each verb would change the log if it did not ask: it is dirty, all of it has expired, or a result is staged.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.refusals import Conflict, Invalid, NotFound, Refused, Timeout, Unavailable
from cleanerd.daemon.api.verbs import (
    ROUTES,
    clean,
    commit,
    delete_records,
    history,
    jobs,
    mute,
    pause,
    resume,
    retention,
    unmute,
)
from cleanerd.daemon.loops.retainer import Retainer
from cleanerd.daemon.store import HOLD, MUTE, Store
from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work import retention as passes
from cleanerd.daemon.work.mutes import Mute
from cleanerd.format import names
from cleanerd.format.names import TopicPartition
from cleanerd.storage.keeper import read_keeper
from tests.harness.daemon.inventories import HOUR_MS
from tests.harness.daemon.world import World
from tests.harness.logs.troubled import META_PROPERTIES, RECORDS, contents, write_logs

VERBS: dict[str, Callable[[Control, LogId], Iterable[object]]] = {
    "clean": lambda control, log: clean.clean(control, str(log), force=True),
    "commit": lambda control, log: commit.commit(control, str(log), 0),
    "retention": lambda control, log: retention.retention(control, str(log), dry_run=False),
    "delete_records": lambda control, log: delete_records.delete_records(
        control, log.topic_partition, RECORDS
    ),
}
"""Those that change a log."""
OTHERS = {"set_throttle", "pause", "resume", "abort", "mute", "unmute", "retry", "reload"}
"""Those that change the daemon, or the cluster."""


class Stage(World):
    """What is going to be asked for."""

    verb = ""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(passes, "_STOP_S", 0.0)
    world = Stage(tmp_path)
    world.configure(log_cleanup_policy="compact,delete", log_retention_ms=HOUR_MS)
    yield world
    world.close()


Subject = tuple[LogId, Path]
"""A log, and where its files are."""


def subject(world: Stage, log: LogId) -> Subject:
    """With what `commit` would take, or throw away; retention leaves such a log alone."""
    if world.verb == "commit":
        (Path(log.directory) / f"{0:020d}.manifest.cleanerd").write_text("{}")
    world.scan()
    return log, Path(log.directory)


def free(world: Stage) -> Subject:
    return subject(world, world.log("one"))


def offline(world: Stage) -> Subject:
    log, _ = free(world)
    world.a.rename(world.root / "aside")
    world.a.write_text("not a directory")
    world.scan()
    return log, world.root / "aside" / str(log)


def ignored(world: Stage) -> Subject:
    """Of a ZooKeeper broker that is stopped, so that nothing says how its topic is configured: by Kafka's defaults all
    closed segments would go.
    """
    write_logs(world.b, "plain")
    return subject(world, LogId(str(world.b), TopicPartition("plain", 0)))


def ignored_since_the_last_scan(world: Stage) -> Subject:
    found = free(world)
    (world.a / names.META_PROPERTIES).write_text(META_PROPERTIES)
    return found


def damaged(world: Stage) -> Subject:
    """Of a broker whose meta.properties are gone (the table of architecture 2)."""
    log, directory = free(world)
    (world.a / names.REPLICATION_CHECKPOINT).write_text("0\n0\n")
    world.scan()
    return log, directory


def damaged_since_the_last_scan(world: Stage) -> Subject:
    found = free(world)
    (world.a / names.REPLICATION_CHECKPOINT).write_text("0\n0\n")
    return found


def in_two_directories(world: Stage) -> Subject:
    """Of a broker that is stopped and whose topics are known."""
    write_logs(world.a, "one")
    write_logs(world.b, "one")
    world.configure_topic("one", "compact,delete", retention_ms=HOUR_MS)
    return free(world)


def held(world: Stage) -> Subject:
    world.parts.states.hold(Hold("1", "one", "me", "because", 0))
    return free(world)


def awaited(world: Stage) -> Subject:
    """By its broker."""
    world.parts.ownership.yield_to_broker(str(world.a))
    return free(world)


def being_cleaned(world: Stage) -> Subject:
    assert world.parts.states.try_start_all([world.log("one")])
    return free(world)


def told_to_stop(world: Stage) -> Subject:
    found = being_cleaned(world)
    world.parts.states.stop(found[0], "the test")
    return found


CONDITIONS = (
    offline, ignored, ignored_since_the_last_scan, damaged, damaged_since_the_last_scan, in_two_directories, held, awaited,
    being_cleaned, told_to_stop,
)  # fmt: skip
GRANTED = {
    ("commit", awaited),  # what a broker that starts waits for
    ("clean", ignored_since_the_last_scan),  # asked again before anything is committed
    ("clean", damaged_since_the_last_scan),
}


def test_every_verb_that_changes_something_is_known() -> None:
    assert {route.verb for route in ROUTES if route.changes} - OTHERS == VERBS.keys()


def outcome(world: Stage, verb: str, log: LogId) -> set[str]:
    """What became of it, in words of the verb; refused."""
    world.parts.life.is_ready = True
    try:
        answer = VERBS[verb](world.control, log)
    except Conflict:
        return {"refused"}
    finally:
        world.parts.life.is_ready = False
    return {getattr(view, "outcome", None) or "done" for view in answer}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.__name__)
def test_a_log_that_is_not_to_be_changed_is_not(
    world: Stage, condition: Callable[[Stage], Subject], verb: str
) -> None:
    """Nor does the daemon begin with it by itself afterwards."""
    if (verb, condition) in GRANTED:
        return
    world.verb = verb
    log, directory = condition(world)
    before = contents(directory)
    unchanged = {"refused", "held", "waiting", "skipped", "failed"}
    assert outcome(world, verb, log) <= unchanged or verb == "clean", "which may wait in the queue"
    assert contents(directory) == before
    Retainer(world.parts.conditions, world.parts.retention, world.daemon.scanner).step()
    assert contents(directory) == before
    job = world.parts.schedule.next().job
    assert job is None or log not in job.logs or condition.__name__.endswith("since_the_last_scan")


@pytest.mark.parametrize("verb", VERBS)
def test_a_log_that_is_free_is_changed(world: Stage, verb: str) -> None:
    """By each of them, so that the test above says something."""
    world.verb = verb
    log, directory = free(world)
    before = contents(directory)
    assert outcome(world, verb, log) <= {"dropped", "deleted", "done"}
    job = world.parts.schedule.next().job
    assert (contents(directory) != before) == (verb != "clean")
    assert verb != "clean" or (job is not None and job.trigger == "request" and log in job.logs)


def test_a_request_for_a_log_that_is_ignored_since_comes_to_an_end(world: Stage) -> None:
    """Whoever waits for it hears why."""
    control, log = world.control, world.log("one")
    (view,) = clean.clean(control, "one", force=True)
    (world.a / names.META_PROPERTIES).write_text(META_PROPERTIES)
    world.scan()
    assert world.parts.schedule.next().job is None
    ended = jobs.job(control, view.id)
    assert (ended.state, ended.outcome) == ("done", "failed")
    assert "is a broker's and has no metadata log" in str(ended.reason)
    assert world.parts.states.is_free(log)


def test_a_log_that_is_not_known_may_lie_in_a_directory_that_is_offline(world: Stage) -> None:
    """Whoever asks for it hears why."""
    (world.a / names.REPLICATION_CHECKPOINT).write_text("0\n0\n")
    world.restart()
    with pytest.raises(NotFound, match=f"{world.a} is offline: {world.a}/meta.properties: expected the file"):
        clean.clean(world.control, "one-0", force=True)


@contextmanager
def refused_as_the_disk_is_full(message: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as full:
        full.setattr(Store, "_write", lambda *_: False)
        with pytest.raises(Unavailable, match=message):
            yield


def named(world: Stage) -> list[dict[str, object]]:
    """The holds in the lock file of the first log directory."""
    keeper = read_keeper(str(world.a))
    assert keeper is not None
    return list(json.loads(keeper.holds))


def test_a_pause_is_what_it_was_said_to_be_after_a_restart_too(world: Stage) -> None:
    """The state directory is full for a while: what was refused does not come later, what comes back was said to. The lock
    files name what holds (rule A.7).
    """
    store, states = world.parts.store, world.parts.states

    with refused_as_the_disk_is_full("would not survive a restart"):
        pause.pause(world.control, "one", "me")
    store.prune(0, 10**6)
    assert (store.all(HOLD, dict), states.holds()) == ({}, [])
    pause.pause(world.control, "one", "me", ttl_ms=HOUR_MS)
    assert list(store.all(HOLD, TypeAdapter(Hold).validate_python).values()) == states.holds()
    assert named(world) == list(map(asdict, states.holds()))
    with refused_as_the_disk_is_full("a restart would bring it back"):
        resume.resume(world.control, "one")
    assert (states.holds(), named(world)) == ([], [])
    store.prune(0, 10**6)
    assert store.all(HOLD, dict) == {}


@pytest.mark.parametrize("failure", ["busy", "unwritable"])
def test_a_pause_that_was_withdrawn_is_in_no_lock_file(
    world: Stage, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    """Another client has paused something meanwhile, and named all holds (rule A.7)."""
    parts, hold = world.parts, world.parts.states.hold

    def busy(one: Hold, timeout_s: float | None = None) -> list[LogId]:
        hold(one, timeout_s)
        parts.ownership.name_holds()
        assert named(world)
        return [world.log("one")] if failure == "busy" else []

    monkeypatch.setattr(parts.states, "hold", busy)
    monkeypatch.setattr(parts.store, "put", lambda *_: False)
    with pytest.raises((Timeout, Unavailable)):
        pause.pause(world.control, "one", "me")
    assert (parts.states.holds(), named(world)) == ([], [])


def test_an_unmute_that_a_restart_would_take_back_says_so(world: Stage) -> None:
    store, muted = world.parts.store, Mute("one", 0)
    store.put(MUTE, "one", asdict(muted))
    with refused_as_the_disk_is_full("a restart would bring that back"):
        unmute.unmute(world.control, "one")
    assert store.save()
    world.restart()
    assert world.parts.store.all(MUTE, dict) == {}


def test_a_topic_that_would_be_left_without_a_cleaner_is_not_muted(world: Stage) -> None:
    """Its broker's cleaner would go, and ours ignores it."""
    ignored(world)
    with pytest.raises(Refused, match="plain: ignored by cleanerd"):
        mute.mute(world.control, "plain")
    with pytest.raises(Refused, match=r"cleanerd\.commit\.live is off: with auto"):
        mute.mute(world.control, "o*")


def test_delete_records_takes_what_lies_below_and_nothing_else(world: Stage) -> None:
    """All of the log has expired, and the rest goes with the next pass; files wait for file.delete.delay.ms."""
    log, directory = world.log("one"), Path(world.log("one").directory)
    bases = sorted(int(path.stem) for path in directory.glob("*.log"))
    (view,) = delete_records.delete_records(world.control, log.topic_partition, bases[2] + 1)
    assert (view.log_start_offset, view.segments_deleted) == (bases[2] + 1, 2)
    assert sorted(int(path.stem) for path in directory.glob("*.log")) == bases[2:]
    assert len(list(directory.glob("*.log.deleted"))) == 2
    known = world.parts.inventory.facts(log)
    assert known is not None
    assert known.offsets.log_start == bases[2] + 1
    (event,) = history.history(world.control, limit=1)
    assert (event.kind, event.outcome) == ("retention", "deleted")
    assert event.reason == "retention: 2 segments (below the log start offset)"
    after = sum(path.stat().st_size for path in directory.glob("*.log"))
    assert (event.bytes_before, event.bytes_after) == (after + view.bytes_deleted, after)
    delete_records.delete_records(world.control, log.topic_partition, bases[3])
    (event,) = history.history(world.control, limit=1)
    assert str(event.reason).startswith("retention: 1 segment (")


def test_kip_1161_delete_records_by_policy(world: Stage) -> None:
    log = world.log("one")
    for policy in ("", "delete", "compact,delete"):
        world.configure(log_cleanup_policy=policy)
        assert delete_records.delete_records(world.control, log.topic_partition, 1)
    world.configure(log_cleanup_policy="compact")
    with pytest.raises(Invalid, match="compact without delete"):
        delete_records.delete_records(world.control, log.topic_partition, 1)
