"""List the holds in force."""

from __future__ import annotations

from cleanerd.daemon.api.verb import Endpoint, Verb, daemon


def holds(control: daemon.Control) -> tuple[daemon.HoldView, ...]:
    """Holds in force, the oldest first."""
    return tuple(map(control.views.hold, control.parts.states.holds()))


_HOLDS = Endpoint("GET", "/v1/holds", "holds", holds)
VERB = Verb("holds", __doc__, (_HOLDS,), examples=("holds",), is_look=True)
