"""Reads outside of Spark tasks: throttled and abortable as those of tasks are."""

from collections.abc import Callable

Pace = Callable[[int], None]
"""Called with how many bytes were read since the last call; returns when they are paid for. Raises Aborted. Thread-safe."""


def unpaced(_: int) -> None:
    """No limit, for reads at a user's request."""
