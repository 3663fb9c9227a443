"""List logs."""

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.parameters import Pattern
from cleanerd.daemon.values.models import LogState, LogView


def logs(
    control: Control, pattern: Pattern | None = None, state: LogState | None = None
) -> tuple[LogView, ...]:
    """Every log that matches, in order of name; an empty list if none does."""
    views = control.views.logs(control.matching(pattern))
    return tuple(view for view in views if state is None or view.state == state)
