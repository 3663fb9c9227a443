"""The rules of who works on which log, without a thread: any sequence of events leaves, and is answered with, what a plain
model expects. The table of spec behaviour 2A is in `tests/policy/test_lifecycle.py`.
"""

from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from cleanerd.daemon.rules.log_states import Decided, LogStates, LogVanished, Obstacles
from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.values.log_id import LogId
from cleanerd.errors import Aborted
from cleanerd.policy.lifecycle import (
    ABORTED,
    IN_PROGRESS,
    NONE,
    Call,
    CleaningState,
    IllegalTransition,
    paused,
)
from tests.harness.daemon.clients import LOG, OTHER, THIRD, hold

DONE = [Call.DONE_CLEANING, Call.DONE_DELETING]


def told(answers: Iterable[Decided | IllegalTransition]) -> list[tuple[LogId, type] | str]:
    """Each decided claim with the type of its error, and the message of what was not allowed."""
    return [
        (one.log, type(one.error)) if isinstance(one, Decided) else str(one).split(" is not")[0]
        for one in answers
    ]


class Model(RuleBasedStateMachine):
    """Own state and claim of each log, and the patterns of holds."""

    logs = st.sampled_from([LOG, OTHER, THIRD])
    some = st.lists(logs, min_size=1, max_size=3)

    def __init__(self) -> None:
        super().__init__()
        self.real = LogStates()
        self.busy: dict[LogId, bool] = {}  # in progress: False, aborted: True
        self.claimed: set[LogId] = set()
        self.pauses = dict.fromkeys([LOG, OTHER, THIRD], 0)
        self.holds: dict[str, Hold] = {}

    def expected(self, log: LogId) -> CleaningState:
        if log in self.busy:
            return ABORTED if self.busy[log] else IN_PROGRESS
        held = sum(h.matches(log.topic_partition) for h in self.holds.values())
        return paused(self.pauses[log] + held)

    def free(self, logs: Sequence[LogId]) -> list[LogId]:
        return [one for one in dict.fromkeys(logs) if self.expected(one) == NONE]

    @rule(logs=some)
    def start(self, logs: list[LogId]) -> None:
        """Also C014: whoever asks next gets another log."""
        free = self.free(logs)
        assert self.real.take(logs) == free
        self.busy |= dict.fromkeys(free, False)

    @rule(logs=some)
    def retention(self, logs: list[LogId]) -> None:
        free = self.free(logs)
        assert self.real.take(logs, Call.PAUSE_NON_COMPACTED) == free
        for log in free:
            self.pauses[log] += 1

    @rule(log=logs)
    def abort_and_pause(self, log: LogId) -> None:
        if log in self.claimed:
            with pytest.raises(IllegalTransition, match=f"{log}: abort_and_pause .* aborted"):  # D12
                self.real.abort_and_pause(log)
        elif log not in self.busy:
            assert not self.real.abort_and_pause(log)
            self.pauses[log] += 1
        else:
            assert self.real.abort_and_pause(log)
            self.busy[log] = True
            self.claimed.add(log)

    @rule()
    def give_up(self) -> None:
        """(B) All that wait."""
        for log in self.claimed:
            self.real.withdraw(log)
        self.claimed.clear()

    @rule(logs=some)
    def resume(self, logs: list[LogId]) -> None:
        """(E) Kafka stops at the first illegal state; the others would stay paused for ever (2.13)."""
        refused = []
        for log in logs:
            if log in self.busy or not self.pauses[log]:  # D13; holds are not resumed (A)
                refused.append(f"{log}: resume")
            else:
                self.pauses[log] -= 1
        assert told(self.real.resume(logs)) == refused

    @rule(logs=some, call=st.sampled_from(DONE))
    def done(self, logs: list[LogId], call: Call) -> None:
        """(B), and (E): the others would stay in progress for ever (2.13)."""
        expected: list[tuple[LogId, type] | str] = []
        for log in logs:
            if self.busy.pop(log, None) is None:
                expected.append(f"{log}: {call.value}")
            elif log in self.claimed:
                self.claimed.remove(log)
                self.pauses[log] = 1
                expected.append((log, type(None)))
        assert told(self.real.done(logs, call)) == expected

    @rule(log=logs)
    def stop(self, log: LogId) -> None:
        self.real.stop(log, "the test")
        if self.busy.get(log) is False:
            assert self.real.why_stopped(log) == "the test"
            self.busy[log] = True

    @rule(log=logs)
    def commit(self, log: LogId) -> None:
        if self.busy.get(log) is False:
            self.real.begin_commit(log)
        else:
            with pytest.raises(Aborted):
                self.real.begin_commit(log)

    @rule(log=logs)
    def forget(self, log: LogId) -> None:
        """(D)"""
        expected = [(log, LogVanished)] if log in self.claimed else []
        assert told(self.real.forget(log)) == expected
        self.claimed.discard(log)
        self.pauses[log] = 0
        if log in self.busy:
            self.busy[log] = True

    @rule(
        hold_id=st.sampled_from("abc"),
        pattern=st.sampled_from(["*", "orders-*", "orders-3", "nobody-*"]),
        expires_ms=st.sampled_from([None, 10, 20]),
    )
    def hold(self, hold_id: str, pattern: str, expires_ms: int | None) -> None:
        """(A), (C)"""
        new = hold(hold_id, pattern, expires_ms)
        if hold_id in self.holds:
            with pytest.raises(ValueError, match="in force"):
                self.real.hold(new)
            return
        self.holds[hold_id] = new
        matching = {log for log in self.busy if new.matches(log.topic_partition)}
        assert self.real.hold(new) == matching
        self.busy |= dict.fromkeys(matching, True)

    @rule(hold_id=st.sampled_from("abc"))
    def release(self, hold_id: str) -> None:
        assert self.real.release(hold_id) == self.holds.pop(hold_id, None)

    @rule(now_ms=st.sampled_from([5, 10, 20]))
    def expire(self, now_ms: int) -> None:
        expired = [h for h in self.holds.values() if h.expires_ms is not None and h.expires_ms <= now_ms]
        assert self.real.expire(now_ms) == expired
        for gone in expired:
            del self.holds[gone.id]

    @invariant()
    def agree(self) -> None:
        for log in self.pauses:
            assert self.expected(log) == self.real.state(log)
            assert self.real.is_aborted(log) == self.busy.get(log, False)
            assert self.real.is_free(log) == (self.expected(log) == NONE)
            assert self.real.why_stopped(log) is None or self.busy[log]
        assert {
            log for log in self.pauses if log in self.busy or self.pauses[log]
        } == self.real._states.keys()
        assert self.real.holds() == list(self.holds.values())

    def teardown(self) -> None:
        """Nothing is stuck: when workers are done, clients resume and holds end, every log can be taken."""
        self.done(list(self.busy), Call.DONE_CLEANING)
        for hold_id in list(self.holds):
            self.release(hold_id)
        self.resume([log for log, pauses in self.pauses.items() for _ in range(pauses)])
        assert self.real.take(self.pauses) == list(self.pauses)


def test_any_sequence_of_events_is_answered_with_what_the_model_expects() -> None:
    """C038 to C042, D12, D13: who may start, who waits, what a second aborter and a resume of a log in progress are told."""
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Model, settings=settings(max_examples=150, stateful_step_count=80, deadline=None)
    )


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (lambda states: states.hold(hold("1", "orders-*")), r"uid 0 paused orders-\* \(hold 1\)"),
        (
            lambda states: states.forget(LOG),
            "it vanished from /data: its topic was deleted, or it was moved away",
        ),
        (lambda states: states.close(), "the daemon is stopping"),
        (lambda states: states.abort_and_pause(LOG), None),
    ],
    ids=["hold", "forget", "close", "client"],
)
def test_a_worker_is_told_why_it_has_to_stop(event: Callable[[LogStates], object], why: str | None) -> None:
    """The first reason stands; the next cleaning has none."""
    states = LogStates()
    states.take([LOG])
    event(states)
    states.stop(LOG, "another reason")
    assert states.is_aborted(LOG)
    assert (states.why_stopped(LOG) or "") == (why or "").replace("\\", "")
    states.done([LOG], Call.DONE_CLEANING)
    assert states.why_stopped(LOG) is None


def test_holds_of_an_earlier_life_are_in_force_from_the_first_moment() -> None:
    assert LogStates([hold("1", "orders-*")]).take([LOG, THIRD]) == [THIRD]


@pytest.mark.parametrize(
    ("obstacles", "taken", "taken_for_what_goes_on"),
    [
        (Obstacles(), [LOG, OTHER], [LOG, OTHER]),
        (Obstacles(offline={"/data": "it has failed"}), [], []),
        (Obstacles(offline={"/data": "it has failed"}, ignored={LOG: "why"}, stale={LOG}), [], []),
        (Obstacles(ignored={LOG: "not ours"}), [OTHER], [OTHER]),
        (Obstacles(ignored={LOG: "its broker is down"}, stale={LOG}), [OTHER], [LOG, OTHER]),
        (Obstacles(full={"/data": "no room"}), [LOG, OTHER], [LOG, OTHER]),
    ],
    ids=["free", "offline", "offline and stale", "ignored", "stale", "full"],
)
def test_nothing_takes_a_log_that_is_barred(
    obstacles: Obstacles, taken: list[LogId], taken_for_what_goes_on: list[LogId]
) -> None:
    """(F)"""
    for goes_on, expected in ((False, taken), (True, taken_for_what_goes_on)):
        states = LogStates()
        states.obstacles = obstacles
        assert states.take([LOG, OTHER], goes_on=goes_on) == expected
    states = LogStates()
    states.obstacles = obstacles
    assert states.take([LOG, OTHER], Call.PAUSE_NON_COMPACTED) == taken


def test_close_stops_everything() -> None:
    """Workers are told, clients are sent away, nothing starts; workers and clients can still give logs back."""
    states = LogStates()
    states.take([LOG, OTHER])
    assert not states.abort_and_pause(THIRD)
    assert states.abort_and_pause(OTHER)
    assert told(states.close()) == [(OTHER, Aborted)]
    assert (states.state(LOG), states.state(OTHER)) == (ABORTED, ABORTED)
    with pytest.raises(Aborted):
        states.abort_and_pause(LOG)
    assert states.done([LOG, OTHER], Call.DONE_CLEANING) == states.resume([THIRD]) == []
    for call in (Call.START, Call.PAUSE_NON_COMPACTED):
        assert states.take([LOG, OTHER, THIRD], call) == []
    assert all(map(states.is_free, [LOG, OTHER, THIRD]))
