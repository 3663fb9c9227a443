"""What the pipeline is asked to do and what it answers: values only."""

from dataclasses import dataclass, field

from cleanerd.errors import CleanerdError
from cleanerd.format.names import TopicPartition
from cleanerd.format.txn_index import AbortedTxn
from cleanerd.kernels.judge import AbortedTxns, Producers

from .chunks import ChunkWork
from .index import ChunkSummary
from .rewrite import Part, Verdicts


@dataclass(frozen=True, slots=True)
class LogWork:
    """One log to clean; chunks in offset order."""

    topic_partition: TopicPartition
    directory: str
    chunks: tuple[ChunkWork, ...]
    groups: int
    first_dirty_offset: int
    round_end: int  # first uncleanable offset
    now_ms: int
    new_horizon_ms: int  # -1 when now + delete.retention.ms overflows
    index_interval_bytes: int
    producers: Producers
    aborted: AbortedTxns
    aborted_txns: tuple[AbortedTxn, ...]  # the same, as written to a transaction index
    least_free_bytes: int = 0  # of the file system: new files leave it free

    @property
    def records_max(self) -> int:
        """Upper bound for the number of records."""
        return sum(chunk.records_max for chunk in self.chunks)

    @property
    def dirty_records_max(self) -> int:
        """Upper bound for the number of records that may be in the dirty section."""
        return sum(chunk.dirty_records_max for chunk in self.chunks)


@dataclass(slots=True)
class IndexedLog:
    """A log after index and resolve. `error` says why it cannot be cleaned; then the rest means nothing."""

    work: LogWork
    key: tuple[int, int]
    buckets: int
    error: CleanerdError | None = None
    summaries: list[ChunkSummary] = field(default_factory=list)
    verdicts: list[Verdicts] = field(default_factory=list)
    superseded: list[int] = field(default_factory=list)  # per chunk
    discardable_markers: list[int] = field(default_factory=list)  # offsets, ascending
    kept_aborted: list[AbortedTxn] = field(default_factory=list)  # for the new transaction indexes
    changed_groups: frozenset[int] = frozenset()

    @property
    def records_read(self) -> int:
        """Records in all chunks."""
        return sum(summary.records for summary in self.summaries)


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """A part file (None on a dry run) and what is in it."""

    path: str | None
    part: Part


@dataclass(slots=True)
class RewrittenLog:
    """A log after rewrite: parts of the changed groups, in offset order."""

    indexed: IndexedLog
    error: CleanerdError | None = None
    parts: dict[int, list[WrittenPart]] = field(default_factory=dict)  # by group
