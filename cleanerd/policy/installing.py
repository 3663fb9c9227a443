"""Whether an install is worth it, and whether it may begin now."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

_DAY_MIN = 24 * 60
INTERNAL = "__"
"""What the names of Kafka's own topics begin with."""


def is_allowed(topic: str, globs: Sequence[str]) -> bool:
    """Whether a topic may be installed without being asked for. No globs: every topic but internal ones.

    An internal topic has to be named by a glob that begins as its name does: `*` means none.
    """
    if topic.startswith(INTERNAL):
        globs = [glob for glob in globs if glob.startswith(INTERNAL)]
        return any(fnmatchcase(topic, glob) for glob in globs)
    return not globs or any(fnmatchcase(topic, glob) for glob in globs)


def is_in_window(window: str, now_ms: int) -> bool:
    """Whether an instant lies in `HH:MM-HH:MM`, in UTC; an end that is not after the beginning is on the next day.

    Empty: always.
    """
    if not window:
        return True
    begin, end = (60 * int(at[:2]) + int(at[3:]) for at in window.split("-"))
    length = (end - begin) % _DAY_MIN or _DAY_MIN
    return (now_ms // 60_000 - begin) % _DAY_MIN < length


def why_not_worth(
    *,
    freed_bytes: int,
    size_bytes: int,
    tail_bytes: int,
    min_reclaim_bytes: int,
    min_reclaim_ratio: float,
    max_tail_bytes: int,
) -> str | None:
    """Why an install is not worth it, None if it is. `tail_bytes`: what the replica would fetch again."""
    if freed_bytes < min_reclaim_bytes:
        return f"it would free {freed_bytes} bytes, cleanerd.install.min.reclaim.bytes is {min_reclaim_bytes}"
    if freed_bytes < min_reclaim_ratio * size_bytes:
        share = f"{freed_bytes} of {size_bytes} bytes"
        return f"it would free {share}, cleanerd.install.min.reclaim.ratio is {min_reclaim_ratio}"
    if tail_bytes > max_tail_bytes:
        return (
            f"{tail_bytes} bytes would be fetched again, cleanerd.install.max.tail.bytes is {max_tail_bytes}"
        )
    return None
