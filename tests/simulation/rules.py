"""What the configuration allows, and since when: what a judge goes by."""

from collections.abc import Callable
from dataclasses import dataclass, field

NEVER = 2**63


class Violation(AssertionError):
    """Something that must hold does not."""


@dataclass(frozen=True)
class Rules:
    """Of all topics. -1: no limit."""

    delete_retention_ms: int
    compacts: bool = True
    deletes: bool = False
    retention_ms: int = -1
    retention_bytes: int = -1
    compaction_lag_ms: int = 0


@dataclass
class Window:
    """What clock and configuration were since a judge looked last and nothing was staged.

    He does not see every cleaning: one that began before he looked may end afterwards (its result is staged meanwhile), and
    two may come between two looks.
    """

    now_ms: tuple[int, int] = (NEVER, -1)  # least, most
    rules: set[Rules] = field(default_factory=set)
    latest_ms: int = -1  # the latest time of the clock ever
    cleanable_ms: int = -1
    """Records up to this time could be cleaned at some time, whatever clock and lag are today."""

    def observe(self, now_ms: int, rules: Rules) -> None:
        """Whenever one of them is set, and when a judge looks."""
        self.now_ms = min(self.now_ms[0], now_ms), max(self.now_ms[1], now_ms)
        self.latest_ms = max(self.latest_ms, now_ms)
        self.rules.add(rules)
        # Without a lag records of the future are cleanable, too: their clock was right until somebody set it back.
        lags = [one.compaction_lag_ms for one in self.rules if one.compacts]
        cleanable = ((self.now_ms[1] if lag_ms else self.latest_ms) - lag_ms for lag_ms in lags)
        self.cleanable_ms = max(self.cleanable_ms, *cleanable, -1)

    def settle(self, now_ms: int, rules: Rules) -> None:
        """Everything was seen, and no cleaning is under way."""
        self.now_ms, self.rules = (now_ms, now_ms), {rules}

    def horizons_ms(self) -> tuple[int, int]:
        """The earliest and the latest delete horizon that may be written."""
        retentions = [rules.delete_retention_ms for rules in self.rules]
        return self.now_ms[0] + min(retentions), self.now_ms[1] + max(retentions)

    def any(self, allows: Callable[[Rules], bool]) -> bool:
        return any(map(allows, self.rules))
