"""Why a log is held back, for the operator: which segment, record or file blocks it, and what to do.

Rules decide which bound holds (`policy.cleanable`, `policy.retention`); people need to know why it lies there.
"""

import contextlib
import os
from dataclasses import dataclass

from cleanerd.config.model import TopicConfig
from cleanerd.env.files import Files
from cleanerd.errors import CleanerdError
from cleanerd.format import names
from cleanerd.format.names import FileKind, TopicPartition, segment_path
from cleanerd.policy.cleanable import (
    CleanableRange,
    LogFacts,
    RangeLimit,
    SegmentFacts,
    first_young,
    non_active_from,
)
from cleanerd.policy.retention import Keeper, Kept
from cleanerd.storage.index_files import read_time_index
from cleanerd.storage.scan import PartitionSnapshot
from cleanerd.units import utc

_END_OF_TIME_MS = 253_402_300_800_000  # the year 10000: what is later has no date
_TEN_YEARS_MS = 10 * 365 * 86_400_000
SET_POLICY = (
    "if that is not meant, set the topic's cleanup.policy to compact or delete (`kafka-configs.sh --alter`)"
)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a log is held back, and what an operator can do about it, if anything."""

    text: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """Why something of a log may not be cleaned, or is not deleted.

    `unlisted`: as `Checkpoints.unlisted`. `open_producer`: as in `Stability`.
    """

    files: Files
    log_dir: str
    topic_partition: TopicPartition
    facts: LogFacts
    high_watermark: int
    unlisted: tuple[str, ...]
    open_producer: int | None = None

    @classmethod
    def of(
        cls,
        files: Files,
        snapshot: PartitionSnapshot,
        last_stable_offset: int,
        open_producer: int | None = None,
    ) -> "Held":
        """A log as it was scanned."""
        facts, high_watermark = snapshot.facts(last_stable_offset), snapshot.high_watermark
        tp, unlisted = snapshot.topic_partition, snapshot.unlisted
        return cls(files, snapshot.log_dir, tp, facts, high_watermark, unlisted, open_producer)

    def uncleanable(self, found: CleanableRange, config: TopicConfig, now_ms: int) -> Cause | None:
        """Why the cleanable range ends where it does (1.9-1.13); None where the active segment begins, and to close it would
        not help.
        """
        match found.limit:
            case RangeLimit.ACTIVE_SEGMENT:
                return self._active(found, config, now_ms)
            case RangeLimit.MIN_COMPACTION_LAG:
                return self._young(found, config, now_ms)
            case RangeLimit.RECOVERY_POINT:
                return self._recovery_point()
            case RangeLimit.LAST_STABLE_OFFSET:
                is_replicated = self.facts.last_stable_offset < self.high_watermark
                return self._transaction() if is_replicated else self._high_watermark()

    def kept(self, kept: Kept, config: TopicConfig, now_ms: int) -> Cause:
        """Why retention leaves the oldest segment (6.2)."""
        if kept.keeper is Keeper.HIGH_WATERMARK:
            recovery_point = self.facts.recovery_point
            is_lower = recovery_point is not None and recovery_point < self.high_watermark
            return self._recovery_point() if is_lower else self._high_watermark()
        if kept.keeper is not Keeper.LIMITS:
            return Cause(kept.keeper.value)
        if not config.cleanup_policy:
            return Cause("cleanup.policy is empty, so neither age nor size takes it", SET_POLICY)
        if not config.delete:
            return Cause("without the policy delete only a higher log start offset takes it")
        if config.remote_storage_enable:
            return Cause("remote.storage.enable is set: only its broker knows what has been copied")
        if config.retention_ms >= 0 and kept.segment.largest_timestamp_ms > now_ms:
            text = f"retention.ms counts from its largest timestamp: {self._newest(kept.segment, now_ms)}"
            remedy = (
                "to let it go, raise the log start offset (`kafka-delete-records.sh`) or set retention.bytes"
            )
            return Cause(text, remedy)
        if config.retention_ms < 0 and config.retention_bytes < 0:
            return Cause("neither limit is set, so only a higher log start offset takes it")
        return Cause(kept.keeper.value)

    def _active(self, found: CleanableRange, config: TopicConfig, now_ms: int) -> Cause | None:
        """The advice to roll, if the log would be dirty enough with the active segment and is not without it."""
        facts, active, least = self.facts, self.facts.active, config.min_cleanable_dirty_ratio
        dirty_bytes = found.cleanable_bytes + active.size_bytes
        if found.dirty_ratio > least or dirty_bytes <= least * (found.clean_bytes + dirty_bytes):
            return None
        is_young = first_young([active], config.min_compaction_lag_ms, now_ms) is not None
        if is_young or not active.size_bytes or facts.last_stable_offset < facts.log_end_offset:
            return None
        text = f"the active segment, with {active.size_bytes} bytes, begins there; --roll closes it first"
        return Cause(text, f"`cleanerctl clean {self.topic_partition} --roll`")

    def _high_watermark(self) -> Cause:
        remedy = "its broker raises it when all replicas in sync have fetched: see which of them lags"
        return self._entry("high watermark", names.REPLICATION_CHECKPOINT, self.high_watermark, remedy)

    def _recovery_point(self) -> Cause:
        remedy = (
            "its broker writes it each log.flush.offset.checkpoint.interval.ms (a minute), first 30 s after its start, "
            "and when it stops"
        )
        return self._entry(
            "recovery point", names.RECOVERY_POINT_CHECKPOINT, self.facts.recovery_point or 0, remedy
        )

    def _entry(self, what: str, name: str, offset: int, remedy: str) -> Cause:
        path = os.path.join(self.log_dir, name)
        if name not in self.unlisted:
            return Cause(f"{path} has {offset} as its {what}", remedy)
        remedy = f"start its broker once, which writes {name}; or restore that file with the logs"
        lacks = f"has no entry for {self.topic_partition}" if self.files.exists(path) else "is missing"
        return Cause(f"{path} {lacks}, so its {what} counts as {offset}", remedy)

    def _transaction(self) -> Cause:
        begins = self.facts.last_stable_offset
        if self.open_producer is None:
            return Cause(
                f"a transaction from offset {begins} on is not known to have ended on all replicas in sync"
            )
        remedy = "if its producer is gone, `kafka-transactions.sh find-hanging` finds it and `abort` ends it"
        return Cause(
            f"a transaction of producer {self.open_producer} is open from offset {begins} on", remedy
        )

    def _young(self, found: CleanableRange, config: TopicConfig, now_ms: int) -> Cause:
        lag_ms = config.min_compaction_lag_ms
        dirty = non_active_from(self.facts.segments, found.first_dirty_offset)
        base = first_young(dirty, lag_ms, now_ms)
        segment = next(one for one in dirty if one.base_offset == base)
        text = f"segment {base} is younger than min.compaction.lag.ms ({lag_ms}): {self._newest(segment, now_ms)}"
        if segment.largest_timestamp_ms <= now_ms:
            return Cause(
                text,
                f"wait until {utc(segment.largest_timestamp_ms + lag_ms)}, or lower min.compaction.lag.ms",
            )
        gone = ", or delete up to that record (`kafka-delete-records.sh`)" if config.delete else ""
        remedy = f"set min.compaction.lag.ms of the topic to 0{gone}"
        return Cause(text, f"{remedy}; message.timestamp.after.max.ms keeps such records out")

    def _newest(self, segment: SegmentFacts, now_ms: int) -> str:
        """The batch or file with the largest timestamp of a segment (1.10), in words."""
        at = dated(segment.largest_timestamp_ms, now_ms)
        if not segment.time_index_bytes:
            return f"its time index is empty, and its file was written at {at}"
        directory = os.path.join(self.log_dir, str(self.topic_partition))
        path = segment_path(directory, segment.base_offset, FileKind.TIME_INDEX)
        with contextlib.suppress(CleanerdError, OSError):
            index = read_time_index(self.files, path, segment.base_offset)
            if index.largest_timestamp_ms == segment.largest_timestamp_ms:
                return f"the batch at offset {index.offsets[-1]} bears timestamp {at}"
        if segment.largest_timestamp_ms == segment.modified_ms:
            return f"its time index is damaged, and its file was written at {at}"
        return f"a record bears timestamp {at}"


def dated(timestamp_ms: int, now_ms: int) -> str:
    """The timestamp of a record; of one in the future also what it would be in the unit that its producer may have meant."""
    text = str(timestamp_ms) if timestamp_ms >= _END_OF_TIME_MS else f"{timestamp_ms} ({utc(timestamp_ms)})"
    if timestamp_ms <= now_ms:
        return text
    for unit, factor in (("microseconds", 1_000), ("nanoseconds", 1_000_000)):
        if abs(timestamp_ms // factor - now_ms) < _TEN_YEARS_MS:
            return f"{text}, in the future; as {unit} it would be {utc(timestamp_ms // factor)}"
    return f"{text}, in the future"
