"""The daemon in one line, for `systemctl status`."""

from cleanerd.daemon.configuration.reload import Reloader, ReloadStatus
from cleanerd.daemon.supervisor import Supervisor
from cleanerd.daemon.values.log_id import LogId

_PAUSE_S = 3.0
_AT_LATEST_S = 60.0


class StatusLine:
    """Made anew only when a scan or a cleaning has changed something, and not too often: with many logs it takes a while."""

    def __init__(self, supervisor: Supervisor, reloader: Reloader) -> None:
        self._supervisor = supervisor
        self._reloader = reloader
        self._basis: tuple[object, ...] = ()
        self._made_s = 0.0
        self._text = ""

    def text(self) -> str:
        """Like `12/340 partitions dirty, dirtiest foo-3 71 %`; ratios are upper bounds, as `cleanerctl logs` has them."""
        daemon, now_s = self._supervisor, self._supervisor.clock.monotonic_s()
        if self._text and now_s - self._made_s < _PAUSE_S:
            return self._text
        uncleanable = sum(trouble.is_uncleanable for trouble in daemon.troubles.all())
        last = self._reloader.last
        is_rejected = last is not None and last.status is ReloadStatus.REJECTED
        minute = now_s // _AT_LATEST_S  # time alone makes logs dirtier, and nobody says when one has vanished
        basis = (minute, daemon.bell.rings(), uncleanable, len(daemon.offline), is_rejected)
        if basis != self._basis:
            self._basis, self._made_s = basis, now_s
            parts = [self._dirty()]
            parts += [f"{uncleanable} uncleanable"] if uncleanable else []
            parts += [f"{len(daemon.offline)} log directories offline"] if daemon.offline else []
            parts += ["the last reload was rejected, see the log"] if is_rejected else []
            self._text = "; ".join(parts)
        return self._text

    def _dirty(self) -> str:
        ratios = self._ratios()
        dirty = {log: ratio for log, ratio in ratios.items() if ratio > 0}
        counted = f"{len(dirty)}/{len(ratios)} partitions dirty"
        if not dirty:
            return counted
        dirtiest = max(dirty, key=lambda log: dirty[log])
        return f"{counted}, dirtiest {dirtiest} {100 * dirty[dirtiest]:.0f} %"

    def _ratios(self) -> dict[LogId, float]:
        """Dirty ratio of every log that is compacted; 0 where nothing can be cleaned."""
        daemon, now_ms = self._supervisor, self._supervisor.clock.now_ms()
        configuration, ratios = daemon.configuration(), {}
        for log in daemon.inventory.logs():
            config, known = configuration.topic(log.topic_partition.topic), daemon.inventory.facts(log)
            if known is not None and config.compact and log not in daemon.ignored:
                found = known.upper_bound(config, now_ms)
                ratios[log] = 0.0 if found.is_empty else found.dirty_ratio
        return ratios
