"""A limit on I/O that follows the brokers: lowered while requests wait too long in the queue of one, else raised.

Every two seconds:

1. how long requests waited on average since the last look: each running broker's agent
2. the next `policy.pace`: halved above the limit, raised step by step below it
3. at least the rate at which all logs that are due meet their max.compaction.lag.ms; that of a late one is unlimited

The other limits of the throttle stay in force: what is moved is bound by the lowest. What cleaning itself makes wait is
part of the wait, and cannot be separated from the rest.
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from cleanerd.broker_agent.live_logs import RequestQueue
from cleanerd.cleaning.throttle import Throttle
from cleanerd.daemon.values.models import RequestQueueView
from cleanerd.daemon.work.condition import Conditions
from cleanerd.daemon.workers import Bell
from cleanerd.errors import DirOffline, NoWayIn
from cleanerd.policy.deadlines import needed_bytes_per_s
from cleanerd.policy.pace import FREE
from cleanerd.storage.log_dir import Owner

_EVERY_S = 2.0
_OFF_S = 3600.0  # a reload ends it


@dataclass(frozen=True, slots=True)
class _Counters:
    """Counters at an instant. `queues`: by log directory."""

    at_s: float
    queues: dict[str, RequestQueue]
    paid_bytes: float


class Pacer:
    """`view` is the result of the last round; None while the limit is not set."""

    def __init__(self, log_dirs: Sequence[str], conditions: Conditions, throttle: Throttle) -> None:
        self._log_dirs, self._conditions, self._throttle = log_dirs, conditions, throttle
        self._pace = FREE
        self._before: _Counters | None = None
        self.view: RequestQueueView | None = None
        self.bell = Bell()  # rings when it may have been switched on

    def step(self) -> float:
        """One round."""
        max_ms = self._conditions.configuration().broker.throttle_request_queue_max_ms
        if not max_ms:
            self._pace, self._before, self.view = FREE, None, None
            self._throttle.set_request_queue(math.inf)
            return _OFF_S
        now = _Counters(self._conditions.clock.monotonic_s(), self._queues(), self._throttle.paid_bytes())
        if self._before is not None and now.at_s > self._before.at_s:
            self._follow(self._before, now, max_ms)
        self._before = now
        return _EVERY_S

    def _queues(self) -> dict[str, RequestQueue]:
        """The request queues of running brokers, by log directory, without those of brokers that do not answer."""
        found, ownership = dict[str, RequestQueue](), self._conditions.ownership
        for log_dir in self._log_dirs:
            if ownership.owner(log_dir) is Owner.LIVE_BROKER:
                with contextlib.suppress(NoWayIn, DirOffline):
                    found[log_dir] = RequestQueue.of(ownership.brokers.session(log_dir))
        return found

    def _follow(self, before: _Counters, now: _Counters, max_ms: int) -> None:
        """A broker that does not answer holds nothing back."""
        asked_twice = now.queues.keys() & before.queues.keys()
        waits_ms = (now.queues[path].mean_ms_since(before.queues[path]) for path in asked_twice)
        wait_ms = max(waits_ms, default=None)  # in the broker where it is longest
        moved_bytes_per_s = (now.paid_bytes - before.paid_bytes) / (now.at_s - before.at_s)
        self._pace = self._pace.after(moved_bytes_per_s, is_over=(wait_ms or 0.0) > max_ms)
        waited = "no broker answers" if wait_ms is None else f"requests wait {wait_ms:.1f} ms"
        reason = f"{waited}, at most {max_ms} ms"
        limit = self._pace.bytes_per_s
        needed = self._needed_bytes_per_s() if limit < math.inf else 0.0
        if needed > limit:
            limit, reason = needed, f"max.compaction.lag.ms needs it: {reason}"
        self._throttle.set_request_queue(limit)
        self.view = RequestQueueView(
            max_ms=max_ms, wait_ms=wait_ms, bytes_per_s=limit if limit < math.inf else None, reason=reason
        )

    def _needed_bytes_per_s(self) -> float:
        works = self._conditions.due_logs.with_deadline(self._conditions.obstacle_of())
        return needed_bytes_per_s(works, self._conditions.clock.now_ms())
