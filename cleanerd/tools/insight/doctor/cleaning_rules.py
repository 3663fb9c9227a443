"""Rules about cleaning: a cleaner that is dead or late, and what holds logs back."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cleanerd.cleaning.causes import dated
from cleanerd.format.names import FileKind
from cleanerd.policy.cleanable import SegmentFacts, non_active_from
from cleanerd.policy.deadlines import grace_ms
from cleanerd.tools.insight.findings import Severity
from cleanerd.units import counted, duration, size, utc

from .facts import (
    DAY_MS,
    BrokerFacts,
    DirectoryFacts,
    Finding,
    Limits,
    LogFacts,
    Place,
    finding,
    place_of,
    verify_command,
)

_SEGMENT_MS = "set segment.ms of the topic to what a duplicate may cost in time"


def late(broker: BrokerFacts, directory: DirectoryFacts, limits: Limits) -> Iterator[Finding]:
    """Logs that are due for long: the cleaner of their directory is dead, or passes them over. Its broker knows at once."""
    own = directory.own_cleaner
    if own is not None and own.dead_threads:
        yield finding(
            "cleaner_dead",
            Place(directory.path),
            f"its broker says: {counted(own.dead_threads, 'cleaner thread')} of {broker.config.log_cleaner_threads} died",
            "look for `log-cleaner` in the broker's log, and restart the broker; or clean now: "
            f"`cleanerd clean {broker.where}`",
        )
        return
    given_up = frozenset() if own is None else own.uncleanable
    for log in directory.logs:
        if log.topic_partition in given_up:
            yield finding(
                "cleaner_stuck",
                place_of(log, offset=log.range.first_dirty_offset),
                "its broker says that it is uncleanable: its cleaner has failed on it, and leaves it until a restart",
                f"look for it in the broker's log; {verify_command(directory.path, log)} finds what is damaged",
                log.range.cleanable_bytes,
            )
    latest_ms = directory.judged_ms - limits.due_ms
    since = [(at_ms, log) for log in directory.logs if (at_ms := log.due_since_ms()) is not None]
    due = sorted(
        ((at_ms, log) for at_ms, log in since if at_ms < latest_ms and log.topic_partition not in given_up),
        key=lambda one: one[0],
    )
    if not due:
        return
    written_ms = directory.cleaner_written_ms
    if own is None and directory.cleaning is None and (written_ms is None or written_ms < latest_ms):
        yield _nothing_cleaned(broker, directory, due)
        return
    busy = "" if directory.cleaning is None else f"; the cleaner is busy with {directory.cleaning}"
    for at_ms, log in due:
        if log.topic_partition != directory.cleaning:
            yield finding(
                "cleaner_stuck",
                place_of(log, offset=log.range.first_dirty_offset),
                f"dirty ratio {log.range.dirty_ratio:.2f}, due since {utc(at_ms)}; its first dirty offset is still "
                f"{log.range.first_dirty_offset}{busy}",
                f"look for it in the broker's log (uncleanable partitions); {broker.command('clean', log)}",
                log.range.cleanable_bytes,
            )


def _nothing_cleaned(
    broker: BrokerFacts, directory: DirectoryFacts, due: Sequence[tuple[int, LogFacts]]
) -> Finding:
    """Nothing was cleaned while these logs were due: a cleaner that may read one large log for hours, or none."""
    written_ms, (oldest_ms, oldest) = directory.cleaner_written_ms, due[0]
    path = f"{directory.path}/cleaner-offset-checkpoint"
    written = "is not there" if written_ms is None else f"was last written at {utc(written_ms)}"
    found = f"{path} {written}; {counted(len(due), 'log')} due, the first, {oldest.topic_partition}, since {utc(oldest_ms)}"
    if directory.has_cleaner_thread:
        code, found = (
            "cleaner_stuck",
            f"{found}; its broker's cleaner thread lives, and may be reading a large log",
        )
        look = "look for `log-cleaner` in the broker's log; `jstack` of the broker shows what its thread does"
    elif broker.config.broker_log_cleaner_enable:
        code = "cleaner_dead"
        found += "" if directory.has_cleaner_thread is None else "; its broker has no cleaner thread"
        look = "look for `log-cleaner` in the broker's log, and restart the broker if its thread has died"
    else:
        code, look = (
            "cleaner_dead",
            "log.cleaner.enable is false: see whether cleanerd runs (`cleanerctl status`)",
        )
    cost = sum(log.range.cleanable_bytes for _, log in due)
    remedy = f"{look}; or clean now: `cleanerd clean {broker.where}`"
    return finding(code, place_of(oldest, path), found, remedy, cost)


def missed_deadline(
    broker: BrokerFacts, directory: DirectoryFacts, log: LogFacts, _: Limits
) -> Finding | None:
    """Records that should have been compacted by now."""
    if not log.is_compacted:
        return None
    assert log.config is not None
    lag_ms = log.config.max_compaction_lag_ms
    dirty = non_active_from([one.facts for one in log.snapshot.segments], log.range.first_dirty_offset)
    closed_ms = min((one.modified_ms for one in dirty), default=directory.judged_ms)
    # Old timestamps may be written today.
    late_ms = min(log.range.compaction_delay_ms, directory.judged_ms - closed_ms)
    if late_ms <= grace_ms(lag_ms):
        return None
    held = "" if log.cause is None else f"; held back: {log.cause.text}"
    remedy = broker.command("clean", log) if log.cause is None else log.cause.remedy or log.cause.text
    return finding(
        "deadline_missed",
        place_of(log, offset=log.range.first_dirty_offset),
        f"late by {duration(late_ms / 1000)}, max.compaction.lag.ms is {lag_ms}{held}",
        remedy,
    )


def held_back(_: BrokerFacts, directory: DirectoryFacts, log: LogFacts, limits: Limits) -> Finding | None:
    """Closed segments above the high watermark for long."""
    end = log.range.first_uncleanable_offset
    held = [segment.facts for segment in log.snapshot.segments[:-1] if segment.base_offset >= end]
    if not held or not log.is_compacted or not log.is_held_by_replicas or log.cause is None:
        return None
    if directory.judged_ms - held[0].modified_ms <= limits.due_ms:
        return None
    cost = sum(segment.size_bytes for segment in held)
    text = f"{size(cost)} in closed segments from offset {end} on: {log.cause.text}"
    return finding("held_back", place_of(log, offset=end), text, log.cause.remedy or "", cost)


def open_transaction(
    _: BrokerFacts, directory: DirectoryFacts, log: LogFacts, limits: Limits
) -> Finding | None:
    """A transaction that has been open for longer than any producer may take; a warning where only timestamps say so."""
    found = log.open_transaction
    if found is None:
        return None
    latest_ms = directory.judged_ms - limits.open_transaction_ms
    is_proven = found.begun_by_ms < latest_ms
    if not is_proven and not 0 < found.since_ms < latest_ms:
        return None
    evidence = f"producer {found.producer_id}"
    if is_proven:
        evidence += f", open for {duration((directory.judged_ms - found.begun_by_ms) / 1000)} at least"
    if 0 < found.since_ms < found.begun_by_ms:
        evidence += f", by its timestamps since {utc(found.since_ms)}"
    waiting = [one for one in log.snapshot.segments if one.base_offset >= log.range.first_uncleanable_offset]
    tp = log.topic_partition
    judged = finding(
        "open_transaction",
        place_of(log, offset=found.offset),
        evidence,
        "if its producer is gone: `kafka-transactions.sh --bootstrap-server HOST:9092 abort "
        f"--topic {tp.topic} --partition {tp.partition} --start-offset {found.offset}`",
        sum(one.size_bytes for one in waiting),
    )
    return judged if is_proven else replace(judged, severity=Severity.WARNING)


def future_timestamps(
    broker: BrokerFacts, _: DirectoryFacts, log: LogFacts, limits: Limits
) -> Finding | None:
    """A closed segment with a record from the future."""
    ahead_ms = broker.at_ms + limits.future_ms
    ahead = [
        one for one in log.snapshot.segments if one.is_age_known and one.facts.largest_timestamp_ms > ahead_ms
    ]
    if not ahead:
        return None
    first = ahead[0]
    gone = "those that are there go with `kafka-delete-records.sh` or by retention.bytes"
    if log.config is not None and not log.config.delete:  # a broker refuses to delete records then
        gone = "those that are there go as newer ones of their keys come, unless min.compaction.lag.ms is set"
    return finding(
        "future_timestamps",
        place_of(log, first.sibling(FileKind.TIME_INDEX), first.base_offset),
        f"{counted(len(ahead), 'segment')}, the first of {size(first.size_bytes)} with timestamp "
        f"{dated(first.facts.largest_timestamp_ms, broker.at_ms)}",
        f"mend the producer's clock or unit; message.timestamp.after.max.ms keeps such records out; {gone}",
        sum(one.size_bytes for one in ahead),
    )


def active_segment(broker: BrokerFacts, _: DirectoryFacts, log: LogFacts, limits: Limits) -> Finding | None:
    """A compacted log that is not cleaned because it is not rolled: by the sample, or, without one, by size."""
    active, whole = log.snapshot.segments[-1].size_bytes, log.snapshot.size_bytes
    sample = log.sample
    if not log.is_compacted or active <= whole / 2:
        return None
    freed = active if sample is None else sample.after_roll_bytes
    if freed < limits.least_bytes or (sample is not None and freed <= whole / 2):
        return None
    assert log.config is not None
    duplicates = (
        ""
        if sample is None
        else f", and a roll adds {size(freed)} ± {size(sample.error_bytes)} to what can go"
    )
    return finding(
        "active_segment",
        place_of(log, log.snapshot.segments[-1].path, log.snapshot.segments[-1].base_offset),
        f"{size(active)} of {size(whole)} lie in the active segment{duplicates}",
        f"{_SEGMENT_MS}; now: {broker.command('clean', log, ' --roll')}",
        None if sample is None else freed,
    )


def retention_overdue(
    _: BrokerFacts, directory: DirectoryFacts, log: LogFacts, limits: Limits
) -> Finding | None:
    """A closed segment that retention.ms should have taken, also in a log with `compact,delete`."""
    config = log.config
    if config is None or not config.delete or config.retention_ms < 0 or config.remote_storage_enable:
        return None
    due_ms = directory.judged_ms - limits.due_ms
    overdue: list[SegmentFacts] = []
    ends = [one.base_offset for one in log.snapshot.segments[1:]]
    for segment, end in zip(log.snapshot.segments, ends, strict=False):
        facts = segment.facts  # old timestamps may be written today
        is_old = max(facts.largest_timestamp_ms + config.retention_ms, facts.modified_ms) < due_ms
        if not is_old or end > log.snapshot.high_watermark:
            break
        overdue.append(facts)
    if not overdue:
        return None
    days = (directory.judged_ms - overdue[0].largest_timestamp_ms) / DAY_MS
    policy = ",".join(config.cleanup_policy)
    return finding(
        "retention_overdue",
        place_of(log, log.snapshot.segments[0].path, overdue[0].base_offset),
        f"{counted(len(overdue), 'segment')}, the oldest of {days:.0f} days, retention.ms is {config.retention_ms}, "
        f"policy {policy}",
        "with compact,delete the cleaner deletes: see whether it lives; else look for the log in the broker's log",
        sum(one.size_bytes for one in overdue),
    )
