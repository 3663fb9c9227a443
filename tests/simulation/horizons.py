"""When a tombstone or a marker may go at the earliest (rules 4.15, 4.19, 4.25-4.28), from outside.

A cleaning writes the horizon into the batch, clock plus `delete.retention.ms`, later by `WAIT_MS` where its result is to
wait for a broker's stop; a later one, from then on, takes the record.
A horizon that was seen stays what it is until the batch is gone or empty. One that is new, or was never seen, is one that
the window allows.
"""

from dataclasses import dataclass, field

from cleanerd.format.batch import BatchHeader
from cleanerd.policy.staging import WAIT_MS
from tests.simulation.rules import Violation, Window


@dataclass
class Horizons:
    """Those of one log. `seen`: first offset of a batch -> its horizon, ms."""

    window: Window
    seen: dict[int, int] = field(default_factory=dict)

    def see(self, batch: BatchHeader) -> None:
        """Look at a batch that lies there. Raises Violation."""
        if batch.record_count == 0:
            return  # 4.30: an empty header has none
        first, found = batch.base_offset, batch.delete_horizon_ms
        known = self.seen.get(first)
        if known is not None and found != known:
            raise Violation(f"the delete horizon of the batch at {first} was {known}, is {found}")
        if known is None and found is not None:
            least, most = self.window.horizons_ms()
            if not (least <= found <= most or least <= found - WAIT_MS <= most):
                raise Violation(
                    f"the delete horizon of the batch at {first} is {found}, must be {least} to {most}"
                )
            self.seen[first] = found

    def check_gone(self, first_offset: int, what: str) -> None:
        """A record of a batch is gone that goes when its horizon is over. Raises Violation."""
        earliest_ms = self.seen.get(first_offset, self.window.horizons_ms()[0])
        if self.window.now_ms[1] < earliest_ms:
            raise Violation(f"{what} went {earliest_ms - self.window.now_ms[1]} ms before its delete horizon")

    def truncate(self, offset: int) -> None:
        """The log ends there now."""
        self.seen = {first: ms for first, ms in self.seen.items() if first < offset}
