"""One I/O budget for everybody: rates, bursts, order, live changes; in simulated time."""

import math
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanerd.cleaning.throttle import BURST_S, RateLimit, Throttle
from cleanerd.env.clock import SystemClock
from tests.harness.spark.in_process import defaults

MB = 1_000_000
KIB, MIB = 1 << 10, 1 << 20


class Simulation:
    """A clock that jumps to the next deadline whenever all callers wait; callers are threads that take turns.

    Exactly one thread runs at a time, so that a run depends on nothing but its callers.
    """

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.throttle = Throttle(self, self.wait)
        self._sleepers: dict[threading.Thread, tuple[float, int]] = {}
        self._turn = threading.Condition()
        self._running: threading.Thread | None = None
        self._count = 0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic_s(self) -> float:
        return self.now_s

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        """In place of Condition.wait; the lock is free meanwhile."""
        assert seconds > 0
        condition.release()
        try:
            self.sleep(seconds)
        finally:
            condition.acquire()

    def sleep(self, seconds: float) -> None:
        """Let simulated time go by."""
        me = threading.current_thread()
        if me not in self._sleepers:  # no simulated caller: a test on its own
            self.now_s += seconds
            return
        with self._turn:
            self._queue(me, self.now_s + seconds)
            self._next()
            self._turn.wait_for(lambda: self._running is me)

    def run(self, *callers: Callable[[], object]) -> None:
        """Run callers until all have ended."""

        def body(caller: Callable[[], object]) -> None:
            me = threading.current_thread()
            with self._turn:
                self._turn.wait_for(lambda: self._running is me)
            try:
                caller()
            finally:
                with self._turn:
                    del self._sleepers[me]
                    self._next()

        threads = [threading.Thread(target=body, args=(caller,), daemon=True) for caller in callers]
        for thread in threads:
            self._queue(thread, self.now_s)
            thread.start()
        with self._turn:
            self._next()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()

    def _queue(self, thread: threading.Thread, until_s: float) -> None:
        self._count += 1
        self._sleepers[thread] = until_s, self._count

    def _next(self) -> None:
        """Give the turn to the one whose time comes first."""
        if self._sleepers:
            self._running = min(self._sleepers, key=self._sleepers.__getitem__)
            self.now_s = max(self.now_s, self._sleepers[self._running][0])
            self._turn.notify_all()


def never() -> bool:
    """A caller that nobody stops."""
    return False


@dataclass
class Book:
    """What was paid, and when."""

    simulation: Simulation
    paid: list[tuple[float, int, int]] = field(default_factory=list)

    def charge(self, read_bytes: int, written_bytes: int = 0, *, is_urgent: bool = False) -> None:
        """Charge and note it."""
        self.simulation.throttle.charge(read_bytes, written_bytes, never, is_urgent=is_urgent)
        self.paid.append((self.simulation.now_s, read_bytes, written_bytes))

    def most_above(self, rate: float, size: Callable[[int, int], int]) -> float:
        """The largest (bytes paid - rate x interval) over all intervals."""
        above = worst = 0.0
        last_s = -math.inf
        for now_s, read_bytes, written_bytes in self.paid:
            above = max(above - rate * (now_s - last_s), 0.0) + size(read_bytes, written_bytes)
            last_s = now_s
            worst = max(worst, above)
        return worst


LIMITED: dict[RateLimit, Callable[[int, int], int]] = {
    RateLimit.TOTAL: lambda r, w: r + w,
    RateLimit.READ: lambda r, w: r,
    RateLimit.WRITE: lambda r, w: w,
    RateLimit.REQUEST_QUEUE: lambda r, w: r + w,
}

RATES = st.sampled_from([math.inf, 1e5, 1e6, 2e7])
STEP = st.tuples(
    st.sampled_from([0, 1, 500, 64 * KIB, MIB]),  # read
    st.sampled_from([0, 7, 64 * KIB]),  # written
    st.sampled_from([0, 0, 0.01, 2.0]),  # seconds of doing something else before
)


@settings(deadline=None, max_examples=60)
@given(
    rates=st.tuples(RATES, RATES, RATES, RATES),
    callers=st.lists(st.lists(STEP, min_size=1, max_size=10), min_size=1, max_size=4),
    urgent=st.integers(0, 2),
)
def test_no_interval_sees_more_than_its_share(
    rates: tuple[float, float, float, float], callers: list[list[tuple[int, int, float]]], urgent: int
) -> None:
    """For every limit: bytes <= rate x interval + max(rate x BURST_S, largest charge), some callers being urgent.

    With several limits a charge may return later than one of them asks, together with others.
    """
    simulation = Simulation()
    simulation.throttle.set_limits(total=rates[0], read=rates[1], write=rates[2])
    simulation.throttle.set_request_queue(rates[3])
    book = Book(simulation)

    def caller(number: int, steps: list[tuple[int, int, float]]) -> None:
        for read_bytes, written_bytes, idle_s in steps:
            if idle_s:
                simulation.sleep(idle_s)
            book.charge(read_bytes, written_bytes, is_urgent=number < urgent)

    simulation.run(
        *[lambda number=number, steps=steps: caller(number, steps) for number, steps in enumerate(callers)]
    )

    assert len(book.paid) == sum(map(len, callers))
    for (limit, size), rate in zip(LIMITED.items(), rates, strict=True):
        if rate < math.inf:
            largest = max(size(r, w) for _, r, w in book.paid)
            bound = max(rate * BURST_S, largest) + 0.002 * rate  # a wait is 1 ms at least
            if sum(other < math.inf for other in rates) > 1:
                bound = rate * BURST_S + len(callers) * largest
            assert book.most_above(rate, size) <= bound + 1, limit


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("size", [MIB, 64 * KIB])
@pytest.mark.parametrize("work_s", [0, 0.002])
def test_within_5_percent_over_10_s(threads: int, size: int, work_s: float) -> None:
    """Issue, 6: 20 MB/s, also when a caller does something between its charges."""
    simulation = Simulation()
    simulation.throttle.set_limits(total=20 * MB)
    book = Book(simulation)
    end_s = simulation.now_s + 10

    def caller() -> None:
        while simulation.now_s < end_s:
            simulation.sleep(work_s or 1e-6)
            book.charge(size // 2, size - size // 2)

    simulation.run(*[caller] * threads)

    paid = sum(r + w for now_s, r, w in book.paid if now_s <= end_s)
    assert paid == pytest.approx(10 * 20 * MB, rel=0.05)


def test_c151_desired_rate() -> None:
    """testThrottleDesiredRate: 1000/s in steps of 100 with 101 ms between them; nothing is ahead of its time.

    Kafka lets the first step of a period go and sleeps after the second; here the first one waits for itself.
    """
    simulation = Simulation()
    simulation.throttle.set_limits(total=1000)
    start_s = simulation.now_s
    for step in range(1, 5):
        simulation.throttle.charge(100, 0, never)
        assert simulation.now_s >= start_s + step * 0.1
        assert simulation.now_s <= start_s + step * 0.1 + 0.11
        simulation.now_s += 0.101


def test_c151_update_of_the_desired_rate() -> None:
    """testUpdateThrottleDesiredRate: 1000/s, then 1500/s."""
    simulation = Simulation()
    for rate in (1000, 1500):
        simulation.throttle.set_limits(total=rate)
        start_s = simulation.now_s
        for _ in range(10):
            simulation.throttle.charge(rate, 0, never)
        assert simulation.now_s - start_s == pytest.approx(10, rel=0.01)


def test_c148_a_new_rate_holds_for_those_who_wait() -> None:
    """testReconfigureLogCleanerIoMaxBytesPerSecond, in the middle of a charge; here up, down and off."""
    simulation = Simulation()
    throttle = simulation.throttle
    throttle.set_limits(total=10 * MB)
    start_s = simulation.now_s

    def operator() -> None:
        for wait_s, rate in ((1, 20 * MB), (1, 5 * MB), (1, math.inf)):
            simulation.sleep(wait_s)
            throttle.set_limits(total=rate)

    done_s = []

    def caller() -> None:
        for size in (10 * MB, 20 * MB, 5 * MB, 1000 * MB):
            throttle.charge(size, 0, never)
            done_s.append(simulation.now_s - start_s)

    simulation.run(caller, operator)
    assert done_s == pytest.approx([1, 2, 3, 3], abs=0.06)


def test_callers_are_served_in_turn() -> None:
    """Nobody starves: with charges of one size everybody gets as much, and small charges never wait for a second one."""
    simulation = Simulation()
    simulation.throttle.set_limits(total=20 * MB)
    got: dict[int, int] = defaultdict(int)
    slowest_s = 0.0
    end_s = simulation.now_s + 5

    def caller(number: int, size: int) -> None:
        nonlocal slowest_s
        while simulation.now_s < end_s:
            before_s = simulation.now_s
            simulation.throttle.charge(size, 0, never)
            slowest_s = max(slowest_s, simulation.now_s - before_s)
            got[number] += size

    sizes = [MIB, MIB, MIB, 64 * KIB]
    simulation.run(
        *[lambda number=number, size=size: caller(number, size) for number, size in enumerate(sizes)]
    )

    charges = [got[number] // size for number, size in enumerate(sizes)]
    assert max(charges) - min(charges) <= 1
    assert slowest_s <= sum(sizes) / (20 * MB) + 0.005


def test_urgent_charges_go_first_and_are_bound_by_the_limit_like_all() -> None:
    """Reserved topics do not wait behind what a long job has moved; that one waits for theirs as well."""
    simulation = Simulation()
    throttle = simulation.throttle
    throttle.set_limits(total=1 * MB)
    done_s: dict[str, float] = {}

    def caller(name: str, size: int, *, starts_s: float = 1e-6, is_urgent: bool = False) -> None:
        simulation.sleep(starts_s)
        throttle.charge(size, 0, never, is_urgent=is_urgent)
        done_s[name] = simulation.now_s - 1000.0

    simulation.run(
        lambda: caller("long", 4 * MB),
        lambda: caller("behind", 1 * MB, starts_s=0.1),
        lambda: caller("urgent", 2 * MB, starts_s=1.0, is_urgent=True),
        lambda: caller("urgent, too", 1 * MB, starts_s=1.5, is_urgent=True),
    )
    assert done_s == pytest.approx({"urgent": 2, "urgent, too": 3, "long": 7, "behind": 8}, abs=0.06)


def test_reads_and_writes_have_limits_of_their_own() -> None:
    """A reader does not wait for writers; both wait for the total, and the waiting is counted where it arises."""
    simulation = Simulation()
    throttle = simulation.throttle
    throttle.set_limits(read=10 * MB, write=1 * MB)
    done_s: dict[str, float] = {}

    def caller(name: str, read_bytes: int, written_bytes: int) -> None:
        throttle.charge(read_bytes, written_bytes, never)
        done_s[name] = simulation.now_s - 1000.0

    simulation.run(lambda: caller("writer", 0, 2 * MB), lambda: caller("reader", 10 * MB, 0))
    assert done_s == pytest.approx({"reader": 1.0, "writer": 2.0}, abs=0.002)
    assert throttle.waited_s() == pytest.approx(
        {RateLimit.TOTAL: 0, RateLimit.READ: 1, RateLimit.WRITE: 2, RateLimit.REQUEST_QUEUE: 0}, abs=0.002
    )
    throttle.set_limits(total=3 * MB)
    caller("both", 2 * MB, 1 * MB)
    assert throttle.waited_s()[RateLimit.TOTAL] == pytest.approx(1, abs=0.002)


def test_work_is_cut_by_the_limits_that_hold() -> None:
    """Also by those that `cleanerctl throttle` has set, and by the brokers' queues; not by those of the configuration."""
    throttle, config = Throttle(SystemClock()), defaults().broker.but(io_max_bytes_per_second=5 * MB)
    assert throttle.limited(config) == defaults().broker
    throttle.set_limits(total=4 * MB, write=2 * MB)
    assert throttle.limited(config) == config.but(
        io_max_bytes_per_second=4 * MB, io_max_write_bytes_per_second=2 * MB
    )
    throttle.set_request_queue(MB)
    assert throttle.limited(config).io_max_bytes_per_second == MB


def test_the_limit_by_the_request_queue_and_the_others_leave_each_other_alone() -> None:
    """The lower one holds; what was paid grows with the rate, and not with what waits to be paid."""
    simulation = Simulation()
    throttle = simulation.throttle
    throttle.set_limits(total=2 * MB)
    throttle.set_request_queue(1 * MB)
    paid = []

    def observer() -> None:
        for _ in range(3):
            simulation.sleep(1)
            paid.append(throttle.paid_bytes())
        throttle.set_limits(total=4 * MB)
        assert throttle.limits()[RateLimit.REQUEST_QUEUE] == 1 * MB
        throttle.set_request_queue(100 * MB)

    simulation.run(lambda: throttle.charge(8 * MB, 12 * MB, never), observer)
    assert paid == pytest.approx([1 * MB, 2 * MB, 3 * MB], rel=0.01)
    assert simulation.now_s == pytest.approx(1000 + 3 + (20 - 3 * 2) / 4, abs=0.06)
    simulation.now_s += 3600
    assert throttle.paid_bytes() == 20 * MB, "idleness pays nothing"


@pytest.mark.parametrize("before", [math.inf, 1e12, sys.float_info.max])
def test_what_an_earlier_limit_left_is_not_saved_up(before: float) -> None:
    """A lower limit begins with 300 ms of itself: Kafka's check interval (7.5)."""
    simulation = Simulation()
    simulation.throttle.set_limits(total=before)
    simulation.throttle.charge(10**9, 0, never)
    simulation.now_s += 10
    simulation.throttle.set_limits(total=1000)
    start_s = simulation.now_s
    simulation.throttle.charge(1300, 0, never)
    assert simulation.now_s - start_s == pytest.approx(1 if before < math.inf else 1.3, abs=0.002)


@pytest.mark.parametrize("limit", [math.inf, sys.float_info.max])
def test_without_limits_nobody_waits(limit: float) -> None:
    """Kafka's default is the largest double."""
    simulation = Simulation()
    simulation.throttle.set_limits(total=limit, read=limit, write=limit)
    simulation.now_s += 10
    for _ in range(100):
        simulation.throttle.charge(10**12, 10**12, never)
    simulation.throttle.charge(0, 0, never)
    assert simulation.now_s == 1010.0
    assert simulation.throttle.waited_s() == dict.fromkeys(RateLimit, 0.0)


def test_one_who_is_told_to_stop_returns_promptly() -> None:
    """Within 50 ms; what it did is still paid for, by those who come later."""
    simulation = Simulation()
    simulation.throttle.set_limits(total=1 * MB)
    simulation.throttle.charge(100 * MB, 0, lambda: simulation.now_s >= 1003)
    assert 1003 <= simulation.now_s <= 1003.051
    simulation.throttle.charge(1, 0, never)
    assert simulation.now_s == pytest.approx(1100, abs=0.01)


@pytest.mark.parametrize("rate", [0, -1, math.nan])
def test_a_limit_that_is_none(rate: float) -> None:
    """Nothing could ever go on; the limits stay."""
    simulation = Simulation()
    with pytest.raises(ValueError, match="above 0"):
        simulation.throttle.set_limits(read=rate)
    simulation.throttle.charge(10**12, 0, never)
    assert simulation.now_s == 1000.0


def test_nobody_waits_under_the_lock() -> None:
    """While one waits for a minute, others charge, look and change limits at once."""
    throttle = Throttle(SystemClock())
    throttle.set_limits(write=1 * MB)
    waiter = threading.Thread(target=throttle.charge, args=(0, 60 * MB, never), daemon=True)
    waiter.start()
    waiter.join(0.05)
    started_s = time.monotonic()
    throttle.charge(60 * MB, 0, never)
    assert throttle.waited_s()[RateLimit.READ] == 0
    throttle.set_limits()
    waiter.join(5)
    assert not waiter.is_alive()
    assert time.monotonic() - started_s < 1
