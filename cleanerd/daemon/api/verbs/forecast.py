"""Forecast when logs become due and how long they take."""

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.parameters import Pattern
from cleanerd.daemon.values.models import Forecast


def forecast(control: Control, pattern: Pattern | None = None) -> Forecast:
    """When logs become due, how long they take, and which will miss max.compaction.lag.ms; `pattern`: which logs to list."""
    listed = control.matching(None) if pattern is None else control.some(pattern)
    return control.forecasts.of(frozenset(listed))
