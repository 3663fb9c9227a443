"""Show why a log is or is not cleaned now, and what retention does to it."""

from __future__ import annotations

from cleanerd.daemon.api.arguments import LOG
from cleanerd.daemon.api.verb import Endpoint, Verb, daemon


def explain(control: daemon.Control, topic_partition: daemon.Tp) -> tuple[daemon.Explanation, ...]:
    """Why a log is or is not cleaned now, and what retention does to it."""
    return tuple(control.explainer.of(log, exact=True) for log in control.of(topic_partition))


_EXPLAIN = Endpoint("GET", "/v1/logs/{topic_partition}/explanation", "explanations", explain)
VERB = Verb("explain", __doc__, (_EXPLAIN,), (LOG,), ("explain orders-3",), is_look=True)
