"""The daemon in one line, for `systemctl status`."""

from cleanerd.daemon.configuration.reload import Reloader
from cleanerd.daemon.rules.condition import Condition
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.condition import Conditions
from cleanerd.daemon.workers import Bell
from cleanerd.units import counted

_PAUSE_S = 3.0
_AT_LATEST_S = 60.0


class StatusLine:
    """Made again only after a scan or a cleaning, and at most every three seconds: it looks at every log."""

    def __init__(self, conditions: Conditions, work_bell: Bell, reloader: Reloader) -> None:
        self._conditions = conditions
        self._work_bell = work_bell
        self._reloader = reloader
        self._basis: tuple[object, ...] = ()
        self._made_s = 0.0
        self._text = ""

    def text(self) -> str:
        """Like `12/340 partitions dirty, dirtiest foo-3 71 %`; ratios are upper bounds, as `cleanerctl logs` has them."""
        known, now_s = self._conditions, self._conditions.clock.monotonic_s()
        if self._text and now_s - self._made_s < _PAUSE_S:
            return self._text
        given_up = sum(failure.is_uncleanable for failure in known.failures.all())
        offline, is_rejected = len(known.states.obstacles.offline), self._reloader.is_rejected
        # time alone makes logs dirtier, and no bell rings when one has vanished
        minute = now_s // _AT_LATEST_S
        basis = (minute, self._work_bell.rings(), given_up, offline, is_rejected)
        if basis != self._basis:
            self._basis, self._made_s = basis, now_s
            conditions = dict(known.all(known.inventory.logs()))
            uncleanable = sum(condition.state == "uncleanable" for condition in conditions.values())
            text = [self._dirty(conditions)]
            text += [f"{uncleanable} uncleanable"] if uncleanable else []
            text += [f"{counted(offline, 'log directory')} offline"] if offline else []
            text += ["the last reload was rejected, see the log"] if is_rejected else []
            self._text = "; ".join(text)
        return self._text

    def _dirty(self, conditions: dict[LogId, Condition]) -> str:
        ratios: dict[LogId, float] = {}
        for log, condition in conditions.items():
            found = self._conditions.due_logs.estimate(log) if condition.state == "dirty" else None
            if found is not None:
                ratios[log] = found.range.dirty_ratio
        cleanable = sum(condition.state not in ("retained", "ignored") for condition in conditions.values())
        counted = f"{len(ratios)}/{cleanable} partitions dirty"
        if not ratios:
            return counted
        dirtiest = max(ratios, key=lambda log: ratios[log])
        return f"{counted}, dirtiest {dirtiest} {100 * ratios[dirtiest]:.0f} %"
