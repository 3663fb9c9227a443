"""Clocks that a test sets, or that stand still."""

from dataclasses import dataclass

from cleanerd.env.clock import SystemClock

_HOUR_MS = 3_600_000


@dataclass
class Tick:
    """That of a simulated world: it moves when it is set, or when something is done.

    `ahead_ns`: of the wall clock, as somebody set it.
    """

    ns: int
    ahead_ns: int = 0

    def wall_ns(self) -> int:
        return self.ns + self.ahead_ns

    def now_ms(self) -> int:
        return self.wall_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return self.ns / 1e9

    def pass_s(self, seconds: float) -> None:
        self.ns += max(int(seconds * 1e9), 0)


class HandClock:
    """A clock that a test sets; it starts an hour after everything that the test wrote."""

    def __init__(self) -> None:
        self.wall_ms = SystemClock().now_ms() + _HOUR_MS
        self.passed_s = 0.0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_s(self) -> float:
        return self.passed_s

    def advance(self, ms: int) -> None:
        self.wall_ms += ms
        self.passed_s += ms / 1000


class RealClock(SystemClock, HandClock):
    """Nobody has to set it."""


class Standstill:
    """A clock that stands still: the lock is never held for too long, however slow this machine is."""

    def now_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return 0.0
