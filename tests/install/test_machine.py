"""What an install does next, whatever happens to the cluster, the broker, the disk and cleanerd itself."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanerd.errors import ClusterRefused
from cleanerd.install.driver import Driver
from cleanerd.install.machine import why_not
from cleanerd.install.values import ClusterView, Install, Observation, Outcome, PlaceContent, Step
from tests.install.cluster import BROKER, REPLICAS, TOPIC_ID, Killed
from tests.install.world import World, fresh_install

STEPS_MAX = 2_000


def begun(world: World) -> Install:
    """An install at its first REMOVING: journalled, nothing asked yet."""
    install = fresh_install(was_leader=world.leader == BROKER, replicas=world.replicas)
    world.journal_text = install.to(Step.REMOVING, world.clock.now_ms())
    world.claim = '{"id": "i1"}'
    return world.journal_text


def run(world: World, *, happens: object = lambda: None, calm_after: int = 300) -> Install:
    """Go on until it is over, with a new process after each kill."""
    driver, done = world.drive(begun(world)), None
    try:
        driver._act()
        driver._asked_s = world.clock.monotonic_s()
    except ClusterRefused as error:
        driver.failure = str(error)
        driver._asked_s = world.clock.monotonic_s()
    except Killed:
        driver = world.drive(world.journal_text)  # type: ignore[arg-type]
    for number in range(STEPS_MAX):
        world.is_calm = number >= calm_after
        if world.is_calm:
            world.restart_broker()
            world.alive |= set(REPLICAS)
            world.isr |= set(world.replicas) - {BROKER}
            world.rival_adding = ()
        elif callable(happens):
            happens()
        try:
            done = driver.step()
        except (ClusterRefused, OSError):
            pass
        except Killed:
            if world.journal_text is None:
                break
            driver = world.drive(world.journal_text)
        world.tick()
        if done is not None:
            return done
    assert world.journal_text is None, f"never over: {world.told[-8:]}"
    return driver.install


def check_end(world: World, done: Install) -> None:
    for _ in range(200):
        world.is_calm = True
        world.rival_adding = ()
        world.restart_broker()
        world.tick()
    assert world.journal_text is None
    assert not world.is_prepared
    if world.rival is not None:
        assert world.replicas in (world.rival, REPLICAS)
    elif world.topic_id == TOPIC_ID:
        assert world.replicas == done.replicas, (world.asked, world.told)
        assert not world.adding
        assert world.is_loaded
    if done.outcome is Outcome.INSTALLED:
        assert world.loaded_ours


def test_an_install_without_trouble_takes_out_moves_in_puts_back() -> None:
    world = World()
    done = run(world)
    assert done.outcome is Outcome.INSTALLED
    assert [step for step, _ in world.told] == [Step.MOVING, Step.ADDING, Step.CLEARING]
    assert world.asked == [(2, 3), REPLICAS]
    check_end(world, done)


def test_a_leader_leads_again() -> None:
    world = World(replicas=(1, 2, 3), leader=BROKER, lists=[(1, 2, 3)])
    done = run(world)
    assert (done.outcome, world.leader) == (Outcome.INSTALLED, BROKER)
    assert Step.ELECTING in [step for step, _ in world.told]
    check_end(world, done)


def test_another_replica_that_dies_brings_ours_back_at_once() -> None:
    world = World()

    world.isr.discard(3)
    world._broker = lambda: None  # type: ignore[method-assign]  # it does not close the log
    driver = world.drive(begun(world))
    driver._act()
    driver._asked_s = world.clock.monotonic_s()
    driver.step()
    assert world.told == [(Step.ADDING, "replicas [3] are not in sync any more")]
    assert world.asked == [(2, 3), REPLICAS]


def test_a_controller_that_moves_and_a_broker_that_does_not_close_bring_it_back() -> None:
    for moved in (True, False):
        world = World()
        world._broker = lambda: None  # type: ignore[method-assign]
        driver = world.drive(begun(world))
        driver._act()
        driver._asked_s = world.clock.monotonic_s()
        assert driver.step() is None
        assert world.asked == [(2, 3)]
        world.controller = (2, 2) if moved else (1, 1)
        world.tick(0 if moved else 5_001)
        driver.step()
        assert world.asked == [(2, 3), REPLICAS]
        assert ("controller" if moved else "not closed") in str(world.told[-1][1])


def test_a_directory_that_the_broker_does_not_load_is_taken_away_and_the_replica_comes_back() -> None:
    world = World(refuses=True)
    done = run(world)
    assert done.outcome is Outcome.RETURNED
    assert done.reason == "the broker has not loaded the prepared directory within 5000 ms"
    assert world.asked == [(2, 3), REPLICAS, (), REPLICAS]
    check_end(world, done)


def in_step(world: World, step: Step, **changes: Any) -> Driver:
    """An install that another process has left in a step, with our directory under the partition's name."""
    install = fresh_install().to(step, world.clock.now_ms(), is_moved=step is not Step.REMOVING, **changes)
    world.place, world.is_prepared, world.is_loaded = PlaceContent.OURS, False, False
    world.isr.discard(BROKER)
    return world.drive(install)


def test_what_the_broker_does_not_load_is_taken_back_although_its_replica_never_gets_in_sync() -> None:
    """Its log directory is offline. A list without it would not end the reassignment that adds it: Kafka 4.3.0 waits on."""
    world = World(refuses=True)
    driver = in_step(world, Step.EVICTING, reason="not loaded")
    world.apply((2, 3))
    world.apply(REPLICAS)
    assert world.adding == (BROKER,)
    driver.step()
    assert (world.replicas, world.adding, world.removing) == ((2, 3), (), ())
    world.tick(1_000)
    driver.step()
    assert world.place is PlaceContent.NOTHING
    driver.step()
    assert (driver.install.step, driver.install.is_moved) == (Step.ADDING, False)
    assert world.asked == [(), REPLICAS]


def test_a_reassignment_that_adds_and_removes_the_broker_is_cancelled_and_the_list_asked_for_again() -> None:
    """A request for the rest that came late."""
    world = World()
    driver = in_step(world, Step.ADDING)
    world.apply((2, 3))
    driver.step()
    world.apply((2, 3))
    assert (world.adding, world.removing) == ((BROKER,), (BROKER,))
    done = None
    for _ in range(150):
        done = done or driver.step()
        world.tick()
    assert done is not None
    assert (done.outcome, world.replicas) == (Outcome.RETURNED, REPLICAS)
    assert world.asked == [REPLICAS, (), REPLICAS]


def test_nothing_is_taken_from_under_a_broker_that_does_not_answer() -> None:
    """A stopped process has its files open, and will go on with them. (`SimArea.take_away` asserts that it does not.)"""
    world = World()
    driver = in_step(world, Step.EVICTING, reason="it took too long")
    world.is_loaded = True
    world.alive.discard(BROKER)
    world.apply((2, 3))
    world._broker = lambda: None  # type: ignore[method-assign]
    for _ in range(50):
        driver.step()
        world.tick()
    assert (driver.install.step, driver.install.is_moved) == (Step.ADDING, False)
    assert driver.install.reason == "it took too long; the broker keeps it open until its next start"
    assert (world.asked, world.adding) == ([REPLICAS], (BROKER,))


def test_nothing_is_taken_from_under_it_when_an_install_is_over_either() -> None:
    """Somebody has given the partition another list meanwhile."""
    world = World(is_calm=True)
    driver = in_step(world, Step.ADDING)
    world.is_loaded = True
    world.alive.discard(BROKER)
    world.replicas, world.lists = (4, 2), [(4, 2)]
    done = driver.step()
    assert done is not None
    assert (done.outcome, world.place) == (Outcome.FOREIGN, PlaceContent.OURS)


def test_a_directory_that_cannot_be_taken_away_is_told_once_and_tried_again_once_a_second() -> None:
    """The broker has put the replica into another log directory: it would not start beside both."""
    world = World(hosted_in="/other")
    driver = in_step(world, Step.ADDING)
    tried = 0

    def take_away(_: Install) -> None:
        nonlocal tried
        tried += 1
        raise OSError(30, "Read-only file system")

    area: Any = driver.area
    area.take_away = take_away
    world.is_loaded = True
    for _ in range(100):
        assert driver.step() is None
        world.tick()
    assert world.told == [(Step.ADDING, "the broker has put the replica into /other")]
    assert 19 <= tried <= 22
    del area.take_away
    done = None
    for _ in range(100):
        done = done or driver.step()
        world.tick()
    assert done is not None
    assert (done.outcome, world.place) == (Outcome.RETURNED, PlaceContent.NOTHING)


def test_a_clock_that_is_set_back_or_forward_changes_nothing() -> None:
    """A late request is waited for, no longer and no less; and the broker gets its time to close the log."""
    for ahead_ms in (-5_000_000, 5_000_000):
        world = World(is_calm=True)
        driver = world.drive(begun(world))
        world.clock.ahead_ms = ahead_ms
        driver._act()
        driver._asked_s = world.clock.monotonic_s()
        world._broker = lambda: None  # type: ignore[method-assign]
        driver.step()
        assert driver.install.step is Step.REMOVING
        del world._broker  # type: ignore[method-assign]
        driver._enter(driver.install.to(Step.ADDING, world.clock.now_ms(), reason="timed out"))
        began_s, done = world.clock.monotonic_s(), None
        world.clock.ahead_ms = 0
        while done is None:
            world.tick()
            done = driver.step()
            assert world.clock.monotonic_s() < began_s + 20
        assert world.clock.monotonic_s() > began_s + 14


def test_somebody_elses_list_stays_and_their_reassignment_is_waited_for() -> None:
    world = World()
    driver = world.drive(begun(world))
    driver._act()
    driver._asked_s = world.clock.monotonic_s()
    world.tick()
    world.rival, world.rival_adding = (2, 4), (4,)
    world.replicas = (2, 3, 4)
    asked = list(world.asked)
    for _ in range(50):
        assert driver.step() is None
        world.clock.ms += 1000
    world.replicas, world.rival_adding = (2, 4), ()
    done = driver.step()
    assert done is not None
    assert done.outcome is Outcome.FOREIGN
    assert done.reason == "the replicas were (2, 1, 3), they were changed to (2, 4)"
    assert world.asked == asked


def test_a_topic_that_was_created_again_is_left_alone() -> None:
    world = World()
    driver = world.drive(begun(world))
    driver._act()
    driver._asked_s = world.clock.monotonic_s()
    world.tick()
    driver.step()
    assert world.place is PlaceContent.OURS
    world.topic_id, world.replicas = "BBBBBBBBBBBBBBBBBBBBBB", (3, 2)
    asked = list(world.asked)
    done = driver.step()
    assert done is not None
    assert done.outcome is Outcome.DROPPED
    assert world.place is PlaceContent.NOTHING
    assert world.asked == asked


def test_our_directory_does_not_stand_in_the_way_of_a_new_topic_of_the_name() -> None:
    """The broker could not make a log beside it, and tries again only when it gets the replica once more."""
    world = World()
    driver = world.drive(begun(world))
    driver._act()
    driver._asked_s = world.clock.monotonic_s()
    world.tick()
    driver.step()
    assert world.place is PlaceContent.OURS
    world.topic_id, world.replicas, world.refuses = "BBBBBBBBBBBBBBBBBBBBBB", (3, 1, 2), True
    done = None
    for _ in range(200):
        world.is_calm = True
        done = done or driver.step()
        world.tick()
    assert done is not None
    assert (done.outcome, world.replicas, world.is_loaded) == (Outcome.RETURNED, (3, 1, 2), True)
    assert not world.loaded_ours


def test_a_replica_that_is_out_does_not_wait_for_a_journal_without_room() -> None:
    world = World()
    driver = world.drive(begun(world))
    driver._act()
    driver._asked_s = world.clock.monotonic_s()
    world.is_full = True
    done = None
    for _ in range(200):
        world.chance = lambda _: 0
        done = done or driver.step()
        world.tick()
    assert done is not None
    assert (done.outcome, world.replicas, world.loaded_ours) == (Outcome.INSTALLED, REPLICAS, True)


def test_what_was_done_without_a_journal_is_seen_after_a_kill() -> None:
    world = World()
    driver = world.drive(begun(world))
    driver._act()
    driver._asked_s = world.clock.monotonic_s()
    world.tick()
    world.is_full = True
    driver.step()
    assert world.place is PlaceContent.OURS
    assert world.journal_text is not None
    assert world.journal_text.step is Step.REMOVING
    driver, done = world.drive(world.journal_text), None
    for _ in range(200):
        done = done or driver.step()
        world.tick()
    assert done is not None
    assert (done.outcome, world.replicas, world.loaded_ours) == (Outcome.INSTALLED, REPLICAS, True)


def test_an_install_is_not_begun_without_a_journal() -> None:
    world = World(is_full=True)
    driver = world.drive(fresh_install())
    with pytest.raises(OSError, match="No space left"):
        driver._go(fresh_install().to(Step.REMOVING, 1))
    assert world.asked == []
    driver.abandon("no room")
    done = driver.step()
    assert done is not None
    assert (done.outcome, done.reason, world.asked) == (Outcome.ABANDONED, "no room", [])


def test_a_process_that_starts_after_a_kill_before_anything_was_asked_only_clears() -> None:
    world = World()
    done = world.drive(fresh_install()).step()
    assert done is not None
    assert (done.outcome, world.asked) == (Outcome.ABANDONED, [])


VIEW = ClusterView(TOPIC_ID, (1, 2), frozenset({1, 2}), 1, (), (), frozenset({1, 2}), (1, 1), "/logs", 1)


def refusal(min_isr: int = 1, **changes: object) -> str:
    view = replace(VIEW, **changes)  # type: ignore[arg-type]
    install = fresh_install(view.replicas)
    return why_not(install, Observation(view, PlaceContent.OTHER, True, None), min_isr) or ""


def test_what_may_not_be_taken_out_is_refused_with_its_reason() -> None:
    assert refusal() == ""
    assert "single replica" in refusal(replicas=(1,))
    assert "behind are [2]" in refusal(isr=frozenset({1}))
    assert "min.insync.replicas is 2" in refusal(min_isr=2)
    assert "a reassignment is under way" in refusal(adding=(3,))
    assert "none of its replicas" in refusal(replicas=(2, 3), isr=frozenset({2, 3}))
    assert "deleted or created again" in refusal(topic_id="x")
    assert "the broker has it in /other" in refusal(hosted_in="/other")


@settings(max_examples=400)
@given(
    st.integers(0, 2**32), st.integers(0, 80), st.booleans(), st.sampled_from(["", "rival", "topic", "again"])
)
def test_whatever_happens_the_list_comes_back_or_is_somebody_elses(
    seed: int, calm_after: int, is_refused: bool, event: str
) -> None:
    """Kills before and after every step, lost and late requests, stale answers, brokers that die, rivals, deletions; the
    journal cannot be written now and then.
    """
    rng = random.Random(seed)
    world = World(chance=rng.randrange, refuses=is_refused)
    at = rng.randrange(1, 60)
    count = 0

    def happens() -> None:
        nonlocal count
        count += 1
        if not rng.randrange(15):
            world.alive.symmetric_difference_update({BROKER})
            if BROKER in world.alive:
                world.restart_broker()
        if not rng.randrange(10):
            world.is_full = not world.is_full
        if not rng.randrange(20):
            world.isr.symmetric_difference_update({3} & set(world.replicas))
        if not rng.randrange(30):
            world.controller = (rng.randrange(3), world.controller[1] + 1)
        if count == at and not world.delayed:
            if event == "rival":
                world.rival = rng.choice([(2, 3, 4), (4, 2), (3, 2, 1)])
                world.replicas, world.adding, world.lists = world.rival, (), [world.rival]
                world.rival_adding = (4,) if 4 in world.rival else ()
                world.isr = set(world.rival)
            elif event == "topic":
                world.topic_id = None
                world.is_loaded = False
            elif event == "again":
                world.topic_id = "BBBBBBBBBBBBBBBBBBBBBB"
                world.replicas, world.adding, world.lists = REPLICAS, (), [REPLICAS]
        if world.rival_adding and not rng.randrange(5):
            world.rival_adding = ()

    done = run(world, happens=happens, calm_after=calm_after)
    if event not in {"again", "topic"}:
        check_end(world, done)
    assert world.journal_text is None


def test_the_age_of_an_install_knows_no_jumps_of_the_clock() -> None:
    """In one process; of what another one has left, the time of day says when it began, if that is not in the future."""
    world = World()
    install = replace(fresh_install(), began_ms=world.clock.now_ms())
    driver = world.drive(install)
    for ahead_ms in (-5_000_000, 5_000_000, 0):
        world.clock.ahead_ms = ahead_ms
        before_s = driver.age_s
        world.tick(3_000)
        assert driver.age_s == pytest.approx(before_s + 3)
    assert driver.age_s == pytest.approx(9)
    assert world.drive(install).age_s == pytest.approx(9)
    world.clock.ahead_ms = -5_000_000
    later = world.drive(install)
    world.tick(3_000)
    assert later.age_s == pytest.approx(3)
