"""What an operator can ask of the daemon: the verbs and the values they answer with.

The control API (control.py) turns these models into JSON and into its OpenAPI document; the supervisor implements
`Operations`. Offsets are Kafka's, `_ms` is milliseconds (since the epoch where it is an instant), None is "not known" or
"does not apply".

Which logs a pattern means is in patterns.py. A partition can lie in two log directories while it moves: verbs that take one
answer with a value for each directory.

Whoever cannot do what was asked raises one of the errors below; the message says what to do next.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

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


class View(BaseModel):
    """A value of the API: frozen, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


State = Literal[
    "clean", "dirty", "cleaning", "aborted", "paused", "staged", "uncleanable", "offline", "ignored"
]
"""Of a log; `aborted` means that its cleaning was told to stop and has not stopped yet (rule 2A), `ignored` that cleanerd
leaves it alone (policy, foreign topic id), with the reason."""

EventKind = Literal["cleaning", "commit", "retention", "recovery", "control", "reload", "daemon"]

Trigger = Literal["schedule", "request", "horizon", "max lag"]


class HistoryEvent(View):
    """Something that happened: to a log, or to the daemon where topic and partition are None.

    `removed` counts records by reason. `seconds` is how long it took, `phase_seconds` how long the phases of a cleaning
    did; logs of the same job share some of them (`cleaning.phases`).
    """

    time_ms: int
    kind: EventKind
    outcome: str
    reason: str | None = None
    log_dir: str | None = None
    topic: str | None = None
    partition: int | None = None
    job_id: str | None = None
    seconds: float | None = None
    phase_seconds: Mapping[str, float] = Field(default_factory=dict)
    bytes_read: int | None = None
    bytes_before: int | None = None
    bytes_after: int | None = None
    records_read: int | None = None
    records_kept: int | None = None
    removed: Mapping[str, int] = Field(default_factory=dict)


class LogView(View):
    """What the daemon knows of a log. `dirty_ratio` is an upper bound until `dirty_ratio_exact`.

    Of a log that is compacted, `clean_bytes`, `cleanable_bytes`, `uncleanable_bytes` (closed segments that may not be
    cleaned yet) and `active_bytes` add up to `size_bytes`; a segment that is dirty in part counts as cleanable.
    """

    topic: str
    partition: int
    log_dir: str
    state: State
    policy: str
    size_bytes: int
    segments: int
    log_start_offset: int | None = None
    first_dirty_offset: int | None = None
    first_uncleanable_offset: int | None = None
    dirty_ratio: float | None = None
    dirty_ratio_exact: bool = False
    clean_bytes: int | None = None
    cleanable_bytes: int | None = None
    uncleanable_bytes: int | None = None
    active_bytes: int | None = None
    next_due_ms: int | None = None
    next_due_why: str | None = None
    last: HistoryEvent | None = None
    failures: int = 0
    reason: str | None = None
    holds: tuple[str, ...] = ()


class JobView(View):
    """A cleaning job over one or more logs."""

    id: str
    trigger: Trigger
    state: Literal["queued", "running", "done"]
    logs: tuple[str, ...]
    phase: str | None = None
    bytes_done: int = 0
    bytes_total: int | None = None
    records_per_s: float | None = None
    eta_s: float | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    outcome: str | None = None
    reason: str | None = None


class HoldView(View):
    """A pause of all logs that match `pattern`, by `owner`, until it is resumed or `expires_ms`."""

    id: str
    pattern: str
    owner: str
    reason: str
    created_ms: int
    expires_ms: int | None = None
    logs: tuple[str, ...] = ()


class CommitView(View):
    """What became of a staged result. `waiting`: somebody else holds the lock of the log directory."""

    topic: str
    partition: int
    log_dir: str
    outcome: Literal["committed", "waiting", "dropped", "nothing", "failed"]
    reason: str | None = None
    lock_owner_pid: int | None = None


class LogRef(View):
    """A log that a verb applied to."""

    topic: str
    partition: int
    log_dir: str


class Fact(View):
    """One thing that the decision on a log rests on; `blocks` where it stands against a cleaning."""

    name: str
    value: str
    blocks: bool = False
    rule: str | None = None


class Explanation(View):
    """Why a log is or is not cleaned now."""

    topic: str
    partition: int
    log_dir: str
    decision: str
    facts: tuple[Fact, ...]


Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ThrottleLimits(View):
    """Bytes per second; None is unlimited. `io` counts reads plus writes, as Kafka's key does."""

    io_bytes_per_s: Rate | None = None
    read_bytes_per_s: Rate | None = None
    write_bytes_per_s: Rate | None = None


class ThrottleChange(ThrottleLimits):
    """New limits; what is not named stays as it is, null lifts a limit."""

    def applied_to(self, limits: ThrottleLimits) -> ThrottleLimits:
        """The limits after this change."""
        return ThrottleLimits(**(limits.model_dump() | self.model_dump(exclude_unset=True)))


class ThrottleView(View):
    """Limits in force, rates measured lately, and for how long tasks have been kept waiting since the start."""

    limits: ThrottleLimits
    read_bytes_per_s: float
    write_bytes_per_s: float
    waited_s: float


class ReloadView(View):
    """Outcome of the last load of the configuration: everything (`applied`) or nothing, with all `problems`."""

    applied: bool
    time_ms: int
    changed: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class LogDirView(View):
    """A log directory. `broker_is_live`: another process that looks like a broker holds its lock."""

    path: str
    online: bool
    reason: str | None = None
    free_bytes: int | None = None
    staged_bytes: int = 0
    lock_owner_pid: int | None = None
    broker_is_live: bool = False


class StatusView(View):
    """The daemon as a whole."""

    version: str
    pid: int
    uptime_s: float
    ready: bool
    log_dirs: tuple[LogDirView, ...]
    logs_by_state: Mapping[str, int]
    workers_busy: int
    workers_total: int
    spark_session_up: bool
    throttle: ThrottleView
    configuration: ReloadView
    holds: int


class DeletedRecords(View):
    """A log after delete-records: where it starts now and what went with it."""

    topic: str
    partition: int
    log_dir: str
    log_start_offset: int
    segments_deleted: int
    bytes_deleted: int


class Operations(Protocol):
    """The verbs. Every one may be called from any thread and raises `OperationError`s only.

    A verb that names logs raises `NotFound` when there is none. One that waits raises `Timeout` at its limit
    (`timeout_ms`, at most `MAX_WAIT_MS`) and `Unavailable` as soon as the daemon stops.

    The control API calls them by name with keyword arguments, and takes the first paragraph of a docstring as help.
    """

    def status(self) -> StatusView:
        """The daemon as a whole; answers at once, also while it starts."""
        ...

    def logs(self, pattern: str | None, state: State | None) -> tuple[LogView, ...]:
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
        """Jobs that are queued or run, and the last ones that are done; the youngest last."""
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

        Who waits is a broker that is about to start: after that no lock is taken in free log directories for a minute, or
        until a broker holds it.
        """
        ...

    def retry(self, pattern: str) -> tuple[LogRef, ...]:
        """Forget the failures of what matches; names the logs that were uncleanable or backed off."""
        ...

    def explain(self, topic_partition: TopicPartition) -> tuple[Explanation, ...]:
        """Why a log is or is not cleaned now."""
        ...

    def history(self, pattern: str | None, limit: int, since_ms: int | None) -> tuple[HistoryEvent, ...]:
        """The youngest `limit` events since `since_ms`, the youngest first."""
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
        """Raise the log start offset and delete the segments below it. `Conflict` where a live broker owns the log."""
        ...

    def await_cleaned(
        self, topic_partition: TopicPartition, offset: int, timeout_ms: int
    ) -> tuple[LogView, ...]:
        """The log, when its first dirty offset has reached `offset` (Kafka's awaitCleaned)."""
        ...
