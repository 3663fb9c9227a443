"""Who may work on a partition, as Kafka's transition table (spec behaviour 2A).

=====================  ============  =============  ===========  ===========
call                   none          in-progress    aborted      paused(n)
=====================  ============  =============  ===========  ===========
start                  in-progress   skipped        skipped      skipped
abort_and_pause        paused(1)     aborted        error        paused(n+1)
resume                 error         error          error        paused(n-1)
done_cleaning          error         none           paused(1)    error
done_deleting          error         none           paused(1)    error
pause_non_compacted    paused(1)     skipped        skipped      skipped
=====================  ============  =============  ===========  ===========

paused(0) is none. "error" is `IllegalTransition`, "skipped" leaves the state alone.
"""

from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    """The state of a partition; the value is Kafka's word."""

    NONE = "none"
    IN_PROGRESS = "in-progress"
    ABORTED = "aborted"  # an abort was asked for, the worker has not stopped yet
    PAUSED = "paused"


class Call(Enum):
    """A requested transition."""

    START = "start"
    ABORT_AND_PAUSE = "abort_and_pause"
    RESUME = "resume"
    DONE_CLEANING = "done_cleaning"
    DONE_DELETING = "done_deleting"
    PAUSE_NON_COMPACTED = "pause_non_compacted"


@dataclass(frozen=True, slots=True)
class CleaningState:
    """Status of a partition; `pauses` is the n of paused(n), else 0."""

    status: Status
    pauses: int = 0

    def __post_init__(self) -> None:
        assert self.pauses >= 0
        assert (self.status is Status.PAUSED) == (self.pauses > 0)

    def __str__(self) -> str:
        return f"paused({self.pauses})" if self.pauses else self.status.value


NONE = CleaningState(Status.NONE)
IN_PROGRESS = CleaningState(Status.IN_PROGRESS)
ABORTED = CleaningState(Status.ABORTED)


def paused(pauses: int) -> CleaningState:
    """State of a partition that was paused so many times and not resumed; none after 0."""
    return CleaningState(Status.PAUSED, pauses) if pauses else NONE


class IllegalTransition(ValueError):
    """A call that this state does not allow; the state stays as it is."""

    def __init__(self, state: CleaningState, call: Call, name: str = "partition") -> None:
        super().__init__(f"{name}: {call.value} is not allowed in state {state}")
        self.state = state
        self.call = call


class _Cell(Enum):
    BEGIN = "in-progress"
    ABORT = "aborted"
    PAUSE = "one pause more"
    UNPAUSE = "one pause less"
    END = "none"
    SKIP = "skipped"
    ERROR = "error"


_COLUMNS = (Status.NONE, Status.IN_PROGRESS, Status.ABORTED, Status.PAUSED)
_TABLE = {
    Call.START: (_Cell.BEGIN, _Cell.SKIP, _Cell.SKIP, _Cell.SKIP),
    Call.ABORT_AND_PAUSE: (_Cell.PAUSE, _Cell.ABORT, _Cell.ERROR, _Cell.PAUSE),
    Call.RESUME: (_Cell.ERROR, _Cell.ERROR, _Cell.ERROR, _Cell.UNPAUSE),
    Call.DONE_CLEANING: (_Cell.ERROR, _Cell.END, _Cell.PAUSE, _Cell.ERROR),
    Call.DONE_DELETING: (_Cell.ERROR, _Cell.END, _Cell.PAUSE, _Cell.ERROR),
    Call.PAUSE_NON_COMPACTED: (_Cell.PAUSE, _Cell.SKIP, _Cell.SKIP, _Cell.SKIP),
}


def transition(state: CleaningState, call: Call) -> CleaningState | None:
    """State after `call`, or None when the call passes this partition over. Raises IllegalTransition (2A)."""
    match _TABLE[call][_COLUMNS.index(state.status)]:
        case _Cell.BEGIN:
            return IN_PROGRESS
        case _Cell.ABORT:
            return ABORTED
        case _Cell.PAUSE:
            return paused(state.pauses + 1)
        case _Cell.UNPAUSE:
            return paused(state.pauses - 1)
        case _Cell.END:
            return NONE
        case _Cell.SKIP:
            return None
        case _Cell.ERROR:
            raise IllegalTransition(state, call)
