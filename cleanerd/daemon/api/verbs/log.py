"""Show everything about one log."""

from __future__ import annotations

from cleanerd.daemon.api.arguments import LOG
from cleanerd.daemon.api.verb import Endpoint, Verb, daemon


def log(control: daemon.Control, topic_partition: daemon.Tp) -> tuple[daemon.LogView, ...]:
    """One partition, in each log directory that has it."""
    return tuple(control.views.logs(control.of(topic_partition)))


_LOG = Endpoint("GET", "/v1/logs/{topic_partition}", "logs", log)
VERB = Verb("log", __doc__, (_LOG,), (LOG,), ("log orders-3",), is_look=True, view="log")
