"""Values of the pipeline: its work, what its steps pass to each other, and its answers. No algorithm.

A cleaning asks with `LogWork`, whose chunks are `ChunkWork`; the index step answers with a `ChunkSummary` a chunk, the
resolve step with `Verdicts`, which make an `IndexedLog`; the rewrite step answers with a `Part` a chunk, which make a
`RewrittenLog`. To import them loads no compiled code.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from cleanerd.config.model import TopicConfig
from cleanerd.env.files import FileStat
from cleanerd.env.page_cache import Ranges
from cleanerd.errors import CleanerdError
from cleanerd.format.codecs import Codec
from cleanerd.format.errors import FormatError
from cleanerd.format.names import TopicPartition
from cleanerd.format.txn_index import AbortedTxn
from cleanerd.kernels.tables import KeySet, Producers, Table
from cleanerd.policy.verdicts import RecordVerdict

Bits = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Source:
    """A run of batches in a `.log` file, and the identity that the file had when the work was planned."""

    path: str
    identity: FileStat
    start: int
    end: int
    min_offset: int  # base offset of the segment: no batch may begin below it
    cold: Ranges = ()  # of the run: not in the page cache before, and to be dropped from it
    keeps_cold: bool = True  # until the last pass: the cold part of the log is small beside the memory

    @property
    def size_bytes(self) -> int:
        """Bytes of the run."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class IndexPart:
    """`count` entries of an offset index, from number `first` on. They stay there: large logs have gigabytes of them."""

    path: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class ChunkWork:
    """One chunk of a log. `group` counts the segment groups of the log from 0."""

    source: Source
    group: int
    is_dirty: bool  # holds offsets of the dirty section
    retain_legacy_deletes: bool  # rule 4.11
    index: IndexPart  # the entries of the offset index that point into this chunk
    records_max: int  # of its offsets or its batch headers; never more than its bytes can hold
    dirty_records_max: int  # those that may be in the dirty section


@dataclass(frozen=True, slots=True)
class TopicCodec:
    """Codec and level that compression.type sets for a topic. `level`: as in `codecs.compress`."""

    codec: Codec
    level: int | None
    is_taken: bool  # for rewritten batches; else a dry run estimates the savings

    @staticmethod
    def of(config: TopicConfig) -> "TopicCodec | None":
        """None: the codec of the producer."""
        codec, level = {
            "producer": (None, None),
            "uncompressed": (Codec.NONE, None),
            "gzip": (Codec.GZIP, config.compression_gzip_level),
            "snappy": (Codec.SNAPPY, None),
            "lz4": (Codec.LZ4, config.compression_lz4_level),
            "zstd": (Codec.ZSTD, config.compression_zstd_level),
        }[config.compression_type]
        return None if codec is None else TopicCodec(codec, level, config.compression == "topic")


@dataclass(frozen=True, slots=True)
class LogWork:
    """One log to clean; chunks in offset order."""

    topic_partition: TopicPartition
    directory: str
    chunks: tuple[ChunkWork, ...]
    groups: int
    first_dirty_offset: int
    round_end: int  # first uncleanable offset
    expired_ms: int  # delete horizons up to this time have passed, -1: none has
    new_horizon_ms: int  # -1 when now + delete.retention.ms overflows
    index_interval_bytes: int
    producers: Producers
    aborted_txns: tuple[AbortedTxn, ...]
    least_free_bytes: int = 0  # of the file system: new files leave it free
    log_start_offset: int = 0  # no transaction that ends below it is among the aborted ones (rule 4.22)
    in_place: bool = False  # tasks write the parts of a group into one file; else each is a file of its own
    renewed_groups: frozenset[int] = frozenset()  # written again in any case: their indexes are damaged
    mergeable_groups: frozenset[int] = (
        frozenset()
    )  # small neighbours become one if nothing else changes there
    number: int = 0  # among the logs of its job: its name in what tasks report
    topic_codec: TopicCodec | None = None

    @property
    def recodes(self) -> bool:
        """Whether rewritten batches get another codec, so that their size is known only after they were read."""
        return self.topic_codec is not None and self.topic_codec.is_taken

    @property
    def size_bytes(self) -> int:
        """Bytes of all chunks."""
        return sum(chunk.source.size_bytes for chunk in self.chunks)

    @property
    def records_max(self) -> int:
        """Upper bound for the number of records."""
        return sum(chunk.records_max for chunk in self.chunks)

    @property
    def dirty_records_max(self) -> int:
        """Upper bound for the number of records that may be in the dirty section."""
        return sum(chunk.dirty_records_max for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class PackedBits:
    """Bits, packed eight to a byte to be sent."""

    count: int
    packed: npt.NDArray[np.uint8]

    @staticmethod
    def of(bits: Bits) -> "PackedBits":
        """The bits, packed."""
        return PackedBits(len(bits), np.packbits(bits))

    def unpack(self) -> Bits:
        """The bits."""
        return np.unpackbits(self.packed, count=self.count).view(np.bool_)

    def part(self, start: int, end: int) -> Bits:
        """Bits [start, end)."""
        first = start >> 3
        bits = np.unpackbits(self.packed[first : (end + 7) >> 3])
        return bits[start - 8 * first : end - 8 * first].view(np.bool_)


@dataclass(frozen=True, slots=True)
class ChunkSummary:
    """Summary of an indexed chunk that the driver keeps: a bit for each record, no fingerprints."""

    bytes: int
    expanded_bytes: int  # of the records, not compressed
    records: int
    batches: int
    legacy_batches: int  # of magic 0 and 1: their records are written as magic 2
    first_offset: int  # of the first batch, -1 without one
    last_offset: int
    changed_anyway: int  # batches that change whatever the other chunks hold
    competing: int  # records that take part in the contest for their key
    events: Table
    index_flaw: FormatError | None = None  # an entry of the offset index that leads to no batch


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The driver's verdicts on the records of a chunk, after the resolve step."""

    superseded: PackedBits  # of the competing records in the first of `buckets`, then in the second, ...
    buckets: npt.NDArray[np.int32]  # those that hold any, ascending
    bucket_counts: npt.NDArray[np.int32]  # how many each of them holds


@dataclass(slots=True)
class IndexedLog:
    """A log after index and resolve. `error`: why it cannot be cleaned; then the rest means nothing."""

    work: LogWork
    key: tuple[int, int]
    buckets: int
    error: CleanerdError | None = None
    summaries: list[ChunkSummary] = field(default_factory=list)
    verdicts: list[Verdicts | None] = field(default_factory=list)  # None: looked up with the rewrite
    superseded: list[int] = field(default_factory=list)  # per chunk
    dirty_keys: KeySet | None = None  # until such chunks are read: their summaries know only their sizes
    discardable_markers: list[int] = field(default_factory=list)  # offsets, ascending
    kept_aborted: list[AbortedTxn] = field(default_factory=list)  # for the new transaction indexes
    changed_groups: frozenset[int] = frozenset()
    later_groups: frozenset[int] = (
        frozenset()
    )  # of those: rewritten once the others are committed (`cleaning.rounds`)

    @property
    def groups_now(self) -> list[int]:
        """The changed groups of this round, ascending."""
        return sorted(self.changed_groups - self.later_groups)

    def rest(self) -> "IndexedLog":
        """What is left once the groups of this round are committed, whose segments are no more."""
        done = set(self.groups_now)
        left = [number for number, chunk in enumerate(self.work.chunks) if chunk.group not in done]
        return replace(
            self,
            work=replace(self.work, chunks=tuple(self.work.chunks[number] for number in left)),
            summaries=[self.summaries[number] for number in left],
            verdicts=[self.verdicts[number] for number in left],
            superseded=[self.superseded[number] for number in left],
            changed_groups=self.later_groups,
            later_groups=frozenset(),
        )

    def done(self) -> Sequence[ChunkSummary]:
        """Summaries of the chunks that will not be met again: those of this round, of the last one all."""
        if not self.later_groups:
            return self.summaries
        done = set(self.groups_now)
        pairs = zip(self.work.chunks, self.summaries, strict=True)
        return [summary for chunk, summary in pairs if chunk.group in done]

    @property
    def records_read(self) -> int:
        """Records in all chunks."""
        return sum(summary.records for summary in self.summaries)

    @property
    def is_read(self) -> bool:
        """Whether all chunks have been; else some are when they are rewritten."""
        return self.dirty_keys is None


@dataclass(frozen=True, slots=True)
class IndexEntries:
    """Index entries of a part: positions count from the start of the part (spec disk B2, B3)."""

    offsets: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64]
    timestamp_offsets: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """The rewritten chunk."""

    size_bytes: int
    records_read: int
    records_kept: int
    batches_kept: int
    first_last_offset: int  # last offset of the first batch that stays, -1 none
    last_offset: int  # of the last batch that stays, -1 none
    removed: npt.NDArray[np.int64]  # per RecordVerdict
    entries: IndexEntries
    path: str | None  # of its file: alone, or behind the parts of its group before it; None on a dry run
    topic_codec_saves_bytes: int = 0  # about; of a dry run


@dataclass(slots=True)
class RewrittenLog:
    """A log after rewrite: parts of the changed groups, in offset order."""

    indexed: IndexedLog
    error: CleanerdError | None = None
    parts: dict[int, list[Part]] = field(default_factory=dict)  # by group

    @property
    def removes_expired(self) -> bool:
        """Whether tombstones or markers go."""
        expired = [RecordVerdict.TOMBSTONE, RecordVerdict.CONTROL]
        return any(part.removed[expired].any() for parts in self.parts.values() for part in parts)
