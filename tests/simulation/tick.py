"""The clock of a world."""

from dataclasses import dataclass


@dataclass
class Tick:
    """A clock that moves when it is set, or when something is done. `ahead_ns`: of the wall clock, as somebody set it."""

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
