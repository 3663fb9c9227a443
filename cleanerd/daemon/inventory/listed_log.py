"""Facts about a log from a directory listing, and an upper bound of its dirty part.

What an exact examination adds can only make less of the log cleanable, never more:

==========================  =====================================================================================
what is not known           what is taken for it
==========================  =====================================================================================
last stable offset          the high watermark, which it never passes (A.3); a live broker reports it
log end offset              the base of the active segment. Where a checkpoint lies above it, the log end is read
                            once; what cannot be read quickly counts as beyond the end: reset, all dirty (1.5b)
time index that is broken   that all of the segment is old enough (the examination will name the damage)
==========================  =====================================================================================
"""

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from cleanerd.config.model import TopicConfig
from cleanerd.daemon.values.log_id import LogId
from cleanerd.env.files import FileStat, regular_file
from cleanerd.errors import CorruptFile
from cleanerd.format.names import (
    FileKind,
    SegmentFileName,
    Suffix,
    TopicPartition,
    segment_path,
)
from cleanerd.format.time_index import ENTRY as TIME_INDEX_ENTRY
from cleanerd.policy.cleanable import (
    CleanableRange,
    CompactionConfig,
    LogFacts,
    SegmentFacts,
    cleanable_range,
    lowered_checkpoint,
    usable_checkpoint,
)
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import Checkpoints, SegmentOnDisk, live_kinds, quick_log_end_offset, stat_log
from cleanerd.storage.staged import NO_LIMIT_MS, read_manifest

_EVER_MS = -1  # largest timestamp of a segment that no minimum lag holds back


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """A segment that only changes by being replaced. `facts` have no first batch timestamp: that takes a read."""

    identity: FileStat
    facts: SegmentFacts


@dataclass(frozen=True, slots=True)
class StagedResult:
    """The result that waits in a partition directory, as far as its manifests can be read.

    Its commit replaces `replaced_segments` with `replaced_bytes`, and makes the log smaller by `freed_bytes`.
    `round_end`: up to where the log is clean then, if it `is_whole`, and not a round of several; None where that cannot be
    read. `commit_by_ms`: as `StagedGroup` has it.
    """

    bytes: int
    replaced_segments: int
    replaced_bytes: int
    freed_bytes: int
    round_end: int | None
    since_ms: int
    commit_by_ms: int = NO_LIMIT_MS
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Contents:
    """Names, sizes and times in a partition directory. Appending to the log does not change it."""

    closed: tuple[ClosedSegment, ...]  # ascending
    active_base_offset: int
    active_bytes: int = field(compare=False)  # when it was last looked at
    staged: StagedResult | None  # what waits for its commit
    in_transition: (
        bool  # segments are being exchanged (`.cleaned`, `.swap`): the log must not be looked at now
    )

    @property
    def is_staged(self) -> bool:
        """Whether results wait for their commit."""
        return self.staged is not None

    @property
    def size_bytes(self) -> int:
        """Bytes of all `.log` files, as far as they are known."""
        return sum(segment.facts.size_bytes for segment in self.closed) + self.active_bytes


@dataclass(frozen=True, slots=True)
class Offsets:
    """The entries of a log in the checkpoint files, as far as it decides anything about closed segments."""

    log_start: int
    log_end: int  # the log reaches at least to here
    high_watermark: int  # the base of the active segment or below, or the log start
    recovery_point: int | None  # None: no broker will recover this log
    checkpoint: int | None
    is_outdated: bool = False  # the entry in the file is higher, and older than segments below it
    unlisted: tuple[str, ...] = ()  # `Checkpoints.unlisted`
    last_stable: int | None = None  # as a live broker reports it, no higher than the high watermark


@dataclass(frozen=True, slots=True)
class ListedLog:
    """A log at the last scan. Two are equal when the same may be cleaned in both."""

    log: LogId
    contents: Contents
    offsets: Offsets

    def facts(self, first_batches_ms: Mapping[int, int | None]) -> LogFacts:
        """The facts for policy, see the head of this module; with first batch timestamps by base offset, if they matter."""
        active_base = self.contents.active_base_offset
        closed = (
            SegmentFacts(
                facts.base_offset, facts.size_bytes, facts.offset_index_bytes, facts.time_index_bytes,
                facts.largest_timestamp_ms, first_batches_ms.get(facts.base_offset),
            )
            for facts in (segment.facts for segment in self.contents.closed)
        )  # fmt: skip
        active = SegmentFacts(active_base, self.contents.active_bytes, 0, 0, _EVER_MS, None)
        offsets = self.offsets
        return LogFacts(
            segments=(*closed, active),
            log_start_offset=self.offsets.log_start,
            log_end_offset=self.offsets.log_end,
            last_stable_offset=offsets.high_watermark if offsets.last_stable is None else offsets.last_stable,
            recovery_point=self.offsets.recovery_point,
            checkpoint=self.offsets.checkpoint,
        )

    @property
    def may_need_reset(self) -> bool:
        """Whether its checkpoint may be one that no cleaning wrote (1.7). A result that waits moves it anyway."""
        offsets = self.offsets
        if offsets.checkpoint is None or self.contents.is_staged or self.contents.in_transition:
            return False
        return offsets.is_outdated or not usable_checkpoint(
            offsets.checkpoint, offsets.log_start, offsets.log_end
        )

    def upper_bound(self, config: TopicConfig, now_ms: int) -> CleanableRange:
        """The most that can be cleanable: dirty ratio and cleanable bytes are never below the true ones. Its delay is 0."""
        return cleanable_range(self.facts({}), compaction_config(config), now_ms)


def stamp_of(known: ListedLog | None, config: TopicConfig) -> str:
    """Stands for the closed segments of a log and for its configuration."""
    closed = known.contents.closed if known is not None else ()
    segments = [(s.facts.base_offset, s.identity.mtime_ns, s.facts.size_bytes) for s in closed]
    return hashlib.blake2b(repr((segments, config)).encode(), digest_size=8).hexdigest()


def compaction_config(config: TopicConfig) -> CompactionConfig:
    """The settings that decide on compaction."""
    return CompactionConfig(
        config.min_cleanable_dirty_ratio, config.min_compaction_lag_ms, config.max_compaction_lag_ms
    )


def offsets_of(
    tp: TopicPartition,
    contents: Contents,
    checkpoints: Checkpoints,
    *,
    is_kafka: bool,
    now_ms: int,
    reaches: Callable[[int], bool],
) -> Offsets:
    """Bounds as `storage.scan.scan_partition` takes them (A.1, A.2, spec disk G).

    `reaches` is asked whether the log is known to go up to a checkpoint that lies in the active segment or beyond.
    """
    active_base = contents.active_base_offset
    first_base = contents.closed[0].facts.base_offset if contents.closed else active_base
    entry = checkpoints.cleaner.get(tp)
    checkpoint = entry
    if entry is not None:
        modified = ((one.facts.base_offset, one.identity.mtime_ms) for one in contents.closed)
        checkpoint = lowered_checkpoint(entry, checkpoints.cleaner_written_ms, modified, now_ms)
    start = max(checkpoints.log_start.get(tp, 0), first_base)
    end = max(active_base, start)
    if checkpoint is not None and checkpoint > end and reaches(checkpoint):
        end = checkpoint
    if not is_kafka:
        return Offsets(start, end, end, None, checkpoint, is_outdated=checkpoint != entry)
    high_watermark = max(min(checkpoints.high_watermark.get(tp, 0), active_base), start)
    last_stable = checkpoints.last_stable.get(tp)
    return Offsets(
        log_start=start,
        log_end=end,
        high_watermark=high_watermark,
        last_stable=None if last_stable is None else min(last_stable, high_watermark),
        recovery_point=min(checkpoints.recovery_point.get(tp, 0), active_base),
        checkpoint=checkpoint,
        is_outdated=checkpoint != entry,
        unlisted=checkpoints.unlisted(tp),
    )


def reaches(partition: PartitionDir, contents: Contents, offset: int) -> bool:
    """Whether the log is known to go up to `offset`; False where that takes more than a short look. Raises nothing."""
    path = segment_path(partition.path, contents.active_base_offset, FileKind.LOG)
    try:
        found = partition.files.stat(path)
        facts = SegmentFacts(contents.active_base_offset, found.size_bytes, 0, 0, _EVER_MS, None)
        kinds = frozenset({FileKind.LOG, FileKind.OFFSET_INDEX})
        end = quick_log_end_offset(partition.files, SegmentOnDisk(path, found, kinds, facts))
    except (OSError, CorruptFile):
        return False
    return end is not None and offset <= end


def read_contents(partition: PartitionDir, before: Contents | None) -> Contents | None:
    """List a partition directory; None when it holds no segment. What did not change since `before` is not read again.

    Raises OSError.
    """
    parsed = partition.names()
    kinds = live_kinds(parsed)
    bases = sorted(base for base, found in kinds.items() if FileKind.LOG in found)
    if not bases:
        return None
    known = {segment.facts.base_offset: segment for segment in before.closed} if before else {}
    active = stat_log(partition.files, segment_path(partition.path, bases[-1], FileKind.LOG))
    return Contents(
        closed=tuple(_closed_segment(partition, base, kinds[base], known.get(base)) for base in bases[:-1]),
        active_base_offset=bases[-1],
        active_bytes=active.size_bytes,
        staged=_staged(partition, [name for name in parsed if name.suffix is Suffix.STAGED]),
        in_transition=any(name.suffix in {Suffix.CLEANED, Suffix.SWAP} for name in parsed),
    )


def with_active_size(partition: PartitionDir, contents: Contents) -> Contents:
    """`contents` with the active segment as long as it is now; the same object if nothing was appended. Raises OSError."""
    path = segment_path(partition.path, contents.active_base_offset, FileKind.LOG)
    size_bytes = partition.files.stat(path).size_bytes
    return contents if size_bytes == contents.active_bytes else replace(contents, active_bytes=size_bytes)


def _staged(partition: PartitionDir, names: list[SegmentFileName]) -> StagedResult | None:
    stats = {name: partition.stat(name) for name in names}
    manifests = [name for name in names if name.kind is FileKind.MANIFEST]
    if not manifests:
        return None
    groups = []
    for name in manifests:
        with contextlib.suppress(CorruptFile):  # the commit drops and reports it
            groups.append(read_manifest(partition, name))
    replaced = [source.size_bytes for group in groups for source in group.sources]
    return StagedResult(
        bytes=sum(stat.size_bytes for stat in stats.values()),
        replaced_segments=len(replaced),
        replaced_bytes=sum(replaced),
        freed_bytes=sum(replaced) - sum(group.sizes[FileKind.LOG] for group in groups),
        round_end=max((group.round_end for group in groups), default=None),
        since_ms=min(stats[name].mtime_ms for name in manifests),
        commit_by_ms=min((group.commit_by_ms for group in groups), default=NO_LIMIT_MS),
        is_whole=all(group.moves_checkpoint for group in groups),
    )


def _closed_segment(
    partition: PartitionDir, base: int, kinds: set[FileKind], before: ClosedSegment | None
) -> ClosedSegment:
    paths = {kind: segment_path(partition.path, base, kind) for kind in kinds}
    log = stat_log(partition.files, paths[FileKind.LOG])
    offset_index_bytes, time_index_bytes = (
        partition.files.stat(paths[kind]).size_bytes if kind in kinds else 0
        for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
    )
    if before is not None and before.identity == log:
        old = before.facts
        if (old.offset_index_bytes, old.time_index_bytes) == (offset_index_bytes, time_index_bytes):
            return before
    largest = log.mtime_ms  # rule 1.10
    if time_index_bytes:
        largest = _last_timestamp_ms(paths[FileKind.TIME_INDEX], time_index_bytes)
    facts = SegmentFacts(base, log.size_bytes, offset_index_bytes, time_index_bytes, largest, None)
    return ClosedSegment(log, facts)


def _last_timestamp_ms(path: str, size_bytes: int) -> int:
    """Timestamp of the last entry in the time index of a closed segment, which is as long as its entries (spec disk B3)."""
    with regular_file(path) as file:
        file.seek(max(size_bytes - TIME_INDEX_ENTRY.size, 0))
        entry = file.read(TIME_INDEX_ENTRY.size)
    if size_bytes % TIME_INDEX_ENTRY.size or len(entry) < TIME_INDEX_ENTRY.size:
        return _EVER_MS
    timestamp_ms, _ = TIME_INDEX_ENTRY.unpack(entry)
    return int(timestamp_ms)
