"""A limit on I/O that follows the neighbours. It is as high as keeps the pressure of the machine (PSI) below a percentage,
and the wait of requests in the queue of a running broker below a limit.

Every two seconds, the kernel's own interval:

1. for which share of them some task waited for I/O, and for a CPU: `/proc/pressure`, the whole machine, in a container, too;
   how long requests waited on average: each broker's agent
2. the next `policy.pace`: halved above a limit, raised step by step below all
3. at least the rate at which all logs that are due meet their max.compaction.lag.ms; that of a late one is unlimited

The other limits of the throttle stay in force: what is moved is bound by the lowest. What cleaning itself makes wait is
part of the pressure, and cannot be separated from the rest.
"""

import contextlib
import math
import re
from dataclasses import dataclass

import structlog

from cleanerd.broker_agent.live_logs import RequestQueue
from cleanerd.config.model import CleanerdConfig
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.values.models import PressureView
from cleanerd.daemon.workers import Bell, Worker
from cleanerd.env.files import Files
from cleanerd.errors import DirOffline, NoWayIn
from cleanerd.policy.deadlines import needed_bytes_per_s
from cleanerd.policy.pace import FREE
from cleanerd.storage.log_dir import Owner

_EVERY_S = 2.0
_OFF_S = 3600.0  # a reload ends it
_RESOURCES = ("io", "cpu")
_SOME = re.compile(rb"some .*\btotal=(\d+)")
_log = structlog.get_logger("cleanerd")


@dataclass(frozen=True, slots=True)
class _Counters:
    """Counters at an instant. `waited_us`: for how long some task has waited, by resource; `queues`: by log directory."""

    at_s: float
    waited_us: dict[str, int]
    queues: dict[str, RequestQueue]
    paid_bytes: float


class Pacer:
    """`view` is the result of the last round; None while neither limit is set."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._pace = FREE
        self._before: _Counters | None = None
        self._unknown: str | None = None  # why the pressure is not known
        self.view: PressureView | None = None
        self.bell = Bell()  # rings when it may have been switched on
        self.worker = Worker("cleanerd-pacer", self.step, self.bell, parts.clock)

    def step(self) -> float:
        """One round."""
        parts = self._parts
        config = parts.configuration().broker
        if not (config.throttle_pressure_max_percent or config.throttle_request_queue_max_ms):
            self._pace, self._before, self._unknown, self.view = FREE, None, None, None
            parts.throttle.set_pressure(math.inf)
            return _OFF_S
        waited_us = self._pressure() if config.throttle_pressure_max_percent else {}
        queues = self._queues() if config.throttle_request_queue_max_ms else {}
        now = _Counters(parts.clock.monotonic_s(), waited_us, queues, parts.throttle.paid_bytes())
        if self._before is not None and now.at_s > self._before.at_s:
            self._follow(self._before, now, config)
        self._before = now
        return _EVERY_S

    def _pressure(self) -> dict[str, int]:
        """For how long some task has waited, by resource; empty where the kernel does not count that: logged once."""
        try:
            found = {name: _waited_us(self._parts.files, name) for name in _RESOURCES}
        except (OSError, ValueError) as error:
            if self._unknown != str(error):
                _log.warning("pressure_unknown", reason=str(error))
            self._unknown = str(error)
            return {}
        self._unknown = None
        return found

    def _queues(self) -> dict[str, RequestQueue]:
        """Those of running brokers that answer; `broker check` and `status` show why one does not."""
        parts, found = self._parts, dict[str, RequestQueue]()
        for log_dir in parts.log_dirs:
            if parts.ownership.owner(log_dir) is Owner.LIVE_BROKER:
                with contextlib.suppress(NoWayIn, DirOffline):
                    found[log_dir] = RequestQueue.of(parts.brokers.session(log_dir))
        return found

    def _follow(self, before: _Counters, now: _Counters, config: CleanerdConfig) -> None:
        """What is not known holds nothing back."""
        passed_s, waited_us = now.at_s - before.at_s, now.waited_us if before.waited_us else {}
        percents = {
            name: min(100 * (waited - before.waited_us[name]) / (passed_s * 1e6), 100.0)
            for name, waited in waited_us.items()
        }
        asked_twice = now.queues.keys() & before.queues.keys()
        waits_ms = (now.queues[path].mean_ms_since(before.queues[path]) for path in asked_twice)
        queue_ms = max(waits_ms, default=None)  # in the broker where it is longest
        max_percent, max_ms = config.throttle_pressure_max_percent, config.throttle_request_queue_max_ms
        is_over = max(percents.values(), default=0.0) > max_percent or (queue_ms or 0.0) > max_ms
        moved_bytes_per_s = (now.paid_bytes - before.paid_bytes) / passed_s
        self._pace = self._pace.after(moved_bytes_per_s, is_over=is_over)
        reasons = []
        if percents:
            shares = ", ".join(f"{name} {percent:.0f} %" for name, percent in percents.items())
            reasons.append(f"{shares} of the time, at most {max_percent} %")
        elif max_percent:
            reasons.append(f"pressure is not known: {self._unknown or 'this is the first look'}")
        if max_ms:
            waited = "no broker answers" if queue_ms is None else f"requests wait {queue_ms:.1f} ms"
            reasons.append(f"{waited}, at most {max_ms} ms")
        reason = "; ".join(reasons)
        limit = self._pace.bytes_per_s
        needed = self._needed_bytes_per_s() if limit < math.inf else 0.0
        if needed > limit:
            limit, reason = needed, f"max.compaction.lag.ms needs it: {reason}"
        self._parts.throttle.set_pressure(limit)
        self.view = PressureView(
            max_percent=max_percent,
            percents=percents,
            request_queue_max_ms=max_ms,
            request_queue_ms=queue_ms,
            bytes_per_s=limit if limit < math.inf else None,
            reason=reason,
        )

    def _needed_bytes_per_s(self) -> float:
        parts = self._parts
        works = parts.due_logs.with_deadline(parts.conditions.obstacle_of())
        return needed_bytes_per_s(works, parts.clock.now_ms())


def _waited_us(files: Files, resource: str) -> int:
    """Raises OSError where the kernel does not count that, ValueError."""
    path = f"/proc/pressure/{resource}"
    found = _SOME.match(files.read(path))
    if found is None:
        raise ValueError(f"{path}: expected `some` with its total")
    return int(found[1])
