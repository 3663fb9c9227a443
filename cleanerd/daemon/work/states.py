"""Who works on which log: Kafka's cleaning states (spec behaviour 2) for many threads, with holds and time limits.

The table of `policy.lifecycle` decides every call. What Kafka has no rule for:

(A) A log that matches holds is paused as often as they are, on top of the pauses that clients own. `resume` undoes a
    client's pause, never a hold's.
(B) An abort has at most one claimant: the client that waits for the worker and then owns the pause. When the claimant's
    time is up its claim is withdrawn. The worker still stops, and its arrival leaves the log in state none instead of
    paused(1): nothing stays paused for a client that has gone.
(C) `hold`, `forget` and `close` abort without a claim. A second claimant is an error (D12), the first one after such
    an abort is not.
(D) A log that vanishes while a worker is at it stays aborted until that worker is done, so that no second one starts
    if it comes back.
(E) Calls on several logs go through all of them and raise the first error at the end, where Kafka stops (2.3, 2.6) and
    may leave logs stuck (2.13).
(F) Whatever changes a log takes it here first, and nothing takes one that is barred (`Obstacles.barred`) or held. So
    every way to change a log takes a `Taken`, and no verb or thread can forget to ask.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NewType

from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.holds import Hold
from cleanerd.env.clock import Clock
from cleanerd.errors import Aborted, CleanerdError, Retryable
from cleanerd.format.names import TopicPartition
from cleanerd.policy.lifecycle import (
    ABORTED,
    IN_PROGRESS,
    NONE,
    Call,
    CleaningState,
    IllegalTransition,
    Status,
    paused,
    transition,
)

Taken = NewType("Taken", LogId)
"""A log that may be changed, and by nobody else until it is given back (F). `PartitionStates` alone makes these."""

NOT_COMPACTED = "its cleanup.policy no longer contains compact"


class NotTaken(Retryable):
    """The log may not be changed now, for the reason in the message."""


class StillRunning(Retryable):
    """The cleaning did not stop within the caller's time limit; the pause is withdrawn (B)."""


class LogVanished(Retryable):
    """The log went away while the caller waited for its cleaning to stop; nothing is paused."""


@dataclass(slots=True)
class Obstacles:
    """Obstacles that scans have found, each with its reason."""

    offline: dict[str, str] = field(default_factory=dict)  # log directories that do not work
    full: dict[str, str] = field(default_factory=dict)  # log directories in which nothing more may be staged
    ignored: dict[LogId, str] = field(default_factory=dict)  # logs that are not ours to change
    stale: set[LogId] = field(default_factory=set)
    """Ignored logs whose broker has been down for too long: nothing new may begin, work that has begun may end."""

    def online(self, log_dirs: Iterable[str]) -> list[str]:
        """The log directories among these that are online, in the same order."""
        return [log_dir for log_dir in log_dirs if log_dir not in self.offline]

    def barred(self, log: LogId, *, goes_on: bool = False) -> str | None:
        """Why a log may not be changed by anybody; None if it may.

        `goes_on`: asked for work that has begun, or that needs no settings.
        """
        offline = self.offline.get(log.log_dir)
        if offline is not None:
            return f"{log.log_dir}: {offline}"
        return None if goes_on and log in self.stale else self.ignored.get(log)


@dataclass(slots=True)
class _Claim:
    """A client that waits to own the pause of a log; one of the two is set when its wait is over."""

    is_paused: bool = False
    error: CleanerdError | None = None


class PartitionStates:
    """States of all logs. Every method may be called from any thread; only those with a time limit block.

    A time limit is in seconds of `clock`, None for none.
    """

    def __init__(self, clock: Clock, holds: Iterable[Hold] = ()) -> None:
        self._clock = clock
        self.obstacles = Obstacles()
        self._changed = threading.Condition()  # guards the fields below
        self._states: dict[LogId, CleaningState] = {}  # without holds; absent: none
        self._claims: dict[LogId, _Claim] = {}  # only of aborted logs
        self._why_stopped: dict[LogId, str] = {}  # likewise
        self._holds = {hold.id: hold for hold in holds}
        self._is_closed = False

    # What workers call

    def try_start_all(self, logs: Iterable[LogId]) -> list[Taken]:
        """Take all that can be taken, at once (1.28): none that has a state or a hold or is barred, none after `close`
        (1.2, 1.26).
        """
        return self._take(logs, Call.START)

    def is_aborted(self, log: LogId) -> bool:
        """Whether the worker of this log is to stop (2.4). Takes no lock: ask as often as you like."""
        return self._states.get(log) is ABORTED

    def why_stopped(self, log: LogId) -> str | None:
        """Why the worker of this log is to stop; None if it is not to stop, or a client aborted it to pause the log."""
        return self._why_stopped.get(log)

    def begin_commit(self, log: LogId) -> None:
        """Last look before the first rename. Raises Aborted unless the log is in progress.

        An abort that arrives later waits for `done_cleaning`, hence for the end of the commit.
        """
        with self._changed:
            state = self._state(log)
            if state is not IN_PROGRESS:
                raise Aborted(f"{log}: may not be committed in state {state}")

    def done_cleaning(self, log: LogId) -> bool:
        """Give a log back; True when no abort was asked for. Raises IllegalTransition when no worker had it.

        What belongs to the cleaning (its checkpoint) is written before: from now on others may change the log.
        """
        with self._changed:
            return self._finish(log, Call.DONE_CLEANING)

    def done_deleting(self, logs: Iterable[LogId]) -> None:
        """Give logs back after retention (1.28, 2.6). Raises IllegalTransition, at the end (E)."""
        with self._changed:
            self._each(logs, lambda log: self._finish(log, Call.DONE_DELETING))

    def pause_non_compacted(self, logs: Iterable[LogId]) -> list[Taken]:
        """Pause logs without a state, for retention outside the cleaner (1.30); give the result to `resume_all`."""
        return self._take(logs, Call.PAUSE_NON_COMPACTED)

    # What clients call

    def take(self, log: LogId, timeout_s: float | None = None) -> Taken:
        """Stop the work on a log, as `abort` does, and take it before anybody else; the caller owes `done_deleting`.

        It is the word of an operator about this one log, so that it does not matter how old its settings are. Raises
        NotTaken for one that is barred or held, or paused for longer than that; else as `abort`.
        """
        with self._changed:
            reason = self.obstacles.barred(log, goes_on=True)
            if reason is None and not self._held(log.topic_partition):
                self._wait(lambda: self._own(log).status is not Status.PAUSED, timeout_s)  # a retention pass
                self.abort_and_pause(log, timeout_s)
                self.resume(log)
                if taken := self._take([log], Call.START, goes_on=True):
                    return taken[0]
            raise NotTaken(f"{log}: {reason or 'it is paused; `cleanerctl holds` shows by whom'}")

    def abort_and_pause(self, log: LogId, timeout_s: float | None = None) -> None:
        """Pause a log; blocks until no worker has it (2.1). The caller owes one `resume`.

        Raises: IllegalTransition while another client's abort is under way (D12); StillRunning after `timeout_s`;
        LogVanished; Aborted when the daemon stops. After an error the caller owes nothing.
        """
        with self._changed:
            is_unclaimed = self._own(log) is ABORTED and log not in self._claims
            if not is_unclaimed:
                self._move(log, Call.ABORT_AND_PAUSE)
            if self._own(log) is ABORTED:
                assert log not in self._claims, "the table refuses a second claimant (D12)"
                self._claims[log] = claim = _Claim()
                self._wait_for(log, claim, timeout_s)

    def abort(self, log: LogId, timeout_s: float | None = None) -> None:
        """Stop the work on a log, which leaves none and paused(n) as they are (2.2). Raises as `abort_and_pause`."""
        with self._changed:
            self.abort_and_pause(log, timeout_s)
            self._move(log, Call.RESUME)

    def stop(self, log: LogId, why: str) -> None:
        """Ask the worker of a log to stop, and wait for nothing (C)."""
        with self._changed:
            if self._own(log) is IN_PROGRESS:
                self._move(log, Call.ABORT_AND_PAUSE)
                self._why_stopped[log] = why

    def resume(self, log: LogId) -> None:
        """Undo one pause of a client. Raises IllegalTransition when no client paused it (D13)."""
        self.resume_all([log])

    def resume_all(self, logs: Iterable[LogId]) -> None:
        """Undo one pause of each (2.3). Raises IllegalTransition, at the end (E)."""
        with self._changed:
            self._each(logs, lambda log: self._move(log, Call.RESUME))
            self._changed.notify_all()

    # What the supervisor calls

    def hold(self, hold: Hold, timeout_s: float | None = None) -> list[LogId]:
        """Put a hold in force, abort the cleanings that it matches and wait; returns the logs still busy after `timeout_s`.

        The hold stays in force whatever is returned: it has an owner, is listed, and may expire. Raises ValueError
        when its id is taken.
        """
        with self._changed:
            if hold.id in self._holds:
                raise ValueError(f"hold {hold.id} is already in force")
            self._holds[hold.id] = hold
            busy = {
                log for log, s in self._states.items() if _is_busy(s) and hold.matches(log.topic_partition)
            }
            for log in busy:
                self.stop(log, f"{hold.owner} paused {hold.pattern} (hold {hold.id})")

            def still_running() -> list[LogId]:
                return sorted(log for log in busy if self._own(log) is ABORTED)

            self._wait(lambda: self._is_closed or not still_running(), timeout_s)
            return still_running()

    def release(self, hold_id: str) -> Hold | None:
        """End a hold and return it, or None when there is none of that id."""
        with self._changed:
            return self._holds.pop(hold_id, None)

    def expire(self, now_ms: int) -> list[Hold]:
        """End the holds whose time has come, and return them: their owners never released them, which is worth a warning."""
        with self._changed:
            expired = [h for h in self._holds.values() if h.expires_ms is not None and h.expires_ms <= now_ms]
            for hold in expired:
                del self._holds[hold.id]
            return expired

    def holds(self) -> list[Hold]:
        """The holds in force, oldest first; the constructor takes them back after a restart."""
        with self._changed:
            return list(self._holds.values())

    def forget(self, log: LogId) -> None:
        """The log has vanished: drop its pauses and send its waiters away; a worker is asked to stop (D)."""
        with self._changed:
            self.stop(log, f"it vanished from {log.log_dir}: its topic was deleted, or it was moved away")
            self._send_away(log, LogVanished(f"{log}: vanished from {log.log_dir}"))
            if not _is_busy(self._own(log)):
                self._states.pop(log, None)

    def close(self) -> None:
        """The daemon stops: nothing starts any more, all work is aborted, all waiters get Aborted."""
        with self._changed:
            self._is_closed = True
            for log in list(self._states):
                self.stop(log, "the daemon is stopping")
                self._send_away(log, Aborted("the daemon is stopping"))
            self._changed.notify_all()

    def state(self, log: LogId) -> CleaningState:
        """State of a log, holds counted."""
        with self._changed:
            return self._state(log)

    def is_free(self, log: LogId) -> bool:
        """Whether `try_start_all` would take it, but for `close`."""
        return self.state(log) == NONE

    def _take(self, logs: Iterable[LogId], call: Call, *, goes_on: bool = False) -> list[Taken]:
        with self._changed:
            if self._is_closed:
                return []
            barred = partial(self.obstacles.barred, goes_on=goes_on)
            return [Taken(log) for log in logs if barred(log) is None and self._move(log, call)]

    # Everything below is called with the lock held

    def _own(self, log: LogId) -> CleaningState:
        return self._states.get(log, NONE)

    def _state(self, log: LogId) -> CleaningState:
        own = self._own(log)
        return own if _is_busy(own) else paused(own.pauses + self._held(log.topic_partition))

    def _held(self, topic_partition: TopicPartition) -> int:
        return sum(hold.matches(topic_partition) for hold in self._holds.values())

    def _move(self, log: LogId, call: Call) -> bool:
        """Do `call` by the table; False when it passes the log over. Raises IllegalTransition."""
        is_stopped_by_holds = call in (Call.START, Call.PAUSE_NON_COMPACTED)
        before = self._state(log) if is_stopped_by_holds else self._own(log)
        try:
            after = transition(before, call)
        except IllegalTransition as error:
            raise IllegalTransition(before, call, str(log)) from error
        if after is None:
            return False
        if after == NONE:
            self._states.pop(log, None)
        else:
            self._states[log] = after
        return True

    def _finish(self, log: LogId, call: Call) -> bool:
        """The worker arrives: the claimant of an abort gets its pause; a pause without a claimant ends at once (B)."""
        was_aborted = self._own(log) is ABORTED
        self._move(log, call)
        self._why_stopped.pop(log, None)
        if was_aborted:
            claim = self._claims.pop(log, None)
            if claim is None:
                self._move(log, Call.RESUME)
            else:
                assert not claim.is_paused, "a pause has one claimant"
                assert claim.error is None, "who was sent away claims nothing"
                claim.is_paused = True
            self._changed.notify_all()
        assert log not in self._claims, "only an aborted log is claimed"
        return not was_aborted

    def _wait_for(self, log: LogId, claim: _Claim, timeout_s: float | None) -> None:
        """Wait until the claim is decided. If the wait ends in any other way, the log does not stay paused."""
        if self._is_closed:
            self._send_away(log, Aborted("the daemon is stopping"))
        try:
            if not self._wait(lambda: claim.is_paused or claim.error is not None, timeout_s):
                claim.error = StillRunning(f"{log}: still being worked on after {timeout_s} s")
        except BaseException:
            if claim.is_paused:
                self._move(log, Call.RESUME)
            raise
        finally:
            if self._claims.get(log) is claim:
                del self._claims[log]
        if claim.error is not None:
            raise claim.error

    def _wait(self, is_over: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until `is_over`, or False after the time limit."""
        deadline = None if timeout_s is None else self._clock.monotonic_s() + timeout_s
        while not is_over():
            left = None if deadline is None else deadline - self._clock.monotonic_s()
            if left is not None and left <= 0:
                return False
            self._changed.wait(left)
        return True

    def _send_away(self, log: LogId, error: CleanerdError) -> None:
        claim = self._claims.pop(log, None)
        if claim is not None:
            claim.error = error
            self._changed.notify_all()

    def _each(self, logs: Iterable[LogId], call: Callable[[LogId], object]) -> None:
        first_error: IllegalTransition | None = None
        for log in logs:
            try:
                call(log)
            except IllegalTransition as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error


def _is_busy(state: CleaningState) -> bool:
    return state.status in (Status.IN_PROGRESS, Status.ABORTED)
