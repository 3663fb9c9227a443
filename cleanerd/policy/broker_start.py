"""When a log directory is left alone, because a broker is about to start in it.

========================================  ======================================================================
event                                     what follows
========================================  ======================================================================
somebody announces a broker               nothing of ours begins there for `BROKER_START_S`
another process holds `.lock`             the broker has come: its lock says what may be done
`.lock` is free again, and a broker       it may be a restart, so it gets `BROKER_START_S` as well
that starts does not wait for ours
========================================  ======================================================================
"""

import math
from dataclasses import dataclass, replace

BROKER_START_S = 60.0
"""How long a directory is left alone for a broker that is expected, if it does not come."""


@dataclass(frozen=True, slots=True)
class BrokerStart:
    """Brokers at a log directory. `owner`: pid of the process that holds `.lock`, 0 if the kernel does not name it, None if
    nobody does; `until_s`: until when a broker is expected.
    """

    owner: int | None = None
    until_s: float = -math.inf

    def announced(self, now_s: float) -> "BrokerStart":
        """A broker is about to start."""
        return replace(self, until_s=now_s + BROKER_START_S)

    def seen(self, owner: int | None, now_s: float, *, waits_for_us: bool) -> "BrokerStart":
        """After one more look. `waits_for_us`: a broker that starts waits until we let go of `.lock`."""
        if owner is not None:
            return BrokerStart(owner)
        has_left = self.owner is not None and not waits_for_us
        return BrokerStart(until_s=now_s + BROKER_START_S if has_left else self.until_s)

    def is_expected(self, now_s: float) -> bool:
        """Whether nothing of ours may begin: a broker is to come, and has not."""
        return self.owner is None and self.until_s > now_s
