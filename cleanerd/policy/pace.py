"""How fast cleaning may be beside neighbours: additive increase, multiplicative decrease, as TCP shares a line with others.

Whoever works here cannot know how much of the load is its own. It halves what it moves as long as the load is above its
limit, and regains a share in every interval in which it is not, until nothing holds it back.
"""

import math
from dataclasses import dataclass

FLOOR_BYTES_PER_S = 65_536.0
"""A log must come to an end."""
STEPS = 20
"""Intervals below the limit after which nothing holds cleaning back."""


@dataclass(frozen=True, slots=True)
class Pace:
    """A limit of reads plus writes, `math.inf` for none; `free_bytes_per_s` is the rate at which the limit began."""

    bytes_per_s: float = math.inf
    free_bytes_per_s: float = math.inf

    def after(self, moved_bytes_per_s: float, *, is_over: bool) -> "Pace":
        """The next one, after an interval in which so much was moved; `is_over`: the load was above its limit."""
        is_free = self.bytes_per_s == math.inf
        if is_over:
            slower = max(min(self.bytes_per_s, moved_bytes_per_s) / 2, FLOOR_BYTES_PER_S)
            free = max(moved_bytes_per_s, FLOOR_BYTES_PER_S) if is_free else self.free_bytes_per_s
            return Pace(slower, free)
        faster = self.bytes_per_s + self.free_bytes_per_s / STEPS
        return FREE if is_free or faster >= self.free_bytes_per_s else Pace(faster, self.free_bytes_per_s)


FREE = Pace()
