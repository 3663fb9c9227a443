"""What a host reads itself, before there are tasks, it pays for as they do, and it stops when it is told to."""

from collections.abc import Callable

Pace = Callable[[int], None]
"""Told how many bytes were read since it was last called; returns when they are paid for. Raises Aborted. Thread-safe."""


def unpaced(_: int) -> None:
    """Who looks at a log at a user's request waits for no limit."""
