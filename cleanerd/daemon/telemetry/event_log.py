"""Everything that happens is recorded here, once: in the history, in the log, and in the metrics."""

import threading
from collections.abc import Callable
from dataclasses import asdict

import structlog

from cleanerd.cleaning.committer import CommittedBy
from cleanerd.cleaning.result import LogResult
from cleanerd.cleaning.retain import Retained
from cleanerd.daemon.store import Store
from cleanerd.daemon.telemetry.event_table import EVENTS
from cleanerd.daemon.values.job import Job
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import HistoryEvent, HistoryEventKind
from cleanerd.env.clock import Clock

Listener = Callable[[HistoryEvent], None]
_log = structlog.get_logger("cleanerd")


class EventLog:
    """Thread-safe. `last` is the newest event of each log, as far as this process has seen one."""

    def __init__(self, history: Store, clock: Clock, listener: Listener = lambda _: None) -> None:
        self._history = history
        self._clock = clock
        self._listener = listener
        self._mutex = threading.Lock()
        self._last: dict[LogId, HistoryEvent] = {}

    def last(self, log: LogId) -> HistoryEvent | None:
        """The newest event of a log."""
        with self._mutex:
            return self._last.get(log)

    def cleaned(self, job: Job, log: LogId, result: LogResult) -> None:
        """A log went through a cleaning: what an earlier one left staged is not what will be committed."""
        fields = asdict(result) | {
            "seconds": round(result.seconds, 3),
            "phase_seconds": {name: round(seconds, 3) for name, seconds in result.phase_seconds.items()},
        }
        self._tell(
            HistoryEvent.model_validate(
                {
                    "time_ms": self._clock.now_ms(),
                    "kind": "cleaning",
                    "outcome": result.outcome,
                    "reason": result.reason,
                    "job_id": job.id,
                    **log.fields(),
                    **{name: fields[name] for name in _MEASURES},
                }
            ),
            log,
            trigger=job.trigger,
            range=[result.first_dirty_offset, result.end_offset],
            mb_per_s=round(result.mb_per_s, 1),
            records_per_s=round(result.records_per_s),
            segments=[result.segments_before, result.segments_after],
            error=result.error,
            index_damage=result.index_damage,
        )

    def committed(self, log: LogId, round_end: int, committed_by: CommittedBy) -> None:
        """A staged result has taken the place of its sources."""
        reason = f"cleaned up to offset {round_end}"
        self.record_log("commit", "committed", log, reason, committed_by=committed_by)

    def dropped(self, log: LogId, reason: str) -> None:
        """A staged result no longer fitted its log."""
        self.record_log("commit", "dropped", log, reason)

    def retained(self, log: LogId, retained: Retained | None, reason: str | None) -> None:
        """Retention took segments from a log, or failed."""
        if retained is None:
            self.record_log("retention", "failed", log, reason)
        else:
            self.record_log("retention", "deleted", log, str(retained), bytes=retained.bytes)

    def record_log(
        self,
        kind: HistoryEventKind,
        outcome: str,
        log: LogId,
        reason: str | None,
        *,
        committed_by: CommittedBy | None = None,
        **more: object,
    ) -> None:
        """Something happened to a log."""
        tp = log.topic_partition
        event = HistoryEvent(
            time_ms=self._clock.now_ms(),
            kind=kind,
            outcome=outcome,
            reason=reason,
            log_dir=log.log_dir,
            topic=tp.topic,
            partition=tp.partition,
            committed_by=committed_by,
        )
        self._tell(event, log, **more)

    def record(self, kind: HistoryEventKind, outcome: str, reason: str | None = None, **more: object) -> None:
        """Something happened to the daemon."""
        self._tell(
            HistoryEvent(time_ms=self._clock.now_ms(), kind=kind, outcome=outcome, reason=reason),
            None,
            **more,
        )

    def _tell(self, event: HistoryEvent, log: LogId | None, **more: object) -> None:
        if log is not None:
            with self._mutex:
                self._last[log] = event
        self._history.record(event)
        self._listener(event)
        fields = event.model_dump(exclude_defaults=True, exclude={"time_ms", "kind"})
        known = {name: value for name, value in more.items() if value is not None}
        say = getattr(_log, EVENTS[event.kind].level_of(event.outcome))
        say(event.kind, **fields, **known)


_MEASURES = (
    "seconds",
    "phase_seconds",
    "bytes_read",
    "bytes_before",
    "bytes_after",
    "records_read",
    "records_kept",
    "removed",
    "committed_by",
)
