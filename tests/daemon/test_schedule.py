"""Which job a daemon begins next, and which logs wait for others; the rule itself: tests/policy/test_schedule.py."""

import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cleanerd.daemon.api.refusals import Timeout
from cleanerd.daemon.api.verbs import retry
from cleanerd.daemon.api.verbs.await_cleaned import await_cleaned
from cleanerd.daemon.work import schedule
from cleanerd.env.space import Space
from cleanerd.policy import schedule as policy
from cleanerd.policy.schedule import AMPLE_BYTES
from cleanerd.units import utc
from tests.daemon.test_supervisor import fail
from tests.harness.daemon.world import World


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "space_of", lambda _: Space(4 * AMPLE_BYTES, AMPLE_BYTES))


def takes(world: World) -> tuple[set[str], float]:
    """Topics of the next job, and how long a worker pauses."""
    job, pause_s = world.parts.schedule.next()
    return set() if job is None else {log.topic_partition.topic for log in job.logs}, pause_s


def add(world: World, *topics: str) -> None:
    world.add(*topics)
    world.scan()


def promised(world: World, topic: str) -> tuple[str, str]:
    """The decision about a log, and the cleaner that comes next, as `cleanerctl explain` says it."""
    found = world.control.explainer.of(world.log(topic), exact=False)
    return found.decision, next(fact.value for fact in found.facts if fact.name == "cleaned next by")


def test_logs_that_become_due_after_a_job_share_the_next_one_and_explain_says_so(world: World) -> None:
    """Rule 1.26: and a log after some quiet time begins at once."""
    assert takes(world) == ({"one", "two", "three"}, 0.0)
    world.clock.advance(5_000)
    add(world, "four")
    assert takes(world) == (set(), 10.0)
    since, until = utc(world.clock.now_ms()), utc(world.clock.now_ms() + 10_000)
    waits = f"due since {since}, it waits for other small logs of its log directory, to share a job"
    assert promised(world, "four") == (
        f"will be cleaned from {until} on, or earlier with others: {waits}",
        f"cleanerd, from {until} on, or earlier with others: {waits}",
    )
    assert world.parts.conditions.of(world.log("four")).obstacle is None, "nothing is in its way"
    world.clock.advance(4_000)
    add(world, "five")
    assert takes(world) == (set(), 6.0)
    world.clock.advance(6_000)
    assert promised(world, "four")[0] == "will be cleaned as soon as a worker is free"
    assert takes(world) == ({"four", "five"}, 0.0)
    world.clock.advance(15_000)
    add(world, "six")
    assert takes(world) == ({"six"}, 0.0)


def is_requested(world: World) -> None:
    world.parts.jobs.request([world.log("four")], force=False)


def is_awaited(world: World) -> None:
    progressed = world.parts.bells.progressed
    progressed.wait = lambda s=0: bool(world.clock.advance(round(1000 * s)))  # type: ignore[method-assign]
    with pytest.raises(Timeout):
        await_cleaned(world.control, world.log("four").topic_partition, 10, 1)


def is_tried_again(world: World) -> None:
    fail(world, world.log("four"))
    retry.retry(world.control, "four")


def is_reserved(world: World) -> None:
    world.configure(cleanerd_reserved_topics="four")


def is_past_its_deadline(world: World) -> None:
    world.configure_topic("four", "compact", max_compaction_lag_ms=1)


def restarts(world: World) -> None:
    world.restart()


@pytest.mark.parametrize(
    "happens",
    [is_requested, is_awaited, is_tried_again, is_reserved, is_past_its_deadline, restarts],
)  # fmt: skip
def test_no_client_and_no_deadline_waits_for_other_logs(
    world: World, happens: Callable[[World], None]
) -> None:
    takes(world)
    add(world, "four")
    assert takes(world) == (set(), 15.0)
    rings = world.parts.bells.work.rings()
    happens(world)
    if happens in (is_requested, is_awaited, is_tried_again):
        assert "as soon as a worker is free" in promised(world, "four")[0], "workers may be busy, so it waits"
    if happens in (is_awaited, is_tried_again):
        assert world.parts.bells.work.rings() > rings, "a worker looks"
    assert "four" in takes(world)[0]


def test_a_log_waits_until_its_deadline_at_most(world: World) -> None:
    """max.compaction.lag.ms of a log that is due by its dirty ratio before."""
    takes(world)
    add(world, "four")
    world.configure_topic("four", "compact", max_compaction_lag_ms=10**12)
    found = world.parts.due_logs.estimate(world.log("four"))
    assert found is not None
    lag_ms = 10**12 - (found.deadline_ms - world.clock.now_ms()) + 7_000
    world.configure_topic("four", "compact", max_compaction_lag_ms=lag_ms)
    assert takes(world) == (set(), 7.0)
    world.clock.advance(7_000)
    job = world.parts.schedule.next().job
    assert job is not None
    assert job.trigger == "max lag"


def test_no_disk_waits_that_is_nearly_full_or_that_nobody_can_ask(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(world)
    for topic, room in (("four", AMPLE_BYTES), ("five", AMPLE_BYTES - 1), ("six", None)):
        add(world, topic)

        def space_of(path: str, room: int | None = room) -> Space:
            if room is None:
                raise OSError(errno.EIO, "no answer", path)
            return Space(4 * AMPLE_BYTES, room)

        monkeypatch.setattr(schedule, "space_of", space_of)
        assert (takes(world)[0] == set()) == (room == AMPLE_BYTES)


def test_a_log_for_which_a_client_has_waited_waits_for_others_again_after_its_cleaning(world: World) -> None:
    """Also where a request cleaned it."""
    takes(world)
    add(world, "four")
    assert takes(world) == (set(), 15.0)
    four = world.log("four")
    world.parts.schedule.hurry([four])
    job = world.parts.jobs.request([four], force=False)
    assert takes(world)[0] == {"four"}
    assert not world.parts.schedule.hurry([four]), "the client asks again while it is cleaned"
    world.parts.jobs.end(job, ["aborted"], None)
    world.parts.states.done_cleaning(four)
    assert takes(world) == (set(), 15.0)


def test_a_client_that_comes_while_a_worker_chooses_wakes_it_when_it_asks_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(world)
    add(world, "four")

    def choose(*args: Any) -> object:
        assert not world.parts.schedule.hurry([world.log("four")]), "the choice is not made yet"
        return policy.choose(*args)

    monkeypatch.setattr(schedule, "choose", choose)
    assert takes(world) == (set(), 15.0)
    assert world.parts.schedule.hurry([world.log("four")]), "now it is"
    monkeypatch.undo()
    assert takes(world)[0] == {"four"}


def test_a_worker_whose_choice_somebody_else_has_taken_looks_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The express worker, or `delete-records`: other logs may be ready, and wait for nobody."""

    def choose(*args: Any) -> object:
        choice = policy.choose(*args)
        assert world.parts.states.try_start_all([due.log for due in choice.begin])
        return choice

    with monkeypatch.context() as patched:
        patched.setattr(schedule, "choose", choose)
        assert takes(world) == (set(), 0.01)
    add(world, "four")
    assert takes(world)[0] == {"four"}


def test_a_disk_that_hangs_while_a_worker_looks_keeps_no_client_and_no_reserved_topic_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that looks for work may hang for as long as its disk does."""
    hangs, works = threading.Event(), threading.Event()

    def space_of(_: str) -> Space:
        hangs.set()
        assert works.wait(60)
        return Space(4 * AMPLE_BYTES, AMPLE_BYTES)

    monkeypatch.setattr(schedule, "space_of", space_of)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(world.parts.schedule.next)
        try:
            assert hangs.wait(60)
            world.configure(cleanerd_reserved_topics="one")
            world.clock.advance(61_000)
            hurried = threads.submit(world.parts.schedule.hurry, [world.log("two")])
            express = threads.submit(world.parts.schedule.next_express)
            assert not hurried.result(60)
            job = express.result(60)
            assert job is not None
            assert job.logs == (world.log("one"),)
        finally:
            works.set()
        job = first.result(60).job
        assert job is not None
        assert set(job.logs) == {world.log("two"), world.log("three")}, "the other one is taken"
