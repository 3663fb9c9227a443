"""A broker and a daemon beside it for minutes, with everything that happens to either; at the end every key is there.

CLEANERD_TEST_MINUTES: how long the story goes on, 1 by default. Everything happens at least once, however short it is.
The order of events, the records and the choices come from a seed; what meets what in time does not.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cleanerd.env.clock import SystemClock
from tests.harness.broker.beside import TOPICS, World
from tests.harness.broker.live import PATIENCE_S
from tests.harness.broker.swapping import build_agent
from tests.harness.daemon.processes import wait_until

SEED = 10
MINUTES = float(os.environ.get("CLEANERD_TEST_MINUTES", "1"))
EPISODES_MAX = 1000
INTERNAL_ERRORS = {"internal_error", "worker_died", "recovery_failed"}

pytestmark = [
    pytest.mark.broker,
    pytest.mark.soak,
    pytest.mark.timeout(900 + MINUTES * 120),
    pytest.mark.filterwarnings(
        "ignore:(read|open)_text is deprecated:DeprecationWarning"
    ),  # of the Kafka client's import
]


@pytest.fixture(params=["restart", "swap"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Broker, daemon and clients, all at work; by which way results reach the broker."""
    if request.param == "swap":
        build_agent()
    world = World(tmp_path, SEED, swaps=request.param == "swap")
    try:
        world.open()
        with world.traffic:
            world.wait_staged("accounts")  # the first cleaning may wait for compilations
            yield world
    finally:
        world.close()


def test_every_key_survives_everything(world: World) -> None:
    """Producers, transactions, groups, restarts, kills, both cleaners; then the broker's cleaner over our result."""
    tell_story(world)
    world.check()
    outcomes = finish(world)
    happened = {kind: {o for k, o in outcomes if k == kind} for kind, _ in outcomes}
    assert "committed" in happened["cleaning" if world.swaps else "commit"]
    assert not {(k, o) for k, o in outcomes if o in {"failed", "uncleanable"}}, outcomes
    assert [event for event in world.daemon.events() if event["event"] in INTERNAL_ERRORS] == []
    assert world.complaints() == []


def tell_story(world: World) -> None:
    """Everything once in a shuffled order, and again, until the time is over."""
    clock = SystemClock()
    end_s = clock.monotonic_s() + MINUTES * 60
    for number, episode in zip(range(EPISODES_MAX), episodes(world), strict=False):
        if number >= len(deck(world)) and clock.monotonic_s() > end_s:
            break
        began_s = clock.monotonic_s()
        try:
            episode()
        except Exception:
            if world.broker.pid is not None:
                print(world.broker.threads())  # a broker that does not answer says nothing in its log
            raise
        print(
            f"{number} {getattr(episode, '__name__', episode)} {clock.monotonic_s() - began_s:.1f} s",
            flush=True,
        )
        world.breathe()


def episodes(world: World) -> Iterator[Callable[[], None]]:
    while True:
        cards = deck(world)
        world.rng.shuffle(cards)
        yield from cards


def deck(world: World) -> list[Callable[[], None]]:
    def clean_restart() -> None:
        world.wait_staged("accounts")
        world.over_a_restart(world.restart_cleanly)

    def broker_killed() -> None:
        world.over_a_restart(world.kill_broker)

    def killed_while_committing() -> None:
        world.over_a_restart(world.kill_while_committing)

    restarts = [clean_restart, broker_killed, killed_while_committing]
    others = [world.kill_daemon_at_work, world.recreate, world.move, world.delete_records, world.flip_policy]
    mutes = [world.mute] if world.swaps else []  # by a lease, through the agent
    return [*restarts, *others, world.race, *mutes, world.hold, world.reload]


def finish(world: World) -> Counter[tuple[str, str]]:
    """The directories at rest are sound, and the broker's own cleaner goes on from them; outcomes by kind, of it all."""
    world.stop_broker()
    world.commit()
    outcomes = Counter((event["kind"], event["outcome"]) for event in world.history())
    assert world.daemon.stop() == 0
    assert world.verify() == []
    before = {
        topic: world.first_dirty_offset(topic)
        for topic, config in TOPICS.items()
        if "compact" in config["cleanup.policy"]
    }
    # What the broker's retention takes from `bounded` may make each of its results stale before a restart; and `reborn` may
    # have been created again just now.
    assert all(offset for topic, offset in before.items() if topic not in {"bounded", "reborn"}), before
    world.own_cleaner()
    wait_until(
        lambda: all(world.first_dirty_offset(topic) > offset for topic, offset in before.items()),
        PATIENCE_S,
        lambda: f"{before} {world.complaints()}",
    )
    world.check()
    assert world.has_cleaner_thread()
    return outcomes
