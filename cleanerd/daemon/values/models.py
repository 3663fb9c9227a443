"""The values that the daemon answers with: what the control API turns into JSON and into its OpenAPI document.

Offsets are Kafka's, `_ms` is milliseconds (since the epoch where it is an instant), None is "not known" or "does not
apply".
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class View(BaseModel):
    """A value of the API: frozen, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


LogState = Literal[
    "clean",
    "dirty",
    "cleaning",
    "aborted",
    "paused",
    "staged",
    "uncleanable",
    "offline",
    "retained",
    "ignored",
]
"""Of a log; `aborted` means that its cleaning was asked to stop and has not stopped yet (rule 2A), `retained` that it is
not compacted: retention is all it gets; `ignored` that cleanerd leaves it alone (a foreign topic id), with the reason."""

HistoryEventKind = Literal["cleaning", "commit", "retention", "recovery", "control", "reload", "daemon"]

JobTrigger = Literal["schedule", "request", "horizon", "max lag"]


class HistoryEvent(View):
    """Something that happened to a log, or to the daemon if topic and partition are None.

    `removed` counts records by reason. `seconds` is how long it took, `phase_seconds` how long the phases of a cleaning
    did; logs of the same job share some of them (`cleaning.phases`). `committed_by`: with `.lock` held, or swapped in by the
    live broker; None for what was not committed.
    """

    time_ms: int
    kind: HistoryEventKind
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
    committed_by: Literal["lock", "swap"] | None = None


class LogRef(View):
    """A log that a verb applied to."""

    topic: str
    partition: int
    log_dir: str


class LogView(LogRef):
    """The state of a log. `dirty_ratio` is an upper bound until `dirty_ratio_exact`.

    Of a log that is compacted, `clean_bytes`, `cleanable_bytes`, `uncleanable_bytes` (closed segments that may not be
    cleaned yet) and `active_bytes` add up to `size_bytes`; a segment that is dirty in part counts as cleanable.
    `dirty_since_ms`: largest timestamp of the oldest closed segment that is dirty. `policy` is `unknown` where the topic is.
    """

    state: LogState
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
    dirty_since_ms: int | None = None
    next_due_ms: int | None = None
    next_due_why: str | None = None
    last: HistoryEvent | None = None
    failures: int = 0
    reason: str | None = None
    holds: tuple[str, ...] = ()


class JobView(View):
    """A cleaning job over one or more logs."""

    id: str
    trigger: JobTrigger
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


class CommitView(LogRef):
    """The outcome of a commit. `waiting`: for the lock of the log directory; `held`: until a hold ends."""

    outcome: Literal["committed", "waiting", "held", "dropped", "nothing", "failed"]
    reason: str | None = None
    lock_owner_pid: int | None = None


class Fact(View):
    """One fact on which the decision about a log rests; `blocks`: it prevents a cleaning."""

    name: str
    value: str
    blocks: bool = False
    rule: str | None = None


class Explanation(LogRef):
    """Why a log is or is not cleaned now."""

    decision: str
    facts: tuple[Fact, ...]


Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ThrottleLimits(View):
    """Bytes per second; None is unlimited. `io` counts reads plus writes, as Kafka's key does."""

    io_bytes_per_s: Rate | None = None
    read_bytes_per_s: Rate | None = None
    write_bytes_per_s: Rate | None = None


class ThrottleChange(ThrottleLimits):
    """New limits; limits that are not named stay, null lifts a limit."""

    def applied_to(self, limits: ThrottleLimits) -> ThrottleLimits:
        """The limits after this change."""
        return ThrottleLimits(**(limits.model_dump() | self.model_dump(exclude_unset=True)))


class RequestQueueView(View):
    """The limit that follows the brokers' load: `bytes_per_s` of reads plus writes, None for no limit.

    `wait_ms`: how long a request waited on average in the queue of a broker, the longest of several; None: not known.
    """

    max_ms: int
    wait_ms: float | None = None
    bytes_per_s: Rate | None = None
    reason: str


class ThrottleView(View):
    """Limits in force, recently measured rates, and how long tasks have waited since the start.

    `request_queue`: of cleanerd.throttle.request.queue.max.ms, None where that is 0; the lowest limit holds.
    """

    limits: ThrottleLimits
    request_queue: RequestQueueView | None = None
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
    """A log directory. `dirty_bytes`: the most that cleaning all of its logs, or `cleanerd rescue`, frees.

    `broker_is_live`: another process that looks like a broker holds its lock. `committed_by`: lock when it is free; swap by
    its live broker; restart of that broker, for this `swap_reason`. `cleans` and `leaves`: compacted logs, of those that are
    not ignored; `share`: the same in words, and what would change it.
    """

    path: str
    online: bool
    reason: str | None = None
    free_bytes: int | None = None
    dirty_bytes: int = 0
    staged_bytes: int = 0
    lock_owner_pid: int | None = None
    broker_is_live: bool = False
    committed_by: Literal["lock", "swap", "restart"] = "lock"
    swap_reason: str | None = None
    cleans: int = 0
    leaves: int = 0
    share: str | None = None


class MuteView(View):
    """A topic from which the live broker keeps its own cleaner away, as long as cleanerd asks for it."""

    topic: str
    since_ms: int


class StatusView(View):
    """The daemon as a whole. `warnings`: settings that are valid but perhaps not meant, directories that are watched
    less than they should be, and those whose disk is too full to clean in. `running`: the jobs that run now.
    """

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
    warnings: tuple[str, ...] = ()
    muted: tuple[MuteView, ...] = ()
    running: tuple[JobView, ...] = ()


class DeletedRecords(LogRef):
    """A log after delete-records: where it starts now, and what was deleted."""

    log_start_offset: int
    segments_deleted: int
    bytes_deleted: int


class RetentionView(LogRef):
    """The result of a retention pass on a log, or its forecast; `breaches`: the limits that the deleted segments breach.

    `kept` is why the oldest segment that stays is still there; `next_ms` from when on retention.ms takes it.
    """

    outcome: Literal["planned", "deleted", "nothing", "skipped", "failed"]
    reason: str | None = None
    segments: int = 0
    bytes: int = 0
    breaches: tuple[str, ...] = ()
    log_start_offset: int | None = None
    kept: str | None = None
    next_ms: int | None = None


class LogForecast(LogRef):
    """The forecast of a log. `due_ms`: when it becomes due, None for never as far as is known.

    `takes_ms`: its cleaning, None where there is nothing to clean. `deadline_ms`: that of max.compaction.lag.ms; `is_late`:
    it ends after that, its own duration and a grace of 1 % of the lag (a minute at least, an hour at most).
    """

    due_ms: int | None = None
    due_why: str | None = None
    takes_ms: int | None = None
    deadline_ms: int | None = None
    is_late: bool = False


class Forecast(View):
    """The forecast of all logs: `misses` of them are late, the first of which has to be done by `first_miss_ms`.

    `bytes_per_s`: of log, that a worker cleans.
    """

    workers: int
    bytes_per_s: float
    rate_is_measured: bool
    misses: int
    first_miss_ms: int | None = None
    logs: tuple[LogForecast, ...] = ()
