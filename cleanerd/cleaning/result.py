"""What a run of cleaning is asked for, and what it answers: the border between command line and work.

====================  =================================================================================
outcome               the log
====================  =================================================================================
committed             was cleaned, and the new segments are in place
staged                was cleaned, but its directory is in use by a broker: the result waits to be committed
unchanged             was looked through, and nothing had to go
skipped               was not looked through, for the reason given
held                  was left alone, for somebody has paused it (`cleanerctl pause`)
planned               would be cleaned (dry run)
superseded_by_broker  was changed by the live broker that owns its directory before we were done
failed                could not be cleaned, or was changed by another process, for the reason given; it is as it was
aborted               was left as it was because a stop was asked for
====================  =================================================================================
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from cleanerd.cleaning.phases import Stopwatch
from cleanerd.config.load import Configuration
from cleanerd.config.model import CleanerdConfig, TopicConfig
from cleanerd.errors import (
    Aborted,
    CleanerdError,
    DirOffline,
    NoSpace,
    PolicyChanged,
    Retryable,
    SourceChanged,
)
from cleanerd.format.names import TopicPartition
from cleanerd.policy.tombstones import Stay
from cleanerd.storage.log_dir import LogDir

CleaningOutcome = Literal[
    "committed",
    "staged",
    "unchanged",
    "skipped",
    "held",
    "planned",
    "failed",
    "aborted",
    "superseded_by_broker",
]
SUPERSEDED: CleaningOutcome = "superseded_by_broker"


NO_LOG = TopicPartition("", -1)
"""Stands for a log directory as a whole."""


@dataclass(frozen=True, slots=True)
class Basis:
    """What a log was when it was examined: findings hold only as long as it still is so.

    `round_end`: end of the cleaned range. `generation`: `storage.generation`. `checkpoint`: the first dirty offset.
    `leader_epochs`: (epoch, start offset) below `round_end`. `topic_stamp` (`storage.topic_id`) is not needed where source
    segments have to be the same files.
    """

    round_end: int
    generation: str
    checkpoint: int | None
    leader_epochs: tuple[tuple[int, int], ...]
    topic_stamp: str | None = None


@dataclass(frozen=True, slots=True)
class LogResult:
    """The result of one log. Offsets are None if the run did not get as far as knowing them.

    `remedy`: what an operator can do about the reason. The cleaned range is [`first_dirty_offset`, `end_offset`). Bytes
    and segments before and after are those of the whole log; `bytes_read` and records are those that the run went through.
    `removed` counts records by reason. `error` is the class of what went wrong; with `is_retryable` the same work may
    succeed later by itself. `next_horizon_ms`: of a log that was looked at for expired delete horizons, when it is worth
    another look; None as long as no cleaning stamps new ones.
    `peak_extra_bytes` is the disk space that new files need while the old ones are still there, `least_extra_bytes` what the
    group needs that needs least of those that free any. `groups_left`: of groups that there was no room for beside those
    that are staged. `basis` is what the
    checkpoint needs to move. `damaged_indexes`: file, byte, what was expected and found; the log was read without them.
    `phase_seconds` by the names in `phases`: part of `seconds`, but for `examine`.
    `topic_codec_saves_bytes`: about so much do rewritten batches save with the codec of compression.type, or would they with
    cleanerd.compression=topic; known of dry runs of topics that name a codec.
    `tombstones_stay`: why those that have expired, and markers, were not removed.
    `committed_by`: of a committed log, lock: with `.lock` held; swap: by the live broker.
    """

    topic: str
    partition: int
    log_dir: str
    outcome: CleaningOutcome
    reason: str | None = None
    remedy: str | None = None
    first_dirty_offset: int | None = None
    end_offset: int | None = None
    bytes_read: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_read: int = 0
    records_kept: int = 0
    removed: Mapping[str, int] = field(default_factory=dict)
    segments_before: int = 0
    segments_after: int = 0
    seconds: float = 0.0
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    peak_extra_bytes: int = 0
    least_extra_bytes: int = 0
    groups_left: int = 0
    topic_codec_saves_bytes: int | None = None
    error: str | None = None
    is_retryable: bool = False
    next_horizon_ms: int | None = None
    basis: Basis | None = None
    committed_by: Literal["lock", "swap"] | None = None
    damaged_indexes: tuple[str, ...] = ()
    tombstones_stay: str | None = None

    @classmethod
    def of(
        cls, tp: TopicPartition, log_dir: str, outcome: CleaningOutcome = "skipped", reason: str | None = None
    ) -> "LogResult":
        """The account of a log that was not looked through."""
        return cls(tp.topic, tp.partition, log_dir, outcome, reason)

    @property
    def topic_partition(self) -> TopicPartition:
        """The log."""
        return TopicPartition(self.topic, self.partition)

    def untouched(self) -> "LogResult":
        """The result when what was made of the log was thrown away."""
        return replace(
            self,
            bytes_after=self.bytes_before,
            records_kept=self.records_read,
            removed={},
            segments_after=self.segments_before,
        )

    def failed(self, error: CleanerdError) -> "LogResult":
        """The result once `error` has ended the work on the log."""
        return replace(
            self,
            outcome="aborted" if isinstance(error, Aborted | PolicyChanged) else "failed",
            reason=str(error),
            remedy=error.remedy if isinstance(error, NoSpace) else self.remedy,
            error=type(error).__name__,
            is_retryable=isinstance(error, Retryable | DirOffline),
        )

    def beside_broker(self) -> "LogResult":
        """The result in a directory that a live broker owns: a source that changed there has not failed."""
        is_changed = self.outcome == "failed" and self.error == SourceChanged.__name__
        return replace(self, outcome=SUPERSEDED) if is_changed else self

    def measured(self, watch: Stopwatch) -> "LogResult":
        """The result of work that `watch` has measured from its beginning."""
        return replace(self, seconds=watch.seconds, phase_seconds=watch.phase_seconds)

    def after(self, phase: str, seconds: float) -> "LogResult":
        """The result once a last phase of so many seconds is over."""
        phase_seconds = {**self.phase_seconds, phase: seconds}
        return replace(self, seconds=self.seconds + seconds, phase_seconds=phase_seconds)

    def then(self, later: "LogResult") -> "LogResult":
        """This committed result and what a later cleaning made of the groups that were left, as one account."""
        removed = Counter(self.removed)
        removed.update(later.removed)
        return replace(
            later,
            outcome="committed" if later.outcome in ("skipped", "unchanged") else later.outcome,
            bytes_read=self.bytes_read + later.bytes_read,
            bytes_before=self.bytes_before,
            records_read=self.records_read,
            records_kept=self.records_read - removed.total(),
            removed=dict(removed),
            segments_before=self.segments_before,
            seconds=self.seconds + later.seconds,
            peak_extra_bytes=max(self.peak_extra_bytes, later.peak_extra_bytes),
            damaged_indexes=tuple(dict.fromkeys((*self.damaged_indexes, *later.damaged_indexes))),
            phase_seconds=dict(Counter(self.phase_seconds) + Counter(later.phase_seconds)),
        )

    @property
    def index_damage(self) -> str | None:
        """The damaged indexes in a line, None without one."""
        if not self.damaged_indexes:
            return None
        count = len(self.damaged_indexes)
        more = f", and {count - 1} more" if count > 1 else ""
        return f"damaged indexes, without which the log was read: {self.damaged_indexes[0]}{more}"

    @property
    def mb_per_s(self) -> float:
        """Megabytes (10^6) read in a second."""
        return self.bytes_read / 1e6 / self.seconds if self.seconds else 0.0

    @property
    def records_per_s(self) -> float:
        """Records read in a second."""
        return self.records_read / self.seconds if self.seconds else 0.0


def no_holds(_log_dir: str) -> Callable[[TopicPartition], str | None]:
    """Of a host that looks after holds itself."""
    return lambda _: None


def may_all_go(_log_dir: LogDir, _tp: TopicPartition) -> Stay | None:
    """Of tombstones and markers that have expired: for those who clean what is theirs alone."""
    return None


def unknown_replicas(_log_dir: LogDir, _tp: TopicPartition) -> bool:
    """Of a log of which nobody says that it has no other replica."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRequest:
    """What to clean, and by which rules. None for `topics`, `partitions` or `logs`: all of them.

    `configuration`: what to ask which logs are left alone (`cleaning.foreign`); None where the host has asked.
    `assumed`: the word of the operator. `holds_of`: of a log directory, why one of its logs is held, None for one that
    is not; raises DirOffline if that is not known.
    `why_tombstones_stay`, `is_only_replica`: as `Knowledge` has them.
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
