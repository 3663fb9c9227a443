"""Forget the failures of uncleanable logs."""

from __future__ import annotations

from cleanerd.daemon.api.arguments import PATTERN
from cleanerd.daemon.api.verb import Endpoint, Verb, daemon


def retry(control: daemon.Control, pattern: daemon.Pattern) -> tuple[daemon.LogRef, ...]:
    """Forget the failures of what matches; returns the logs that were uncleanable or backed off."""
    freed = [log for log in control.some(pattern) if control.parts.failures.forget(log)]
    control.parts.work_bell.ring()
    return daemon.refs(freed)


_RETRY = Endpoint("POST", "/v1/retry", "logs", retry)
VERB = Verb("retry", __doc__, (_RETRY,), (PATTERN,), ("retry '*'",), empty="no matching log had failed")
