"""Show the state of the daemon and its running jobs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping

from cleanerd import __version__
from cleanerd.daemon.api.verb import Endpoint, Verb, daemon
from cleanerd.daemon.api.verbs.throttle import throttle


def status(control: daemon.Control) -> daemon.StatusView:
    """The daemon as a whole; answers at once, also while it starts."""
    parts = control.parts
    unseen = control.supervisor.scanner.watcher.problems()
    full = parts.obstacles.full
    running = tuple(one for one in parts.jobs.views() if one.state == "running")
    return daemon.StatusView(
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
        configuration=daemon.reload_view(control.reloader.last, control.reloader.last_success_ms),
        holds=len(parts.states.holds()),
        warnings=(
            *parts.configuration().warnings,
            *(f"{path}: {why}" for path, why in unseen.items()),
            *(f"nothing is cleaned in {path}: {why}" for path, why in full.items()),
            *_given_back(parts.lease_duty.given_back),
        ),
        muted=tuple(map(daemon.mute_view, control.mutes.all())),
        running=running,
    )


def _given_back(reasons: Mapping[daemon.LogId, str]) -> Iterator[str]:
    """One line, with the first of them."""
    if reasons:
        log = min(reasons)
        others = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        yield f"muted and given back to the broker's cleaner: {log} ({reasons[log]}){others}"


_STATUS = Endpoint("GET", "/v1/status", "status", status)
VERB = Verb("status", __doc__, (_STATUS,), examples=("status", "status --watch 2s"), is_look=True)
