"""Holds: how long a hold lasts, how it outlives a restart, and what it does to logs."""

import json
from dataclasses import asdict

from pydantic import TypeAdapter

from cleanerd.daemon.work.holds import Hold
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.env.clock import SystemClock
from cleanerd.policy.lifecycle import paused
from tests.daemon.clients import LOG, OTHER, PATIENCE_S, THIRD, Waiter, hold, until, waiting


def test_holds_outlive_a_restart() -> None:
    """They are plain values."""
    for one in (hold("1", "*"), hold("2", "orders-*", 100)):
        assert TypeAdapter(Hold).validate_python(json.loads(json.dumps(asdict(one)))) == one


# On states


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


def test_a_client_may_claim_what_a_hold_aborts(states: PartitionStates) -> None:
    """A truncation does not fail because of an operator's hold; and a hold not because of a truncation."""
    assert states.try_start_all([LOG, OTHER]) == [LOG, OTHER]
    truncation = waiting(states, OTHER)
    assert states.hold(hold("1", "*"), 0) == [LOG, OTHER]
    client = waiting(states)
    states.done_deleting([LOG, OTHER])
    assert (client.result(), truncation.result()) == (None, None)
    assert (states.state(LOG), states.state(OTHER)) == (paused(2), paused(2))


def test_holds_of_an_earlier_life() -> None:
    """They are in force from the first moment."""
    before = PartitionStates(SystemClock())
    before.hold(hold("1", "orders-*"))
    states = PartitionStates(SystemClock(), before.holds())
    assert states.try_start_all([LOG, THIRD]) == [THIRD]
