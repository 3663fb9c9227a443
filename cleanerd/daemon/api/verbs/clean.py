"""Request cleanings, or explain what one would do."""

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.parameters import Pattern
from cleanerd.daemon.api.refusals import Conflict, Refused
from cleanerd.daemon.values.models import Explanation, JobView


def clean(control: Control, pattern: Pattern, force: bool = False, roll: bool = False) -> tuple[JobView, ...]:
    """Clean now. `force` ignores the dirty ratio, never a safety bound. `roll` closes the active segments first.

    A log that is being cleaned already answers its job. Raises `Conflict` when every log that matches is held or may not be
    cleaned now, `Refused` when none is ever cleaned.
    """
    parts, found, refusals, states = control.parts, [], [], set()
    for log in control.some(pattern):
        running, condition = parts.jobs.of(log), parts.conditions.of(log)
        if running is not None and not roll:
            found.append(running.id)
        elif condition.obstacle is not None and not condition.yields_to_requests:
            refusals.append(f"{log}: {condition.obstacle}")
            states.add(condition.state)
        else:
            parts.failures.forget(log)  # to ask for a log again is to try it again
            found.append(parts.jobs.request([log], force=force, roll=roll).id)
    if not found:
        refused = Refused if states <= {"ignored", "retained"} else Conflict
        raise refused("; ".join(refusals[:5]))
    parts.bells.work.ring()
    return tuple(map(parts.jobs.view, dict.fromkeys(found)))


def would_clean(control: Control, pattern: Pattern) -> tuple[Explanation, ...]:
    """Explain for each matching log what a cleaning would find now, from a fresh look at its files. Starts nothing."""
    return tuple(control.explainer.of(log, exact=True) for log in control.some(pattern))
