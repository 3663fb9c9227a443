"""Show when logs become due, how long they take, and which will be cleaned too late.

Show when logs become due, how long they take, and which will miss `max.compaction.lag.ms`.
"""

from __future__ import annotations

from cleanerd.daemon.api.arguments import ANY_PATTERN
from cleanerd.daemon.api.verb import Endpoint, Verb, daemon


def forecast(control: daemon.Control, pattern: daemon.Pattern | None = None) -> daemon.Forecast:
    """When logs become due, how long they take, and which will miss max.compaction.lag.ms; `pattern`: which logs to list."""
    listed = control.matching(None) if pattern is None else control.some(pattern)
    return control.forecasts.of(frozenset(listed))


_FORECAST = Endpoint("GET", "/v1/forecast", "forecast", forecast)
VERB = Verb("forecast", __doc__, (_FORECAST,), (ANY_PATTERN,), ("forecast", "forecast orders"), is_look=True)
