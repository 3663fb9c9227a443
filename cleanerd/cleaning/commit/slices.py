"""How much is committed under one hold of `.lock`.

A hold ends within 200 ms. Where the commit of one group alone takes more than 100 ms, as on a disk that takes 15 ms for a
sync, it ends within that time and 200 ms. Both hold as far as one hold predicts the next.
"""

import math
from collections.abc import Sequence

from cleanerd.cleaning.commit.host import Commit
from cleanerd.storage.lock import HOLD_S

OF_A_JOB = 16
"""Weight of the first slice of a job: the time that it takes decides how much the next ones take."""
_LOGS_MAX = 64


class SliceSize:
    """Learns from slice to slice how much may be committed together.

    The logs of a slice share their syncs, which take most of the time. So what a slice of one log takes is the price of any,
    and more logs are added as long as that adds no more than `HOLD_S`, or as it ends in `HOLD_S`.
    """

    def __init__(self, first: float = 1.0) -> None:
        """`first`: weight of the first slice."""
        self._weight = first  # of the next slice, but for one that is a single log
        self._price_s = math.inf

    def next_slice(self, rest: Sequence[Commit]) -> Sequence[Commit]:
        """The longest prefix of `rest` that is expected to end in time, or a single commit that takes longer."""
        weight, count = 0.0, 0
        for one in rest[:_LOGS_MAX]:
            weight += one.weight
            if count and weight > self._weight:
                break
            count += 1
        return rest[:count]

    def adapt(self, logs: Sequence[Commit], seconds: float) -> None:
        """Double or halve the next slice, after one with these logs took `seconds`."""
        weight = sum(one.weight for one in logs)
        if len(logs) == 1:
            self._price_s = min(self._price_s, seconds)
        in_time = seconds <= HOLD_S + (self._price_s if self._price_s > HOLD_S else 0.0)
        self._weight = max(self._weight, 2 * weight) if in_time else weight / 2
