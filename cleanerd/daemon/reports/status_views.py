"""What the control API shows of log directories, holds, reloads and mutes."""

from dataclasses import asdict

from cleanerd.daemon.configuration.reload import ReloadOutcome, ReloadStatus
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.values.models import HoldView, LogDirView, MuteView, ReloadView
from cleanerd.daemon.work.holds import Hold
from cleanerd.daemon.work.mutes import Mute
from cleanerd.env.space import space_of


def hold_view(parts: Parts, hold: Hold) -> HoldView:
    """A hold and the logs that match it now."""
    logs = (str(log) for log in parts.inventory.logs() if hold.matches(log.topic_partition))
    return HoldView(**asdict(hold), logs=tuple(logs))


def log_dir_view(parts: Parts, log_dir: str) -> LogDirView:
    """A log directory: whether it works, whose it is, what waits in it."""
    reason = parts.obstacles.offline.get(log_dir)
    free_bytes, owner, staged = None, None, 0
    if reason is None:
        try:
            free_bytes = space_of(log_dir).free_bytes
            owner = parts.ownership.owner_of(log_dir)
            staged = parts.commits.staged_bytes(log_dir)
        except OSError as error:
            reason = str(error)
    way = parts.ownership.way(log_dir)
    return LogDirView(
        path=log_dir,
        online=reason is None,
        reason=reason,
        free_bytes=free_bytes,
        staged_bytes=staged,
        lock_owner_pid=owner or None,
        broker_is_live=way.committed_by != "lock",
        committed_by=way.committed_by,
        swap_reason=way.reason,
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
    return MuteView(
        topic=mute.topic,
        prior_ratio=mute.prior,
        since_ms=mute.since_ms,
        confirmed=mute.is_confirmed,
        by_lease=mute.by_lease,
    )
