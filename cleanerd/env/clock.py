"""Wall clock and monotonic clock behind one small interface."""

import time
from typing import Protocol


class Clock(Protocol):
    """What cleanerd asks of time."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch."""
        ...

    def monotonic_s(self) -> float:
        """Seconds of a clock that never goes back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()


class FixedNow:
    """A wall clock that stands still at `now_ms` (`--now-ms`); durations are real."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """The given instant."""
        return self._now_ms

    def monotonic_s(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()
