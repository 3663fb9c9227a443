"""Report the state of the daemon."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping

from cleanerd import __version__
from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.verbs.throttle import throttle
from cleanerd.daemon.reports.views import mute_view, reload_view
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import StatusView


def status(control: Control) -> StatusView:
    """The daemon as a whole; answers at once, also while it starts."""
    parts = control.parts
    unseen = control.supervisor.scanner.watcher.problems()
    full = parts.obstacles.full
    running = tuple(one for one in parts.jobs.views() if one.state == "running")
    return StatusView(
        version=__version__,
        pid=os.getpid(),
        uptime_s=parts.clock.monotonic_s() - parts.life.started_s,
        ready=parts.life.is_ready,
        log_dirs=tuple(map(control.views.log_dir, parts.log_dirs)),
        logs_by_state=Counter(one.state for _, one in parts.conditions.all(parts.inventory.logs())),
        workers_busy=len(running),
        workers_total=len(control.supervisor.cleaners.workers.all()) - 1,  # the express one is extra
        spark_session_up=parts.engine.pid is not None,
        throttle=throttle(control),
        configuration=reload_view(control.reloader.last, control.reloader.last_success_ms),
        holds=len(parts.states.holds()),
        warnings=(
            *parts.configuration().warnings,
            *(f"{path}: {why}" for path, why in unseen.items()),
            *(f"nothing is cleaned in {path}: {why}" for path, why in full.items()),
            *_given_back(parts.lease_duty.given_back),
        ),
        muted=tuple(map(mute_view, control.mutes.all())),
        running=running,
    )


def _given_back(reasons: Mapping[LogId, str]) -> Iterator[str]:
    """A warning about leases that were given back: the first log, its reason, and the number of others."""
    if reasons:
        log = min(reasons)
        others = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        yield f"muted and given back to the broker's cleaner: {log} ({reasons[log]}){others}"
