"""States of logs against a plain model, for any sequence of calls, and under threads that race."""

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.holds import Hold
from cleanerd.daemon.work.states import LogVanished, PartitionStates, StillRunning
from cleanerd.env.clock import SystemClock
from cleanerd.errors import Aborted
from cleanerd.policy.lifecycle import ABORTED, IN_PROGRESS, NONE, CleaningState, IllegalTransition, paused
from tests.harness.daemon.clients import LOG, OTHER, PATIENCE_S, THIRD, Waiter, hold, log_of, waiting


class Model(RuleBasedStateMachine):
    """Own state and claim of each log, and the patterns of holds; clients give up at once unless they wait in a thread."""

    logs = st.sampled_from([LOG, OTHER, THIRD])
    patterns = st.sampled_from(["*", "orders-*", "orders-3", "nobody-*"])

    def __init__(self) -> None:
        super().__init__()
        self.real = PartitionStates(SystemClock())
        self.busy: dict[LogId, bool] = {}  # in progress: False, aborted: True
        self.pauses = dict.fromkeys([LOG, OTHER, THIRD], 0)
        self.waiters: dict[LogId, tuple[Waiter, int]] = {}  # and how often it pauses its log
        self.holds: dict[str, Hold] = {}

    def expected(self, log: LogId) -> CleaningState:
        if log in self.busy:
            return ABORTED if self.busy[log] else IN_PROGRESS
        held = sum(h.matches(log.topic_partition) for h in self.holds.values())
        return paused(self.pauses[log] + held)

    @rule(log=logs)
    def start(self, log: LogId) -> None:
        is_free = self.expected(log) == NONE
        assert bool(self.real.try_start_all([log])) == is_free
        if is_free:
            self.busy[log] = False

    @rule(log=logs)
    def retention(self, log: LogId) -> None:
        is_free = self.expected(log) == NONE
        assert self.real.pause_non_compacted([log]) == ([log] if is_free else [])
        self.pauses[log] += is_free

    @rule(log=logs, pauses=st.booleans())
    def wait(self, log: LogId, pauses: bool) -> None:
        ask = self.real.abort_and_pause if pauses else self.real.abort
        if log in self.waiters:
            with pytest.raises(IllegalTransition, match=f"{log}: abort_and_pause .* aborted"):
                ask(log)
        elif log in self.busy:
            self.waiters[log] = waiting(self.real, log, ask), int(pauses)
            self.busy[log] = True
        else:
            ask(log)
            self.pauses[log] += pauses

    @rule(log=logs, pauses=st.booleans())
    def give_up(self, log: LogId, pauses: bool) -> None:
        ask = self.real.abort_and_pause if pauses else self.real.abort
        if log in self.waiters:
            with pytest.raises(IllegalTransition):
                ask(log, 0)
        elif log in self.busy:
            with pytest.raises(StillRunning, match=str(log)):
                ask(log, 0)
            self.busy[log] = True
        else:
            ask(log, 0)
            self.pauses[log] += pauses

    @rule(log=logs, one_of_many=st.booleans())
    def resume(self, log: LogId, one_of_many: bool) -> None:
        call = (lambda: self.real.resume_all([log])) if one_of_many else (lambda: self.real.resume(log))
        if log in self.busy or not self.pauses[log]:
            with pytest.raises(IllegalTransition, match=f"{log}: resume"):
                call()
        else:
            call()
            self.pauses[log] -= 1

    @rule(log=logs, deleting=st.booleans())
    def done(self, log: LogId, deleting: bool) -> None:
        call = (
            (lambda: self.real.done_deleting([log])) if deleting else (lambda: self.real.done_cleaning(log))
        )
        if log not in self.busy:
            with pytest.raises(IllegalTransition):
                call()
            return
        was_aborted = self.busy.pop(log)
        assert call() in (None, not was_aborted)
        if log in self.waiters:
            waiter, self.pauses[log] = self.waiters.pop(log)
            assert waiter.result() is None

    @rule(log=logs)
    def commit(self, log: LogId) -> None:
        if self.busy.get(log) is False:
            self.real.begin_commit(log)
        else:
            with pytest.raises(Aborted):
                self.real.begin_commit(log)

    @rule(log=logs)
    def forget(self, log: LogId) -> None:
        self.real.forget(log)
        self.pauses[log] = 0
        if log in self.busy:
            self.busy[log] = True
        if log in self.waiters:
            assert isinstance(self.waiters.pop(log)[0].result(), LogVanished)

    @rule(hold_id=st.sampled_from("abc"), pattern=patterns, expires_ms=st.sampled_from([None, 10, 20]))
    def hold(self, hold_id: str, pattern: str, expires_ms: int | None) -> None:
        new = hold(hold_id, pattern, expires_ms)
        if hold_id in self.holds:
            with pytest.raises(ValueError, match="in force"):
                self.real.hold(new, 0)
            return
        self.holds[hold_id] = new
        matching = sorted(log for log in self.busy if new.matches(log.topic_partition))
        assert self.real.hold(new, 0) == matching
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
        recorded = {log for log in self.pauses if log in self.busy or self.pauses[log]}
        assert recorded == self.real._states.keys()
        assert self.real.holds() == list(self.holds.values())

    def teardown(self) -> None:
        """Nothing is stuck: when workers are done, clients resume and holds end, every log can be taken."""
        for log in list(self.busy):
            self.done(log, deleting=False)
        for hold_id in list(self.holds):
            self.release(hold_id)
        for log, pauses in list(self.pauses.items()):
            for _ in range(pauses):
                self.resume(log, one_of_many=False)
            assert self.real.try_start_all([log])


def test_any_sequence_of_calls_leaves_what_the_model_expects() -> None:
    """C038 to C042, D12, D13: who may start, who waits, what a second aborter and a resume of a log in progress are told."""
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Model, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )


def test_many_threads() -> None:
    """Two never work on one log at a time, no work goes on in a pause, and nothing is left behind."""
    states = PartitionStates(SystemClock())
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
            states.resume(log)
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
    assert states._states == {}
