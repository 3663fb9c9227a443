"""Give topics back to the broker's own cleaner."""

from fnmatch import fnmatchcase

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.parameters import Pattern
from cleanerd.daemon.api.refusals import NotFound
from cleanerd.daemon.api.verbs.mute import refusals
from cleanerd.daemon.reports.views import mute_view
from cleanerd.daemon.values.models import MuteView


def unmute(control: Control, pattern: Pattern) -> tuple[MuteView, ...]:
    """Give muted topics back; returns those that were muted."""
    found = [mute for mute in control.mutes.all() if fnmatchcase(mute.topic, pattern)]
    if not found:
        raise NotFound(f"no muted topic matches {pattern}; `cleanerctl status` lists them")
    with refusals():
        control.mutes.unmute(found, control.parts.leases)
    return tuple(map(mute_view, found))
