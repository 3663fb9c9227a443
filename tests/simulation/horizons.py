"""When a tombstone or a marker may go at the earliest (rules 4.15, 4.19, 4.25-4.28), from outside.

A cleaning writes the horizon into the batch, clock plus `delete.retention.ms`; a later one, from then on, takes the record.
A horizon that was seen stays what it is until the batch is gone or empty. The judge does not see every cleaning: one that
began before it looked may end afterwards (its result is staged meanwhile), and two may come between two looks. So it keeps
the range of the clock and of the configuration since it last looked and nothing was staged: a horizon that is new, or was
never seen, is one that they allow.
"""

from dataclasses import dataclass, field

from cleanerd.format.batch import BatchHeader
from tests.simulation.violation import Violation

_NEVER = 2**63


@dataclass
class Horizons:
    """Those of one log. `seen`: first offset of a batch -> its horizon, ms."""

    seen: dict[int, int] = field(default_factory=dict)
    _now_ms: tuple[int, int] = (_NEVER, -1)
    _retention_ms: tuple[int, int] = (_NEVER, -1)

    def hear(self, now_ms: int, retention_ms: int) -> None:
        """What clock and configuration say, whenever one of them is set."""
        self._now_ms = min(self._now_ms[0], now_ms), max(self._now_ms[1], now_ms)
        least, most = self._retention_ms
        self._retention_ms = min(least, retention_ms), max(most, retention_ms)

    def settle(self, now_ms: int, retention_ms: int) -> None:
        """All horizons were seen, and no cleaning is under way."""
        self._now_ms, self._retention_ms = (now_ms, now_ms), (retention_ms, retention_ms)

    def see(self, batch: BatchHeader) -> None:
        """Look at a batch that lies there. Raises Violation."""
        if batch.record_count == 0:
            return  # 4.30: an empty header has none
        found, known = batch.delete_horizon_ms, self.seen.get(batch.base_offset)
        if known is not None and found != known:
            raise Violation(f"the delete horizon of the batch at {batch.base_offset} was {known}, is {found}")
        if known is None and found is not None:
            least, most = (self._now_ms[i] + self._retention_ms[i] for i in (0, 1))
            if not least <= found <= most:
                raise Violation(
                    f"the delete horizon of the batch at {batch.base_offset} is {found}, must be {least} to {most}"
                )
            self.seen[batch.base_offset] = found

    def check_gone(self, first_offset: int, what: str) -> None:
        """A record of a batch is gone that goes when its horizon is over. Raises Violation."""
        earliest_ms = self.seen.get(first_offset, self._now_ms[0] + self._retention_ms[0])
        if self._now_ms[1] < earliest_ms:
            early_ms = earliest_ms - self._now_ms[1]
            raise Violation(f"{what} went {early_ms} ms before its delete horizon")

    def truncate(self, offset: int) -> None:
        """The log ends there now."""
        self.seen = {first: ms for first, ms in self.seen.items() if first < offset}
