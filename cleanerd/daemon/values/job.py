"""A cleaning job."""

import uuid
from collections.abc import Sequence
from typing import Any

from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import JobTrigger
from cleanerd.daemon.workers import Worker

_ASKED_FOR_MS = 3_600_000


class Job:
    """One cleaning of one or more logs of a log directory, guarded by its `Jobs`."""

    def __init__(
        self, trigger: JobTrigger, logs: Sequence[LogId], *, force: bool, roll: bool = False
    ) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.trigger: JobTrigger = trigger
        self.logs = tuple(logs)
        self.force = force
        self.roll = roll  # the active segments are closed first
        self.worker: Worker | None = None  # who waits for it, as long as it runs
        self.planned: list[LogId] = []  # in the order in which tasks number them
        self.bytes_total = 0
        self.read_bytes = 0
        self.written_bytes = 0
        self.records = 0
        self.phase: str | None = None
        self.started_ms: int | None = None
        self.moved_ms: int | None = None  # when a task reported last
        self.ended_ms: int | None = None
        self.outcome: str | None = None
        self.reason: str | None = None

    def is_asked_for(self, now_ms: int) -> bool:
        """Whether a client may still ask for the outcome of a job that has ended: it was requested."""
        assert self.ended_ms is not None, "it has ended"
        return self.trigger == "request" and now_ms - self.ended_ms < _ASKED_FOR_MS

    def fields(self) -> dict[str, Any]:
        """Fields that all events of the job share, by the names that history and API use."""
        of_logs = self.logs[0].fields() if len(self.logs) == 1 else {"log_dir": self.logs[0].log_dir}
        return {"job_id": self.id, **of_logs}
