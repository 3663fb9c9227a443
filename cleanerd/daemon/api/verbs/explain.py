"""Explain the decision about a log."""

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.parameters import Tp
from cleanerd.daemon.values.models import Explanation


def explain(control: Control, topic_partition: Tp) -> tuple[Explanation, ...]:
    """Why a log is or is not cleaned now, and what retention does to it."""
    return tuple(control.explainer.of(log, exact=True) for log in control.of(topic_partition))
