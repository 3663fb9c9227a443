"""States of logs under many threads: who waits, for how long, and what wakes it up.

The rules are proven without a thread in `test_log_states.py`.
"""

import threading
from collections.abc import Callable

import pytest

from cleanerd.daemon.rules.log_states import LogVanished
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.states import NotTaken, PartitionStates, StillRunning
from cleanerd.errors import Aborted
from cleanerd.policy.lifecycle import NONE, IllegalTransition, paused
from tests.harness.daemon.clients import LOG, OTHER, PATIENCE_S, THIRD, Waiter, hold, log_of, until, waiting

Event = Callable[[PartitionStates], object]


@pytest.mark.parametrize(
    ("event", "error", "left"),
    [
        (lambda states: states.done_cleaning(LOG), None, paused(1)),
        (lambda states: states.done_deleting([LOG]), None, paused(1)),
        (lambda states: states.forget(LOG), LogVanished, NONE),
        (lambda states: states.close(), Aborted, NONE),
    ],
    ids=["done cleaning", "done deleting", "forget", "close"],
)
@pytest.mark.parametrize("pauses", [True, False])
def test_a_client_waits_until_its_claim_is_decided(
    states: PartitionStates, event: Event, error: type[Exception] | None, left: object, pauses: bool
) -> None:
    """2.1, and 2.2: an abort leaves no pause."""
    assert states.try_start_all([LOG])
    client = waiting(states, LOG, states.abort_and_pause if pauses else states.abort)
    assert client.is_waiting()
    event(states)
    found = client.result()
    assert found is None if error is None else isinstance(found, error)
    if error is not None:
        states.done_cleaning(LOG)
    assert states.state(LOG) == (left if pauses else NONE)


def test_a_client_whose_time_is_up_leaves_no_pause(states: PartitionStates) -> None:
    """(B) Nor does it take the answer to another one."""
    assert states.try_start_all([LOG])
    with pytest.raises(StillRunning, match=r"orders-3: still being worked on after 0\.01 s"):
        states.abort_and_pause(LOG, 0.01)
    second = waiting(states)
    with pytest.raises(IllegalTransition):
        states.abort(LOG, 0)
    states.done_cleaning(LOG)
    assert second.result() is None
    states.resume_all([LOG])
    assert states.is_free(LOG)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_client_that_is_interrupted_leaves_no_pause(
    states: PartitionStates, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    """Whatever exception ends the wait, also when the worker arrives at that moment."""

    def interrupted(*_: object) -> None:
        if arrives:
            states.done_cleaning(LOG)  # the lock is reentrant
        raise KeyboardInterrupt

    assert states.try_start_all([LOG])
    monkeypatch.setattr(states._changed, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        states.abort_and_pause(LOG, 1)
    if not arrives:
        states.done_cleaning(LOG)
    assert states.is_free(LOG)


def test_2_3_and_2_6_an_error_leaves_no_log_stuck(states: PartitionStates) -> None:
    """(E) It is raised when all are done, and whoever waits is answered."""
    assert states.try_start_all([LOG, THIRD]) == [LOG, THIRD]
    clients = [waiting(states, LOG), waiting(states, THIRD)]
    with pytest.raises(IllegalTransition, match="orders-4"):
        states.done_deleting([LOG, OTHER, THIRD])
    assert [client.result() for client in clients] == [None, None]
    with pytest.raises(IllegalTransition, match="orders-4"):
        states.resume_all([LOG, OTHER, THIRD])
    assert states.is_free(LOG)
    assert states.is_free(THIRD)


def test_a_log_is_taken_when_retention_or_its_worker_is_done(states: PartitionStates) -> None:
    """By the word of an operator; nobody else comes between."""
    assert states.pause_non_compacted([LOG]) == [LOG]
    assert states.try_start_all([OTHER]) == [OTHER]
    takers = [Waiter(lambda log=log: states.take(log)) for log in (LOG, OTHER)]  # type: ignore[misc]
    until(lambda: states.is_aborted(OTHER))
    assert all(taker.is_waiting() for taker in takers)
    states.resume_all([LOG])
    states.done_cleaning(OTHER)
    assert [taker.result() for taker in takers] == [None, None]
    assert [taker.answer for taker in takers] == [LOG, OTHER]
    assert states.try_start_all([LOG, OTHER]) == []
    with pytest.raises(StillRunning):
        states.take(LOG, 0)
    states.done_deleting([LOG, OTHER])


def test_what_is_held_or_paused_for_too_long_is_not_taken(states: PartitionStates) -> None:
    states.hold(hold("1", "orders-3"))
    states.abort_and_pause(OTHER)
    for log in (LOG, OTHER):
        with pytest.raises(NotTaken, match="it is paused"):
            states.take(log, 0.01)
    assert states.state(OTHER) == paused(1)


def test_a_hold_waits_for_all_that_it_aborts(states: PartitionStates) -> None:
    """One time limit for all; then the logs are paused, once per hold."""
    assert states.try_start_all([LOG, OTHER, THIRD]) == [LOG, OTHER, THIRD]
    holder = Waiter(lambda: states.hold(hold("1", "orders-*"), PATIENCE_S))
    until(lambda: states.is_aborted(LOG))
    assert states.is_aborted(OTHER)
    assert not states.is_aborted(THIRD)
    states.done_cleaning(LOG)
    assert holder.is_waiting()
    assert states.hold(hold("2", "*"), 0.01) == [OTHER, THIRD]
    states.done_deleting([OTHER])
    assert holder.result() is None
    assert holder.answer == []
    assert (states.state(LOG), states.state(OTHER)) == (paused(2), paused(2))


def test_a_hold_waits_no_longer_when_the_daemon_stops(states: PartitionStates) -> None:
    """It tells what is still busy; workers can still give their logs back."""
    assert states.try_start_all([LOG, OTHER]) == [LOG, OTHER]
    holder = Waiter(lambda: states.hold(hold("1", "orders-*")))
    until(lambda: states.is_aborted(LOG))
    states.close()
    assert holder.result() is None
    assert holder.answer == [LOG, OTHER]
    states.done_cleaning(LOG)


def test_many_threads() -> None:
    """Two never work on one log at a time, no work goes on in a pause, and nothing is left behind."""
    states = PartitionStates()
    logs = [log_of("t", n) for n in range(3)]
    at_work: dict[LogId, int] = dict.fromkeys(logs, 0)
    problems: list[str] = []
    stop = threading.Event()

    def worker() -> None:
        while not stop.is_set():
            for log in states.try_start_all(logs):
                at_work[log] += 1
                if at_work[log] != 1:
                    problems.append("two at work")
                stop.wait(0.0005)
                at_work[log] -= 1
                states.done_cleaning(log)

    def client(log: LogId, timeout_s: float | None) -> None:
        while not stop.is_set():
            try:
                states.abort_and_pause(log, timeout_s)
            except (StillRunning, IllegalTransition):
                continue
            if at_work[log]:
                problems.append("work in a pause")
            states.resume_all([log])
            stop.wait(0.001)

    threads = [threading.Thread(target=worker) for _ in range(3)]
    threads += [threading.Thread(target=client, args=(log, t)) for log in logs for t in (None, 0.0002)]
    for thread in threads:
        thread.start()
    stop.wait(0.15)
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert problems == []
    assert states._rules._states == {}
    assert states._answers == {}
