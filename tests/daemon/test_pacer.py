"""The limit that follows the brokers, with what their agents report in the hand of the test."""

import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from cleanerd.broker_agent.live_logs import RequestQueue
from cleanerd.cleaning.throttle import RateLimit, Throttle
from cleanerd.cli.ctl.verbs import daemon as daemon_verbs
from cleanerd.daemon.api.verbs import throttle as throttle_verb
from cleanerd.daemon.configuration.reload import ReloadStatus
from cleanerd.daemon.loops.pacer import Pacer
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.values.models import RequestQueueView, ThrottleChange
from cleanerd.errors import NoWayIn
from cleanerd.policy.pace import FLOOR_BYTES_PER_S, STEPS
from cleanerd.storage.log_dir import Owner
from tests.daemon.test_every_key import Running
from tests.harness.daemon.clients import hold
from tests.harness.daemon.processes import wait_until
from tests.harness.daemon.world import World
from tests.harness.logs.synthetic import Shape, write_log

MB = 10**6
KEY = "cleanerd_throttle_request_queue_max_ms"


class Brokers:
    """One lives in each log directory, and answers with these counters; without any, none answers."""

    def __init__(self, parts: Parts, patch: pytest.MonkeyPatch) -> None:
        self.queues: dict[str, RequestQueue] = {}
        self._log_dirs = parts.log_dirs
        patch.setattr(parts.brokers, "session", lambda log_dir: log_dir)
        patch.setattr(RequestQueue, "of", self._answer)
        patch.setattr(parts.ownership, "owner", lambda _: Owner.LIVE_BROKER)

    def _answer(self, log_dir: str) -> RequestQueue:
        if log_dir not in self.queues:
            raise NoWayIn("it does not answer")
        return self.queues[log_dir]

    def wait(self, wait_ms: float) -> None:
        """In each of them 100 more requests have waited so long."""
        for log_dir in self._log_dirs:
            before = self.queues.get(log_dir, RequestQueue())
            self.queues[log_dir] = RequestQueue(
                before.requests + 100, before.waited_us + round(100_000 * wait_ms)
            )


class Paced:
    """A world beside brokers whose pacer a test steps; a context manager."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.pacer: Pacer = world.daemon.pacer
        self.throttle = world.parts.throttle
        world.configure(**{KEY: 10})

    def __enter__(self) -> Self:
        self._patch = pytest.MonkeyPatch()
        self.brokers = Brokers(self.world.parts, self._patch)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def steps(self, count: int = 1, *, moved_bytes: int = 0, wait_ms: float | None = None) -> None:
        """So many rounds, while requests wait so long; in each of them so much is wanted to be moved."""
        is_on = self.world.parts.configuration().broker.throttle_request_queue_max_ms
        for _ in range(count):
            self.throttle.charge(moved_bytes, 0, lambda: True)
            self.world.clock.advance(2000)
            if wait_ms is not None:
                self.brokers.wait(wait_ms)
            assert self.pacer.step() == (2.0 if is_on else 3600.0), "till a reload"

    @property
    def limit(self) -> float:
        return self.throttle.limits()[RateLimit.REQUEST_QUEUE]

    @property
    def view(self) -> RequestQueueView:
        assert self.pacer.view is not None
        return self.pacer.view


@pytest.fixture
def paced(tmp_path: Path) -> Iterator[Paced]:
    world = World(tmp_path)
    with Paced(world) as paced:
        yield paced
    world.close()


def text(paced: Paced) -> str:
    return daemon_verbs.THROTTLE.view.show(throttle_verb.throttle(paced.world.control).model_dump())


def test_requests_that_wait_slow_cleaning_down_and_their_end_lets_it_go(paced: Paced) -> None:
    """The first round only looks."""
    paced.steps(2, wait_ms=10, moved_bytes=80 * MB)
    assert paced.limit == math.inf
    assert paced.view.reason == "requests wait 10.0 ms, at most 10 ms"
    paced.steps(moved_bytes=80 * MB, wait_ms=11)
    assert paced.limit == 20 * MB, "half of 40 MB/s"
    paced.steps(moved_bytes=80 * MB, wait_ms=11)
    assert paced.limit == 10 * MB
    paced.steps(3, moved_bytes=80 * MB, wait_ms=0)
    assert paced.limit == 16 * MB, "3 of 20 steps of 40 MB/s"
    assert "Request queue:    16.0 MB/s: requests wait 0.0 ms, at most 10 ms\n" in text(paced)
    paced.steps(STEPS, moved_bytes=80 * MB, wait_ms=0)
    assert paced.limit == math.inf
    assert "Request queue:    unlimited: requests wait 0.0 ms" in text(paced)
    paced.steps(50, wait_ms=100)
    assert paced.limit == FLOOR_BYTES_PER_S, "never nothing"


def test_the_other_limits_stay_what_they_are_and_hold(paced: Paced) -> None:
    """A verb that changes one of those does not make this one last."""
    paced.world.configure(log_cleaner_io_max_bytes_per_second=5 * MB, **{KEY: 10})
    paced.steps(4, wait_ms=90, moved_bytes=80 * MB)
    assert paced.limit < 5 * MB
    throttle_verb.set_throttle(paced.world.control, ThrottleChange(read_bytes_per_s=MB))
    assert paced.throttle.limits()[RateLimit.TOTAL] == 5 * MB
    limit = paced.world.scrape().total("cleanerd_io_limit_bytes_per_second", limit="request_queue")
    assert limit == paced.limit
    paced.steps(STEPS, wait_ms=0)
    assert paced.limit == math.inf
    assert daemon_verbs.io_limit(throttle_verb.throttle(paced.world.control).model_dump()) == "5.0 MB/s"


def test_it_comes_goes_and_changes_with_a_reload(paced: Paced) -> None:
    paced.steps(4, wait_ms=30)
    assert paced.limit == FLOOR_BYTES_PER_S
    rings = paced.pacer.bell.rings()
    paced.world.configure(**{KEY: 40})
    assert paced.pacer.bell.rings() > rings, "it looks at once"
    paced.steps(STEPS, wait_ms=30)
    assert (paced.limit, paced.view.max_ms) == (math.inf, 40)
    paced.steps(2, wait_ms=50)
    assert paced.limit == FLOOR_BYTES_PER_S
    paced.world.configure(**{KEY: 0})
    paced.steps()
    assert (paced.limit, paced.pacer.view) == (math.inf, None)
    assert "Request queue" not in text(paced)
    refused = paced.world.configure(**{KEY: -1})
    assert refused.status is ReloadStatus.REJECTED


def test_logs_get_the_rate_with_which_they_meet_max_compaction_lag_ms(paced: Paced) -> None:
    """However long requests wait: what is dirty, read twice, written and read back, in the lag that is left and an hour."""
    world = paced.world
    world.configure(log_cleaner_max_compaction_lag_ms=world.clock.now_ms() - 1000 + 100_000, **{KEY: 10})
    paced.steps(3, wait_ms=90)
    sizes = [world.parts.due_logs.estimate(world.log(topic)).range.cleanable_bytes for topic in world.topics]
    left_s = 100 + 3600 - 6
    assert paced.pacer._needed_bytes_per_s() == pytest.approx(4 * sum(sizes) / left_s, rel=0.001)
    assert paced.limit == FLOOR_BYTES_PER_S, "which is more"
    world.clock.advance(int(left_s * 1000) - 1010)
    paced.brokers.wait(90)
    paced.pacer.step()
    assert paced.limit == pytest.approx(4 * sum(sizes) / 1.01, rel=0.01)
    assert paced.view.reason.startswith("max.compaction.lag.ms needs it: requests wait 90.0 ms")
    paced.steps(wait_ms=90)
    assert paced.limit == math.inf, "late"
    log = world.log("one")
    assert world.parts.states.try_start_all([log]) == [log]
    for topic in ("two", "three"):
        world.parts.states.hold(hold(topic, topic))
    paced.steps(wait_ms=90)
    assert paced.limit == math.inf, "while it is being cleaned"
    world.parts.states.done_cleaning(log)
    world.parts.states.hold(hold("one", "one"))
    paced.steps(wait_ms=90)
    assert paced.limit == FLOOR_BYTES_PER_S, "nobody waits for a log that is paused"


def test_the_worst_broker_counts_and_where_none_answers_nothing_is_held_back(paced: Paced) -> None:
    """On average, since the last look."""
    queues, log_dirs = paced.brokers.queues, [str(paced.world.a), str(paced.world.b)]
    paced.steps(2, moved_bytes=80 * MB)
    assert (paced.limit, paced.view.reason) == (math.inf, "no broker answers, at most 10 ms")
    queues |= {log_dirs[0]: RequestQueue(1_000, 10**9), log_dirs[1]: RequestQueue()}
    paced.steps(moved_bytes=80 * MB)
    assert paced.view.wait_ms is None, "nothing to compare with"
    queues |= {log_dirs[0]: RequestQueue(1_100, 10**9 + 900_000), log_dirs[1]: RequestQueue(100, 1_000_000)}
    paced.steps(moved_bytes=80 * MB)
    assert (paced.limit, paced.view.reason) == (math.inf, "requests wait 10.0 ms, at most 10 ms")
    queues[log_dirs[1]] = RequestQueue(101, 1_010_100)
    paced.steps(moved_bytes=80 * MB)
    assert (paced.limit, paced.view.reason) == (20 * MB, "requests wait 10.1 ms, at most 10 ms")
    queues[log_dirs[0]] = RequestQueue(5, 10**6)
    paced.steps(STEPS, moved_bytes=80 * MB)
    assert (paced.limit, paced.view.wait_ms) == (math.inf, 0.0), "it has started again"


@pytest.mark.soak
def test_a_real_engine_slows_down_and_goes_on_as_before_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It examines a log: without a snapshot all of it is read, reported and paid for, as what tasks move is."""
    running = Running(tmp_path)
    parts, big = running.parts, running.log("big")
    pacer, brokers, wait_ms = running.supervisor.pacer, Brokers(parts, monkeypatch), 100.0
    write_log(Path(big.directory), 40_000, Shape(keys=900, segment_bytes=1 << 20))
    for snapshot in Path(big.directory).glob("*.snapshot"):
        snapshot.unlink()
    running.set({"cleanerd.throttle.request.queue.max.ms": "10"})

    def stepped() -> float:
        brokers.wait(wait_ms)
        pacer.step()
        return _limit(parts.throttle)

    wait_until(lambda: stepped() == FLOOR_BYTES_PER_S, 20)
    thread = threading.Thread(target=running.cleaned, args=(big,))
    thread.start()
    try:
        wait_until(lambda: parts.throttle.paid_bytes() > 0, 120)
        paid_bytes, at_s = parts.throttle.paid_bytes(), parts.clock.monotonic_s()
        wait_until(lambda: parts.clock.monotonic_s() - at_s > 2, 20)
        passed_s = parts.clock.monotonic_s() - at_s
        rate = (parts.throttle.paid_bytes() - paid_bytes) / passed_s
        assert 0 < rate <= FLOOR_BYTES_PER_S * 1.2
        wait_ms = 0.0
        wait_until(lambda: stepped() == math.inf, 60)
        wait_until(lambda: parts.throttle.paid_bytes() > 4 * MB, 60)
        assert parts.throttle.waited_s()[RateLimit.REQUEST_QUEUE] > 1
    finally:
        parts.throttle.set_request_queue(math.inf)
        parts.states.stop(big, "the test")
        thread.join(60)
        running.stop()


def _limit(throttle: Throttle) -> float:
    return throttle.limits()[RateLimit.REQUEST_QUEUE]
