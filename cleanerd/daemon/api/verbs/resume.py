"""End a pause, by its id or pattern."""

from __future__ import annotations

from cleanerd.daemon.api.arguments import argument
from cleanerd.daemon.api.refusals import NotFound, Unavailable
from cleanerd.daemon.api.verb import Endpoint, Verb, daemon


def resume(control: daemon.Control, selector: daemon.Pattern) -> tuple[daemon.HoldView, ...]:
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
        is_kept &= parts.store.delete(daemon.HOLD, hold.id)
    parts.work_bell.ring()
    parts.commit_bell.ring()
    if not is_kept:
        raise Unavailable(
            "the pause has ended, but a restart would bring it back: the state directory cannot be written"
        )
    return views


VERB = Verb(
    "resume",
    __doc__,
    (Endpoint("POST", "/v1/resume", "holds", resume),),
    (argument("selector", metavar="HOLD", help="id of a hold, or its pattern"),),
    ("resume orders",),
    view="resumed",
)
