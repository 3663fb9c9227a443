"""Wall clock and monotonic clock behind one small interface."""

import time


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()


Clock = SystemClock
"""The interface of a clock; tests hand in one that they set themselves."""


def latest_ms(clock: Clock) -> int:
    """The later of a wall clock and that of the machine: `--now-ms` makes nothing that is known younger."""
    return max(clock.now_ms(), SystemClock().now_ms())


def booted_ms() -> int:
    """When this machine was booted, by its wall clock: what was written since is in memory, if not on disk yet."""
    return time.time_ns() // 1_000_000 - int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)


class FixedNow(SystemClock):
    """A wall clock that stands still at `now_ms` (`--now-ms`); durations are real."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """The given instant."""
        return self._now_ms
