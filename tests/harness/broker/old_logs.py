"""Logs of magic 0 and 1 as an upgraded broker finds them: random, in closed segments of the last two days."""

import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from cleanerd.env.clock import SystemClock
from cleanerd.format.batch import encode_batch
from cleanerd.format.names import FileKind, SegmentFileName
from cleanerd.format.record import Record
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.logdump import dump_partition
from tests.harness.broker.tools import log_dirs_in, offset_checkpoint, partition_dir
from tests.harness.broker.workload import DAY_MS, Scenario, TopicPlan, create_topics
from tests.harness.logs.random_log import Placed, RandomLog, cut_segments

STEPS = 120
SEGMENTS = 9
KEYS = [b"key-%d" % number for number in range(40)]
KINDS: Mapping[str, tuple[str, ...]] = {
    "messages": ("legacy",),
    "wrappers": ("wrapper",),
    "upgraded": ("legacy", "wrapper", "plain"),
    "of-both-magics": ("mixed_wrapper",),
}


def old_plans(first_seed: int) -> list[TopicPlan]:
    """Two logs of every kind, whose tombstones are kept for a moment and for a day."""
    return [
        TopicPlan(first_seed + 2 * number + place, Scenario(kind, ()), 65536, 256, retention_ms, len(KEYS))
        for number, kind in enumerate(KINDS)
        for place, retention_ms in enumerate((1, DAY_MS))
    ]


def add_old_logs(work_dir: Path, place: Path, plans: Sequence[TopicPlan]) -> None:
    """Logs of old magics, which no broker takes from a producer, with the indexes that a broker gives them.

    The second of two logs of a kind was cleaned up to its middle.
    """
    with KafkaBroker(work_dir, log_dirs_in(place)) as broker:
        create_topics(broker.admin(), {plan.topic: plan.config for plan in plans})
    now_ms = SystemClock().now_ms()
    for plan in plans:
        _write(partition_dir(place, plan.directory), plan, now_ms)
    with KafkaBroker(work_dir, log_dirs_in(place)):
        pass
    for plan in plans[1::2]:
        directory = partition_dir(place, plan.directory)
        bases = dump_partition(directory).bases
        checkpoint = directory.parent / "cleaner-offset-checkpoint"
        entries = offset_checkpoint(checkpoint) | {plan.directory: bases[len(bases) // 2]}
        rows = [f"{name.removesuffix('-0')} 0 {offset}\n" for name, offset in entries.items()]
        checkpoint.write_text("".join(["0\n", f"{len(rows)}\n", *rows]), encoding="utf-8")


def _write(directory: Path, plan: TopicPlan, now_ms: int) -> None:
    """Closed segments of random batches, written over the last two days, and an active one of today's magic."""
    rng = random.Random(plan.seed)
    made = RandomLog(rng, keys=KEYS, kinds=KINDS[plan.scenario.name]).append(STEPS)
    _seal(made)
    for path in directory.glob("*.*"):
        if path.suffix in {".log", ".index", ".timeindex", ".snapshot"}:
            path.unlink()
    segments = cut_segments(rng, made.batches[:-1], SEGMENTS)
    written = [(segment.base_offset, segment.data) for segment in segments]
    written.append((made.batches[-1].base_offset, made.batches[-1].data))
    for number, (base_offset, data) in enumerate(written):
        log = directory / str(SegmentFileName(base_offset, FileKind.LOG))
        log.write_bytes(data)
        mtime_s = (now_ms - (len(written) - number) * 2 * DAY_MS // len(written)) / 1000
        os.utime(log, (mtime_s, mtime_s))


def _seal(made: RandomLog) -> None:
    """A last closed batch that keeps a record, for Kafka gives up otherwise (rule 4.31), and an active batch."""
    for key in (b"closed", b"active"):
        offset = made.next_offset
        data = encode_batch([Record(offset, 1_700_000_000_000, key, b"value")], base_offset=offset)
        made.batches.append(Placed(offset, data))
        made.next_offset = offset + 1
