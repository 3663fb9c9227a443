"""Commit staged results where no broker holds the log directory."""

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.parameters import Pattern, WaitMs
from cleanerd.daemon.api.refusals import Timeout, Unavailable
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import CommitView
from cleanerd.storage.log_dir import Owner

_POLL_S = 0.1


def commit(control: Control, pattern: Pattern | None = None, wait_ms: WaitMs = 0) -> tuple[CommitView, ...]:
    """Commit staged results; wait up to `wait_ms` for locks. A result that is still locked then is `waiting`, which is no
    error.

    Waiting without a pattern announces the start of a broker: no lock is taken in its log directories until the broker
    holds it, for a minute at most.
    """
    parts, now = control.parts, control.parts.clock.monotonic_s
    deadline_s, is_start = now() + wait_ms / 1000, wait_ms > 0 and pattern is None
    _wait_until_ready(control, deadline_s)
    control.supervisor.scanner.scan()
    logs = control.matching(pattern) if pattern is None else control.some(pattern)
    staged = set(parts.inventory.staged())
    views: dict[tuple[str, int, str], CommitView] = {}
    waiting = [log for log in logs if log in staged]
    while waiting:
        if is_start:
            _make_way(control)
        for view in parts.commits.try_all(waiting, lambda _: not wait_ms or now() < deadline_s):
            views[view.topic, view.partition, view.log_dir] = view
        waiting = [log for log in waiting if views[_key(log)].outcome == "waiting"]
        if not waiting or now() >= deadline_s or parts.life.stopping.wait(_POLL_S):
            break
    if is_start:
        _make_way(control)
    control.supervisor.scanner.scan()
    return tuple(views.values())


def _key(log: LogId) -> tuple[str, int, str]:
    return log.topic_partition.topic, log.topic_partition.partition, log.log_dir


def _wait_until_ready(control: Control, deadline_s: float) -> None:
    """Wait until the first scan has found the staged results. Raises `Timeout`, `Unavailable`."""
    life = control.parts.life
    while not life.is_ready:
        if life.stopping.is_set():
            raise Unavailable("the daemon is stopping")
        if control.parts.clock.monotonic_s() >= deadline_s:
            raise Timeout("the daemon is not ready yet: it recovers what was interrupted and looks for logs")
        life.stopping.wait(_POLL_S)


def _make_way(control: Control) -> None:
    """Keep the directories of stopped brokers free of our locks, because a broker is about to start."""
    ownership = control.parts.ownership
    for log_dir in control.parts.log_dirs:
        if ownership.owner(log_dir) in (Owner.STOPPED_BROKER, Owner.BROKER_COMING):
            ownership.yield_to_broker(log_dir)
