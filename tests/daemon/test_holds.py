"""Holds: how long a hold lasts, how it outlives a restart, and what it does to logs."""

import json
from dataclasses import asdict

import pytest
from pydantic import TypeAdapter

from cleanerd.daemon.work.holds import Hold
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.env.clock import SystemClock
from cleanerd.policy.lifecycle import ABORTED, NONE, IllegalTransition, paused
from tests.daemon.clients import LOG, OTHER, PATIENCE_S, THIRD, Waiter, hold, until, waiting


@pytest.fixture
def states() -> PartitionStates:
    """Nothing recorded yet."""
    return PartitionStates(SystemClock())


def test_holds_outlive_a_restart() -> None:
    """They are plain values."""
    for one in (hold("1", "*"), hold("2", "orders-*", 100)):
        assert TypeAdapter(Hold).validate_python(json.loads(json.dumps(asdict(one)))) == one


# On states


def test_a_hold_stops_logs_now_and_later(states: PartitionStates) -> None:
    """Each overlapping hold is one pause, also of logs that nobody has seen yet."""
    assert states.hold(hold("1", "orders-*")) == []
    assert states.hold(hold("2", "*")) == []
    assert (states.state(LOG), states.state(THIRD)) == (paused(2), paused(1))
    assert not states.try_start_all([LOG])
    assert states.pause_non_compacted([LOG, THIRD]) == []
    assert states.release("2") == hold("2", "*")
    assert states.try_start_all([LOG, THIRD]) == [THIRD]
    assert states.expire(10**15) == []
    assert states.release("1") == hold("1", "orders-*")
    assert states.release("1") is None
    assert states.try_start_all([LOG])


def test_resume_never_undoes_a_hold(states: PartitionStates) -> None:
    """Pauses of clients and holds add up; each is undone by its own."""
    states.hold(hold("1", "*"))
    states.abort_and_pause(LOG)
    assert states.state(LOG) == paused(2)
    states.resume(LOG)
    with pytest.raises(IllegalTransition):
        states.resume(LOG)
    assert states.state(LOG) == paused(1)


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


def test_a_hold_stays_in_force_after_its_time_limit(states: PartitionStates) -> None:
    """What still runs is named; it will stop, and not start again."""
    assert states.try_start_all([LOG, THIRD]) == [LOG, THIRD]
    assert states.hold(hold("1", "*"), 0.03) == [LOG, THIRD]
    assert not states.done_cleaning(LOG)
    assert states.state(LOG) == paused(1)
    assert states.expire(0) == []


def test_a_hold_that_ends_before_the_worker_arrives(states: PartitionStates) -> None:
    """Expired or released: the log is free when the worker is done."""
    assert states.try_start_all([LOG])
    assert states.hold(hold("1", "*", expires_ms=50), 0) == [LOG]
    assert states.expire(50) == [hold("1", "*", expires_ms=50)]
    assert states.state(LOG) == ABORTED
    assert not states.done_cleaning(LOG)
    assert states.state(LOG) == NONE


def test_a_client_may_claim_what_a_hold_aborts(states: PartitionStates) -> None:
    """A truncation does not fail because of an operator's hold; and a hold not because of a truncation."""
    assert states.try_start_all([LOG, OTHER]) == [LOG, OTHER]
    truncation = waiting(states, OTHER)
    assert states.hold(hold("1", "*"), 0) == [LOG, OTHER]
    client = waiting(states)
    states.done_deleting([LOG, OTHER])
    assert (client.result(), truncation.result()) == (None, None)
    assert (states.state(LOG), states.state(OTHER)) == (paused(2), paused(2))


def test_a_taken_id_changes_nothing(states: PartitionStates) -> None:
    """No log is aborted for a hold that is refused."""
    states.hold(hold("1", "users-*"))
    assert states.try_start_all([LOG])
    with pytest.raises(ValueError, match="already in force"):
        states.hold(hold("1", "*"))
    assert not states.is_aborted(LOG)
    assert states.holds() == [hold("1", "users-*")]


def test_holds_of_an_earlier_life() -> None:
    """They are in force from the first moment."""
    before = PartitionStates(SystemClock())
    before.hold(hold("1", "orders-*"))
    states = PartitionStates(SystemClock(), before.holds())
    assert states.try_start_all([LOG, THIRD]) == [THIRD]
