"""Forget failures."""

from cleanerd.daemon.api.control import Control, refs
from cleanerd.daemon.api.parameters import Pattern
from cleanerd.daemon.values.models import LogRef


def retry(control: Control, pattern: Pattern) -> tuple[LogRef, ...]:
    """Forget the failures of matching logs; answers the logs that were uncleanable or backed off."""
    freed = [log for log in control.some(pattern) if control.parts.failures.forget(log)]
    control.parts.schedule.hurry(freed)
    control.parts.bells.work.ring()
    return refs(freed)
