"""What the control API shows of the parts of the supervisor."""

from cleanerd.daemon.model import LogId
from cleanerd.daemon.operations import LogView, State, ThrottleLimits
from cleanerd.daemon.supervisor import Supervisor
from cleanerd.daemon.throttle import Limit, Throttle
from cleanerd.policy.lifecycle import Status

_UNLIMITED = 1e300
"""Kafka's default rate is the largest double."""


def log_view(daemon: Supervisor, log: LogId) -> LogView:
    """One log. Its dirty ratio is what the files say: an upper bound of the true one."""
    tp, known = log.topic_partition, daemon.inventory.facts(log)
    config = daemon.configuration().topic(tp.topic)
    trouble = daemon.troubles.of(log)
    bound = known.upper_bound(config, daemon.clock.now_ms()) if known is not None and config.compact else None
    state, reason = state_of(daemon, log)
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
        cleanable_bytes=bound.cleanable_bytes if bound else None,
        next_due_ms=trouble.retry_at_ms if trouble else None,
        next_due_why="retry" if trouble and trouble.retry_at_ms else None,
        last=daemon.account.last(log),
        failures=trouble.failures if trouble else 0,
        reason=reason,
        holds=tuple(hold.id for hold in daemon.states.holds() if hold.matches(tp)),
    )


def state_of(daemon: Supervisor, log: LogId) -> tuple[State, str | None]:
    """In one word, and why where that is not plain."""
    status = daemon.states.state(log).status
    busy: dict[Status, State] = {
        Status.IN_PROGRESS: "cleaning", Status.ABORTED: "aborted", Status.PAUSED: "paused",
    }  # fmt: skip
    known, trouble = daemon.inventory.facts(log), daemon.troubles.of(log)
    if log.log_dir in daemon.offline:
        return "offline", daemon.offline[log.log_dir]
    if log in daemon.ignored:
        return "ignored", daemon.ignored[log]
    if status in busy:
        return busy[status], None
    if trouble is not None and trouble.is_uncleanable:
        return "uncleanable", trouble.reason
    if known is not None and known.contents.is_staged:
        return "staged", "waits for the lock of its log directory"
    config = daemon.configuration().topic(log.topic_partition.topic)
    if not config.compact:
        return "ignored", "its cleanup.policy does not contain compact"
    bound = known.upper_bound(config, daemon.clock.now_ms()) if known is not None else None
    reason = trouble.reason if trouble is not None else None
    return ("clean" if bound is None or bound.is_empty else "dirty"), reason


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
