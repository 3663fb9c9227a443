"""The daemon in one line, for `systemctl status`."""

from cleanerd.daemon.configuration.reload import Reloader
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.condition import Condition

_PAUSE_S = 3.0
_AT_LATEST_S = 60.0


class StatusLine:
    """Updated only when a scan or a cleaning has changed something, and not too often: with many logs that takes a while."""

    def __init__(self, parts: Parts, reloader: Reloader) -> None:
        self._parts = parts
        self._reloader = reloader
        self._basis: tuple[object, ...] = ()
        self._made_s = 0.0
        self._text = ""

    def text(self) -> str:
        """Like `12/340 partitions dirty, dirtiest foo-3 71 %`; ratios are upper bounds, as `cleanerctl logs` has them."""
        parts, now_s = self._parts, self._parts.clock.monotonic_s()
        if self._text and now_s - self._made_s < _PAUSE_S:
            return self._text
        given_up = sum(failure.is_uncleanable for failure in parts.failures.all())
        offline, is_rejected = len(parts.obstacles.offline), self._reloader.is_rejected
        # time alone makes logs dirtier, and no bell rings when one has vanished
        minute = now_s // _AT_LATEST_S
        basis = (minute, parts.work_bell.rings(), given_up, offline, is_rejected)
        if basis != self._basis:
            self._basis, self._made_s = basis, now_s
            conditions = dict(parts.conditions.all(parts.inventory.logs()))
            uncleanable = sum(condition.state == "uncleanable" for condition in conditions.values())
            text = [self._dirty(conditions)]
            text += [f"{uncleanable} uncleanable"] if uncleanable else []
            text += [f"{offline} log directories offline"] if offline else []
            text += ["the last reload was rejected, see the log"] if is_rejected else []
            self._text = "; ".join(text)
        return self._text

    def _dirty(self, conditions: dict[LogId, Condition]) -> str:
        ratios: dict[LogId, float] = {}
        for log, condition in conditions.items():
            found = self._parts.due_logs.estimate(log) if condition.state == "dirty" else None
            if found is not None:
                ratios[log] = found.range.dirty_ratio
        cleanable = sum(condition.state not in ("retained", "ignored") for condition in conditions.values())
        counted = f"{len(ratios)}/{cleanable} partitions dirty"
        if not ratios:
            return counted
        dirtiest = max(ratios, key=lambda log: ratios[log])
        return f"{counted}, dirtiest {dirtiest} {100 * ratios[dirtiest]:.0f} %"
