"""The retention pass of one log (rules 1.28-1.32, 6.1-6.12), for a one-shot cleaning as for the daemon.

Planned without the lock; carried out with `.lock` held, if the log is still the one that was planned for:

1. If every segment goes, an empty one is rolled at the log end first (`storage.roll`).
2. The oldest segments become `.deleted` files, oldest first (`storage.delete`).
3. `leader-epoch-checkpoint` is trimmed from the start (6.9). Not before 2: data that is still there needs its epochs. A
   crash between 2 and 3 leaves entries too many, which a broker folds when it loads the log.
4. An entry of `log-start-offset-checkpoint` that repeats the first segment is dropped (6.12). Not before 2:
   what is below it must not come back. That of a tiered log stays: its broker starts it there, wherever its segments do.
5. The `.deleted` files are handed to who deletes them.

Many segments go in several holds of `.lock`, each all of these steps for the oldest ones that are left.

What a stopped broker never had on stable storage does not go: it will check that part of the log when it starts, and until
then the time indexes there prove nothing. So retention ends at the recovery point as well as at the high watermark.

Of a tiered log (remote.storage.enable) only what lies below its log start goes: which segments have been copied, only its
broker knows, and what it has not copied would be lost.

The active segment goes only in a directory whose broker closed the log, and then it takes no appends while `.lock` is
held here. Elsewhere it stays, whatever its age: a cooperating writer keeps it open for its life and takes `.lock` only to
roll, so that an idle writer looks like none, and what it appends to a deleted segment would be lost.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cleanerd.cleaning.causes import Cause, Held
from cleanerd.cleaning.outcomes import Committed, Planned, Skipped, Unchanged
from cleanerd.cleaning.result import LogResult, Size
from cleanerd.cleaning.roll import is_closed_by_broker
from cleanerd.config.model import TopicConfig
from cleanerd.env.files import Files, check_unchanged
from cleanerd.errors import LockHeld, LogUncleanable, SourceChanged
from cleanerd.format import names
from cleanerd.format.names import TopicPartition
from cleanerd.format.producer_snapshot import ProducerEntry
from cleanerd.policy.cleanable import SegmentFacts
from cleanerd.policy.retention import (
    Breach,
    Kept,
    RetentionConfig,
    RetentionPlan,
    epochs_from,
    plan_retention,
    what_stays,
)
from cleanerd.storage.checkpoints import (
    read_leader_epochs,
    read_offsets,
    replace_leader_epochs,
    update_checkpoint,
)
from cleanerd.storage.delete import retire_segments, unlink_all
from cleanerd.storage.generation import check_generation
from cleanerd.storage.index_files import largest_timestamp_ms
from cleanerd.storage.lock import pause_after
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.producer_state import producers_at
from cleanerd.storage.roll import roll_segment
from cleanerd.storage.scan import Checkpoints, PartitionSnapshot, log_end
from cleanerd.storage.staged import live_logs
from cleanerd.units import counted

_LOG_START_ONLY = RetentionConfig(delete=False, retention_ms=-1, retention_bytes=-1)

Dispose = Callable[[tuple[str, ...]], None]
"""What becomes of `.deleted` files; called with `.lock` held."""

_SEGMENTS_AT_ONCE = 16
"""So many segments go in one hold of `.lock`, each with a sync of its own ..."""
_HOLDS_MAX = 64
"""... but more where these are more holds than this: each lists the directory."""

_EVER_MS = -1  # older than any limit


@dataclass(frozen=True, slots=True)
class Retained:
    """The segments that retention took from a log, or would take; `rolled`: only a new empty segment is left.

    `before`: the log until then. `bytes`: of its segments; `frees_bytes`: what the disk gets back.
    """

    before: Size
    segments: int
    bytes: int
    frees_bytes: int
    reasons: tuple[Breach, ...]
    log_start_offset: int
    rolled: bool

    def __str__(self) -> str:
        return f"retention: {counted(self.segments, 'segment')} ({', '.join(b.value for b in self.reasons)})"

    def added_to(self, result: LogResult, *, dry_run: bool) -> LogResult:
        """The result of a log after retention took segments from it, or would take them."""
        outcome, before = result.outcome, result.before if result.before.bytes else self.before
        if isinstance(outcome, Skipped | Unchanged):
            outcome = Planned(str(self)) if dry_run else Committed(reason=str(self))
        else:
            outcome = replace(outcome, reason="; ".join(filter(None, (outcome.reason, str(self)))))
        left = self.before.segments - self.segments + self.rolled
        return replace(
            result, outcome=outcome, before=before, after=Size(self.before.bytes - self.bytes, left)
        )


@dataclass(frozen=True, slots=True)
class Preview:
    """The effect of a pass on a log now: segments and bytes that go, for each breach; the oldest segment that stays."""

    config: TopicConfig  # by which
    goes: Mapping[Breach, tuple[int, int]]
    kept: Kept | None
    cause: Cause | None  # why that one stays
    log_start_offset: int


def preview(files: Files, snapshot: PartitionSnapshot, config: TopicConfig, now_ms: int) -> Preview:
    """The plan of `retain`, and why the rest is not part of it. Raises LogUncleanable, OSError."""
    plan, facts = _plan(files, snapshot, _settings(config), now_ms)
    goes: dict[Breach, tuple[int, int]] = {}
    for segment, breach in plan.deletions:
        segments, size = goes.get(breach, (0, 0))
        goes[breach] = segments + 1, size + segment.size_bytes
    kept = what_stays(
        facts,
        _settings(config),
        plan,
        now_ms=now_ms,
        log_end_offset=snapshot.log_end_offset,
        high_watermark=_limit(snapshot),
    )
    held = Held.of(files, snapshot, snapshot.high_watermark)
    cause = None if kept is None else held.kept(kept, config, now_ms)
    return Preview(config, goes, kept, cause, plan.log_start_offset)


def retain_log(
    log_dir: LogDir,
    tp: TopicPartition,
    checkpoints: Checkpoints,
    config: TopicConfig,
    *,
    dry_run: bool,
    dispose: Dispose | None = None,
    directory: str | None = None,
) -> Retained | None:
    """One log of a retention pass: what went, None when nothing did. Raises as `retain`.

    LockHeld ends the pass for the whole log directory: a broker lives, and its own retention works. A log that is not
    looked at has nothing that could go. `directory`: as `scan_partition` takes it.
    """
    if not _settings(config).delete and not checkpoints.log_start.get(tp, 0):
        return None
    snapshot = log_dir.scan(tp, checkpoints, directory=directory)
    if snapshot is None:
        return None
    return retain(log_dir, snapshot, config, dry_run=dry_run, dispose=dispose)


def retain(
    log_dir: LogDir,
    snapshot: PartitionSnapshot,
    config: TopicConfig,
    *,
    dry_run: bool,
    dispose: Dispose | None = None,
) -> Retained | None:
    """Apply retention to one log, or only report what it would delete; None when nothing goes.

    `dispose` gets the paths of the `.deleted` files, for a deletion after file.delete.delay.ms; without it they are
    deleted at once. Raises LockHeld; SourceChanged when the log changed since the snapshot; LogUncleanable, OSError.
    """
    plan, _ = _plan(log_dir.files, snapshot, _settings(config), log_dir.clock.now_ms())
    if not plan.deletions:
        return None
    if dry_run:
        return _retained(snapshot, plan)
    return _retire(log_dir, snapshot, plan, dispose, keeps_log_start=config.remote_storage_enable)


def retire_below_start(
    log_dir: LogDir, snapshot: PartitionSnapshot, *, dispose: Dispose | None = None
) -> Retained:
    """Take what lies below the log start of a log and nothing else, whatever its settings (6.3). Raises as `retain`."""
    plan, _ = _plan(log_dir.files, snapshot, _LOG_START_ONLY, 0)
    return _retire(log_dir, snapshot, plan, dispose)


def _retire(
    log_dir: LogDir,
    snapshot: PartitionSnapshot,
    plan: RetentionPlan,
    dispose: Dispose | None,
    *,
    keeps_log_start: bool = False,
) -> Retained:
    """Some segments at a time, so that a broker that starts meanwhile finds `.lock` free; what had gone before it did."""
    files, gone = log_dir.files, 0
    count = max(_SEGMENTS_AT_ONCE, -(-len(plan.deletions) // _HOLDS_MAX))
    while gone < len(plan.deletions):
        part = plan.deletions[gone : gone + count]
        is_last = gone + len(part) == len(plan.deletions)
        now = RetentionPlan(part, plan.log_start_offset, roll=plan.roll and is_last)
        try:
            with log_dir.lock() as lock:
                began_s = log_dir.clock.monotonic_s()
                left = _without(snapshot, gone)
                revalidate_snapshot(files, left, len(part))
                producers = producers_at(left.directory, left.log_end_offset).entries if now.roll else ()
                lock.check()
                paths = carry_out(files, left, now, producers, keeps_log_start=keeps_log_start)
                if gone:  # the files of the parts before this one have been handed over
                    paths = tuple(path for path in paths if _base_of(path) >= part[0][0].base_offset)
                if dispose is not None:
                    dispose(paths)
                else:
                    for error in unlink_all(files, paths).values():
                        raise error
                pause_s = pause_after(lock, log_dir.clock.monotonic_s() - began_s)
        except (LockHeld, SourceChanged):
            if gone == 0:
                raise
            break
        gone += len(part)
        threading.Event().wait(pause_s)
    if gone == len(plan.deletions):
        return _retained(snapshot, plan)
    start = _without(snapshot, gone).log_start_offset
    return _retained(snapshot, RetentionPlan(plan.deletions[:gone], start, roll=False))


def _without(snapshot: PartitionSnapshot, gone: int) -> PartitionSnapshot:
    """The log once this many of its segments have gone."""
    segments = snapshot.segments[gone:]
    start = max(snapshot.log_start_offset, segments[0].base_offset)
    return replace(snapshot, segments=segments, log_start_offset=start)


def _base_of(path: str) -> int:
    parsed = names.parse_segment_file(os.path.basename(path))
    assert parsed is not None, "a file of a segment"
    return parsed.base_offset


def _retained(snapshot: PartitionSnapshot, plan: RetentionPlan) -> Retained:
    return Retained(
        Size(snapshot.size_bytes, len(snapshot.segments)),
        len(plan.deletions),
        sum(segment.size_bytes for segment, _ in plan.deletions),
        sum(segment.identity.frees_bytes for segment in snapshot.segments[: len(plan.deletions)]),
        tuple(dict.fromkeys(breach for _, breach in plan.deletions)),
        plan.log_start_offset,
        plan.roll,
    )


def _plan(
    files: Files, snapshot: PartitionSnapshot, settings: RetentionConfig, now_ms: int
) -> tuple[RetentionPlan, list[SegmentFacts]]:
    """The plan, and the segments that it was made for.

    Where a time index is damaged the `.log` is asked, from the oldest segment on, until one stays. A broker takes a segment
    whose index ends in zeros for one of 1970, and deletes it; what it would rebuild the index to is what holds here.

    What a killed broker had allocated in advance (preallocate) is no part of the log, whose size counts for retention.bytes.
    """
    if snapshot.log_start_offset > snapshot.log_end_offset:
        raise LogUncleanable(
            f"{snapshot.directory}: {names.LOG_START_CHECKPOINT} has log start offset "
            f"{snapshot.log_start_offset}, but the log ends at {snapshot.log_end_offset}: was it written for another log?"
        )
    facts = [segment.facts for segment in snapshot.segments]
    if settings.delete and 0 <= settings.retention_bytes <= snapshot.size_bytes:
        facts[-1] = replace(facts[-1], size_bytes=log_end(files, snapshot.segments[-1])[1])
    unknown = {n for n, segment in enumerate(snapshot.segments) if not segment.is_age_known}
    for number in unknown:
        facts[number] = replace(facts[number], largest_timestamp_ms=_EVER_MS)
    while True:
        plan = _plan_with(files, snapshot, facts, settings, now_ms)
        by_time = [
            n for n, (_, breach) in enumerate(plan.deletions) if breach is Breach.TIME and n in unknown
        ]
        if not by_time:
            return plan, [snapshot.segments[n].facts if n in unknown else one for n, one in enumerate(facts)]
        segment = snapshot.segments[by_time[0]]
        found_ms = largest_timestamp_ms(segment.path, segment.identity)
        facts[by_time[0]] = replace(segment.facts, largest_timestamp_ms=found_ms)
        unknown.remove(by_time[0])


def _plan_with(
    files: Files,
    snapshot: PartitionSnapshot,
    facts: Sequence[SegmentFacts],
    settings: RetentionConfig,
    now_ms: int,
) -> RetentionPlan:
    plan = plan_retention(
        facts,
        settings,
        now_ms=now_ms,
        log_start_offset=snapshot.log_start_offset,
        log_end_offset=snapshot.log_end_offset,
        high_watermark=_limit(snapshot),
    )
    if not plan.roll or is_closed_by_broker(files, snapshot):
        return plan
    kept = snapshot.segments[-1].base_offset
    return RetentionPlan(plan.deletions[:-1], max(snapshot.log_start_offset, kept), roll=False)


def _settings(config: TopicConfig) -> RetentionConfig:
    return RetentionConfig(
        delete=config.delete and not config.remote_storage_enable,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
    )


def _limit(snapshot: PartitionSnapshot) -> int:
    """High watermark, or recovery point where a broker will come back to it."""
    if snapshot.recovery_point is None:
        return snapshot.high_watermark
    return min(snapshot.high_watermark, snapshot.recovery_point)


def revalidate_snapshot(files: Files, snapshot: PartitionSnapshot, going: int) -> None:
    """Raise SourceChanged unless the log still is the one of the snapshot (KAFKA-631's generation check).

    The segments that go must be the same files. Those behind them must be there, or the log may have become smaller than
    it was planned for; more may have come, unless all go. So must the log start: the checkpoints are read once for a
    whole pass.
    """
    partition = PartitionDir(files, snapshot.directory)
    check_generation(partition, snapshot.generation)
    path = os.path.join(snapshot.log_dir, names.LOG_START_CHECKPOINT)
    start = max(read_offsets(files, path).get(snapshot.topic_partition, 0), snapshot.segments[0].base_offset)
    if start != snapshot.log_start_offset:
        raise SourceChanged(f"{path}: the log start offset was {snapshot.log_start_offset}, is {start}")
    live = live_logs(partition)
    planned = [segment.base_offset for segment in snapshot.segments]
    if (live if going == len(planned) else live[: len(planned)]) != planned:
        raise SourceChanged(f"{snapshot.directory}: the segments were {planned}, are {live}")
    for segment in snapshot.segments[:going]:
        check_unchanged(segment.path, segment.identity, files.stat(segment.path))


def carry_out(
    files: Files,
    snapshot: PartitionSnapshot,
    plan: RetentionPlan,
    producers: Sequence[ProducerEntry],
    *,
    keeps_log_start: bool = False,
) -> tuple[str, ...]:
    """Steps 1 to 4. Called with `.lock` held; returns the `.deleted` files.

    `producers`: their state at the log end, for the segment that is rolled. `keeps_log_start`: of a tiered log, which a
    broker does not take to start at its first segment. Raises CorruptFile before anything is touched.
    """
    partition = PartitionDir(files, snapshot.directory)
    epochs = read_leader_epochs(partition)
    log_start = read_offsets(files, os.path.join(snapshot.log_dir, names.LOG_START_CHECKPOINT))
    going = [segment.base_offset for segment, _ in plan.deletions]
    if plan.roll:
        roll_segment(partition, snapshot.log_end_offset, producers, like=snapshot.segments[-1].path)
    paths = retire_segments(partition, going)
    first = snapshot.log_end_offset if plan.roll else snapshot.segments[len(going)].base_offset
    trimmed = epochs_from(epochs, first)
    if trimmed != epochs:
        replace_leader_epochs(partition, trimmed)
    entry = log_start.get(snapshot.topic_partition)
    if entry is not None and entry <= first and not keeps_log_start:
        update_checkpoint(
            files, snapshot.log_dir, names.LOG_START_CHECKPOINT, {snapshot.topic_partition: None}
        )
    return paths
