"""Which logs of a log directory to clean, and in which order (rules 1.2-1.25)."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cleanerd.cleaning.causes import Cause, Held
from cleanerd.cleaning.horizons import read_horizons
from cleanerd.cleaning.outcomes import Basis, Outcome, Skipped
from cleanerd.cleaning.result import CleanRequest, LogResult, Size
from cleanerd.config.model import CleanerdConfig, TopicConfig
from cleanerd.config.settings import DEFAULT
from cleanerd.env.clock import booted_ms
from cleanerd.env.files import Files
from cleanerd.env.pace import Pace
from cleanerd.errors import CleanerdError, CorruptFile, InternalError, each_log
from cleanerd.format import names
from cleanerd.format.names import DirKind, TopicPartition, parse_partition_dir
from cleanerd.policy.cleanable import (
    CleanableRange,
    CompactionConfig,
    clean_section_only,
    cleanable_range,
    is_filthy,
)
from cleanerd.policy.tombstones import Stay
from cleanerd.storage.changed import changed_while_read, stamps
from cleanerd.storage.checkpoints import read_leader_epochs
from cleanerd.storage.log_dir import LogDir, Owner
from cleanerd.storage.partition_dir import log_size
from cleanerd.storage.scan import Checkpoints, PartitionSnapshot
from cleanerd.storage.stability import Stability, read_stability
from cleanerd.storage.staged import StagedGroup
from cleanerd.storage.unflushed import as_flushed, sync_unflushed
from cleanerd.units import utc

_NO_MAX_LAG = 2**63 - 1
_LOOK_AGAIN_MS = 60_000
"""Least time before a log that is held back is looked into again."""
_IN_ANY_ORDER = Stay("a rescue takes segments in the order of what they free")
PaceOf = Callable[[TopicPartition], Pace]
"""The pace at which a log may be read."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A log that qualifies. `leader_epochs`: (epoch, start offset), read before anything else of it. `stay`: why no
    tombstone or marker may go.
    """

    snapshot: PartitionSnapshot
    stability: Stability
    range: CleanableRange
    config: TopicConfig
    leader_epochs: tuple[tuple[int, int], ...] = ()
    stay: Stay | None = None

    @property
    def basis(self) -> Basis:
        """The state that the log must still have when the result is committed."""
        end = self.range.first_uncleanable_offset
        epochs = tuple((epoch, start) for epoch, start in self.leader_epochs if start < end)
        snapshot = self.snapshot
        return Basis(end, snapshot.generation, snapshot.checkpoint, epochs, snapshot.topic_stamp)

    @property
    def log_dir(self) -> str:
        """The log directory of this candidate."""
        return self.snapshot.log_dir

    def result(self, outcome: Outcome) -> LogResult:
        """The account of the log as it is, nothing done to it yet."""
        snapshot = self.snapshot
        size = Size(snapshot.size_bytes, len(snapshot.segments))
        return LogResult(
            snapshot.topic_partition,
            snapshot.log_dir,
            outcome,
            first_dirty_offset=self.range.first_dirty_offset,
            end_offset=self.range.first_uncleanable_offset,
            before=size,
            after=size,
            tombstones_stay=None if self.stay is None else self.stay.reason,
        )

    def held_back(self, files: Files, now_ms: int) -> Cause | None:
        """Why it may not be cleaned beyond its range; None where the active segment begins."""
        stability = self.stability
        held = Held.of(files, self.snapshot, stability.last_stable_offset, stability.open_producer)
        return held.uncleanable(self.range, self.config, now_ms)

    def skipped(self, files: Files, now_ms: int) -> Skipped:
        """Why the log does not qualify, and what holds it back."""
        found, config, cause = self.range, self.config, self.held_back(files, now_ms)
        remedy = None if cause is None else cause.remedy
        if not found.is_empty:
            reason = (
                f"dirty ratio {found.dirty_ratio:.3f} is not above min.cleanable.dirty.ratio "
                f"{config.min_cleanable_dirty_ratio}, and nothing is older than max.compaction.lag.ms"
            )
            if cause is not None:
                reason += f"; held back from offset {found.first_uncleanable_offset} on: {cause.text}"
            force = f"`cleanerctl clean {self.snapshot.topic_partition} --force` cleans it regardless of its dirty ratio"
            remedy = force if remedy is None else f"{force}; {remedy}"
        elif cause is None:
            reason = (
                "nothing to clean: nothing is dirty before the active segment, which begins at offset "
                f"{found.first_dirty_offset}"
            )
        else:
            reason = f"nothing to clean: held back from offset {found.first_dirty_offset} on: {cause.text}"
        return Skipped(reason, remedy)


def partitions(log_dir: LogDir, request: CleanRequest) -> list[TopicPartition]:
    """Partition directories of a log directory that the request is about; anything else there is left alone."""
    parsed = map(parse_partition_dir, log_dir.files.list_names(log_dir.path))
    current = (tp for tp, kind in filter(None, parsed) if kind is DirKind.CURRENT)
    return [
        tp
        for tp in current
        if tp.topic != names.CLUSTER_METADATA_TOPIC
        and (request.topics is None or tp.topic in request.topics)
        and (request.partitions is None or tp.partition in request.partitions)
        and (request.logs is None or tp in request.logs)
        and os.path.isdir(log_dir.partition(tp).path)
    ]


def examine(
    log_dir: LogDir,
    tp: TopicPartition,
    checkpoints: Checkpoints,
    request: CleanRequest,
    *,
    pace: Pace,
    staged: Sequence[StagedGroup] = (),
) -> Candidate | LogResult:
    """One partition: a candidate, or the result with the reason why not. `staged`: as `scan_partition` takes it."""
    config = request.topic_config(tp.topic)
    if not config.compact:
        policy = ",".join(config.cleanup_policy) or "empty"
        configuration = request.configuration
        origin = configuration and configuration.topic_settings(tp.topic)["cleanup.policy"].origin
        by = " by default" if origin == DEFAULT else ""
        return LogResult(tp, log_dir.path, Skipped(f"cleanup.policy is {policy}{by}, without compact"))
    with each_log(log_dir.partition(tp).path) as log:
        look = partial(_examine, log_dir, tp, checkpoints, request, config, pace, staged)
        return _look_twice(look, log_dir.files)
    assert log.error is not None
    return failed_on_disk(log_dir, tp, log.error)


def _look_twice(look: Callable[[], Candidate | LogResult], files: Files) -> Candidate | LogResult:
    """A log that is corrupt is looked at again: files of before and after an exchange may have been read as one."""
    try:
        return look()
    except CorruptFile as error:
        before = stamps(files, error.path)
    try:
        return look()
    except CorruptFile as error:
        if stamps(files, error.path) != before:
            raise changed_while_read(error) from error
        raise


def failed_on_disk(log_dir: LogDir, tp: TopicPartition, error: CleanerdError) -> LogResult:
    """The account of a log that could not be looked at, with the size that it has all the same."""
    # What nobody expected is not met a second time: it would end the whole directory.
    size = Size() if isinstance(error, InternalError) else Size(*log_size(log_dir.partition(tp)))
    return replace(LogResult.of_error(tp, log_dir.path, error), before=size, after=size)


def examine_all(
    log_dir: LogDir,
    found: Iterable[TopicPartition],
    request: CleanRequest,
    pace_of: PaceOf,
    staged: Mapping[TopicPartition, Sequence[StagedGroup]] | None = None,
    checkpoints: Checkpoints | None = None,
) -> Iterator[Candidate | LogResult]:
    """`examine` for partitions of one log directory. `checkpoints`: of a moment ago, None for those in its files now.

    Raises OSError, CorruptFile.
    """
    checkpoints = checkpoints or log_dir.checkpoints()
    for tp in found:
        waiting = (staged or {}).get(tp, ())
        yield examine(log_dir, tp, checkpoints, request, pace=pace_of(tp), staged=waiting)


def _expiration_ms(log_dir: LogDir, config: CleanerdConfig) -> int:
    """How long an idle producer is remembered; the longer of two times where the broker's release is not known and may be
    before 3.4 (rule 4.17).
    """
    new_ms, old_ms = config.producer_id_expiration_ms, config.transactional_id_expiration_ms
    may_be_old = old_ms > new_ms and log_dir.is_kafka and log_dir.is_zookeepers()
    return old_ms if may_be_old else new_ms


def _examine(
    log_dir: LogDir,
    tp: TopicPartition,
    checkpoints: Checkpoints,
    request: CleanRequest,
    config: TopicConfig,
    pace: Pace,
    staged: Sequence[StagedGroup],
) -> Candidate | LogResult:
    now_ms, epochs = log_dir.clock.now_ms(), read_leader_epochs(log_dir.partition(tp))
    with_timestamps = config.max_compaction_lag_ms < _NO_MAX_LAG
    snapshot = log_dir.scan(tp, checkpoints, first_batch_timestamps=with_timestamps, pace=pace, staged=staged)
    if snapshot is None:
        return LogResult(tp, log_dir.path, Skipped("the directory holds no segment"))
    if tp in request.starts:
        assert request.dry_run, "only what is foreseen is taken for done"
        snapshot = snapshot.starting_at(request.starts[tp])
    if snapshot.is_kafka and not snapshot.is_reported and log_dir.owner is Owner.STOPPED_BROKER:
        flushed = as_flushed(snapshot, booted_ms())
        if flushed is not snapshot and not request.dry_run:
            sync_unflushed(log_dir.files, snapshot)
        snapshot = flushed
        if names.REPLICATION_CHECKPOINT in snapshot.unlisted and request.is_only_replica(log_dir, tp):
            snapshot = replace(snapshot, high_watermark=snapshot.log_end_offset)  # nobody else has to have it
    stability = read_stability(
        log_dir.files,
        snapshot,
        now_ms=now_ms,
        expiration_ms=_expiration_ms(log_dir, request.config),
        pace=pace,
    )
    facts = snapshot.facts(stability.last_stable_offset)
    compaction = CompactionConfig(
        config.min_cleanable_dirty_ratio, config.min_compaction_lag_ms, config.max_compaction_lag_ms
    )
    found = cleanable_range(facts, compaction, now_ms)
    candidate = Candidate(snapshot, stability, found, config, epochs, _why_stay(log_dir, tp, request))
    if not found.is_empty and (request.force or is_filthy(found, compaction)):
        return candidate
    skipped = candidate.skipped(log_dir.files, now_ms)
    if not request.horizons or not found.clean_bytes:
        return candidate.result(skipped)
    visit = replace(candidate, range=clean_section_only(facts, found))
    answer = _unless_expired(skipped, visit, now_ms, pace)
    return answer if isinstance(answer, Candidate) else candidate.result(answer)


def _why_stay(log_dir: LogDir, tp: TopicPartition, request: CleanRequest) -> Stay | None:
    """A rescue commits first the groups that free the most, and a tombstone may not go before the values that it deletes."""
    return _IN_ANY_ORDER if request.rescues else request.why_tombstones_stay(log_dir, tp)


def _unless_expired(skipped: Skipped, visit: Candidate, now_ms: int, pace: Pace) -> Candidate | Skipped:
    """The visit for expired delete horizons alone, if it would find any; else why not, too."""
    again_ms = now_ms + max(visit.config.delete_retention_ms, _LOOK_AGAIN_MS)
    if not visit.range.clean_bytes:  # held back by what may move without a change of the clean section
        return replace(skipped, next_horizon_ms=again_ms)
    end = visit.range.first_uncleanable_offset
    clean = [segment for segment in visit.snapshot.segments if segment.base_offset < end]
    next_ms = read_horizons(clean, now_ms, pace)
    if next_ms is not None and next_ms <= now_ms:
        if visit.stay is None:
            return visit
        # A replica that comes back now may not be trusted sooner than delete.retention.ms from now.
        reason = f"{skipped.reason}; tombstones stay: {visit.stay.reason}"
        return replace(skipped, reason=reason, next_horizon_ms=visit.stay.until_ms or again_ms)
    following = "" if next_ms is None else f"; the next one passes at {utc(next_ms)}"
    reason = f"{skipped.reason}; no tombstone has passed its delete horizon{following}"
    return replace(skipped, reason=reason, next_horizon_ms=next_ms)
