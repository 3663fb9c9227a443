"""A muted log that cleanerd does not clean goes back to the broker's cleaner, whatever the cause is (architecture 2)."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cleanerd.cleaning.outcomes import Failed
from cleanerd.daemon.api.verbs import status
from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.values.log_id import LogId
from cleanerd.policy.lease_duty import GRACE_S
from tests.harness.daemon.inventories import write_cleaner_checkpoint
from tests.harness.daemon.world import World

GRACE_MS = int(GRACE_S * 1000)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    world.parts.lease_duty.begin(logs(world))
    assert kept(world) == logs(world), "they are muted now"
    yield world
    world.close()


def logs(world: World) -> list[LogId]:
    return [world.log(topic) for topic in world.topics]


def kept(world: World) -> list[LogId]:
    """From which the broker's cleaner is kept."""
    return world.parts.lease_duty.to_lease(logs(world))


def failed(world: World, error: str, times: int, *, is_retryable: bool) -> None:
    log, parts = world.log("one"), world.parts
    bad = Failed(f"{error}: why", error, is_retryable)
    for _ in range(times):
        config, now_ms = parts.configuration().broker, world.clock.now_ms()
        parts.failures.failed(log, bad, parts.conditions.stamp(log), config, now_ms)


def is_uncleanable(world: World) -> None:
    failed(world, "CorruptFile", world.parts.configuration().broker.retry_max, is_retryable=False)


def has_no_java(world: World) -> None:
    """Each attempt fails at once, with a longer pause behind it."""
    failed(world, "SparkFailed", 8, is_retryable=True)


def has_no_room(world: World) -> None:
    world.parts.obstacles.full[str(world.a)] = "1.0 MB are free"


def is_held(world: World) -> None:
    world.parts.states.hold(Hold("1", "one", "me", "a backup", 0))


def is_off(world: World) -> None:
    world.restart(log_cleaner_enable="false")
    world.parts.lease_duty.begin(logs(world))


def cannot_be_read(world: World) -> None:
    (world.a / "one-0").rename(world.root / "elsewhere")
    os.utime(world.root / "elsewhere")
    (world.a / "one-0").symlink_to(world.root / "elsewhere")
    world.scan()


def is_in_transition(world: World) -> None:
    (world.a / "one-0" / f"{0:020d}.log.cleaned").touch()
    world.scan()


def is_throttled_to_nothing(world: World) -> None:
    taken = world.parts.states.try_start_all([world.log("one")])
    job = world.parts.jobs.start("schedule", taken)
    world.parts.jobs.plan(job, world.log("one"), 1_000_000)
    world.parts.jobs.advance(job, "index", 1, 0, 1)


def nobody_comes(_: World) -> None:
    """The workers have too much to do."""


def nothing_is_scanned(world: World) -> None:
    """The thread hangs in a disk: what is known of the log, that it is clean, was true once."""
    write_cleaner_checkpoint(world.a, dict.fromkeys(("one-0", "two-0", "three-0"), 150))
    world.scan()
    world.clock.advance(GRACE_MS)
    assert kept(world) == logs(world)
    world.clock.advance(1000)
    world.scan = lambda: None  # type: ignore[method-assign]


def is_never_due_here(world: World) -> None:
    """By cleanerd's own ratio; by that of its broker it is."""
    world.configure(cleanerd_min_cleanable_dirty_ratio="1.0")


CAUSES: dict[Callable[[World], None], str] = {
    is_uncleanable: "uncleanable: CorruptFile: why",
    has_no_java: "backing off: SparkFailed: why",
    has_no_room: "1.0 MB are free",
    is_held: "it is paused",
    is_off: "cleaning is off",
    cannot_be_read: "symbolic link",
    is_in_transition: "no worker has come to it",
    is_throttled_to_nothing: "its cleaning does not get on",
    nobody_comes: "no worker has come to it",
    nothing_is_scanned: "its files have not been looked at for",
    is_never_due_here: "no worker has come to it",
}


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.__name__)
def test_whatever_keeps_cleanerd_from_a_log_gives_it_back_to_the_broker(
    world: World, cause: Callable[[World], None]
) -> None:
    """Within minutes, and everybody says so: explain, status, the log of the daemon and a metric."""
    one = world.log("one")
    cause(world)
    assert one in kept(world)
    world.clock.advance(GRACE_MS - 1000)
    assert one in kept(world), "for a moment that is nothing"
    write_cleaner_checkpoint(world.a, dict.fromkeys(("two-0", "three-0"), 150))
    world.scan()
    if cause is has_no_room:
        cause(world)  # the scan has looked for itself
    with capture_logs() as said:
        world.clock.advance(2000)
        assert one not in kept(world)
    (event,) = (line for line in said if line["event"] == "lease_given_back" and line["topic"] == "one")
    assert CAUSES[cause] in event["reason"]
    facts = {fact.name: fact.value for fact in world.control.explainer.of(one, exact=False).facts}
    assert facts["muted"].startswith("given back to the broker's cleaner")
    assert CAUSES[cause] in facts["muted"]
    assert world.scrape().total("cleanerd_leases_given_back", log_dir=str(world.a)) >= 1
    assert any("given back" in warning for warning in status.status(world.control).warnings)


def test_what_was_cleaned_is_muted_again(world: World) -> None:
    world.clock.advance(1000)
    kept(world)
    has_no_room(world)
    world.clock.advance(GRACE_MS)
    assert kept(world) == []
    write_cleaner_checkpoint(world.a, dict.fromkeys(("one-0", "two-0", "three-0"), 150))
    world.scan()
    has_no_room(world)
    assert kept(world) == [], "the broker's cleaner has done it: there is still no room for another"
    world.scan()
    with capture_logs() as said:
        assert kept(world) == logs(world)
    assert [line["topic"] for line in said if line["event"] == "lease_taken_back"] == ["one", "three", "two"]


def test_what_was_due_before_the_daemon_started_is_the_brokers_until_it_is_cleaned(world: World) -> None:
    """A daemon that dies every few minutes keeps no broker from its logs."""
    world.restart()
    assert kept(world) == []
    write_cleaner_checkpoint(world.a, {"one-0": 150})
    world.scan()
    assert kept(world) == [world.log("one")]


def test_what_cleanerd_may_not_change_is_never_kept_from_the_broker(world: World) -> None:
    world.parts.obstacles.ignored[world.log("one")] = "not of this cluster"
    assert kept(world) == [world.log("two"), world.log("three")]
    assert world.parts.lease_duty.given_back == {}
