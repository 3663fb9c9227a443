"""What the control API shows of the parts of the supervisor."""

import functools
from collections.abc import Iterable, Iterator

from cleanerd.config.model import TopicConfig
from cleanerd.daemon.inventory.inventory import TopicConfigs
from cleanerd.daemon.inventory.known_log import KnownLog
from cleanerd.daemon.supervisor import Supervisor
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import LogView, State, ThrottleLimits
from cleanerd.daemon.work.throttle import Limit, Throttle
from cleanerd.policy.cleanable import CleanableRange
from cleanerd.policy.lifecycle import Status

_UNLIMITED = 1e300
"""Kafka's default rate is the largest double."""


def log_views(daemon: Supervisor, logs: Iterable[LogId]) -> Iterator[LogView]:
    """Of each log. A dirty ratio is what the files say: an upper bound of the true one."""
    config_of, now_ms = functools.cache(daemon.configuration().topic), daemon.clock.now_ms()
    for log in logs:
        yield _log_view(daemon, log, config_of, now_ms)


def states(daemon: Supervisor, logs: Iterable[LogId]) -> Iterator[State]:
    """Of each log, for less than a whole view of it."""
    config_of, now_ms = functools.cache(daemon.configuration().topic), daemon.clock.now_ms()
    for log in logs:
        bound = daemon.inventory.bound(log, now_ms, config_of)
        yield _state(daemon, log, config_of(log.topic_partition.topic), bound)[0]


def _log_view(daemon: Supervisor, log: LogId, config_of: TopicConfigs, now_ms: int) -> LogView:
    tp, known = log.topic_partition, daemon.inventory.facts(log)
    config, trouble = config_of(tp.topic), daemon.troubles.of(log)
    bound = daemon.inventory.bound(log, now_ms, config_of)
    sizes = _sizes(known, bound) if known is not None and bound is not None else {}
    state, reason = _state(daemon, log, config, bound)
    return LogView(
        topic=tp.topic,
        partition=tp.partition,
        log_dir=log.log_dir,
        state=state,
        policy=",".join(config.cleanup_policy),
        size_bytes=known.contents.size_bytes if known else 0,
        segments=len(known.contents.closed) + 1 if known else 0,
        log_start_offset=known.offsets.log_start if known else None,
        first_dirty_offset=bound.first_dirty_offset if bound else None,
        first_uncleanable_offset=bound.first_uncleanable_offset if bound else None,
        dirty_ratio=bound.dirty_ratio if bound else None,
        clean_bytes=sizes.get("clean"),
        cleanable_bytes=sizes.get("cleanable"),
        uncleanable_bytes=sizes.get("uncleanable"),
        active_bytes=sizes.get("active"),
        next_due_ms=trouble.retry_at_ms if trouble else None,
        next_due_why="retry" if trouble and trouble.retry_at_ms else None,
        last=daemon.account.last(log),
        failures=trouble.failures if trouble else 0,
        reason=reason,
        holds=tuple(hold.id for hold in daemon.states.holds() if hold.matches(tp)),
    )


def _sizes(known: KnownLog, bound: CleanableRange) -> dict[str, int]:
    """Bytes by what they are to the cleaner; they add up to the size of the log."""
    contents = known.contents
    uncleanable = sum(
        segment.facts.size_bytes
        for segment in contents.closed
        if segment.facts.base_offset >= bound.first_uncleanable_offset
    )
    return {
        "clean": contents.size_bytes - contents.active_bytes - uncleanable - bound.cleanable_bytes,
        "cleanable": bound.cleanable_bytes,
        "uncleanable": uncleanable,
        "active": contents.active_bytes,
    }


def _state(
    daemon: Supervisor, log: LogId, config: TopicConfig, bound: CleanableRange | None
) -> tuple[State, str | None]:
    """In one word, and why where that is not plain."""
    known = daemon.inventory.facts(log)
    status, trouble = daemon.states.state(log).status, daemon.troubles.of(log)
    busy: dict[Status, State] = {
        Status.IN_PROGRESS: "cleaning", Status.ABORTED: "aborted", Status.PAUSED: "paused",
    }  # fmt: skip
    if log.log_dir in daemon.offline:
        return "offline", daemon.offline[log.log_dir]
    if log in daemon.ignored:
        return "ignored", daemon.ignored[log]
    if status in busy:
        return busy[status], None
    if trouble is not None and trouble.is_uncleanable:
        return "uncleanable", trouble.reason
    if known is not None and known.contents.is_staged:
        return "staged", _waits_for(daemon.ownership.owner_of(log.log_dir))
    if not config.compact:
        return "ignored", "not compacted: retention only"
    if bound is None and (error := daemon.inventory.errors().get(log)) is not None:
        return "uncleanable", error
    reason = trouble.reason if trouble is not None else None
    return ("clean" if bound is None or bound.is_empty else "dirty"), reason


def _waits_for(owner: int | None) -> str | None:
    return None if owner is None else f"commit waits until process {owner or 'unknown'} releases .lock"


def limits_view(throttle: Throttle) -> ThrottleLimits:
    """Limits in force; no limit is None."""
    limits = {limit: rate if rate < _UNLIMITED else None for limit, rate in throttle.limits().items()}
    return ThrottleLimits(
        io_bytes_per_s=limits[Limit.TOTAL],
        read_bytes_per_s=limits[Limit.READ],
        write_bytes_per_s=limits[Limit.WRITE],
    )


def rates_of(daemon: Supervisor) -> tuple[float, float]:
    """Bytes per second read and written by the jobs that run, on average since they began."""
    read = written = 0.0
    for job in daemon.jobs.running():
        seconds = max((daemon.clock.now_ms() - (job.started_ms or 0)) / 1000, 0.001)
        read += job.read_bytes / seconds
        written += job.written_bytes / seconds
    return read, written
