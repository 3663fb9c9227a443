"""The limit that follows the pressure of the machine, with what the kernel reports in the hand of the test."""

import math
import threading
from collections.abc import Iterator
from copy import copy
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cleanerd.broker_agent.live_logs import RequestQueue
from cleanerd.cleaning.throttle import RateLimit, Throttle
from cleanerd.cli.ctl import tables
from cleanerd.daemon.api.verb import Reply
from cleanerd.daemon.api.verbs import throttle as throttle_verb
from cleanerd.daemon.configuration.reload import ReloadStatus
from cleanerd.daemon.loops.pacer import Pacer
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.values.models import PressureView, ThrottleChange
from cleanerd.env.clock import Clock
from cleanerd.env.files import READ_MAX_BYTES, RealFiles
from cleanerd.errors import NoWayIn
from cleanerd.policy.pace import FLOOR_BYTES_PER_S, STEPS
from cleanerd.storage.log_dir import Owner
from tests.daemon.clients import hold
from tests.daemon.processes import wait_until
from tests.daemon.test_every_key import Running
from tests.operate.world import World
from tests.synthetic import Shape, write_log

MB = 10**6
LINE = "avg10=1.00 avg60=2.00 avg300=3.00 total={}\n"


class Kernel(RealFiles):
    """What it counts grows with the clock, by the percentages that a test sets."""

    def __init__(self, clock: Clock) -> None:
        self.percents: dict[str, float] = {"io": 0, "cpu": 0}
        self.error: OSError | None = None
        self._clock = clock
        self._total_us = dict.fromkeys(self.percents, 1_000_000.0)
        self._at_s = dict.fromkeys(self.percents, clock.monotonic_s())

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        assert path.startswith("/proc/pressure/")
        if self.error is not None:
            raise self.error
        name, now_s = path.rpartition("/")[2], self._clock.monotonic_s()
        self._total_us[name] += (now_s - self._at_s[name]) * 1e4 * self.percents[name]
        self._at_s[name] = now_s
        total_us = int(self._total_us[name])
        return (f"some {LINE.format(total_us)}" + f"full {LINE.format(total_us // 2)}").encode()


def pacer_of(parts: Parts, kernel: Kernel) -> Pacer:
    """One that reads what this kernel counts."""
    parts = copy(parts)
    parts.files = kernel
    return Pacer(parts)


class Paced:
    """A world whose pacer a test steps."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.kernel = Kernel(world.clock)
        world.daemon.pacer = self.pacer = pacer_of(world.parts, self.kernel)
        self.throttle = world.parts.throttle

    def steps(self, count: int = 1, *, moved_bytes: int = 0, **percents: float) -> None:
        """So many rounds, under this pressure; in each of them so much is wanted to be moved."""
        self.kernel.percents |= percents
        config = self.world.parts.configuration().broker
        is_on = config.throttle_pressure_max_percent or config.throttle_request_queue_max_ms
        for _ in range(count):
            self.throttle.charge(moved_bytes, 0, lambda: True)
            self.world.clock.advance(2000)
            assert self.pacer.step() == (2.0 if is_on else 3600.0), "till a reload"

    @property
    def limit(self) -> float:
        return self.throttle.limits()[RateLimit.PRESSURE]

    @property
    def view(self) -> PressureView:
        assert self.pacer.view is not None
        return self.pacer.view


@pytest.fixture
def paced(tmp_path: Path) -> Iterator[Paced]:
    world = World(tmp_path)
    world.configure(cleanerd_throttle_pressure_max_percent=20)
    yield Paced(world)
    world.close()


def text(paced: Paced) -> str:
    return tables.text(Reply({"throttle": throttle_verb.throttle(paced.world.control).model_dump()}))


def test_pressure_slows_cleaning_down_and_its_end_lets_it_go(paced: Paced) -> None:
    """Of either resource; the first round only looks."""
    paced.steps(2, io=19, cpu=20, moved_bytes=80 * MB)
    assert paced.limit == math.inf
    assert paced.view.reason == "io 19 %, cpu 20 % of the time, at most 20 %"
    paced.steps(moved_bytes=80 * MB, cpu=21)
    assert paced.limit == 20 * MB, "half of 40 MB/s"
    paced.steps(moved_bytes=80 * MB)
    assert paced.limit == 10 * MB
    paced.steps(3, moved_bytes=80 * MB, io=0, cpu=0)
    assert paced.limit == 16 * MB, "3 of 20 steps of 40 MB/s"
    assert "Pressure:         16.0 MB/s: io 0 %, cpu 0 % of the time, at most 20 %\n" in text(paced)
    paced.steps(STEPS, moved_bytes=80 * MB)
    assert paced.limit == math.inf
    assert "Pressure:         unlimited: io 0 %" in text(paced)
    paced.steps(50, io=100)
    assert paced.limit == FLOOR_BYTES_PER_S, "never nothing"


def test_the_other_limits_stay_what_they_are_and_hold(paced: Paced) -> None:
    """A verb that changes one of those does not make the one of pressure last."""
    paced.world.configure(log_cleaner_io_max_bytes_per_second=5 * MB)
    paced.steps(4, io=90, moved_bytes=80 * MB)
    assert paced.limit < 5 * MB
    throttle_verb.set_throttle(paced.world.control, ThrottleChange(read_bytes_per_s=MB))
    assert paced.throttle.limits()[RateLimit.TOTAL] == 5 * MB
    limit = paced.world.scrape().total("cleanerd_io_limit_bytes_per_second", limit="pressure")
    assert limit == paced.limit
    paced.steps(STEPS, io=0)
    assert paced.limit == math.inf
    assert tables.io_limit(throttle_verb.throttle(paced.world.control).model_dump()) == "5.0 MB/s"


def test_it_comes_goes_and_changes_with_a_reload(paced: Paced) -> None:
    paced.steps(4, io=30)
    assert paced.limit == FLOOR_BYTES_PER_S
    rings = paced.pacer.bell.rings()
    paced.world.configure(cleanerd_throttle_pressure_max_percent=40)
    assert paced.pacer.bell.rings() > rings, "it looks at once"
    paced.steps(STEPS)
    assert (paced.limit, paced.view.max_percent) == (math.inf, 40)
    paced.steps(2, io=50)
    assert paced.limit == FLOOR_BYTES_PER_S
    paced.world.configure(cleanerd_throttle_pressure_max_percent=0)
    paced.steps()
    assert (paced.limit, paced.pacer.view) == (math.inf, None)
    assert "Pressure" not in text(paced)
    refused = paced.world.configure(cleanerd_throttle_pressure_max_percent=101)
    assert refused.status is ReloadStatus.REJECTED


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(2, "No such file or directory", "/proc/pressure/io"), OSError(95, "Not supported")],
)
def test_a_kernel_that_does_not_report_pressure_is_reported_once_and_the_other_limits_hold(
    paced: Paced, error: OSError
) -> None:
    paced.steps(3, io=90)
    paced.kernel.error = error
    with capture_logs() as events:
        paced.steps(5)
    assert [event["event"] for event in events] == ["pressure_unknown"]
    assert paced.limit == math.inf
    assert paced.view.reason == f"pressure is not known: {error}"
    paced.kernel.error = None
    paced.steps(2)
    assert paced.limit == FLOOR_BYTES_PER_S


def test_logs_get_the_rate_with_which_they_meet_max_compaction_lag_ms(paced: Paced) -> None:
    """Whatever the pressure: what is dirty, three times over, in what is left of the lag and an hour of grace."""
    world = paced.world
    world.configure(log_cleaner_max_compaction_lag_ms=world.clock.now_ms() - 1000 + 100_000)
    paced.steps(3, io=90)
    sizes = [world.parts.due_logs.estimate(world.log(topic)).range.cleanable_bytes for topic in world.topics]
    left_s = 100 + 3600 - 6
    assert paced.pacer._needed_bytes_per_s() == pytest.approx(3 * sum(sizes) / left_s, rel=0.001)
    assert paced.limit == FLOOR_BYTES_PER_S, "which is more"
    world.clock.advance(int(left_s * 1000) - 1010)
    paced.steps(0)
    paced.pacer.step()
    assert paced.limit == pytest.approx(3 * sum(sizes) / 1.01, rel=0.01)
    assert paced.view.reason.startswith("max.compaction.lag.ms needs it: io 90 %")
    paced.steps()
    assert paced.limit == math.inf, "late"
    log = world.log("one")
    assert world.parts.states.try_start_all([log]) == [log]
    for topic in ("two", "three"):
        world.parts.states.hold(hold(topic, topic))
    paced.steps()
    assert paced.limit == math.inf, "while it is being cleaned"
    world.parts.states.done_cleaning(log)
    world.parts.states.hold(hold("one", "one"))
    paced.steps()
    assert paced.limit == FLOOR_BYTES_PER_S, "nobody waits for a log that is paused"


def test_requests_that_wait_in_a_brokers_queue_slow_cleaning_down(
    paced: Paced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On average, in the worst broker, since the last look; where none answers, nothing is held back."""
    parts, queues = paced.world.parts, dict[str, RequestQueue]()
    log_dirs = [str(paced.world.a), str(paced.world.b)]

    def answer(log_dir: str) -> RequestQueue:
        if log_dir not in queues:
            raise NoWayIn("it does not answer")
        return queues[log_dir]

    monkeypatch.setattr(parts.brokers, "session", lambda log_dir: log_dir)
    monkeypatch.setattr(RequestQueue, "of", answer)
    monkeypatch.setattr(parts.ownership, "owner", lambda _: Owner.LIVE_BROKER)
    paced.world.configure(cleanerd_throttle_pressure_max_percent=0, cleanerd_throttle_request_queue_max_ms=10)
    paced.steps(2, moved_bytes=80 * MB, io=100)
    assert (paced.limit, paced.view.reason) == (math.inf, "no broker answers, at most 10 ms")
    queues |= {log_dirs[0]: RequestQueue(1_000, 10**9), log_dirs[1]: RequestQueue()}
    paced.steps(moved_bytes=80 * MB)
    assert paced.view.request_queue_ms is None, "nothing to compare with"
    queues |= {log_dirs[0]: RequestQueue(1_100, 10**9 + 900_000), log_dirs[1]: RequestQueue(100, 1_000_000)}
    paced.steps(moved_bytes=80 * MB)
    assert (paced.limit, paced.view.reason) == (math.inf, "requests wait 10.0 ms, at most 10 ms")
    queues[log_dirs[1]] = RequestQueue(101, 1_010_100)
    paced.steps(moved_bytes=80 * MB)
    assert (paced.limit, paced.view.reason) == (20 * MB, "requests wait 10.1 ms, at most 10 ms")
    paced.world.configure(cleanerd_throttle_pressure_max_percent=20)
    paced.kernel.error = FileNotFoundError(2, "No such file or directory", "/proc/pressure/io")
    queues[log_dirs[1]] = RequestQueue(102, 1_030_100)
    paced.steps(moved_bytes=20 * MB)
    assert paced.limit == 5 * MB, "whatever is known of the pressure"
    queues[log_dirs[0]] = RequestQueue(5, 10**6)
    paced.steps(STEPS, moved_bytes=80 * MB)
    assert (paced.limit, paced.view.request_queue_ms) == (math.inf, 0.0), "it has started again"


@pytest.mark.soak
def test_a_real_engine_slows_down_under_pressure_and_goes_on_as_before_after_it(tmp_path: Path) -> None:
    """It examines a log: without a snapshot all of it is read, reported and paid for, as what tasks move is."""
    running = Running(tmp_path)
    parts, big = running.parts, running.log("big")
    pacer = pacer_of(parts, kernel := Kernel(parts.clock))
    write_log(Path(big.directory), 40_000, Shape(keys=900, segment_bytes=1 << 20))
    for snapshot in Path(big.directory).glob("*.snapshot"):
        snapshot.unlink()
    running.set({"cleanerd.throttle.pressure.max.percent": "10"})
    kernel.percents["io"] = 100
    wait_until(lambda: pacer.step() and _limit(parts.throttle) == FLOOR_BYTES_PER_S, 20)
    thread = threading.Thread(target=running.cleaned, args=(big,))
    thread.start()
    try:
        wait_until(lambda: parts.throttle.paid_bytes() > 0, 120)
        paid_bytes, at_s = parts.throttle.paid_bytes(), parts.clock.monotonic_s()
        wait_until(lambda: parts.clock.monotonic_s() - at_s > 2, 20)
        passed_s = parts.clock.monotonic_s() - at_s
        rate = (parts.throttle.paid_bytes() - paid_bytes) / passed_s
        assert 0 < rate <= FLOOR_BYTES_PER_S * 1.2
        kernel.percents["io"] = 0
        wait_until(lambda: pacer.step() and _limit(parts.throttle) == math.inf, 60)
        wait_until(lambda: parts.throttle.paid_bytes() > 4 * MB, 60)
        assert parts.throttle.waited_s()[RateLimit.PRESSURE] > 1
    finally:
        parts.throttle.set_pressure(math.inf)
        parts.states.stop(big, "the test")
        thread.join(60)
        running.stop()


def _limit(throttle: Throttle) -> float:
    return throttle.limits()[RateLimit.PRESSURE]
