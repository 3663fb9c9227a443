"""What follows from the recovery of a partition directory: counters, pending deletions, an event for a failure."""

import os
from collections.abc import Callable

import structlog

from cleanerd.daemon.telemetry.event_log import EventLog
from cleanerd.daemon.telemetry.metrics import Metrics
from cleanerd.daemon.work.deletions import PendingDeletions
from cleanerd.errors import CleanerdError
from cleanerd.storage.log_dir import Recovered

_log = structlog.get_logger("cleanerd")


class Recoveries:
    """`progressed` is called after each directory, so that a slow start can report progress."""

    def __init__(
        self, events: EventLog, deletions: PendingDeletions, metrics: Metrics, progressed: Callable[[], None]
    ) -> None:
        self._events = events
        self._deletions = deletions
        self._metrics = metrics
        self._progressed = progressed

    def record(self, log_dir: str, one: Recovered) -> None:
        """A directory of this log directory was recovered, or for a reason was not."""
        for action in one.actions:
            self._metrics.recovered(log_dir, action)
        self._progressed()
        directory = os.path.join(log_dir, one.name)
        if one.reason is not None:
            self._events.record("recovery", "failed", f"{directory}: {one.reason}")
        try:
            self._deletions.adopt(directory)
        except (CleanerdError, OSError) as error:
            _log.warning("leftovers_not_read", directory=directory, reason=str(error))
