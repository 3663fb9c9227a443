"""Stop cleanings that run now; the logs stay as they were, and may be cleaned again."""

from __future__ import annotations

from cleanerd.daemon.api.arguments import PATTERN
from cleanerd.daemon.api.refusals import DEFAULT_WAIT_MS, Conflict, Timeout, Unavailable
from cleanerd.daemon.api.verb import Endpoint, Verb, daemon
from cleanerd.errors import CleanerdError


def abort(
    control: daemon.Control, pattern: daemon.Pattern, timeout_ms: daemon.WaitMs = DEFAULT_WAIT_MS
) -> tuple[daemon.LogRef, ...]:
    """Stop the cleanings of what matches, and answer when they have stopped, with the logs that were being cleaned."""
    states, now_s = control.parts.states, control.parts.clock.monotonic_s
    deadline_s = now_s() + timeout_ms / 1000
    busy = [log for log in control.some(pattern) if states.state(log).status is daemon.Status.IN_PROGRESS]
    for log in busy:
        states.stop(log, "`cleanerctl abort`")
    for log in busy:
        try:
            states.abort(log, max(deadline_s - now_s(), 0))
        except daemon.StillRunning as error:
            raise Timeout(f"{error}; it stops soon") from error
        except ValueError as error:  # another client aborts it
            raise Conflict(str(error)) from error
        except CleanerdError as error:
            raise Unavailable(str(error)) from error
    return daemon.refs(busy)


VERB = Verb(
    "abort",
    __doc__,
    (Endpoint("POST", "/v1/abort", "logs", abort),),
    (PATTERN,),
    ("abort orders-3",),
    empty="no matching log was being cleaned",
    is_bounded=True,
)
