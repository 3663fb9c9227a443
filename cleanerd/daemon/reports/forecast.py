"""Forecast: when each log becomes due, how long its cleaning takes, and whether all meet max.compaction.lag.ms.

A log is late when its cleaning ends after its deadline, the time that its cleaning takes, and a grace: it had to wait for
others. All of this rests on upper bounds of what is dirty and on the rate of past cleanings, and assumes that writing
goes on as before.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from cleanerd.cleaning.throttle import RateLimit, Throttle
from cleanerd.daemon.inventory.urgency import FOREVER_MS, DirtyEstimate, DueReason
from cleanerd.daemon.rules.condition import Condition
from cleanerd.daemon.store import Store
from cleanerd.daemon.telemetry.event_log import EventLog
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import Forecast, HistoryEvent, HistoryEventKind, LogForecast
from cleanerd.daemon.work.condition import Conditions
from cleanerd.policy.deadlines import (
    MOVED_PER_BYTE,
    NEVER_MS,
    READ_PER_BYTE,
    Work,
    duration_ms,
    grace_ms,
    plan,
    ratio_reached_ms,
)

ASSUMED_BYTES_PER_S = 50e6
"""Of a worker, before it has cleaned anything."""
_EVENTS = 200
_CLEANINGS: tuple[HistoryEventKind, ...] = ("cleaning",)

Estimates = dict[LogId, DirtyEstimate]


@dataclass(frozen=True, slots=True)
class Forecasts:
    """Forecasts of cleanings from the last scan and the rate of past jobs; thread-safe."""

    conditions: Conditions
    events: EventLog
    store: Store
    throttle: Throttle

    def of(self, logs: Collection[LogId]) -> Forecast:
        """Forecast all logs together, since they share the workers; only `logs` are listed one by one."""
        now_ms, rate, is_measured = self.conditions.clock.now_ms(), *self._rate()
        workers = self.conditions.configuration().broker.log_cleaner_threads
        waiting = self._waiting(self.conditions.all(self.conditions.inventory.logs()))
        planned = plan(_works(waiting, now_ms, rate), now_ms=now_ms, workers=workers, bytes_per_s=rate)
        late = {one.work.log: one.work.deadline_ms for one in planned if one.is_late}
        return Forecast(
            workers=workers,
            bytes_per_s=rate,
            rate_is_measured=is_measured,
            misses=len(late),
            first_miss_ms=min(late.values(), default=None),
            logs=tuple(
                self._log_forecast(log, estimate, rate, is_late=log in late)
                for log, estimate in waiting.items()
                if log in logs
            ),
        )

    def misses(self, conditions: Iterable[tuple[LogId, Condition]]) -> int:
        """Number of logs expected to miss max.compaction.lag.ms. `conditions` must be those of all logs."""
        now_ms, (rate, _) = self.conditions.clock.now_ms(), self._rate()
        works = _works(self._waiting(conditions), now_ms, rate)
        workers = self.conditions.configuration().broker.log_cleaner_threads
        return sum(one.is_late for one in plan(works, now_ms=now_ms, workers=workers, bytes_per_s=rate))

    def _waiting(self, conditions: Iterable[tuple[LogId, Condition]]) -> Estimates:
        """Compacted logs with something to clean that nothing prevents."""
        found: Estimates = {}
        for log, condition in conditions:
            estimate = self.conditions.due_logs.estimate(log)
            if estimate is not None and condition.obstacle is None:
                found[log] = estimate
        return found

    def _rate(self) -> tuple[float, bool]:
        """Bytes of log per second and worker, and whether that was measured, of the larger half of the last jobs."""
        jobs: dict[str | None, list[HistoryEvent]] = defaultdict(list)
        for event in self.store.events(None, _EVENTS, None, _CLEANINGS):
            if event.outcome in ("committed", "staged", "unchanged") and event.bytes_before and event.seconds:
                jobs[event.job_id].append(event)
        sizes = sorted(
            (sum(one.bytes_before or 0 for one in events), max(one.seconds or 0 for one in events))
            for events in jobs.values()
        )
        larger = sizes[len(sizes) // 2 :]
        measured = sum(size for size, _ in larger) / sum(seconds for _, seconds in larger) if larger else None
        limits, threads = self.throttle.limits(), self.conditions.configuration().broker.log_cleaner_threads
        allowed = (
            min(limits[RateLimit.READ] / READ_PER_BYTE, limits[RateLimit.TOTAL] / MOVED_PER_BYTE) / threads
        )
        return min(measured or ASSUMED_BYTES_PER_S, allowed), measured is not None

    def _log_forecast(
        self, log: LogId, estimate: DirtyEstimate, rate: float, *, is_late: bool
    ) -> LogForecast:
        now_ms = self.conditions.clock.now_ms()
        reason = estimate.reason(now_ms)
        due_ms, why = (now_ms, reason.value) if reason else _due(estimate, self.events.last(log), now_ms)
        return LogForecast(
            **log.fields(),
            due_ms=due_ms,
            due_why=why,
            takes_ms=None if estimate.range.is_empty else duration_ms(estimate.range.size_bytes, rate),
            deadline_ms=estimate.deadline_ms if estimate.deadline_ms < FOREVER_MS else None,
            is_late=is_late,
        )


def _works(waiting: Estimates, now_ms: int, rate: float) -> list[Work[LogId]]:
    works = []
    for log, estimate in waiting.items():
        size_bytes, reason = max(estimate.range.size_bytes, 1), estimate.reason(now_ms)
        deadline_ms = estimate.deadline_ms
        if estimate.range.is_empty or (reason is None and deadline_ms >= FOREVER_MS):
            continue
        ready_ms = now_ms if reason is not None else deadline_ms
        latest_ms = NEVER_MS
        if deadline_ms < FOREVER_MS:
            wait_ms = duration_ms(size_bytes, rate) + grace_ms(estimate.config.max_compaction_lag_ms)
            latest_ms = min(deadline_ms + wait_ms, NEVER_MS)
        works.append(Work(log, size_bytes, ready_ms, latest_ms))
    return works


def _due(estimate: DirtyEstimate, last: HistoryEvent | None, now_ms: int) -> tuple[int | None, str | None]:
    """When the log becomes due if writing goes on as since its last cleaning."""
    bound, written = estimate.range, 0.0
    if last is not None and last.outcome == "committed" and last.bytes_after is not None:
        grown_bytes = max(estimate.known.contents.size_bytes - last.bytes_after, 0)
        written = grown_bytes * 1000 / max(now_ms - last.time_ms, 1)
    dirty = 0 if bound.is_empty else bound.cleanable_bytes
    ratio = estimate.config.min_cleanable_dirty_ratio
    at_ms = ratio_reached_ms(bound.clean_bytes, dirty, ratio, written, now_ms)
    why = DueReason.RATIO
    if estimate.deadline_ms <= at_ms and not bound.is_empty:
        at_ms, why = estimate.deadline_ms, DueReason.MAX_LAG
    return (at_ms, why.value) if at_ms < NEVER_MS else (None, None)
