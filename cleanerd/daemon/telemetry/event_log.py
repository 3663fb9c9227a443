"""Everything that happens is recorded here, once: in the history and in the log."""

import threading
from dataclasses import asdict

import structlog

from cleanerd.cleaning.commit_host import CommittedBy
from cleanerd.cleaning.result import LogResult, Step
from cleanerd.daemon.store import Store
from cleanerd.daemon.telemetry.event_table import EVENTS
from cleanerd.daemon.values.job import Job
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import HistoryEvent, HistoryEventKind
from cleanerd.env.clock import Clock

_log = structlog.get_logger("cleanerd")


class EventLog:
    """Thread-safe. `last` is the newest event of each log, as far as this process has seen one."""

    def __init__(self, history: Store, clock: Clock) -> None:
        self._history = history
        self._clock = clock
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
        event = HistoryEvent(
            time_ms=self._clock.now_ms(),
            kind=kind,
            outcome=outcome,
            reason=reason,
            committed_by=committed_by,
            **log.fields(),
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
        fields = event.model_dump(exclude_defaults=True, exclude={"time_ms", "kind"})
        known = {name: value for name, value in more.items() if value is not None}
        say = getattr(_log, EVENTS[event.kind].level_of(event.outcome))
        say(event.kind, **fields, **known)


_MEASURES = (
    "seconds", "phase_seconds", "bytes_read", "bytes_before", "bytes_after", "records_read", "records_kept",
    "removed", "committed_by",
)  # fmt: skip


def log_step(log_dir: str, step: Step) -> None:
    """A step of a cleaning, at level debug: for whoever has to know at night where a log is and why."""
    log = LogId(log_dir, step.topic_partition)
    _log.debug("cleaning_step", **log.fields(), step=step.name, numbers=dict(step.numbers))
