"""What a run of cleaning is asked for, and what it answers: the border between command line and work."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cleanerd.cleaning import outcomes
from cleanerd.cleaning.outcomes import Outcome
from cleanerd.cleaning.phases import Stopwatch
from cleanerd.config.load import Configuration
from cleanerd.config.model import CleanerdConfig, TopicConfig
from cleanerd.errors import CleanerdError, SourceChanged
from cleanerd.format.names import TopicPartition
from cleanerd.policy.tombstones import Stay
from cleanerd.storage.log_dir import LogDir

NO_LOG = TopicPartition("", -1)
"""Stands for a log directory as a whole."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a whole log."""

    bytes: int = 0
    segments: int = 0


@dataclass(frozen=True, slots=True)
class Statistics:
    """Numbers of a cleaning: bytes and records read, records removed, disk space, times.

    `removed` counts records by reason. `peak_extra_bytes` is the disk space that new files need while the old ones are still
    there, `least_extra_bytes` what the group needs that needs least of those that free any. `frees_bytes`: what the disk
    gets back by the commit; `linked_bytes`: of the replaced segments, what has another name (hard links), and stays.
    `damaged_indexes`: file, byte, what was expected and found; the log was read without them.
    `phase_seconds` by the names in `phases`: part of `seconds`, but for `examine`.
    `topic_codec_saves_bytes`: about so much do rewritten batches save with the codec of compression.type, or would they with
    cleanerd.compression=topic; known of dry runs of topics that name a codec.
    """

    bytes_read: int = 0
    records_read: int = 0
    removed: Mapping[str, int] = field(default_factory=dict)
    peak_extra_bytes: int = 0
    least_extra_bytes: int = 0
    frees_bytes: int = 0
    linked_bytes: int = 0
    topic_codec_saves_bytes: int | None = None
    damaged_indexes: tuple[str, ...] = ()
    seconds: float = 0.0
    phase_seconds: Mapping[str, float] = field(default_factory=dict)

    def measured(self, watch: Stopwatch) -> "Statistics":
        """The statistics with the times of a watch that has run since the work began."""
        return replace(self, seconds=watch.seconds, phase_seconds=watch.phase_seconds)

    def after(self, phase: str, seconds: float) -> "Statistics":
        """The statistics with a last phase of `seconds`."""
        phase_seconds = {**self.phase_seconds, phase: seconds}
        return replace(self, seconds=self.seconds + seconds, phase_seconds=phase_seconds)

    def then(self, later: "Statistics") -> "Statistics":
        """The sum with a later round."""
        return Statistics(
            self.bytes_read + later.bytes_read,
            self.records_read + later.records_read,
            dict(Counter(self.removed) + Counter(later.removed)),
            max(self.peak_extra_bytes, later.peak_extra_bytes),
            later.least_extra_bytes,
            self.frees_bytes + later.frees_bytes,
            self.linked_bytes + later.linked_bytes,
            later.topic_codec_saves_bytes,
            tuple(dict.fromkeys((*self.damaged_indexes, *later.damaged_indexes))),
            self.seconds + later.seconds,
            dict(Counter(self.phase_seconds) + Counter(later.phase_seconds)),
        )

    @property
    def index_damage(self) -> str | None:
        """The damaged indexes in a line, None without one."""
        if not self.damaged_indexes:
            return None
        count = len(self.damaged_indexes)
        more = f", and {count - 1} more" if count > 1 else ""
        return f"damaged indexes, without which the log was read: {self.damaged_indexes[0]}{more}"

    def per_s(self, count: float) -> float:
        """`count` per second of the cleaning."""
        return count / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class LogResult:
    """The result of one log: what became of it, and what is known of it whatever became of it.

    The cleaned range is [`first_dirty_offset`, `end_offset`), None if the run did not get as far as knowing them.
    `after`: the size that the outcome leaves, or would leave. `tombstones_stay`: why those that have expired, and markers,
    were not removed.
    """

    topic_partition: TopicPartition
    log_dir: str
    outcome: Outcome
    first_dirty_offset: int | None = None
    end_offset: int | None = None
    before: Size = Size()
    after: Size = Size()
    statistics: Statistics = Statistics()
    tombstones_stay: str | None = None

    @classmethod
    def of_error(cls, tp: TopicPartition, log_dir: str, error: CleanerdError) -> "LogResult":
        """The result of a log about which only its error is known."""
        return cls(tp, log_dir, outcomes.of_error(error))

    @property
    def reason(self) -> str | None:
        """Why it has that outcome."""
        return self.outcome.reason

    def failed(self, error: CleanerdError) -> "LogResult":
        """The result once `error` has ended the work on the log."""
        return replace(self, outcome=outcomes.of_error(error))

    def waiting(self, reason: str) -> "LogResult":
        """The result of a log that is staged or unchanged, and cannot be committed for that reason yet."""
        assert isinstance(self.outcome, outcomes.Staged | outcomes.Unchanged)
        return replace(self, outcome=replace(self.outcome, reason=reason))

    def untouched(self) -> "LogResult":
        """The result when what was made of the log was thrown away."""
        return replace(self, after=self.before, statistics=replace(self.statistics, removed={}))

    def beside_broker(self) -> "LogResult":
        """The result in a directory that a live broker owns: a source that changed there has not failed."""
        found = self.outcome
        is_changed = isinstance(found, outcomes.Failed) and found.error == SourceChanged.__name__
        return replace(self, outcome=outcomes.Superseded(found.reason or "")) if is_changed else self

    def then(self, later: "LogResult") -> "LogResult":
        """This committed result and what a later round made of the groups that were left, as one account."""
        return replace(later, before=self.before, statistics=self.statistics.then(later.statistics))

    def fields(self) -> dict[str, Any]:
        """All that others script against, by its names: in the document of `clean`, history and log of the daemon."""
        outcome, found = self.outcome, self.statistics
        return {
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "log_dir": self.log_dir,
            "outcome": outcome.word,
            "reason": outcome.reason,
            "remedy": outcome.remedy if isinstance(outcome, outcomes.Failed | outcomes.Skipped) else None,
            "committed_by": outcome.by if isinstance(outcome, outcomes.Committed) else None,
            "first_dirty_offset": self.first_dirty_offset,
            "end_offset": self.end_offset,
            "bytes_read": found.bytes_read,
            "bytes_before": self.before.bytes,
            "bytes_after": self.after.bytes,
            "records_read": found.records_read,
            "records_kept": found.records_read - sum(found.removed.values()),
            "removed": dict(found.removed),
            "segments_before": self.before.segments,
            "segments_after": self.after.segments,
            "seconds": round(found.seconds, 3),
            "mb_per_s": round(found.per_s(found.bytes_read / 1e6), 3),
            "records_per_s": round(found.per_s(found.records_read), 3),
            "phase_seconds": {name: round(seconds, 3) for name, seconds in found.phase_seconds.items()},
            "tombstones_stay": self.tombstones_stay,
            "peak_extra_bytes": found.peak_extra_bytes,
            "topic_codec_saves_bytes": found.topic_codec_saves_bytes,
        }


def no_holds(_log_dir: str) -> Callable[[TopicPartition], str | None]:
    """A `holds_of` without holds, for hosts that check holds themselves."""
    return lambda _: None


def may_all_go(_log_dir: LogDir, _tp: TopicPartition) -> Stay | None:
    """A `why_tombstones_stay` that keeps nothing, for logs without other readers."""
    return None


def unknown_replicas(_log_dir: LogDir, _tp: TopicPartition) -> bool:
    """An `is_only_replica` that is always False: other replicas may exist."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRequest:
    """The logs to clean, and the rules. None for `topics`, `partitions` or `logs` selects all.

    `configuration`: what to ask which logs are left alone (`cleaning.foreign`); None where the host has asked.
    `assumed`: the word of the operator. `holds_of`: of a log directory, why one of its logs is held, None for one that
    is not; raises DirOffline if that is not known.
    `why_tombstones_stay`, `is_only_replica`: as `Knowledge` has them. `starts`: in a dry run, of logs that retention makes
    shorter before.
    """

    config: CleanerdConfig
    topic_config: Callable[[str], TopicConfig]
    log_dirs: tuple[str, ...]
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    force: bool = False  # ignore the dirty ratio, never a safety bound
    roll: bool = False  # close the active segments first, so that what is in them can be cleaned
    horizons: bool = False  # also clean what is not dirty enough, if a delete horizon there has expired
    dry_run: bool = False
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    rescues: bool = False  # the disk is full (`cleaning.rescue`)
    logs: frozenset[TopicPartition] | None = None  # of these, which it does not name as `topics` does
    spare: str | None = None  # where the group of one log is staged that frees the most (`storage.spare`)
    jobs_at_once: int = 1  # that share the memory for keys
    configuration: Configuration | None = None
    assumed: frozenset[str] = frozenset()
    holds_of: Callable[[str], Callable[[TopicPartition], str | None]] = no_holds
    why_tombstones_stay: Callable[[LogDir, TopicPartition], Stay | None] = may_all_go
    is_only_replica: Callable[[LogDir, TopicPartition], bool] = unknown_replicas


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one step of the cleaning of a log, for logging at debug level: plain values by name."""

    topic_partition: TopicPartition
    name: str
    numbers: Mapping[str, object]


class Progress:
    """Receives reports of how far a run is; called from any thread. This one ignores them."""

    def planned(self, tp: TopicPartition, log_dir: str, total_bytes: int) -> None:
        """A log is about to be cleaned, which means moving `total_bytes`; another directory may have one of its name."""

    def advanced(
        self, tp: TopicPartition, log_dir: str, phase: str, bytes_done_delta: int, records_delta: int
    ) -> None:
        """A task of `phase` moved so much more."""

    def step(self, step: Step) -> None:
        """A step of a log is done. Must not raise."""

    def finished(self, result: LogResult) -> None:
        """A log is done, whatever the outcome; it may never have been planned."""
