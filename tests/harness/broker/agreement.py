"""Comparing what two cleaners made of a broker's logs, the broker's own first, cleanerd second; and with the model.

What may differ is in `ALLOWED`, and nowhere else.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from crc32c import crc32c

from cleanerd.env.clock import SystemClock
from cleanerd.format.batch import decode_batch, iterate_batches
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.live import warnings
from tests.harness.broker.logdump import Batch, LogDump, Segment, dump_partition
from tests.harness.broker.model import committed, survivors
from tests.harness.broker.origin import clean_by_broker
from tests.harness.broker.releases import current_release
from tests.harness.broker.tools import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    CleanResult,
    checkpointed,
    clean,
    copy_log_dir,
    dump_log_segments,
    first_dirty_offset,
    forget_checkpoint,
    log_dirs_in,
    log_start_offset,
    partition_dir,
    read_all,
    segment_files,
)
from tests.harness.broker.workload import TopicPlan


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of the broker's cleaner: the directory before and after, and when it was."""

    before: Path
    after: Path
    started_ms: int
    ended_ms: int


@dataclass(frozen=True, slots=True)
class Case:
    """One log, before and after both cleaners; `now_ms` is cleanerd's. `leader_epochs`: as they must be, a broker that
    starts adds one.
    """

    made: Pass
    now_ms: int
    retention_ms: int
    before: LogDump
    broker: LogDump
    leader_epochs: str
    ours: LogDump


def _horizons_agree(broker: int | None, ours: int | None, case: Case) -> bool:
    """A horizon of an earlier pass is the same; a new one is the time of the cleaning plus the retention."""
    if broker is None or ours is None:
        return broker is ours
    is_new = case.made.started_ms <= broker - case.retention_ms <= case.made.ended_ms
    return ours == broker or (is_new and ours - case.retention_ms == case.now_ms)


def _base_timestamps_agree(broker: int | None, ours: int | None, case: Case) -> bool:
    """Where the broker's is none but the time is LogAppendTime, nothing reads it; else the records would differ too."""
    return broker in (ours, -1)


def _groups_agree(broker: tuple[Segment, ...], ours: tuple[Segment, ...], case: Case) -> bool:
    """Each segment of the broker is one of ours, or stands for source segments that lost nothing, merged or not."""
    ends = [segment.base_offset for segment in broker[1:]] + [case.before.end_offset + 1]
    for theirs, end in zip(broker, ends, strict=True):
        group = [segment for segment in ours if theirs.base_offset <= segment.base_offset < end]
        sources = [
            segment for segment in case.before.segments if theirs.base_offset <= segment.base_offset < end
        ]
        if [(theirs.base_offset, theirs.mtime_ms)] != _places(group) and not _is_merged(group, sources):
            return False
    return True


def _is_merged(group: list[Segment], sources: list[Segment]) -> bool:
    """Whether runs of the sources, one or more each, became these segments byte for byte, with the time of the last."""
    for number, segment in enumerate(group):
        end = group[number + 1].base_offset if number + 1 < len(group) else sources[-1].base_offset + 1
        run = [source for source in sources if segment.base_offset <= source.base_offset < end]
        if not run or (segment.base_offset, segment.mtime_ms) != (run[0].base_offset, run[-1].mtime_ms):
            return False
        if segment.size_bytes != sum(source.size_bytes for source in run):
            return False
        if segment.batches != tuple(batch for source in run for batch in source.batches):
            return False
    return sum(segment.size_bytes for segment in group) == sum(source.size_bytes for source in sources)


def _places(segments: list[Segment]) -> list[tuple[int, int]]:
    return [(segment.base_offset, segment.mtime_ms) for segment in segments]


ALLOWED: Mapping[str, Callable[[Any, Any, Case], bool]] = {
    # field of a log or a batch: what stands for equality
    "delete_horizon_ms": _horizons_agree,  # both cleaned at another time
    "base_timestamp_ms": _base_timestamps_agree,  # messages of magic 0 in a wrapper of magic 1 (rule 4.34)
    "segments": _groups_agree,  # of a group that loses nothing cleanerd merges what pays, the broker all
}


HORIZON = {"delete_horizon_ms", "base_timestamp_ms", "crc"}
"""What a horizon changes, where only cleanerd knows them."""


def make_passes(source: Path, plans: Sequence[TopicPlan], root: Path, ages_ms: Sequence[int]) -> list[Pass]:
    """The passes of the broker's own cleaner; each but the first begins at the start of the log again.

    `ages_ms`: how much time has gone by before each pass, as far as the horizons in the log tell.
    """
    made: list[Pass] = []
    for number, age_ms in enumerate(ages_ms, 1):
        before, after = root / f"before-{number}", root / f"after-{number}"
        copy_log_dir(source, before)
        if number > 1:
            forget_checkpoint(before)
        for plan in plans if age_ms else ():
            bring_horizons_nearer(partition_dir(before, plan.directory), age_ms)
        copy_log_dir(before, after)
        started_ms = SystemClock().now_ms()
        clean_by_broker(root / f"broker-{number}", after, [plan.directory for plan in plans])
        made.append(Pass(before, after, started_ms, SystemClock().now_ms()))
        source = after
    return made


def bring_horizons_nearer(directory: Path, age_ms: int) -> None:
    """Make a log look as if it had been cleaned `age_ms` earlier: its delete horizons, and the times of those records.

    A horizon stands in place of the base timestamp, to which the times of the records are relative (rule 0.6). A batch in
    which a record has no time stays as it is: it would get a negative one, which no cleaner takes.
    """
    for path in directory.glob("*.log"):
        stat, data = path.stat(), bytearray(path.read_bytes())
        for start, size_bytes, magic in iterate_batches(bytes(data)):
            header, records = decode_batch(data, start) if magic == 2 else (None, [])
            if header is None or header.delete_horizon_ms is None:
                continue
            if any(record.timestamp_ms < age_ms for record in records):
                continue
            data[start + 27 : start + 35] = (header.delete_horizon_ms - age_ms).to_bytes(8)
            body = bytes(data[start + 21 : start + size_bytes])
            data[start + 17 : start + 21] = crc32c(body).to_bytes(4)
        path.write_bytes(data)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def model_disagreements(made: Pass, plans: Iterable[TopicPlan]) -> list[str]:
    """Where the plain model keeps other records than the broker, in words."""
    left = dumps(made.after, plans)
    return [
        f"{topic}: the model keeps other records than the broker"
        for topic, before in dumps(made.before, plans).items()
        if left[topic].records
        != survivors(
            before, first_dirty_offset=first_dirty_offset(made.before, before), now_ms=made.started_ms
        )
    ]


def disagreements(made: Pass, plans: Sequence[TopicPlan], ours: Path, *, by_swaps: bool = False) -> list[str]:
    """Make the same pass with cleanerd in the new directory `ours`; what is different then, in words.

    `by_swaps`: a broker runs on it, and swaps what has been cleaned. It starts on it once, as the one that made the pass.
    """
    copy_log_dir(made.before, ours)
    now = ("--now-ms", str(made.ended_ms))
    if by_swaps:
        with KafkaBroker(ours.with_name(f"{ours.name}-broker"), log_dirs_in(ours)) as broker:
            result = clean(ours, plans, *now, "--set", "cleanerd.commit.live=auto")
            assert (complaints := warnings(broker)) == [], complaints  # of a run without pytest, too
        ways = {row["committed_by"] for row in result.rows.values() if row["outcome"] == "committed"}
        assert ways == {"swap"}, result.rows
    else:
        result = clean(ours, plans, *now)
    assert result.exit_code == 0, result.messages
    theirs = checkpointed(made.after, "cleaner-offset-checkpoint")
    found = checkpointed(ours, "cleaner-offset-checkpoint")
    different: list[str] = []
    for plan in plans:
        case = _case(plan, made, ours, by_swaps=by_swaps)
        different += [f"{plan.topic}: {text}" for text in _differences(case)]
        name = plan.directory
        if theirs[name] != found.get(name):
            different.append(f"{plan.topic}: checkpoint {theirs[name]}, {found.get(name)}")
    return different


def _case(plan: TopicPlan, made: Pass, ours: Path, *, by_swaps: bool) -> Case:
    before = dump_partition(partition_dir(made.before, plan.directory))
    broker = dump_partition(partition_dir(made.after, plan.directory))
    return Case(
        made=made,
        now_ms=made.ended_ms,
        retention_ms=plan.delete_retention_ms,
        before=before,
        broker=broker,
        leader_epochs=(broker if by_swaps else before).leader_epochs,
        ours=dump_partition(partition_dir(ours, plan.directory)),
    )


def _differences(case: Case) -> list[str]:
    """What is not the same and not allowed to be otherwise, in words: broker first, cleanerd second."""
    broker = {batch.base_offset: batch for batch in case.broker.batches}
    ours = {batch.base_offset: batch for batch in case.ours.batches}
    found = [f"batch {base} only by the broker" for base in sorted(broker.keys() - ours.keys())]
    more = [base for base in sorted(ours.keys() - broker.keys()) if not _is_empty_end(ours[base], case)]
    found += [f"batch {base} only by cleanerd" for base in more]
    for base in sorted(broker.keys() & ours.keys()):
        found += _batch_differences(broker[base], ours[base], case)
    if case.broker.aborted != case.ours.aborted:
        found.append(f"aborted transactions {case.broker.aborted}, {case.ours.aborted}")
    if not ALLOWED["segments"](case.broker.segments, case.ours.segments, case):
        found.append(f"segments {case.broker.bases}, {case.ours.bases}, of {case.before.bases}")
    return found + _leftovers(case)


def _batch_differences(broker: Batch, ours: Batch, case: Case) -> list[str]:
    found: list[str] = []
    has_horizon = ours.delete_horizon_ms is not None and not current_release().delete_horizons
    for field in fields(Batch):
        if has_horizon and field.name in HORIZON:
            continue
        theirs, mine = getattr(broker, field.name), getattr(ours, field.name)
        agree = ALLOWED.get(field.name, _equal)
        if not agree(theirs, mine, case):
            found.append(f"batch {broker.base_offset}: {field.name} {_brief(theirs)}, {_brief(mine)}")
    return found


def _is_empty_end(batch: Batch, case: Case) -> bool:
    """Kept where the round ends, as some releases do and others do not (rule 4.16)."""
    is_end = batch.last_offset + 1 in case.before.bases
    return is_end and not batch.records and not current_release().empty_end


def _brief(value: object) -> object:
    """Records by offset, time and key; everything else as it is."""
    if not isinstance(value, tuple):
        return value
    return [(record.offset, record.timestamp_ms, record.key, record.value is None) for record in value]


def _equal(broker: object, ours: object, _case: Case) -> bool:
    return broker == ours


def _leftovers(case: Case) -> list[str]:
    """The files beside the logs: snapshots of merged segments go (rule 5.6), the epochs stay."""
    found: list[str] = []
    merged = set(case.before.bases) - set(case.ours.bases)
    kept = tuple(offset for offset in case.before.snapshot_offsets if offset not in merged)
    if case.ours.snapshot_offsets != kept:
        found.append(f"snapshots {case.ours.snapshot_offsets}, expected {kept}")
    if case.ours.leader_epochs != case.leader_epochs:
        found.append(f"leader epochs {case.ours.leader_epochs!r}, expected {case.leader_epochs!r}")
    if case.ours.foreign_names:
        found.append(f"left behind: {case.ours.foreign_names}")
    return found


def dumps(place: Path, plans: Iterable[TopicPlan]) -> dict[str, LogDump]:
    return {plan.topic: dump_partition(partition_dir(place, plan.directory)) for plan in plans}


def clean_and_compare(place: Path, plans: tuple[TopicPlan, ...], *, now_ms: int) -> CleanResult:
    """One cleaning of everything that fails nowhere and leaves what the model leaves."""
    before = dumps(place, plans)
    starts = {topic: first_dirty_offset(place, log) for topic, log in before.items()}
    result = clean(place, plans, "--now-ms", str(now_ms))
    assert result.exit_code == 0, result.messages
    compare_with_model(place, before, now_ms=now_ms, starts=starts)
    return result


def compare_with_model(
    place: Path,
    before: Mapping[str, LogDump],
    *,
    now_ms: int,
    starts: Mapping[str, int],
    ends: Mapping[str, int] | None = None,
) -> None:
    """What lies in the directory is what the model leaves of `before`, and nothing is left behind."""
    for topic, log in before.items():
        after = dump_partition(partition_dir(place, log.name))
        end_offset = None if ends is None else ends[log.name]
        expected = survivors(log, first_dirty_offset=starts[topic], now_ms=now_ms, end_offset=end_offset)
        assert expected == after.records, topic
        assert after.foreign_names == (), topic
        assert after.end_offset == log.end_offset, topic


def check_with_broker(work_dir: Path, place: Path, before: Mapping[str, LogDump]) -> None:
    """The broker starts without a word, its consumers see what lies there, and its tool finds nothing wrong.

    What is committed is known from `before`: a cleaning may remove the markers.
    """
    after = {topic: dump_partition(partition_dir(place, log.name)) for topic, log in before.items()}
    files = [path for log in after.values() for path in segment_files(partition_dir(place, log.name))]
    work_dir.mkdir()
    problems = dump_log_segments(work_dir, files)
    assert problems == [], problems
    with KafkaBroker(work_dir, log_dirs_in(place)) as broker:
        check_readers(broker, place, before)
        troubles = broker.troubles()
    assert troubles == [], troubles  # of a run without pytest, too


def check_readers(broker: KafkaBroker, place: Path, before: Mapping[str, LogDump]) -> None:
    """Consumers of both isolation levels see what lies in the directory of a running broker to which nobody writes."""
    after = {topic: dump_partition(partition_dir(place, log.name)) for topic, log in before.items()}
    uncommitted = read_all(broker, list(after), READ_UNCOMMITTED)
    of_committed = read_all(broker, list(after), READ_COMMITTED)
    for topic, log in after.items():
        start = log_start_offset(place, log)
        visible = [record for record in log.records if record.offset >= start]
        assert visible == uncommitted[topic], topic
        assert committed(before[topic], visible) == of_committed[topic], topic
