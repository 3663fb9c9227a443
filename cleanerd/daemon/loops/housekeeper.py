"""Work that only the clock triggers: deletions, expired holds, idle engines, scratch files of killed sessions, history."""

import structlog
from pydantic import TypeAdapter

from cleanerd.daemon.parts import Parts
from cleanerd.daemon.store import HOLD, MAX_BYTES, MUTE
from cleanerd.daemon.work.deletions import Deleted
from cleanerd.daemon.work.mutes import Mute
from cleanerd.daemon.workers import Bell, Worker
from cleanerd.spark_runtime.scratch import sweep_those_of

_PAUSE_S = 1.0
_PRUNE_S = 600.0
_SWEEP_S = 60.0
_log = structlog.get_logger("cleanerd")


class Housekeeper:
    """Once a second."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._pruned_s = parts.clock.monotonic_s()
        self._swept_s = -_SWEEP_S
        self.worker = Worker("cleanerd-housekeeper", self.step, Bell(), parts.clock)

    def step(self) -> float:
        """One round."""
        now_ms = self._parts.clock.now_ms()
        self._delete(now_ms)
        self._renew_leases()
        self._end_holds(now_ms)
        self._stop_idle_engines()
        self._sweep_scratch()
        self._parts.store.save()
        self._prune_history(now_ms)
        return _PAUSE_S

    def _delete(self, now_ms: int) -> None:
        parts = self._parts
        is_coming = any(map(parts.ownership.is_yielding, parts.log_dirs))  # a broker
        deleted = Deleted() if is_coming else parts.deletions.run_due(now_ms)
        if deleted.files or deleted.failures:
            failures = {path: str(error) for path, error in deleted.failures.items()}
            _log.info("deleted_files", files=deleted.files, bytes=deleted.bytes, failures=failures or None)

    def _renew_leases(self) -> None:
        mutes = self._parts.store.all(MUTE, TypeAdapter(Mute).validate_python).values()
        self._parts.leases.renew_if_due({mute.topic for mute in mutes})

    def _end_holds(self, now_ms: int) -> None:
        parts = self._parts
        for hold in parts.states.expire(now_ms):
            parts.store.delete(HOLD, hold.id)
            reason = f"hold {hold.id} of {hold.owner} on {hold.pattern} ({hold.reason}) was never released"
            parts.events.record("control", "expired", reason)
            parts.work_bell.ring()

    def _stop_idle_engines(self) -> None:
        idle_ms = self._parts.configuration().broker.spark_idle_timeout_ms
        for engine in (self._parts.engine, self._parts.express_engine):
            if engine.stop_if_idle(idle_ms):
                _log.info("engine_stopped", reason="idle")

    def _sweep_scratch(self) -> None:
        now_s = self._parts.clock.monotonic_s()
        if now_s - self._swept_s >= _SWEEP_S:
            self._swept_s = now_s
            sweep_those_of(dict(self._parts.configuration().broker.spark_conf))

    def _prune_history(self, now_ms: int) -> None:
        now_s = self._parts.clock.monotonic_s()
        if now_s - self._pruned_s > _PRUNE_S:
            self._pruned_s = now_s
            self._parts.store.prune(now_ms, MAX_BYTES)
