"""The retention pass that a cleaner thread gives compacted logs (rules 1.28, 6.1-6.7).

Only closed segments go here: the active one belongs to whoever appends to the log.
"""

from dataclasses import dataclass

from cleanerd.cleaning.lock import commit_lock
from cleanerd.config.model import TopicConfig
from cleanerd.env.files import Files
from cleanerd.policy.retention import Breach, RetentionConfig, plan_retention
from cleanerd.storage.delete import delete_segments
from cleanerd.storage.scan import PartitionSnapshot


@dataclass(frozen=True, slots=True)
class Retained:
    """What retention took from a log."""

    segments: int
    bytes: int
    reasons: tuple[Breach, ...]

    def __str__(self) -> str:
        return f"retention: {self.segments} segments ({', '.join(b.value for b in self.reasons)})"


def retain(
    files: Files, snapshot: PartitionSnapshot, config: TopicConfig, *, now_ms: int, dry_run: bool
) -> Retained | None:
    """Apply retention to one log (or only tell); None when nothing goes. Raises LockHeld, OSError."""
    plan = plan_retention(
        [segment.facts for segment in snapshot.segments],
        RetentionConfig(config.delete, config.retention_ms, config.retention_bytes),
        now_ms=now_ms,
        log_start_offset=snapshot.log_start_offset,
        log_end_offset=snapshot.log_end_offset,
        high_watermark=snapshot.high_watermark,
    )
    active = snapshot.segments[-1].base_offset
    going = [(segment, breach) for segment, breach in plan.deletions if segment.base_offset != active]
    if not going:
        return None
    if not dry_run:
        with commit_lock(snapshot.log_dir, is_kafka=snapshot.is_kafka):
            delete_segments(files, snapshot.directory, [segment.base_offset for segment, _ in going])
    reasons = tuple(dict.fromkeys(breach for _, breach in going))
    return Retained(len(going), sum(segment.size_bytes for segment, _ in going), reasons)
