"""Stop cleanings that run or were asked for."""

from cleanerd.daemon.api.control import Control, refs
from cleanerd.daemon.api.parameters import Pattern, WaitMs
from cleanerd.daemon.api.refusals import DEFAULT_WAIT_MS, Conflict, Timeout, Unavailable
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import LogRef
from cleanerd.daemon.work.states import StillRunning
from cleanerd.errors import CleanerdError
from cleanerd.policy.lifecycle import Status

_WHY = "`cleanerctl abort`"


def abort(control: Control, pattern: Pattern, timeout_ms: WaitMs = DEFAULT_WAIT_MS) -> tuple[LogRef, ...]:
    """Stop cleanings of matching logs, and answer these when it is done. Requests that wait for a worker end, too."""
    states, jobs, now_s = control.parts.states, control.parts.jobs, control.parts.clock.monotonic_s
    deadline_s, matching = now_s() + timeout_ms / 1000, control.some(pattern)
    stopped, those = set[LogId](), set(matching)
    for job in jobs.requested():
        if not those.isdisjoint(job.logs) and jobs.refuse(job, "aborted", _WHY):
            stopped.update(job.logs)
    # Looked at after that: a job that was refused too late has begun, and its logs are in progress.
    busy = [log for log in matching if states.state(log).status is Status.IN_PROGRESS]
    stopped.update(busy)
    for log in busy:
        states.stop(log, _WHY)
    for log in busy:
        try:
            states.abort(log, max(deadline_s - now_s(), 0))
        except StillRunning as error:
            raise Timeout(f"{error}; it stops soon") from error
        except ValueError as error:  # another client aborts it
            raise Conflict(str(error)) from error
        except CleanerdError as error:
            raise Unavailable(str(error)) from error
    return refs(log for log in matching if log in stopped)
