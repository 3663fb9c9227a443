"""Work that only the clock triggers: brokers that come and go, deletions, expired holds, idle engines, scratch files
of killed sessions, history.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from cleanerd.daemon.engine.client import Engine
from cleanerd.daemon.store import HOLD, MAX_BYTES, Store
from cleanerd.daemon.telemetry.event_log import EventLog
from cleanerd.daemon.work.cleaner_leases import CleanerLeases
from cleanerd.daemon.work.condition import Conditions
from cleanerd.daemon.work.deletions import Deleted, PendingDeletions
from cleanerd.daemon.work.mutes import Mutes
from cleanerd.daemon.workers import Bell
from cleanerd.spark_runtime.scratch import sweep_those_of

_PAUSE_S = 1.0
_PRUNE_S = 600.0
_SWEEP_S = 60.0
_log = structlog.get_logger("cleanerd")


@dataclass
class Housekeeper:
    """Once a second."""

    log_dirs: Sequence[str]
    conditions: Conditions
    deletions: PendingDeletions
    leases: CleanerLeases
    mutes: Mutes
    store: Store
    events: EventLog
    engines: Sequence[Engine]
    work_bell: Bell

    def __post_init__(self) -> None:
        self._clock = self.conditions.clock
        self._pruned_s = self._clock.monotonic_s()
        self._swept_s = -_SWEEP_S

    def step(self) -> float:
        """One round."""
        now_ms = self._clock.now_ms()
        self.conditions.ownership.observe(self.log_dirs)
        self._delete(now_ms)
        self.leases.renew_if_due(self.mutes.topics())
        self._end_holds(now_ms)
        self._stop_idle_engines()
        self._sweep_scratch()
        self.store.save()
        self._prune_history(now_ms)
        return _PAUSE_S

    def _delete(self, now_ms: int) -> None:
        is_coming = any(map(self.conditions.ownership.is_yielding, self.log_dirs))  # a broker
        deleted = Deleted() if is_coming else self.deletions.run_due(now_ms)
        if deleted.files or deleted.failures:
            failures = {path: str(error) for path, error in deleted.failures.items()}
            _log.info("deleted_files", files=deleted.files, bytes=deleted.bytes, failures=failures or None)

    def _end_holds(self, now_ms: int) -> None:
        for hold in self.conditions.states.expire(now_ms):
            self.store.delete(HOLD, hold.id)
            reason = f"hold {hold.id} of {hold.owner} on {hold.pattern} ({hold.reason}) was never released"
            self.events.record("control", "expired", reason)
            self.work_bell.ring()

    def _stop_idle_engines(self) -> None:
        idle_ms = self.conditions.configuration().broker.spark_idle_timeout_ms
        for engine in self.engines:
            if engine.stop_if_idle(idle_ms):
                _log.info("engine_stopped", reason="idle")

    def _sweep_scratch(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._swept_s >= _SWEEP_S:
            self._swept_s = now_s
            sweep_those_of(dict(self.conditions.configuration().broker.spark_conf))

    def _prune_history(self, now_ms: int) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._pruned_s > _PRUNE_S:
            self._pruned_s = now_s
            self.store.prune(now_ms, MAX_BYTES)
