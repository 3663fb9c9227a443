"""Stop running cleanings."""

from cleanerd.daemon.api.control import Control, refs
from cleanerd.daemon.api.parameters import Pattern, WaitMs
from cleanerd.daemon.api.refusals import DEFAULT_WAIT_MS, Conflict, Timeout, Unavailable
from cleanerd.daemon.values.models import LogRef
from cleanerd.daemon.work.states import StillRunning
from cleanerd.errors import CleanerdError
from cleanerd.policy.lifecycle import Status


def abort(control: Control, pattern: Pattern, timeout_ms: WaitMs = DEFAULT_WAIT_MS) -> tuple[LogRef, ...]:
    """Stop the running cleanings of matching logs, wait until they have stopped, and answer these logs."""
    states, now_s = control.parts.states, control.parts.clock.monotonic_s
    deadline_s = now_s() + timeout_ms / 1000
    busy = [log for log in control.some(pattern) if states.state(log).status is Status.IN_PROGRESS]
    for log in busy:
        states.stop(log, "`cleanerctl abort`")
    for log in busy:
        try:
            states.abort(log, max(deadline_s - now_s(), 0))
        except StillRunning as error:
            raise Timeout(f"{error}; it stops soon") from error
        except ValueError as error:  # another client aborts it
            raise Conflict(str(error)) from error
        except CleanerdError as error:
            raise Unavailable(str(error)) from error
    return refs(busy)
