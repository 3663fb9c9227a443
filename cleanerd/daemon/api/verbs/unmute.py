"""Give topics back to the broker's own cleaner."""

from __future__ import annotations

from fnmatch import fnmatchcase

from cleanerd.daemon.api.arguments import TOPICS
from cleanerd.daemon.api.refusals import NotFound
from cleanerd.daemon.api.verb import Endpoint, Verb, daemon
from cleanerd.daemon.api.verbs.mute import BROKER_S, refusals


def unmute(control: daemon.Control, pattern: daemon.Pattern) -> tuple[daemon.MuteView, ...]:
    """Give muted topics back; returns those that were muted."""
    found = [mute for mute in control.mutes.all() if fnmatchcase(mute.topic, pattern)]
    if not found:
        raise NotFound(f"no muted topic matches {pattern}; `cleanerctl status` lists them")
    with refusals():
        control.mutes.unmute(found, control.parts.leases)
    return tuple(map(daemon.mute_view, found))


_UNMUTE = Endpoint("POST", "/v1/unmute", "muted", unmute)
VERB = Verb(
    "unmute", __doc__, (_UNMUTE,), (TOPICS,), ("unmute orders", "unmute '*'"), wait_s=BROKER_S, view="unmuted"
)
