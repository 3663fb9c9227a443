"""Forecast: when each log becomes due, how long its cleaning takes, and whether all meet max.compaction.lag.ms.

A log is late when its cleaning ends after its deadline, the time that its cleaning takes, and a grace: it had to wait for
others. All of this rests on upper bounds of what is dirty and on the rate of past cleanings, and assumes that writing
goes on as before.
"""

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, replace

from cleanerd.cleaning.throttle import RateLimit
from cleanerd.config.model import TopicConfig
from cleanerd.daemon.inventory.urgency import FOREVER_MS, DirtyEstimate
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import Forecast, HistoryEvent, HistoryEventKind, LogForecast, WhatIf
from cleanerd.daemon.work.condition import Condition
from cleanerd.policy.backtest import CleaningSetting, SizeSample, replay
from cleanerd.policy.deadlines import (
    NEVER_MS,
    Planned,
    Work,
    duration_ms,
    enough_bytes_per_s,
    grace_ms,
    plan,
    ratio_reached_ms,
)

ASSUMED_BYTES_PER_S = 50e6
"""Of a worker, before it has cleaned anything."""
_EVENTS = 200
_WHAT_IF_MAX = 8  # logs; a whole directory would be read from the history for more
_CLEANINGS: tuple[HistoryEventKind, ...] = ("cleaning",)
_DAY_MS = 86_400_000
_GROWTH_MS = 7 * _DAY_MS
_WHAT_IF_MS = 30 * _DAY_MS
_SAMPLES_MIN = 3
_RATIOS = (0.1, 0.3, 0.5, 0.8)
_RETENTION_DAYS = (1, 7)
"""No answer reaches beyond what is recorded."""

Estimates = dict[LogId, DirtyEstimate]


def forecast(parts: Parts, logs: Collection[LogId]) -> Forecast:
    """For all logs together; `logs` are those to list in detail."""
    now_ms, rate, is_measured = parts.clock.now_ms(), *_rate(parts)
    workers = parts.configuration().broker.log_cleaner_threads
    waiting = _waiting(parts, parts.conditions.all(parts.inventory.logs()))
    planned = {
        one.work.log: one
        for one in plan(_works(waiting, now_ms, rate), now_ms=now_ms, workers=workers, bytes_per_s=rate)
    }
    late = sorted(one.work.deadline_ms for one in planned.values() if one.is_late)
    in_time = {log: one for log, one in waiting.items() if one.deadline_ms >= now_ms}

    def works(faster: float) -> Sequence[Work[LogId]]:
        return _works(in_time, now_ms, faster)

    enough = enough_bytes_per_s(works, now_ms=now_ms, workers=workers, bytes_per_s=rate) if late else None
    return Forecast(
        workers=workers,
        bytes_per_s=rate,
        rate_is_measured=is_measured,
        misses=len(late),
        first_miss_ms=late[0] if late else None,
        enough_bytes_per_s=enough,
        logs=tuple(
            _log_forecast(parts, log, estimate, planned.get(log), now_ms, detailed=len(logs) <= _WHAT_IF_MAX)
            for log, estimate in waiting.items()
            if log in logs
        ),
    )


def misses(parts: Parts, conditions: Iterable[tuple[LogId, Condition]]) -> int:
    """How many logs are expected to miss max.compaction.lag.ms; `conditions`: of all logs."""
    now_ms, (rate, _) = parts.clock.now_ms(), _rate(parts)
    works = _works(_waiting(parts, conditions), now_ms, rate)
    workers = parts.configuration().broker.log_cleaner_threads
    return sum(one.is_late for one in plan(works, now_ms=now_ms, workers=workers, bytes_per_s=rate))


def _waiting(parts: Parts, conditions: Iterable[tuple[LogId, Condition]]) -> Estimates:
    """Compacted logs with something to clean that nothing prevents."""
    found: Estimates = {}
    for log, condition in conditions:
        estimate = parts.due_logs.estimate(log)
        if estimate is not None and condition.obstacle is None:
            found[log] = estimate
    return found


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


def _rate(parts: Parts) -> tuple[float, bool]:
    """Bytes of log per second and worker, and whether that was measured, of the larger half of the last jobs."""
    jobs: dict[str | None, list[HistoryEvent]] = defaultdict(list)
    for event in parts.store.events(None, _EVENTS, None, _CLEANINGS):
        if event.outcome in ("committed", "staged", "unchanged") and event.bytes_before and event.seconds:
            jobs[event.job_id].append(event)
    sizes = sorted(
        (sum(one.bytes_before or 0 for one in events), max(one.seconds or 0 for one in events))
        for events in jobs.values()
    )
    larger = sizes[len(sizes) // 2 :]
    measured = sum(size for size, _ in larger) / sum(seconds for _, seconds in larger) if larger else None
    limits, threads = parts.throttle.limits(), parts.configuration().broker.log_cleaner_threads
    allowed = min(limits[RateLimit.READ], limits[RateLimit.TOTAL]) / threads
    return min(measured or ASSUMED_BYTES_PER_S, allowed), measured is not None


def _log_forecast(
    parts: Parts,
    log: LogId,
    estimate: DirtyEstimate,
    planned: Planned[LogId] | None,
    now_ms: int,
    *,
    detailed: bool,
) -> LogForecast:
    bound, reason = estimate.range, estimate.reason(now_ms)
    removable = _removable_bytes(estimate, parts.events.last(log))
    due_ms, why = (now_ms, reason.value) if reason else _due(parts, log, estimate, now_ms)
    return LogForecast(
        **log.fields(),
        size_bytes=estimate.known.contents.size_bytes,
        cleanable_bytes=0 if bound.is_empty else bound.cleanable_bytes,
        removable_bytes=removable,
        peak_extra_bytes=bound.size_bytes - (removable or 0),
        due_ms=due_ms,
        due_why=why,
        start_ms=planned.start_ms if planned else None,
        end_ms=planned.end_ms if planned else None,
        deadline_ms=estimate.deadline_ms if estimate.deadline_ms < FOREVER_MS else None,
        is_late=planned is not None and planned.is_late,
        what_if=_what_if(parts, log, estimate.config) if detailed else (),
    )


def _removable_bytes(estimate: DirtyEstimate, last: HistoryEvent | None) -> int | None:
    """Bytes that a cleaning removes if it leaves as much as the last one; None without a last one."""
    if last is None or last.bytes_after is None or last.kind not in ("cleaning", "commit"):
        return None
    return max(estimate.range.size_bytes - last.bytes_after, 0)


def _due(parts: Parts, log: LogId, estimate: DirtyEstimate, now_ms: int) -> tuple[int | None, str | None]:
    """When the log becomes due if writing goes on as in the last week."""
    bound, config = estimate.range, estimate.config
    written = written_bytes_per_s(parts.store.samples(log, now_ms - _GROWTH_MS))
    dirty = 0 if bound.is_empty else bound.cleanable_bytes
    at_ms = ratio_reached_ms(bound.clean_bytes, dirty, config.min_cleanable_dirty_ratio, written, now_ms)
    why = "dirty ratio above min.cleanable.dirty.ratio"
    if estimate.deadline_ms <= at_ms and not bound.is_empty:
        at_ms, why = estimate.deadline_ms, "older than max.compaction.lag.ms"
    return (at_ms, why) if at_ms < NEVER_MS else (None, None)


def written_bytes_per_s(samples: Sequence[SizeSample]) -> float:
    """By how much a log grew, without what cleanings took away; 0 without two samples."""
    if len(samples) < 2:
        return 0.0
    grown = sum(max(after.size_bytes - before.size_bytes, 0) for before, after in itertools.pairwise(samples))
    return grown * 1000 / max(samples[-1].time_ms - samples[0].time_ms, 1)


def _what_if(parts: Parts, log: LogId, config: TopicConfig) -> tuple[WhatIf, ...]:
    """The recorded growth, cleaned by other rules; that of now first, nothing as long as too little is recorded."""
    samples = parts.store.samples(log, parts.clock.now_ms() - _WHAT_IF_MS)
    if len(samples) < _SAMPLES_MIN:
        return ()
    lasted_ms = samples[-1].time_ms - samples[0].time_ms
    return tuple(
        WhatIf(setting=name, lasted_ms=lasted_ms, **asdict(replay(samples, setting)))
        for name, setting in _settings(config)
    )


def _settings(config: TopicConfig) -> Iterator[tuple[str, CleaningSetting]]:
    now = CleaningSetting(
        config.min_cleanable_dirty_ratio,
        config.max_compaction_lag_ms,
        max(config.segment_bytes, 1),
        config.retention_ms if config.delete else -1,
        config.retention_bytes if config.delete else -1,
    )
    yield "as it is", now
    for ratio in _RATIOS:
        if ratio != now.min_cleanable_dirty_ratio:
            yield f"min.cleanable.dirty.ratio={ratio}", replace(now, min_cleanable_dirty_ratio=ratio)
    if now.max_compaction_lag_ms > _DAY_MS:
        yield f"max.compaction.lag.ms={_DAY_MS}", replace(now, max_compaction_lag_ms=_DAY_MS)
    for size in (now.segment_bytes // 4, now.segment_bytes * 4):
        if 0 < size < 2**31:
            yield f"segment.bytes={size}", replace(now, segment_bytes=size)
    for days in _RETENTION_DAYS if config.delete else ():
        if days * _DAY_MS != now.retention_ms:
            yield f"retention.ms={days * _DAY_MS}", replace(now, retention_ms=days * _DAY_MS)
    if now.retention_bytes > 1:
        for size in (now.retention_bytes // 2, now.retention_bytes * 2):
            yield f"retention.bytes={size}", replace(now, retention_bytes=size)
