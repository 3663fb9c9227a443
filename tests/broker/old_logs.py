"""Logs of magic 0 and 1 as an upgraded broker finds them: random, in closed segments of the last two days."""

import os
import random
from collections.abc import Mapping
from pathlib import Path

from cleanerd.format.batch import encode_batch
from cleanerd.format.names import FileKind, SegmentFileName
from cleanerd.format.record import Record
from tests.broker.workload import DAY_MS, Scenario, TopicPlan
from tests.kernels.random_log import Placed, RandomLog, cut_segments

STEPS = 120
SEGMENTS = 9
KEYS = [b"key-%d" % number for number in range(40)]
KINDS: Mapping[str, tuple[str, ...]] = {
    "messages": ("legacy",),
    "wrappers": ("wrapper",),
    "upgraded": ("legacy", "wrapper", "plain"),
    "of-both-magics": ("mixed wrapper",),
}


def old_plan(seed: int, name: str, delete_retention_ms: int) -> TopicPlan:
    return TopicPlan(seed, Scenario(name, ()), 65536, 256, delete_retention_ms, len(KEYS))


def write_old_log(directory: Path, plan: TopicPlan, now_ms: int) -> None:
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
