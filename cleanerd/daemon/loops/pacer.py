"""A limit on I/O that follows the neighbours: as high as keeps the pressure of the machine (PSI) below a percentage.

Every two seconds, the kernel's own interval:

1. for which share of them some task waited for I/O, and for a CPU: `/proc/pressure`, the whole machine, in a container, too
2. the next `policy.pace`: halved above the limit, raised step by step below it
3. at least the rate at which all logs that are due meet their max.compaction.lag.ms; that of a late one is unlimited

The other limits of the throttle stay in force: what is moved is bound by the lowest. What cleaning itself makes wait is
part of the pressure, and cannot be separated from the rest.
"""

import math
import re
from dataclasses import dataclass
from typing import Self

import structlog

from cleanerd.daemon.parts import Parts
from cleanerd.daemon.values.models import PressureView
from cleanerd.daemon.workers import Bell, Duty, Worker
from cleanerd.env.files import Files
from cleanerd.policy.deadlines import needed_bytes_per_s
from cleanerd.policy.pace import FREE

_EVERY_S = 2.0
_OFF_S = 3600.0  # a reload ends it
_RESOURCES = ("io", "cpu")
_SOME = re.compile(rb"some .*\btotal=(\d+)")
_log = structlog.get_logger("cleanerd")


@dataclass(frozen=True, slots=True)
class _Counters:
    """Counters at an instant. `waited_us`: for how long some task has waited, by resource."""

    at_s: float
    waited_us: dict[str, int]
    paid_bytes: float

    def percents_since(self, before: Self) -> dict[str, float]:
        """Share of the time in which some task waited."""
        us = (self.at_s - before.at_s) * 1e6
        return {
            name: min(100 * (waited - before.waited_us[name]) / us, 100.0)
            for name, waited in self.waited_us.items()
        }


class Pacer(Duty):
    """`view` is the result of the last round; None while cleanerd.throttle.pressure.max.percent is 0."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._pace = FREE
        self._before: _Counters | None = None
        self.view: PressureView | None = None
        self.bell = Bell()  # rings when it may have been switched on
        self.worker = Worker("cleanerd-pacer", self, self.bell, parts.clock)

    def step(self) -> float:
        """One round."""
        parts = self._parts
        max_percent = parts.configuration().broker.throttle_pressure_max_percent
        if not max_percent:
            self._let_go(None)
            return _OFF_S
        try:
            waited_us = {name: _waited_us(parts.files, name) for name in _RESOURCES}
        except (OSError, ValueError) as error:
            reason = f"not known, only the other limits hold: {error}"
            if self.view is None or self.view.reason != reason:
                _log.warning("pressure_unknown", reason=str(error))
            self._let_go(PressureView(max_percent=max_percent, reason=reason))
            return _EVERY_S
        now = _Counters(parts.clock.monotonic_s(), waited_us, parts.throttle.paid_bytes())
        if self._before is not None and now.at_s > self._before.at_s:
            self._follow(self._before, now, max_percent)
        self._before = now
        return _EVERY_S

    def _follow(self, before: _Counters, now: _Counters, max_percent: int) -> None:
        percents = now.percents_since(before)
        moved_bytes_per_s = (now.paid_bytes - before.paid_bytes) / (now.at_s - before.at_s)
        self._pace = self._pace.after(moved_bytes_per_s, is_over=max(percents.values()) > max_percent)
        reason = f"{_text(percents)} of the time, at most {max_percent} %"
        limit = self._pace.bytes_per_s
        needed = self._needed_bytes_per_s() if limit < math.inf else 0.0
        if needed > limit:
            limit, reason = needed, f"max.compaction.lag.ms needs it: {reason}"
        self._parts.throttle.set_pressure(limit)
        self.view = PressureView(
            max_percent=max_percent,
            percents=percents,
            bytes_per_s=limit if limit < math.inf else None,
            reason=reason,
        )

    def _needed_bytes_per_s(self) -> float:
        parts = self._parts
        works = parts.due_logs.with_deadline(parts.conditions.obstacle_of())
        return needed_bytes_per_s(works, parts.clock.now_ms())

    def _let_go(self, view: PressureView | None) -> None:
        self._pace, self._before, self.view = FREE, None, view
        self._parts.throttle.set_pressure(math.inf)


def _waited_us(files: Files, resource: str) -> int:
    """Raises OSError where the kernel does not count that, ValueError."""
    path = f"/proc/pressure/{resource}"
    found = _SOME.match(files.read(path))
    if found is None:
        raise ValueError(f"{path}: expected `some` with its total")
    return int(found[1])


def _text(percents: dict[str, float]) -> str:
    return ", ".join(f"{name} {percent:.0f} %" for name, percent in percents.items())
