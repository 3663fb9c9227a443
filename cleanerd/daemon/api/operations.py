"""What an operator can ask of the daemon: the verbs, and the errors with which they refuse.

The control API (control_server.py) turns the answers (values/models.py) into JSON; `service.py` implements `Operations`.
Which logs a pattern means is in values/patterns.py. A partition can lie in two log directories while it moves: verbs that
take one answer with a value for each directory.

A verb that cannot be carried out raises one of the errors below; the message says what to do next.
"""

from collections.abc import Collection
from typing import Protocol

from cleanerd.daemon.values.models import (
    CommitView,
    DeletedRecords,
    Explanation,
    Forecast,
    HistoryEvent,
    HistoryEventKind,
    HoldView,
    JobView,
    LogRef,
    LogState,
    LogView,
    MuteView,
    ReloadView,
    RetentionView,
    StatusView,
    ThrottleChange,
    ThrottleView,
)
from cleanerd.errors import CleanerdError
from cleanerd.format.names import TopicPartition

MAX_WAIT_MS = 60_000
"""Longest that one request may block; who wants to wait longer asks again."""


class OperationError(CleanerdError):
    """An operation that was not done; `status` is that of HTTP, `code` what programs look at."""

    status = 500
    code = "failed"


class Invalid(OperationError):
    """The parameters make no sense."""

    status, code = 400, "invalid"


class NotFound(OperationError):
    """There is no such log, job or hold."""

    status, code = 404, "not_found"


class Conflict(OperationError):
    """It cannot be done as things stand, for example because a live broker owns the directory; later it may."""

    status, code = 409, "conflict"


class Unavailable(OperationError):
    """The daemon is starting, stopping, or short of something."""

    status, code = 503, "unavailable"


class Timeout(OperationError):
    """What was waited for has not happened within the time limit."""

    status, code = 504, "timeout"


class Operations(Protocol):
    """The verbs. Every one may be called from any thread and raises `OperationError`s only.

    A verb that names logs raises `NotFound` when there is none. One that waits raises `Timeout` at its limit
    (`timeout_ms`, at most `MAX_WAIT_MS`) and `Unavailable` as soon as the daemon stops.

    The control API calls them by name with keyword arguments, and takes the first paragraph of a docstring as help.
    """

    def status(self) -> StatusView:
        """The daemon as a whole; answers at once, also while it starts."""
        ...

    def logs(self, pattern: str | None, state: LogState | None) -> tuple[LogView, ...]:
        """Every log that matches, in order of name; nothing found is an empty answer here."""
        ...

    def log(self, topic_partition: TopicPartition) -> tuple[LogView, ...]:
        """One partition, in each log directory that has it."""
        ...

    def clean(self, pattern: str, force: bool) -> tuple[JobView, ...]:
        """Clean now. `force` ignores the dirty ratio, never a safety bound.

        A log that is being cleaned already answers its job. Raises `Conflict` when every log that matches is held or may
        not be cleaned at all.
        """
        ...

    def jobs(self) -> tuple[JobView, ...]:
        """Jobs that are queued or run, and the last ones that are done; newest last."""
        ...

    def job(self, job_id: str) -> JobView:
        """One job."""
        ...

    def wait_job(self, job_id: str, timeout_ms: int) -> JobView:
        """One job, when it is done."""
        ...

    def pause(self, pattern: str, owner: str, reason: str, ttl_ms: int | None, timeout_ms: int) -> HoldView:
        """Abort and pause (2.1): hold what matches, now and later, and answer when nothing of it is being cleaned.

        A pattern that matches nothing yet holds what appears. After a `Timeout` the hold has been withdrawn.
        """
        ...

    def resume(self, selector: str) -> tuple[HoldView, ...]:
        """Lift the hold of this id, or all with exactly this pattern."""
        ...

    def holds(self) -> tuple[HoldView, ...]:
        """Holds in force, the oldest first."""
        ...

    def abort(self, pattern: str, timeout_ms: int) -> tuple[LogRef, ...]:
        """Stop the cleanings of what matches and answer when they have stopped (2.2); names those that ran."""
        ...

    def commit(self, pattern: str | None, wait_ms: int) -> tuple[CommitView, ...]:
        """Commit staged results, waiting up to `wait_ms` for locks; what is still locked then is `waiting`, no error.

        Waiting for all results announces a broker start: after that no lock is taken in free log directories
        for a minute, or until a broker holds it.
        """
        ...

    def mute(self, pattern: str) -> tuple[MuteView, ...]:
        """Keep the brokers' own cleaners away from topics: their min.cleanable.dirty.ratio becomes 1.0 in the cluster.

        The pattern is the name of a topic, or a glob. Raises `Conflict` when the cluster refuses or cannot be asked.
        """
        ...

    def unmute(self, pattern: str) -> tuple[MuteView, ...]:
        """Bring back what muted topics had before; names those that were muted."""
        ...

    def retry(self, pattern: str) -> tuple[LogRef, ...]:
        """Forget the failures of what matches; names the logs that were uncleanable or backed off."""
        ...

    def explain(self, topic_partition: TopicPartition) -> tuple[Explanation, ...]:
        """Why a log is or is not cleaned now."""
        ...

    def history(
        self,
        pattern: str | None,
        limit: int,
        since_ms: int | None,
        kinds: Collection[HistoryEventKind] | None,
    ) -> tuple[HistoryEvent, ...]:
        """The newest `limit` events since `since_ms`, newest first; `kinds`: only these, like `cleaning,commit`."""
        ...

    def throttle(self) -> ThrottleView:
        """Limits and measured rates."""
        ...

    def set_throttle(self, change: ThrottleChange) -> ThrottleView:
        """Change limits at once, until the next change or reload."""
        ...

    def reload(self) -> ReloadView:
        """Read the configuration again, all or nothing; what is wrong with it is in the answer."""
        ...

    def delete_records(self, topic_partition: TopicPartition, offset: int) -> tuple[DeletedRecords, ...]:
        """Raise the log start offset and delete the segments below it.

        `Invalid` where the policy is `compact` without `delete`; `Conflict` for a log that may not be changed now, or that a
        live broker owns.
        """
        ...

    def forecast(self, pattern: str | None) -> Forecast:
        """When logs become due, how long they take, and which will miss max.compaction.lag.ms; `pattern`: those to list."""
        ...

    def retention(self, pattern: str, dry_run: bool) -> tuple[RetentionView, ...]:
        """Run a retention pass over what matches, or with `dry_run` tell what it would delete and what stays, and why.

        A log that is paused, being cleaned, has failed, or belongs to a live broker is `skipped`.
        """
        ...

    def await_cleaned(
        self, topic_partition: TopicPartition, offset: int, timeout_ms: int
    ) -> tuple[LogView, ...]:
        """The log, when its first dirty offset has reached `offset` (Kafka's awaitCleaned)."""
        ...
