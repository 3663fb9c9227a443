"""The states of all logs for many threads: a lock around `rules.log_states`, and clients that wait for what it decides."""

import threading
from collections.abc import Iterable

from cleanerd.daemon.rules.log_states import Decided, LogStates, Taken
from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.values.log_id import LogId
from cleanerd.errors import Retryable
from cleanerd.policy.lifecycle import Call, IllegalTransition


class NotTaken(Retryable):
    """The log may not be changed now, for the reason in the message."""


class StillRunning(Retryable):
    """The cleaning did not stop within the caller's time limit; the pause is withdrawn (B)."""


class PartitionStates:
    """Every method may be called from any thread; those with a time limit block (None for no limit).

    The letters are rules of `rules.log_states`. What its table does not allow raises IllegalTransition, of several logs the
    first one at the end (E).
    """

    def __init__(self, holds: Iterable[Hold] = ()) -> None:
        self._rules = rules = LogStates(holds)
        self._changed = threading.Condition()  # guards the rules
        # Of each client that waits; empty until its claim is decided.
        self._answers: dict[LogId, list[Decided]] = {}
        # Questions, which need no lock.
        self.obstacles = rules.obstacles
        self.state = rules.state
        self.is_free = rules.is_free
        self.is_aborted = rules.is_aborted
        self.why_stopped = rules.why_stopped
        self.begin_commit = rules.begin_commit
        self.holds = rules.holds

    def try_start_all(self, logs: Iterable[LogId]) -> list[Taken]:
        """Take all that can be taken, at once."""
        with self._changed:
            return self._rules.take(logs)

    def done_cleaning(self, log: LogId) -> None:
        """Give a log back, which others may change from now on. Its checkpoint is written before."""
        with self._changed:
            self._carry_out(self._rules.done([log], Call.DONE_CLEANING))

    def done_deleting(self, logs: Iterable[LogId]) -> None:
        """Give logs back after retention (1.28, 2.6)."""
        with self._changed:
            self._carry_out(self._rules.done(logs, Call.DONE_DELETING))

    def pause_non_compacted(self, logs: Iterable[LogId]) -> list[Taken]:
        """Pause logs without a state, for retention outside the cleaner (1.30); give the result to `resume_all`."""
        with self._changed:
            return self._rules.take(logs, Call.PAUSE_NON_COMPACTED)

    def take(self, log: LogId, timeout_s: float | None = None) -> Taken:
        """Stop the work on a log, as `abort` does, and take it before anybody else; the caller owes `done_deleting`.

        It is the word of an operator about this one log, so that it does not matter how old its settings are. Raises
        NotTaken for one that is barred or held, or paused for longer than that; else as `abort`.
        """
        with self._changed:
            reason = self.obstacles.barred(log, goes_on=True)
            if reason is None and not self._rules.held(log):
                # By retention outside the cleaner.
                self._changed.wait_for(lambda: not self._rules.own(log).pauses, timeout_s)
                self.abort(log, timeout_s)
                if taken := self._rules.take([log], goes_on=True):
                    return taken[0]
            raise NotTaken(f"{log}: {reason or 'it is paused; `cleanerctl holds` shows by whom'}")

    def abort_and_pause(self, log: LogId, timeout_s: float | None = None) -> None:
        """Pause a log; blocks until no worker has it (2.1). The caller owes one `resume`.

        Raises: IllegalTransition while another client's abort is under way (D12); StillRunning after `timeout_s`;
        LogVanished; Aborted when the daemon stops. After an error the caller owes nothing.
        """
        with self._changed:
            if self._rules.abort_and_pause(log):
                self._wait_for_answer(log, timeout_s)

    def abort(self, log: LogId, timeout_s: float | None = None) -> None:
        """Stop the work on a log, which leaves none and paused(n) as they are (2.2). Raises as `abort_and_pause`."""
        with self._changed:
            self.abort_and_pause(log, timeout_s)
            self.resume_all([log])

    def stop(self, log: LogId, why: str) -> None:
        """Ask the worker of a log to stop, and wait for nothing (C)."""
        with self._changed:
            self._rules.stop(log, why)

    def resume_all(self, logs: Iterable[LogId]) -> None:
        """Undo one pause of each, which a client owns (2.3, D13)."""
        with self._changed:
            self._carry_out(self._rules.resume(logs))

    def hold(self, hold: Hold, timeout_s: float | None = None) -> list[LogId]:
        """Put a hold in force, abort the cleanings that it matches and wait; returns the logs still busy after `timeout_s`.

        The hold stays in force whatever is returned: it has an owner, is listed, and may expire. Raises ValueError
        when its id is taken.
        """
        with self._changed:
            busy = self._rules.hold(hold)

            def still_running() -> list[LogId]:
                return sorted(filter(self.is_aborted, busy))

            self._changed.wait_for(lambda: self._rules.is_closed or not still_running(), timeout_s)
            return still_running()

    def release(self, hold_id: str) -> Hold | None:
        """End a hold and return it, or None when there is none of that id."""
        with self._changed:
            return self._rules.release(hold_id)

    def expire(self, now_ms: int) -> list[Hold]:
        """End the holds whose time has come, and return them: their owners never released them, which is worth a warning."""
        with self._changed:
            return self._rules.expire(now_ms)

    def forget(self, log: LogId) -> None:
        """The log has vanished: drop its pauses and send its waiters away; a worker is asked to stop (D)."""
        with self._changed:
            self._carry_out(self._rules.forget(log))

    def close(self) -> None:
        """The daemon stops: nothing starts any more, all work is aborted, all waiters get Aborted."""
        with self._changed:
            self._carry_out(self._rules.close())

    def _carry_out(self, answers: Iterable[Decided | IllegalTransition]) -> None:
        refused = []
        for answer in answers:
            if isinstance(answer, Decided):
                self._answers.pop(answer.log).append(answer)
            else:
                refused.append(answer)
        self._changed.notify_all()
        if refused:
            raise refused[0]

    def _wait_for_answer(self, log: LogId, timeout_s: float | None) -> None:
        """Wait until the claim is decided. If the wait ends in any other way, the log does not stay paused."""
        answers = self._answers[log] = list[Decided]()
        try:
            self._changed.wait_for(lambda: answers, timeout_s)
        except BaseException:
            if answers == [Decided(log)]:
                self._rules.resume([log])
            raise
        finally:
            if not answers:
                del self._answers[log]
                self._rules.withdraw(log)
        if not answers:
            raise StillRunning(f"{log}: still being worked on after {timeout_s} s")
        if answers[0].error is not None:
            raise answers[0].error
