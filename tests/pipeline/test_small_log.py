"""A small log in one task becomes, to the last byte, what index and rewrite make of it in two (architecture 4)."""

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanerd.errors import Aborted, CorruptFile
from cleanerd.format.names import without_attempt
from cleanerd.format.txn_index import render_txn_index
from cleanerd.pipeline.job import Budget, Pipeline
from cleanerd.pipeline.small_log import is_small
from cleanerd.pipeline.values import IndexedLog, LogWork, Part, RewrittenLog
from cleanerd.policy.schedule import SMALL_LOG_BYTES
from cleanerd.policy.winner import KEY_BYTES
from cleanerd.spark_runtime.channel import Channel
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.messages import GO_ON, STOP, Phase
from tests.harness.logs.random_log import RandomLog
from tests.harness.logs.synthetic import write_log
from tests.pipeline.test_job import AMPLE, SMALL, assert_newest, flip, plan, run

Cleaned = tuple[IndexedLog, RewrittenLog | None]


def clean_small(spark: LazySpark, works: Sequence[LogWork]) -> list[Cleaned]:
    """Each in one task, all of which write in place."""
    works = [work if work.in_place else replace(work, in_place=True) for work in works]
    with Channel(lambda _: GO_ON) as channel:
        pipeline = Pipeline(spark, AMPLE, channel.reporter)
        assert all(pipeline.is_small(work) for work in works)
        return pipeline.clean_small(works, [(11 + i, 12) for i in range(len(works))])


def values(one: Any) -> Any:
    """What can be compared: arrays as lists, dataclasses as dicts."""
    if isinstance(one, np.ndarray):
        return one.tolist()
    if dataclasses.is_dataclass(one):
        return {field.name: values(getattr(one, field.name)) for field in dataclasses.fields(one)}
    if isinstance(one, dict):
        return {key: values(value) for key, value in one.items()}
    if isinstance(one, list | tuple):
        return [values(value) for value in one]
    return one


def without_verdicts(log: IndexedLog) -> Any:
    """All that the driver keeps of it."""
    return values(replace(log, verdicts=[]))


def part_bytes(log: RewrittenLog) -> dict[str, bytes]:
    paths = {part.path for parts in log.parts.values() for part in parts if part.path is not None}
    return {without_attempt(path): Path(path).read_bytes() for path in paths}


def without_paths(parts: Sequence[Part]) -> Any:
    """Each attempt has one of its own."""
    return values([replace(part, path=None) for part in parts])


def random_segments(
    directory: Path, seed: int, kinds: Sequence[str] = ("plain", "idempotent"), segments: int = 3
) -> list[int]:
    """So many segments of all codecs, and an active one; returns their bases."""
    directory.mkdir()
    log = RandomLog(random.Random(seed), kinds=kinds)
    bases = [log.write_segment(directory, batches) for batches in (*[25] * segments, 2)]
    for base, end in pairwise([*bases, log.next_offset]):
        ended = [txn for txn in log.aborted if base <= txn.last_offset < end]
        if ended:
            (directory / f"{base:020d}.txnindex").write_bytes(render_txn_index(ended))
    return bases


def each_a_group(work: LogWork) -> LogWork:
    """The same with a group for each segment, as where two of them are more than segment.bytes."""
    groups = {path: group for group, path in enumerate(dict.fromkeys(one.source.path for one in work.chunks))}
    chunks = tuple(replace(one, group=groups[one.source.path]) for one in work.chunks)
    return replace(work, chunks=chunks, groups=len(groups), mergeable_groups=frozenset())


@pytest.mark.parametrize("seed", range(6))
def test_one_task_does_what_two_steps_do(spark: LazySpark, tmp_path: Path, seed: int) -> None:
    """With a clean section in every other one, with several groups in some; the parts of one lie in one file."""
    second = random_segments(tmp_path / "t-0", seed)[1]
    work = replace(plan(tmp_path, "t", second if seed % 2 else 0, chunk_bytes=900), in_place=True)
    work = each_a_group(work) if seed % 3 else work
    assert len(work.chunks) > 2

    (indexed,), (expected,) = run(spark, [work], AMPLE)
    expected_bytes = part_bytes(expected)
    ((found, rewritten),) = clean_small(spark, [work])

    assert expected.error is None
    assert rewritten is not None
    assert expected.parts
    assert without_verdicts(found) == without_verdicts(indexed)
    assert not found.verdicts, "nothing needs them any more"
    assert found.work is work
    assert rewritten.parts.keys() == expected.parts.keys()
    for group, parts in rewritten.parts.items():
        assert without_paths(parts) == without_paths(expected.parts[group])
    assert part_bytes(rewritten) == expected_bytes


def test_what_is_kept_is_the_newest_of_every_key(spark: LazySpark, tmp_path: Path) -> None:
    """Several logs share a job, and a damaged one harms nobody."""
    keys = {name: write_log(tmp_path / f"{name}-0", 20_000, SMALL, seed) for seed, name in enumerate("abc")}
    damaged = tmp_path / "b-0" / f"{0:020d}.log"
    flip(damaged, 100_000)

    cleaned = clean_small(spark, [plan(tmp_path, name) for name in "abc"])

    error = cleaned[1][0].error
    assert isinstance(error, CorruptFile)
    assert error.path == str(damaged)
    assert cleaned[1][1] is None
    for (log, rewritten), name in ((cleaned[0], "a"), (cleaned[2], "c")):
        assert log.error is None
        assert rewritten is not None
        assert_newest(rewritten, keys[name])


def test_a_log_in_which_nothing_changes_goes_back_to_the_driver(spark: LazySpark, tmp_path: Path) -> None:
    """Its segments may be merged, which the rewrite step does then."""
    write_log(tmp_path / "same-0", 100, replace(SMALL, keys=1 << 40))
    work = plan(tmp_path, "same")
    ((indexed, rewritten),) = clean_small(spark, [work])
    assert (indexed.error, rewritten, indexed.changed_groups) == (None, None, frozenset())
    assert len(indexed.verdicts) == len(work.chunks)
    assert sorted(p.name for p in (tmp_path / "same-0").glob("*cleanerd")) == []


def test_a_group_in_which_nothing_changes_stays_unless_it_may_be_merged(
    spark: LazySpark, tmp_path: Path
) -> None:
    write_log(tmp_path / "same-0", 2_000, replace(SMALL, keys=1 << 40, segment_bytes=40_000))
    work = replace(each_a_group(plan(tmp_path, "same")), renewed_groups=frozenset({1}))
    assert work.groups > 2
    ((_, rewritten),) = clean_small(spark, [work])
    assert rewritten is not None
    assert list(rewritten.parts) == [1]
    (copied,) = part_bytes(rewritten).values()
    source = next(chunk.source for chunk in work.chunks if chunk.group == 1)
    assert copied == Path(source.path).read_bytes()
    for group, is_left in ((0, True), (1, False)):
        ((_, rewritten),) = clean_small(spark, [replace(work, mergeable_groups=frozenset({group}))])
        assert (rewritten is None) is is_left


def test_it_stops_when_it_is_told_to(spark: LazySpark, tmp_path: Path) -> None:
    """In the middle, between index and rewrite, as well as at its start."""
    write_log(tmp_path / "stop-0", 20_000, SMALL)
    work = plan(tmp_path, "stop")
    for stopped in (Phase.INDEX, Phase.REWRITE, Phase.VERIFY):
        with Channel(lambda moved, stopped=stopped: STOP if moved.phase is stopped else GO_ON) as channel:
            ((indexed, rewritten),) = Pipeline(spark, AMPLE, channel.reporter).clean_small([work], [(1, 2)])
        assert isinstance(indexed.error, Aborted)
        assert rewritten is None


def test_old_formats_go_back_to_the_driver(spark: LazySpark, tmp_path: Path) -> None:
    """They grow by what no room was reserved for (rule 4.33)."""
    (tmp_path / "old-0").mkdir()
    log = RandomLog(random.Random(3), kinds=("plain", "legacy", "wrapper"))
    log.write_segment(tmp_path / "old-0", 60)
    assert any(placed.data[16] < 2 for placed in log.batches)
    (tmp_path / "old-0" / f"{log.next_offset:020d}.log").touch()
    ((indexed, rewritten),) = clean_small(spark, [plan(tmp_path, "old")])
    assert indexed.error is None
    assert indexed.changed_groups
    assert rewritten is None


def test_what_is_small(spark: LazySpark, tmp_path: Path) -> None:
    """Bytes, and the budget for keys, of which each task that runs has its share."""
    write_log(tmp_path / "a-0", 20_000, SMALL)
    work = replace(plan(tmp_path, "a"), in_place=True)
    needed = work.records_max * KEY_BYTES
    assert is_small(work, int(needed) + 1)
    assert not is_small(work, int(needed) - 1)
    assert not is_small(replace(work, chunks=()), AMPLE.bytes)
    chunk = work.chunks[0]
    large = replace(chunk, source=replace(chunk.source, end=chunk.source.start + SMALL_LOG_BYTES + 1))
    assert not is_small(replace(work, chunks=(large,)), AMPLE.bytes)
    with Channel(lambda _: GO_ON) as channel:
        tasks = spark.cores()
        assert Pipeline(spark, Budget(tasks * int(needed + 1)), channel.reporter).is_small(work)
        assert not Pipeline(spark, Budget(tasks * int(needed - 1)), channel.reporter).is_small(work)
