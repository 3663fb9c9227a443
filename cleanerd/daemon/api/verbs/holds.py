"""List the holds in force."""

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.values.models import HoldView


def holds(control: Control) -> tuple[HoldView, ...]:
    """Holds in force, the oldest first."""
    return tuple(map(control.views.hold, control.parts.states.holds()))
