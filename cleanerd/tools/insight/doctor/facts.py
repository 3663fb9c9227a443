"""Facts about a broker's directories, and findings about them: the table of codes.

The codes and their severities are names that others script against; those of files that wait for something are in
`insight.findings`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from typing import NamedTuple

from cleanerd.broker_agent.live_logs import OwnCleaner
from cleanerd.cleaning.causes import Cause
from cleanerd.config.model import CleanerdConfig, TopicConfig
from cleanerd.format.names import TopicPartition
from cleanerd.policy.cleanable import CleanableRange, RangeLimit, non_active_from
from cleanerd.storage.scan import PartitionSnapshot
from cleanerd.tools.insight import findings
from cleanerd.tools.insight.findings import Severity

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
_E, _W = Severity.ERROR, Severity.WARNING

CODES: Mapping[str, tuple[Severity, str]] = {
    "cleaner_dead": (_E, "the broker's cleaner has died: the broker says so, or logs are due and nothing was cleaned since"),
    "cleaner_stuck": (_W, "logs are due for long, though the cleaner lives, or their broker has given them up"),
    "deadline_missed": (_E, "records are older than max.compaction.lag.ms and not compacted"),
    "held_back": (_W, "closed segments may not be cleaned for long: not all replicas in sync have them"),
    "open_transaction": (_E, "a transaction that does not end: consumers and cleanings wait for it"),
    "future_timestamps": (_W, "records from the future: retention and min.compaction.lag.ms wait for their time"),
    "active_segment": (_W, "most of a compacted log lies in its active segment, which is not cleaned"),
    "retention_overdue": (_W, "a closed segment is older than retention.ms allows, and still there"),
    "tombstones_overdue": (_W, "tombstones that should be gone"),
    "superseded": (_W, "most of a log is superseded"),
    "first_cleaning": (_W, "a log was never cleaned, and its first cleaning takes more than half of it"),
    "dedupe_buffer": (_W, "a log has more keys than Kafka's cleaner takes in one round"),
    "no_keys": (_E, "records without a key in a compacted log: a cleaning takes them"),
    "state_is_deleted": (_E, "a topic that holds state is deleted by age or size"),
    "history_is_lost": (_E, "a schema history, which must be kept as a whole, is compacted or deleted"),
    "large_internal": (_W, "an internal topic that takes a broker long to load"),
    "skew": (_W, "one log directory holds far more than the others"),
    "full_soon": (_E, "a file system that will be full within a month if its logs grow on like this"),
    "digests_differ": (_E, "replicas that are not in the same state: on one a record is lost, changed or back"),
    "digests_not_compared": (_W, "digests of replicas that say nothing about each other"),
    "log_starts_differ": (_W, "replicas of a log begin at different offsets: a whole segment lies between them"),
    "unknown_topics": (_W, "logs of topics whose settings are not known: what depends on them was not judged"),
    "left_alone": (_W, "compacted logs that cleanerd leaves alone"),
    "unreadable": (_E, "a log, directory or report that could not be looked at"),
}  # fmt: skip
"""Every code of a rule with its severity and meaning."""


@dataclass(frozen=True, slots=True)
class Limits:
    """From when on something is worth a finding. Times in ms, sizes in bytes."""

    due_ms: int = 6 * HOUR_MS
    open_transaction_ms: int = HOUR_MS
    future_ms: int = HOUR_MS
    leftover_ms: int = HOUR_MS
    waiting_ms: int = DAY_MS
    least_bytes: int = 64 << 20
    internal_bytes: int = 1 << 30
    skew: float = 2.0
    full_days: float = 30.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What was found in the batches of a log, by the keys of a share of all fingerprints. Bytes as on disk.

    `superseded_bytes` lie in segments that may be cleaned now, `after_roll_bytes` go once the active segment is closed;
    `error_bytes`: two standard deviations of their sum. `overdue_ms`: the earliest delete horizon of `overdue_tombstones`.
    """

    records: int = 0
    keys: int = 0
    no_key_records: int = 0
    no_key_offset: int = -1
    superseded_bytes: int = 0
    after_roll_bytes: int = 0
    error_bytes: int = 0
    overdue_tombstones: int = 0
    overdue_ms: int = -1


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The transaction that bounds the last stable offset.

    `since_ms`: the timestamp of its first batch, but not before the segments below it were closed, and its log was created:
    producers may write old timestamps. At most 0: it has none. `begun_by_ms`: when it had begun for certain, by the broker's
    timestamp, the last write to its segment, and the producer snapshots behind it.
    """

    producer_id: int
    offset: int
    since_ms: int
    begun_by_ms: int


@dataclass(frozen=True, slots=True)
class LogFacts:
    """One log. `config` None: how its topic is configured is not known. `sample` None: it was not read. `left_alone`: why
    cleanerd would not touch it.
    """

    snapshot: PartitionSnapshot
    range: CleanableRange
    last_stable_offset: int
    config: TopicConfig | None
    cause: Cause | None = None
    open_transaction: OpenTransaction | None = None
    sample: Sample | None = None
    left_alone: str | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        """Its name."""
        return self.snapshot.topic_partition

    @property
    def is_compacted(self) -> bool:
        """Whether its policy is known to have `compact`."""
        return self.config is not None and self.config.compact

    def due_since_ms(self) -> int | None:
        """Since when closed segments are dirty enough, by the times of their last writes; None if they are not."""
        if not self.is_compacted or self.range.is_empty:
            return None
        assert self.config is not None
        clean, dirty, ratio = self.range.clean_bytes, 0, self.config.min_cleanable_dirty_ratio
        segments = [segment.facts for segment in self.snapshot.segments]
        for segment in non_active_from(segments, self.range.first_dirty_offset):
            if segment.base_offset >= self.range.first_uncleanable_offset:
                break
            dirty += segment.size_bytes
            if dirty > ratio * (clean + dirty):
                return segment.modified_ms + self.config.min_compaction_lag_ms
        return None

    @property
    def is_held_by_replicas(self) -> bool:
        """Whether the last stable offset ends its cleanable range, and no transaction does."""
        return self.range.limit is RangeLimit.LAST_STABLE_OFFSET and self.open_transaction is None


@dataclass(frozen=True, slots=True)
class Leftover:
    """Files that are no segments of their logs. `code`: of `insight.findings`, for all of them; `path`: the first."""

    code: str
    path: str
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DirectoryFacts:
    """A log directory. `judged_ms`: now, or for a stopped broker its last sign of life. `device`: of its file system.
    `own_cleaner`: the word of its live broker, None where nobody can be asked without loading the agent. `cleaning`: a log
    that is being cleaned. `has_cleaner_thread`: whether its process has one of Kafka's, None for not known.
    """

    path: str
    is_live: bool
    judged_ms: int
    cleaner_written_ms: int | None
    device: int
    free_bytes: int
    logs: tuple[LogFacts, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    problems: tuple[findings.Finding, ...] = ()
    failed: Mapping[str, str] | None = None
    own_cleaner: OwnCleaner | None = None
    cleaning: TopicPartition | None = None
    has_cleaner_thread: bool | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of its segments, and of what is left over."""
        return sum(log.snapshot.size_bytes for log in self.logs) + sum(
            one.size_bytes for one in self.leftovers
        )


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """The directories of a node. `where`: the options that name them on a command line. `is_whole`: with all their logs."""

    where: str
    at_ms: int
    config: CleanerdConfig
    directories: tuple[DirectoryFacts, ...]
    node_id: int | None = None
    cluster_id: str | None = None
    release: str | None = None
    is_whole: bool = True
    is_interrupted: bool = False

    def command(self, verb: str, log: LogFacts, options: str = "") -> str:
        """A command of `cleanerd` for one log."""
        tp = log.topic_partition
        return f"`cleanerd {verb} {self.where} --topic {tp.topic} --partition {tp.partition}{options}`"


def verify_command(log_dir: str, log: LogFacts | None = None) -> str:
    """`cleanerd verify` of a log, or of a directory; it knows no settings."""
    tp = None if log is None else log.topic_partition
    which = "" if tp is None else f" --topic {tp.topic} --partition {tp.partition}"
    return f"`cleanerd verify --log-dir {quote(log_dir)}{which}`"


class Place(NamedTuple):
    """Where something was found; `offset` None: it has none."""

    path: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """`evidence`: what was found, in numbers. `cost_bytes`: what it takes on disk, None where that is not the point."""

    code: str
    severity: Severity
    meaning: str
    place: Place
    evidence: str
    remedy: str
    cost_bytes: int | None = None


def finding(code: str, place: Place, evidence: str, remedy: str, cost_bytes: int | None = None) -> Finding:
    """A finding with the severity and meaning of its code."""
    return Finding(code, *CODES[code], place, evidence, remedy, cost_bytes)


def place_of(log: LogFacts, path: str | None = None, offset: int | None = None) -> Place:
    """A place in a log; by default its directory."""
    tp = log.topic_partition
    return Place(path or log.snapshot.directory, tp.topic, tp.partition, offset)
