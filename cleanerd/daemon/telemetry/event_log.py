"""Records everything that happens, once: in the history and in the log."""

import threading

import structlog

from cleanerd.cleaning.outcomes import Failed
from cleanerd.cleaning.result import LogResult, Step
from cleanerd.daemon.store import Store
from cleanerd.daemon.telemetry.event_table import EVENTS
from cleanerd.daemon.values.job import Job
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import HistoryEvent, HistoryEventKind
from cleanerd.env.clock import Clock
from cleanerd.units import in_utf8

_log = structlog.get_logger("cleanerd")


class EventLog:
    """Thread-safe. `last` is the newest event of each log, as far as this process has seen one."""

    def __init__(self, history: Store, clock: Clock) -> None:
        self._history = history
        self._clock = clock
        self._mutex = threading.Lock()
        self._last: dict[LogId, HistoryEvent] = {}

    def last(self, log: LogId) -> HistoryEvent | None:
        """The newest event of a log since the start; None without one."""
        with self._mutex:
            return self._last.get(log)

    def logs(self) -> set[LogId]:
        """The logs that have had an event since the start."""
        with self._mutex:
            return set(self._last)

    def forget(self, log: LogId) -> None:
        """The log is gone: what comes under its name is another one. The history keeps its events."""
        with self._mutex:
            self._last.pop(log, None)

    def cleaned(self, job: Job, log: LogId, result: LogResult) -> None:
        """Record the result of a cleaning. It replaces an earlier result that is still staged."""
        outcome = result.outcome
        self.record(
            "cleaning",
            log=log,
            job_id=job.id,
            trigger=job.trigger,
            error=outcome.error if isinstance(outcome, Failed) else None,
            index_damage=result.statistics.index_damage,
            **result.fields(),
        )

    def record(
        self,
        kind: HistoryEventKind,
        outcome: str,
        reason: str | None = None,
        log: LogId | None = None,
        **more: object,
    ) -> None:
        """Record an event of a log, or of the daemon. What in `more` is no field of `HistoryEvent` is only logged."""
        known = {name: value for name, value in more.items() if name in HistoryEvent.model_fields}
        text = None if reason is None else in_utf8(reason)  # it may have the name of a file
        known |= {"time_ms": self._clock.now_ms(), "kind": kind, "outcome": outcome, "reason": text}
        event = HistoryEvent.model_validate(known | (log.fields() if log else {}))
        if log is not None:
            with self._mutex:
                self._last[log] = event
        self._history.record(event)
        fields = event.model_dump(exclude_defaults=True, exclude={"time_ms", "kind"})
        fields |= {name: value for name, value in more.items() if name not in known and value is not None}
        getattr(_log, EVENTS[kind].level_of(outcome))(kind, **fields)


def log_step(log_dir: str, step: Step) -> None:
    """A step of a cleaning, at level debug: for whoever has to know at night where a log is and why."""
    log = LogId(log_dir, step.topic_partition)
    _log.debug("cleaning_step", **log.fields(), step=step.name, numbers=dict(step.numbers))
