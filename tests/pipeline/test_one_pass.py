"""Clean chunks that are read once become, to the last byte, what looking up and rewriting make of them (architecture 4)."""

import os
import random
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanerd.errors import Aborted, CorruptFile, SourceChanged
from cleanerd.kernels.tables import EVENT
from cleanerd.pipeline import one_pass
from cleanerd.pipeline.job import Pipeline
from cleanerd.pipeline.values import ChunkSummary, IndexedLog, LogWork, RewrittenLog
from cleanerd.pipeline.whole_log import foreseen, join_rest
from cleanerd.spark_runtime.channel import Channel
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.messages import GO_ON, STOP, Moved, Phase, ReportAnswer
from tests.harness.logs.random_log import RandomLog
from tests.harness.logs.synthetic import write_log
from tests.pipeline.test_job import AMPLE, SMALL, flip, offsets_in, plan, run
from tests.pipeline.test_small_log import part_bytes, random_segments, values, without_paths

NEVER = 1 << 60
DIRTY_FROM = 50_000
"""Of 60,000 records with 5,000 keys: hardly a clean batch loses none."""


@pytest.fixture(autouse=True)
def every_group_is_worth_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_pass, "_WORTH_A_LOOK_BYTES", 0)


def in_two_passes(spark: LazySpark, work: LogWork, *, write: bool = True) -> tuple[IndexedLog, RewrittenLog]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(one_pass, "_WORTH_A_LOOK_BYTES", NEVER)
        (indexed,), (rewritten,) = run(spark, [work], AMPLE, write=write)
    assert indexed.is_read
    return indexed, rewritten


def read_once(log: IndexedLog) -> list[int]:
    return [number for number, verdicts in enumerate(log.verdicts) if verdicts is None]


def told(log: IndexedLog) -> Any:
    """All that is known of a log in the end, however often it was read."""
    found = {
        f.name: values(getattr(log, f.name)) for f in fields(log) if f.name not in ("verdicts", "dirty_keys")
    }
    for summary in found["summaries"]:
        del summary["changed_anyway"]  # of how many batches that would have changed without a newer key
    return found


def planned(log_dir: Path, name: str, first_dirty_offset: int, chunk_bytes: int) -> LogWork:
    return replace(plan(log_dir, name, first_dirty_offset, chunk_bytes), in_place=True)


def large_log(log_dir: Path, name: str = "t", seed: int = 1) -> LogWork:
    write_log(log_dir / f"{name}-0", 60_000, SMALL, seed)
    return planned(log_dir, name, DIRTY_FROM, 256 << 10)


def a_group_a_segment(work: LogWork) -> LogWork:
    """Instead of one group: no clean segment shares one with a dirty chunk."""
    bases = sorted({chunk.source.min_offset for chunk in work.chunks})
    chunks = tuple(replace(chunk, group=bases.index(chunk.source.min_offset)) for chunk in work.chunks)
    return replace(work, chunks=chunks, groups=len(bases))


def both_ways(spark: LazySpark, work: LogWork) -> tuple[IndexedLog, RewrittenLog]:
    """Cleaned in two passes and in one, which come to the same."""
    indexed, expected = in_two_passes(spark, work)
    expected_bytes = part_bytes(expected)
    (found,), (rewritten,) = run(spark, [work], AMPLE)
    assert (found.error, rewritten.error) == (None, None) == (indexed.error, expected.error)
    assert told(found) == told(indexed)
    assert rewritten.parts.keys() == expected.parts.keys()
    for group, parts in rewritten.parts.items():
        assert without_paths(parts) == without_paths(expected.parts[group])
    assert part_bytes(rewritten) == expected_bytes
    return found, rewritten


@pytest.mark.parametrize("seed", range(8))
def test_one_pass_comes_to_what_two_do(spark: LazySpark, tmp_path: Path, seed: int) -> None:
    """With tombstones, delete horizons, records without a key and batches that are empty, of all codecs."""
    dirty_from = random_segments(tmp_path / "t-0", seed, segments=4)[-2]
    work = planned(tmp_path, "t", dirty_from, 900)
    if seed % 2:
        work = a_group_a_segment(work)
    found, _ = both_ways(spark, work)
    assert read_once(found)
    assert all(not work.chunks[number].is_dirty for number in read_once(found))


@pytest.mark.parametrize("kinds", [("plain", "transactional", "marker"), ("plain", "legacy", "wrapper")])
@pytest.mark.parametrize("seed", range(4))
def test_what_only_the_whole_log_tells_is_looked_up_first(
    spark: LazySpark, tmp_path: Path, kinds: tuple[str, ...], seed: int
) -> None:
    """Transactions (rule 4.20) and old formats (4.33), wherever they are met: in the first piece, or when it is too late."""
    dirty_from = random_segments(tmp_path / "t-0", seed, kinds, segments=4)[-2]
    found, _ = both_ways(spark, planned(tmp_path, "t", dirty_from, 900))
    assert not read_once(found)


@pytest.mark.parametrize("late", ["other", "legacy"])
def test_what_is_met_late_makes_the_log_start_again(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """In the last clean segment only: by then parts of the group have been written."""
    (tmp_path / "t-0").mkdir()
    log = RandomLog(random.Random(5), kinds=("plain",))
    for kinds in ("plain", "plain", late, "plain"):
        log.kinds = (kinds,)
        base = log.write_segment(tmp_path / "t-0", 30)
    (tmp_path / "t-0" / f"{log.next_offset:020d}.log").touch()
    again: list[int] = []
    read_rest = Pipeline._read_rest
    monkeypatch.setattr(
        Pipeline, "_read_rest", lambda self, logs: again.append(len(logs)) or read_rest(self, logs)
    )
    found, _ = both_ways(spark, planned(tmp_path, "t", base, 900))
    assert again == [1]
    assert not read_once(found)


@pytest.mark.parametrize("apart", [False, True])
def test_clean_bytes_are_read_once(spark: LazySpark, tmp_path: Path, *, apart: bool) -> None:
    """What is reported, and paid for: the dirty section twice, the clean one once, a look at groups all clean."""
    write_log(tmp_path / "t-0", 60_000, SMALL)
    work = planned(tmp_path, "t", 57_000 if apart else DIRTY_FROM, 256 << 10)
    if apart:
        work = a_group_a_segment(work)
    read: Counter[Phase] = Counter()

    def report(moved: Moved) -> ReportAnswer:
        read[moved.phase] += moved.read_bytes
        return GO_ON

    with Channel(report) as channel:
        pipeline = Pipeline(spark, AMPLE, channel.reporter)
        indexed = pipeline.index([work], [(1, 2)])
        pipeline.rewrite(indexed, write=True)
    dirty_bytes = sum(chunk.source.size_bytes for chunk in work.chunks if chunk.is_dirty)
    assert indexed[0].changed_groups == frozenset(range(work.groups))
    assert 3 * dirty_bytes < work.size_bytes
    assert apart == (work.groups > 1)
    first_of_group = {chunk.group: chunk for chunk in reversed(work.chunks) if not chunk.is_dirty}
    looked_at = sum(chunk.source.size_bytes for chunk in first_of_group.values()) if apart else 0
    assert (read[Phase.INDEX], read[Phase.REWRITE]) == (dirty_bytes + looked_at, work.size_bytes)


def test_a_group_that_may_stay_as_it_is_is_looked_up_first(spark: LazySpark, tmp_path: Path) -> None:
    """No dirty key is in it: nothing of it is written, not even for a while."""
    write_log(tmp_path / "t-0", 60_000, replace(SMALL, keys=60_000, distinct_records=60_000))
    work = planned(tmp_path, "t", DIRTY_FROM, 256 << 10)
    (indexed,), (rewritten,) = run(spark, [work], AMPLE)
    assert (indexed.error, rewritten.error) == (None, None)
    assert indexed.is_read
    assert not read_once(indexed)
    assert not rewritten.parts
    assert not list((tmp_path / "t-0").glob("*.part.cleanerd"))


def test_small_groups_and_clusters_read_twice(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at a group costs more than it saves; where parts are files of their own their names need their offsets."""
    work = large_log(tmp_path)
    (apart,), _ = run(spark, [replace(work, in_place=False)], AMPLE)
    assert apart.is_read
    monkeypatch.setattr(one_pass, "_WORTH_A_LOOK_BYTES", work.size_bytes)
    (small,), _ = run(spark, [work], AMPLE)
    assert small.is_read


def test_a_dry_run_counts_in_one_pass_and_writes_nothing(spark: LazySpark, tmp_path: Path) -> None:
    """And a rewrite of what was counted, as where room is tight, is the same as one that was not."""
    work = large_log(tmp_path)
    _, expected = in_two_passes(spark, work, write=False)
    with Channel(lambda _: GO_ON) as channel:
        pipeline = Pipeline(spark, AMPLE, channel.reporter)
        indexed = pipeline.index([work], [(1, 2)])
        assert read_once(indexed[0])
        (counted,) = pipeline.rewrite(indexed, write=False)
        assert not list((tmp_path / "t-0").glob("*.part.cleanerd"))
        (written,) = pipeline.rewrite(indexed, write=True)
    assert counted.error is written.error is None
    assert values(counted.parts) == values(expected.parts)
    for group, parts in written.parts.items():
        assert without_paths(parts) == values(expected.parts[group])
    assert len(offsets_in(written)) == sum(
        one.records_kept for parts in written.parts.values() for one in parts
    )


@pytest.mark.parametrize("damage", ["flipped", "shorter"])
def test_a_log_damaged_in_a_clean_chunk_harms_no_other(spark: LazySpark, tmp_path: Path, damage: str) -> None:
    """The error names file and position, as when it is looked up."""
    for seed, name in enumerate("ab"):
        write_log(tmp_path / f"{name}-0", 60_000, SMALL, seed)
    path = tmp_path / "a-0" / f"{0:020d}.log"
    if damage == "flipped":
        flip(path, 700_000)
    works = [planned(tmp_path, name, DIRTY_FROM, 256 << 10) for name in "ab"]
    if damage == "shorter":
        os.truncate(path, 700_000)
    (_, sound), (hurt, rewritten) = run(spark, works, AMPLE)
    assert sound.error is rewritten.error is None
    assert read_once(sound)
    if damage == "flipped":
        assert isinstance(hurt.error, CorruptFile)
        assert hurt.error.path == str(path)
        assert 698_000 < hurt.error.position <= 700_000
    else:
        assert isinstance(hurt.error, SourceChanged)


def test_offsets_that_do_not_rise_from_chunk_to_chunk_are_found_at_the_end(
    spark: LazySpark, tmp_path: Path
) -> None:
    """As soon as all chunks are known, and not before."""
    work = large_log(tmp_path)
    (indexed,), _ = run(spark, [work], AMPLE)
    first, second, *rest = read_once(indexed)
    found = {number: (indexed.summaries[number], 1) for number in (first, second, *rest)}
    assert join_rest(indexed, found) is None
    wrong = replace(indexed.summaries[second], first_offset=indexed.summaries[first].last_offset)
    assert join_rest(indexed, {second: (wrong, 1)}) is None, "others have still to be read"
    error = join_rest(indexed, {**found, second: (wrong, 1)})
    assert isinstance(error, CorruptFile)
    assert error.position == work.chunks[second].source.start


def test_before_a_chunk_is_read_as_much_is_foreseen_as_it_can_hold(spark: LazySpark, tmp_path: Path) -> None:
    """Of that room is reserved for it."""
    work = large_log(tmp_path)
    indexed, _ = in_two_passes(spark, work)
    for chunk, summary in zip(work.chunks, indexed.summaries, strict=True):
        most: ChunkSummary = foreseen(chunk)
        assert most.bytes == summary.bytes
        assert most.batches >= summary.batches
        assert most.first_offset <= summary.first_offset
        np.testing.assert_array_equal(most.events, np.zeros(0, EVENT))


@pytest.mark.parametrize("reports", [0, 1])
def test_it_stops_when_it_is_told_to(spark: LazySpark, tmp_path: Path, reports: int) -> None:
    """After the dirty section: while groups are looked at, or at the report of that."""
    work = large_log(tmp_path)
    dirty = sum(chunk.is_dirty for chunk in work.chunks)
    told: list[Phase] = []

    def report(moved: Moved) -> ReportAnswer:
        told.append(moved.phase)
        return GO_ON if len(told) <= dirty + reports else STOP

    with Channel(report) as channel:
        pipeline = Pipeline(spark, AMPLE, channel.reporter)
        indexed = pipeline.index([work], [(1, 2)])
        (rewritten,) = pipeline.rewrite(indexed, write=True)
    assert isinstance(rewritten.error, Aborted)
