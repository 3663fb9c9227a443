"""The condition of a log: its state, the reason, and what prevents a cleaning, from facts that `work.condition` gathers.

What comes first in this order decides.

==========================  ==================================================================================
state                       what decides it
==========================  ==================================================================================
offline                     its log directory does not work
ignored                     it is not known to be ours to change (`cleaning.foreign`), though it can be read
cleaning, aborted, paused   a worker has it, or a hold or a client keeps it (rule 2A), or its broker moves it (2.10)
uncleanable                 it is compacted and cannot be read, or failed too often
staged                      a result waits for its commit
retained                    it is not compacted: retention only
dirty                       it qualifies for a cleaning (1.21), by its files
clean                       all others
==========================  ==================================================================================
"""

from dataclasses import dataclass
from typing import NamedTuple

from cleanerd.daemon.values.models import LogState
from cleanerd.policy.cleanable import CleanableRange
from cleanerd.policy.lifecycle import Status
from cleanerd.units import utc

LEFT_TO_BROKER = "left to the broker's own cleaner"
_BUSY: dict[Status, LogState] = {Status.IN_PROGRESS: "cleaning", Status.ABORTED: "aborted"}


@dataclass(frozen=True, slots=True)
class Condition:
    """The state of a log in one word, and the reason if it is not plain.

    `obstacle`: what prevents a cleaning now, None for nothing. One that `yields_to_requests` keeps only the schedule
    away: a request for a cleaning is granted.
    """

    state: LogState
    reason: str | None = None
    obstacle: str | None = None
    yields_to_requests: bool = False


class Known(NamedTuple):
    """What the daemon has in memory about a log; a text is the reason, None for none.

    A tuple, as `Seen`, for there is one for each log whenever all are looked at: a frozen dataclass takes twice as long.
    """

    offline: str | None = None  # of its log directory
    barred: str | None = None  # nobody may change it; also where it is offline
    unread: str | None = None  # its files cannot be read
    status: Status = Status.NONE
    is_compacted: bool = True
    moves_to: str | None = None  # the log directory to which its broker moves it
    failure: str | None = None  # of the last cleaning
    is_uncleanable: bool = False
    is_staged: bool = False


class Seen(NamedTuple):
    """What a look at the log directory adds. It costs something, and hangs where a disk does: so `at_once` comes first."""

    coming: str | None = None  # a broker is about to start
    way: str | None = None  # how a result takes effect where another process holds `.lock`; else None
    must_wait: bool = False  # whether that way is the stop of the process
    is_dirty: bool = False
    has_aged: bool = False  # the staged result has waited for long, or much was written behind it
    is_unrecorded: bool = False  # a cleaning would only write the checkpoint
    off_by: str | None = None  # the key that is false and switches cleaning off
    full: str | None = None  # nothing more may be staged in the directory
    backs_off: bool = False  # the last failure was a moment ago
    left_until_ms: int | None = None  # see `left_until_ms`; None where nobody holds `.lock`


def at_once(log: Known) -> Condition | None:
    """The condition of a log that what is known decides; None for one that has to be looked at."""
    unread = log.unread if log.is_compacted else None
    if log.barred is not None:
        # Of what cannot be read nobody can tell whose it is, and somebody has to be told.
        state: LogState = "ignored" if unread is None else "uncleanable"
        return Condition(
            state if log.offline is None else "offline", log.offline or unread or log.barred, log.barred
        )
    if log.status in _BUSY:
        return Condition(_BUSY[log.status])
    if log.status is Status.PAUSED:
        return Condition("paused", None, "it is paused; `cleanerctl holds` shows by whom")
    if unread is not None:
        return Condition("uncleanable", unread, unread)
    if log.moves_to is not None and log.is_compacted:
        reason = f"its broker moves it to {log.moves_to}"
        return Condition("paused", reason, reason)
    if log.is_uncleanable:
        return Condition("uncleanable", log.failure, f"uncleanable: {log.failure}", True)
    if not log.is_compacted and not log.is_staged:
        return Condition(
            "retained", "not compacted: retention only", "its cleanup.policy does not contain compact"
        )
    return None


def after_a_look(log: Known, seen: Seen) -> Condition:
    """The condition of a log of which `at_once` says nothing."""
    if log.is_staged:
        goes_again = (
            seen.way is not None and seen.has_aged and log.is_compacted and seen.left_until_ms is None
        )
        obstacle = seen.full or (f"backing off: {log.failure}" if seen.backs_off else None)
        if not goes_again:
            obstacle = "a result is staged and waits for its commit"
        return Condition("staged", seen.way, obstacle, yields_to_requests=True)
    state: LogState = "dirty" if seen.is_dirty else "clean"
    if seen.coming is not None:
        return Condition(state, log.failure, seen.coming)
    if seen.off_by is not None:
        return Condition(state, log.failure, f"cleaning is off: {seen.off_by} is false")
    if seen.full is not None:
        return Condition(state, log.failure or (seen.full if seen.is_dirty else None), seen.full)
    if seen.backs_off:
        return Condition(state, log.failure, f"backing off: {log.failure}", True)
    if seen.is_unrecorded and seen.must_wait:
        waits = f"nothing in it has to go; to write its checkpoint, {seen.way}"
        return Condition(state, log.failure or waits, waits, True)
    if seen.left_until_ms is not None and seen.is_dirty:
        left = f"{LEFT_TO_BROKER}, which is at work, until {utc(seen.left_until_ms)}"
        return Condition(state, log.failure or left, left, True)
    return Condition(state, log.failure)


def left_until_ms(
    dirty: CleanableRange,
    deadline_ms: int,
    brokers_ratio: float,
    *,
    due_for_s: float,
    grace_ms: int,
    now_ms: int,
) -> int | None:
    """Time in ms until which a log is left to the cleaner at work in its live broker; None if it is not left to it.

    It is left if that cleaner takes it by its own ratio, but only for a while: it may have given up on the log.
    """
    if dirty.is_empty or (now_ms < deadline_ms and dirty.dirty_ratio <= brokers_ratio):
        return None
    left_ms = grace_ms - round(1000 * due_for_s)
    return now_ms + left_ms if left_ms > 0 else None
