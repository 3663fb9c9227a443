"""Cleaner threads: they come back when they die, and their number changes while they work."""

import threading
from collections.abc import Callable

import pytest

from cleanerd.daemon import workers
from cleanerd.daemon.workers import Bell, Worker, Workers
from cleanerd.env.clock import SystemClock
from tests.harness.daemon.clients import until

LIMIT_S = 10.0


def paused_after(do: Callable[[], bool]) -> Callable[[], float]:
    """A step after which there is a long pause, unless `do` answers that there is more to do."""
    return lambda: 0.0 if do() else LIMIT_S


def test_bell_that_rings_between_look_and_wait_is_heard() -> None:
    bell = Bell()
    seen = bell.rings()
    bell.ring()
    assert bell.wait(seen, 0.0)
    assert not bell.wait(bell.rings(), 0.0)


def test_a_thread_pauses_for_the_longest_time_that_a_key_allows() -> None:
    """log.cleaner.backoff.ms and others of 2^63-1: the wait has no overflow, and ends with the bell."""
    bell, longest_s = Bell(), (2**63 - 1) / 1000
    ringing = threading.Timer(0.1, bell.ring)
    ringing.start()
    assert bell.wait(bell.rings(), longest_s)
    worker = Worker("w", lambda: longest_s, bell, SystemClock())
    worker.start()
    worker.stop()
    assert worker.join(longest_s)
    assert worker.deaths == 0


def test_c146_a_thread_that_dies_is_counted_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """7.16 with cleanerd's restart: Kafka's DeadThreadCount stays until somebody reconfigures."""
    monkeypatch.setattr(workers, "_RESTART_PAUSE_S", 0.01)
    died, worked = threading.Event(), threading.Event()

    def step() -> bool:
        if not died.is_set():
            died.set()
            raise RuntimeError("out of luck")
        worked.set()
        return False

    worker = Worker("w", paused_after(step), Bell(), SystemClock())
    worker.start()
    assert worked.wait(LIMIT_S)
    assert worker.deaths == 1
    worker.stop()
    assert worker.join(LIMIT_S)


def test_c150_a_change_of_the_configuration_revives_dead_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """7.18, DBRT.testLogCleanerConfig: whatever their pause is; their number is the configured one again."""
    monkeypatch.setattr(workers, "_RESTART_PAUSE_S", 600)
    mended, worked = threading.Event(), threading.Semaphore(0)

    def step() -> bool:
        if not mended.is_set():
            raise RuntimeError("out of luck")
        worked.release()
        return False

    pool = Workers(paused_after(step), paused_after(step), Bell(), SystemClock())
    pool.start(2)
    until(lambda: [worker.is_dead for worker in pool.all()] == [True] * 3)
    mended.set()
    pool.resize(2)
    assert [worked.acquire(timeout=LIMIT_S) for _ in range(3)] == [True] * 3
    assert [worker.is_dead for worker in pool.all()] == [False] * 3
    pool.stop()
    assert pool.join(LIMIT_S)


def test_worker_that_hangs_is_seen() -> None:
    began, end = threading.Event(), threading.Event()

    def hang() -> bool:
        began.set()
        return not end.wait(LIMIT_S)

    worker = Worker("w", paused_after(hang), Bell(), SystemClock())
    assert worker.silent_s() == 0
    worker.start()
    assert began.wait(LIMIT_S)
    first = worker.silent_s()
    threading.Event().wait(0.02)
    assert worker.silent_s() > first
    worker.beat()
    assert worker.silent_s() < 0.02
    end.set()
    worker.stop()
    assert worker.join(LIMIT_S)
    assert worker.silent_s() == 0


def test_c147_number_of_threads_follows_the_configuration() -> None:
    """7.18: those that go finish what they do."""
    bell, finish = Bell(), threading.Event()
    started: set[str] = set()
    together = threading.Condition()

    def step() -> bool:
        with together:
            started.add(threading.current_thread().name)
            together.notify_all()
        return not finish.wait(LIMIT_S)

    pool = Workers(paused_after(step), paused_after(lambda: False), bell, SystemClock())
    pool.start(1)
    pool.resize(3)
    with together:
        assert together.wait_for(lambda: len(started) == 3, LIMIT_S)
    pool.resize(1)
    assert len(pool.all()) == 2, "one and the express one"
    finish.set()
    pool.stop()
    assert pool.join(LIMIT_S)
    assert pool.deaths == 0
