"""States of logs under many threads: time limits, holds, the end.

The table of spec behaviour 2A is in `tests/policy/test_lifecycle.py`; that it is kept to by any sequence of calls, waits,
vanished logs and holds among them, is in `test_states_model.py`.
"""

from collections.abc import Callable

import pytest

from cleanerd.daemon.work.states import PartitionStates
from cleanerd.env.clock import SystemClock
from cleanerd.errors import Aborted
from cleanerd.policy.lifecycle import IN_PROGRESS, NONE, IllegalTransition, paused
from tests.harness.daemon.clients import (
    LOG,
    OTHER,
    PATIENCE_S,
    THIRD,
    Waiter,
    hold,
    in_state,
    log_of,
    until,
    waiting,
)


def test_2_3_and_2_6_an_error_leaves_no_log_stuck(states: PartitionStates) -> None:
    """Kafka stops at the first illegal state; the others would stay paused or in progress for ever (2.13)."""
    in_state(in_state(states, paused(1)), paused(2), THIRD)
    with pytest.raises(IllegalTransition, match="orders-4"):
        states.resume_all([LOG, OTHER, THIRD])
    assert (states.state(LOG), states.state(THIRD)) == (NONE, paused(1))
    states.resume(THIRD)
    assert states.try_start_all([LOG, THIRD]) == [LOG, THIRD]
    with pytest.raises(IllegalTransition, match="orders-4"):
        states.done_deleting([LOG, OTHER, THIRD])
    assert states._states == {}


def test_c014_logs_in_progress_are_passed_over(states: PartitionStates) -> None:
    """Whoever asks next gets another log."""
    assert states.try_start_all([LOG])
    assert not states.try_start_all([LOG])
    assert states.try_start_all([LOG, OTHER, OTHER]) == [OTHER]


# Time limits: what remains when a client gives up


def test_a_client_that_is_interrupted_leaves_no_pause() -> None:
    """Whatever exception ends the wait, also when the worker arrives at that moment."""

    class Interrupted(SystemClock):
        armed = False
        worker: Callable[[], object] = staticmethod(lambda: None)

        def monotonic_s(self) -> float:
            if self.armed:
                self.worker()
                raise KeyboardInterrupt
            return super().monotonic_s()

    for arrives in (False, True):
        clock = Interrupted()
        states = PartitionStates(clock)
        assert states.try_start_all([LOG])
        clock.armed = True
        if arrives:
            clock.worker = lambda states=states: states.done_cleaning(LOG)  # the lock is reentrant
        with pytest.raises(KeyboardInterrupt):
            states.abort_and_pause(LOG, 1)
        if not arrives:
            states.done_cleaning(LOG)
        assert states._states == {}


# Holds, end of the daemon


def test_a_hold_waits_for_all_that_it_aborts(states: PartitionStates) -> None:
    """One time limit for all; then the logs are paused, once per hold."""
    assert states.try_start_all([LOG, OTHER, THIRD]) == [LOG, OTHER, THIRD]
    holder = Waiter(lambda: states.hold(hold("1", "orders-*"), PATIENCE_S))
    until(lambda: states.is_aborted(LOG))
    assert states.is_aborted(OTHER)
    assert not states.is_aborted(THIRD)
    states.done_cleaning(LOG)
    assert holder.is_waiting()
    states.done_deleting([OTHER])
    assert holder.result() is None
    assert holder.answer == []
    assert (states.state(LOG), states.state(OTHER)) == (paused(1), paused(1))
    assert states.done_cleaning(THIRD)


def test_holds_of_an_earlier_life_are_in_force_from_the_first_moment() -> None:
    states = PartitionStates(SystemClock(), [hold("1", "orders-*")])
    assert states.try_start_all([LOG, THIRD]) == [THIRD]


def test_close_stops_everything(states: PartitionStates) -> None:
    """Workers are told, waiters wake up, nothing starts; workers can still give their logs back."""
    in_state(in_state(in_state(states, IN_PROGRESS), IN_PROGRESS, OTHER), paused(1), THIRD)
    client = waiting(states, OTHER)
    holder = Waiter(lambda: states.hold(hold("1", "orders-*")))
    until(lambda: states.is_aborted(LOG))
    states.close()
    assert isinstance(client.result(), Aborted)
    assert holder.result() is None
    assert holder.answer == [LOG, OTHER]
    assert states.is_aborted(LOG)
    assert states.is_aborted(OTHER)
    with pytest.raises(Aborted):
        states.abort_and_pause(LOG)
    assert not states.done_cleaning(LOG)
    states.done_deleting([OTHER])
    assert states.try_start_all([log_of("new")]) == []
    assert states.pause_non_compacted([log_of("new")]) == []
    states.resume(THIRD)
    assert states._states == {}
