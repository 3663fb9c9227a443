"""End holds."""

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.parameters import Pattern
from cleanerd.daemon.api.refusals import NotFound, Unavailable
from cleanerd.daemon.store import HOLD
from cleanerd.daemon.values.models import HoldView


def resume(control: Control, selector: Pattern) -> tuple[HoldView, ...]:
    """Lift the hold with this id, or all with exactly this pattern."""
    parts = control.parts
    found = [hold for hold in parts.states.holds() if selector in (hold.id, hold.pattern)]
    if not found:
        raise NotFound(
            f"there is no hold with the id or the pattern {selector}; `cleanerctl holds` lists them"
        )
    views = tuple(map(control.views.hold, found))
    is_kept = True
    for hold in found:
        parts.states.release(hold.id)
        is_kept &= parts.store.delete(HOLD, hold.id)
    parts.ownership.name_holds()
    parts.bells.work.ring()
    parts.bells.commit.ring()
    if not is_kept:
        raise Unavailable(
            "the pause has ended, but a restart would bring it back: the state directory cannot be written"
        )
    return views
