"""Views for the control API: logs, limits, log directories, holds, reloads and mutes."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from cleanerd.cleaning.throttle import RateLimit, Throttle
from cleanerd.daemon.configuration.reload import ReloadOutcome, ReloadStatus
from cleanerd.daemon.inventory.listed_log import ListedLog
from cleanerd.daemon.rules.condition import Condition
from cleanerd.daemon.telemetry.event_log import EventLog
from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import HoldView, LogDirView, LogView, MuteView, ReloadView, ThrottleLimits
from cleanerd.daemon.work.condition import Conditions
from cleanerd.daemon.work.mutes import Mute
from cleanerd.daemon.work.share import share
from cleanerd.env.space import space_of
from cleanerd.policy.cleanable import CleanableRange, non_active_from


@dataclass(frozen=True, slots=True)
class Views:
    """Views of logs, holds and log directories as they are now; thread-safe."""

    conditions: Conditions
    events: EventLog

    def logs(self, logs: Iterable[LogId]) -> Iterator[LogView]:
        """The view of each log. Its dirty ratio is an upper bound, taken from file sizes."""
        for log, condition in self.conditions.all(logs):
            yield self._log(log, condition)

    def _log(self, log: LogId, condition: Condition) -> LogView:
        tp, known = log.topic_partition, self.conditions.inventory.facts(log)
        config, failure = self.conditions.topic_config(log), self.conditions.failures.of(log)
        estimate, is_unknown = (
            self.conditions.due_logs.estimate(log),
            log in self.conditions.states.obstacles.ignored,
        )
        return LogView(
            **log.fields(),
            state=condition.state,
            policy="unknown" if is_unknown else ",".join(config.cleanup_policy),
            size_bytes=known.contents.size_bytes if known else 0,
            segments=len(known.contents.closed) + 1 if known else 0,
            log_start_offset=known.offsets.log_start if known else None,
            **({} if estimate is None else _compaction(estimate.known, estimate.range)),
            next_due_ms=failure.retry_at_ms if failure else None,
            next_due_why="retry" if failure and failure.retry_at_ms else None,
            last=self.events.last(log),
            failures=failure.failures if failure else 0,
            reason=condition.reason,
            holds=tuple(hold.id for hold in self.conditions.states.holds() if hold.matches(tp)),
        )

    def hold(self, hold: Hold) -> HoldView:
        """A hold and the logs that match it now."""
        logs = (str(log) for log in self.conditions.inventory.logs() if hold.matches(log.topic_partition))
        return HoldView(**asdict(hold), logs=tuple(logs))

    def log_dir(self, log_dir: str) -> LogDirView:
        """A log directory: online or not, its owner, and the results that wait in it."""
        reason = self.conditions.states.obstacles.offline.get(log_dir)
        free_bytes, owner, staged = None, None, 0
        if reason is None:
            try:
                free_bytes = space_of(log_dir).free_bytes
                owner = self.conditions.ownership.owner_of(log_dir)
                staged = self.conditions.inventory.staged_bytes_in(log_dir)
            except OSError as error:
                reason = str(error)
        way, found = self.conditions.ownership.way(log_dir), share(self.conditions, log_dir)
        return LogDirView(
            path=log_dir,
            online=reason is None,
            reason=reason,
            free_bytes=free_bytes,
            dirty_bytes=self.conditions.due_logs.dirty_bytes(log_dir),
            staged_bytes=staged,
            lock_owner_pid=owner or None,
            broker_is_live=way.committed_by != "lock",
            committed_by=way.committed_by,
            swap_reason=way.reason,
            cleans=found.cleans,
            leaves=found.leaves,
            share=found.text if reason is None else None,
        )


def _compaction(known: ListedLog, bound: CleanableRange) -> dict[str, Any]:
    """Fields of a `LogView` about the dirty section of a compacted log."""
    dirty = non_active_from(known.facts({}).segments, bound.first_dirty_offset)
    since_ms = dirty[0].largest_timestamp_ms if dirty else 0
    return {
        "first_dirty_offset": bound.first_dirty_offset,
        "first_uncleanable_offset": bound.first_uncleanable_offset,
        "dirty_ratio": 0.0 if bound.is_empty else bound.dirty_ratio,
        "dirty_ratio_exact": bound.is_empty,
        "dirty_since_ms": since_ms if since_ms > 0 else None,
        **_sizes(known, bound),
    }


def _sizes(known: ListedLog, bound: CleanableRange) -> dict[str, Any]:
    """Bytes of a log in four parts, which add up to its size."""
    contents = known.contents
    uncleanable = sum(
        segment.facts.size_bytes
        for segment in contents.closed
        if segment.facts.base_offset >= bound.first_uncleanable_offset
    )
    return {
        "clean_bytes": contents.size_bytes - contents.active_bytes - uncleanable - bound.cleanable_bytes,
        "cleanable_bytes": bound.cleanable_bytes,
        "uncleanable_bytes": uncleanable,
        "active_bytes": contents.active_bytes,
    }


def limits_view(throttle: Throttle) -> ThrottleLimits:
    """Limits in force; no limit is None."""
    limits = {limit: rate if math.isfinite(rate) else None for limit, rate in throttle.limits().items()}
    return ThrottleLimits(
        io_bytes_per_s=limits[RateLimit.TOTAL],
        read_bytes_per_s=limits[RateLimit.READ],
        write_bytes_per_s=limits[RateLimit.WRITE],
    )


def reload_view(outcome: ReloadOutcome | None, success_ms: int) -> ReloadView:
    """A reload, or the start at `success_ms` when there was none."""
    if outcome is None:
        return ReloadView(applied=True, time_ms=success_ms)
    plan = outcome.plan
    topics = (
        [f"{topic}: {change}" for topic, changes in plan.topics.items() for change in changes] if plan else []
    )
    return ReloadView(
        applied=outcome.status is not ReloadStatus.REJECTED,
        time_ms=outcome.at_ms,
        changed=(*map(str, plan.changes), *topics) if plan else (),
        problems=outcome.problems,
    )


def mute_view(mute: Mute) -> MuteView:
    """A topic that the brokers' own cleaners are kept away from."""
    return MuteView(topic=mute.topic, since_ms=mute.since_ms)
