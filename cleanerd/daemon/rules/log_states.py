"""Who works on which log: Kafka's cleaning states (spec behaviour 2) with holds and claims. What happens is a call, and its
result says what follows; `work.states` carries that out for many threads.

=====================================  ============================================================================
event                                  what follows
=====================================  ============================================================================
`take`                                 the logs that are given out
`abort_and_pause`                      whether the client has to wait: then its claim is `Decided` by a later event
`done`, `resume`, `forget`, `close`    claims that are decided, and what was not allowed
`hold`, `expire`                       the logs whose workers have to stop first; the holds that have ended
`stop`, `withdraw`, `release`          nothing, or the hold
=====================================  ============================================================================

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
(E) Calls on several logs go through all of them, where Kafka stops at the first error (2.3, 2.6) and may leave logs
    stuck (2.13).
(F) Whatever changes a log takes it here first, and nothing takes one that is barred (`Obstacles.barred`) or held. So
    every way to change a log takes a `Taken`, and no verb or thread can forget to ask.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NewType

from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.values.log_id import LogId
from cleanerd.errors import Aborted, CleanerdError, Retryable
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
"""A log that may be changed, and by nobody else until it is given back (F). `LogStates` alone makes these."""


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


@dataclass(frozen=True, slots=True)
class Decided:
    """The wait of the claimant of a log is over: it owns one pause, or is sent away with an error and owns nothing."""

    log: LogId
    error: CleanerdError | None = None


class LogStates:
    """States of all logs. A call that the table does not allow changes nothing, and is answered with IllegalTransition."""

    def __init__(self, holds: Iterable[Hold] = ()) -> None:
        self.obstacles = Obstacles()
        self.is_closed = False
        self._states: dict[LogId, CleaningState] = {}  # without holds; absent: none
        self._claimed: set[LogId] = set()  # only aborted logs
        self._why_stopped: dict[LogId, str] = {}  # likewise
        self._holds = {hold.id: hold for hold in holds}  # replaced as a whole: who reads it needs no lock

    # What workers and retention do

    def take(self, logs: Iterable[LogId], call: Call = Call.START, *, goes_on: bool = False) -> list[Taken]:
        """Give out what can be had: none with a state or a hold, none that is barred, none after `close` (1.2, 1.26, 1.28).

        `call` is PAUSE_NON_COMPACTED for retention outside the cleaner (1.30); `goes_on`: see `Obstacles.barred`.
        """
        barred = self.obstacles.barred
        free = (log for log in logs if not self.is_closed and barred(log, goes_on=goes_on) is None)
        return [Taken(log) for log in free if self._move(log, call)]

    def done(self, logs: Iterable[LogId], call: Call) -> list[Decided | IllegalTransition]:
        """Workers give logs back; the claimant of an abort gets its pause, one without a claimant ends at once (B)."""
        return [answer for log in logs if (answer := self._done(log, call)) is not None]

    # What clients do

    def abort_and_pause(self, log: LogId) -> bool:
        """Pause a log (2.1); False if its client owns the pause now, True if it has a claim, and waits for the worker.

        Raises IllegalTransition while another client's abort is under way (D12); Aborted where one would wait after `close`.
        """
        if self.own(log) is not ABORTED or log in self._claimed:
            self._move(log, Call.ABORT_AND_PAUSE)
        if self.own(log) is not ABORTED:
            return False
        assert log not in self._claimed, "the table refuses a second claimant (D12)"
        if self.is_closed:
            raise _stopping()
        self._claimed.add(log)
        return True

    def withdraw(self, log: LogId) -> None:
        """The claimant of a log waits no longer (B)."""
        self._claimed.discard(log)

    def resume(self, logs: Iterable[LogId]) -> list[IllegalTransition]:
        """Undo one pause of each (2.3), which a client owns (D13)."""
        return [error for log in logs if (error := self._try(log, Call.RESUME)) is not None]

    def stop(self, log: LogId, why: str) -> None:
        """Ask the worker of a log to stop, and wait for nothing (C)."""
        if self.own(log) is IN_PROGRESS:
            self._move(log, Call.ABORT_AND_PAUSE)
            self._why_stopped[log] = why

    # What the supervisor and operators do

    def hold(self, hold: Hold) -> set[LogId]:
        """Put a hold in force and abort the work that it matches, on these logs. Raises ValueError when its id is taken."""
        if hold.id in self._holds:
            raise ValueError(f"hold {hold.id} is already in force")
        self._holds = {**self._holds, hold.id: hold}
        busy = {log for log, s in self._states.items() if _is_busy(s) and hold.matches(log.topic_partition)}
        for log in busy:
            self.stop(log, f"{hold.owner} paused {hold.pattern} (hold {hold.id})")
        return busy

    def release(self, hold_id: str) -> Hold | None:
        """End a hold and return it, or None when there is none of that id."""
        hold = self._holds.get(hold_id)
        self._holds = {key: one for key, one in self._holds.items() if key != hold_id}
        return hold

    def expire(self, now_ms: int) -> list[Hold]:
        """End the holds whose time has come, and return them."""
        expired = [h for h in self.holds() if h.expires_ms is not None and h.expires_ms <= now_ms]
        self._holds = {key: one for key, one in self._holds.items() if one not in expired}
        return expired

    def forget(self, log: LogId) -> list[Decided]:
        """The log has vanished: drop its pauses and send its claimant away; a worker is asked to stop (D)."""
        self.stop(log, f"it vanished from {log.log_dir}: its topic was deleted, or it was moved away")
        if not _is_busy(self.own(log)):
            self._states.pop(log, None)
        is_claimed = log in self._claimed
        self._claimed.discard(log)
        return [Decided(log, LogVanished(f"{log}: vanished from {log.log_dir}"))] if is_claimed else []

    def close(self) -> list[Decided]:
        """The daemon stops: nothing starts any more, all work is aborted, all claimants are sent away."""
        self.is_closed = True
        for log in list(self._states):
            self.stop(log, "the daemon is stopping")
        claimed, self._claimed = sorted(self._claimed), set()
        return [Decided(log, _stopping()) for log in claimed]

    # Questions. None of them needs a lock.

    def is_aborted(self, log: LogId) -> bool:
        """Whether the worker of this log is to stop (2.4). Ask as often as you like."""
        return self._states.get(log) is ABORTED

    def why_stopped(self, log: LogId) -> str | None:
        """Why the worker of this log is to stop; None if it is not to stop, or a client aborted it to pause the log."""
        return self._why_stopped.get(log)

    def own(self, log: LogId) -> CleaningState:
        """State of a log without holds: its pauses belong to clients, and to retention."""
        return self._states.get(log, NONE)

    def held(self, log: LogId) -> int:
        """How many holds match a log."""
        return sum(hold.matches(log.topic_partition) for hold in self._holds.values())

    def state(self, log: LogId) -> CleaningState:
        """State of a log, holds counted (A)."""
        own = self.own(log)
        return own if _is_busy(own) else paused(own.pauses + self.held(log))

    def is_free(self, log: LogId) -> bool:
        """Whether `take` would give it out, but for obstacles and `close`."""
        return self.state(log) == NONE

    def begin_commit(self, log: LogId) -> None:
        """Last look before the first rename. Raises Aborted unless the log is in progress.

        An abort that arrives later waits for `done`, hence for the end of the commit.
        """
        state = self.state(log)
        if state is not IN_PROGRESS:
            raise Aborted(f"{log}: may not be committed in state {state}")

    def holds(self) -> list[Hold]:
        """The holds in force, oldest first; the constructor takes them back after a restart."""
        return list(self._holds.values())

    def _move(self, log: LogId, call: Call) -> bool:
        """Do `call` by the table; False when it passes the log over. Raises IllegalTransition."""
        is_stopped_by_holds = call in (Call.START, Call.PAUSE_NON_COMPACTED)
        before = self.state(log) if is_stopped_by_holds else self.own(log)
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

    def _try(self, log: LogId, call: Call) -> IllegalTransition | None:
        """Do it; what was not allowed becomes a value, for others follow (E)."""
        try:
            self._move(log, call)
        except IllegalTransition as error:
            return error
        return None

    def _done(self, log: LogId, call: Call) -> Decided | IllegalTransition | None:
        was_aborted, is_claimed = self.is_aborted(log), log in self._claimed
        if (error := self._try(log, call)) is not None:
            return error
        assert was_aborted or not is_claimed, "only an aborted log is claimed"
        self._why_stopped.pop(log, None)
        self._claimed.discard(log)
        if was_aborted and not is_claimed:
            self._move(log, Call.RESUME)
        return Decided(log) if is_claimed else None


def _stopping() -> Aborted:
    return Aborted("the daemon is stopping")


def _is_busy(state: CleaningState) -> bool:
    return state.status in (Status.IN_PROGRESS, Status.ABORTED)
