"""List logs and their state."""

from __future__ import annotations

from cleanerd.daemon.api.arguments import ANY_PATTERN, option
from cleanerd.daemon.api.verb import Endpoint, Verb, daemon
from cleanerd.daemon.values.severity import STATES


def logs(
    control: daemon.Control, pattern: daemon.Pattern | None = None, state: daemon.LogState | None = None
) -> tuple[daemon.LogView, ...]:
    """Every log that matches, in order of name; an empty list if none does."""
    views = control.views.logs(control.matching(pattern))
    return tuple(view for view in views if state is None or view.state == state)


VERB = Verb(
    "logs",
    __doc__,
    (Endpoint("GET", "/v1/logs", "logs", logs),),
    (ANY_PATTERN, option("--state", f"only these: {', '.join(STATES)}", choices=STATES, metavar="STATE")),
    ("logs", "logs 'orders-*' --state uncleanable", "logs -o json"),
    is_look=True,
)
