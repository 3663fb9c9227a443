"""Reload the configuration, all of it or nothing."""

from __future__ import annotations

from cleanerd.daemon.api.verb import Endpoint, Verb, daemon


def reload(control: daemon.Control) -> daemon.ReloadView:
    """Read the configuration again, all of it or nothing; the answer has its problems."""
    return daemon.reload_view(control.reload(daemon.ReloadTrigger.REQUEST), control.reloader.last_success_ms)


VERB = Verb(
    "reload",
    __doc__,
    (Endpoint("POST", "/v1/reload", "reload", reload),),
    examples=("reload",),
    has_failed=lambda answer: not answer["reload"]["applied"],
)
