"""The physical plans on a real Spark session: exact, equal, and untouched by a neighbour's damage (architecture 4)."""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from cleanerd.cleaning.choose import Candidate
from cleanerd.cleaning.plan import plan_cleaning
from cleanerd.config.load import resolve
from cleanerd.config.sources import read_sources
from cleanerd.env.files import FileStat, RealFiles
from cleanerd.env.pace import unpaced
from cleanerd.errors import Aborted, CorruptFile, LogUncleanable
from cleanerd.format.names import TopicPartition
from cleanerd.pipeline import job
from cleanerd.pipeline.chunks import read_pieces, slices
from cleanerd.pipeline.job import Budget, Pipeline
from cleanerd.pipeline.values import IndexedLog, LogWork, RewrittenLog, Source
from cleanerd.policy.cleanable import CompactionConfig, LogFacts, cleanable_range
from cleanerd.policy.winner import KEY_BYTES
from cleanerd.spark_runtime.channel import Channel
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.messages import GO_ON, STOP, Moved, ReportAnswer
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import Checkpoints, scan_partition
from cleanerd.storage.stability import read_stability
from tests.harness.logs.synthetic import Shape, newest_offsets, write_log
from tests.harness.spark.sessions import jvm_of, session

NOW_MS = 1_700_000_100_000
TIGHT = Budget(int(1000 * KEY_BYTES))
AMPLE = Budget(1 << 30)
SMALL = Shape(keys=5_000, records_per_batch=50, value_bytes=30, segment_bytes=1 << 20)


def plan(log_dir: Path, name: str, first_dirty_offset: int = 0, chunk_bytes: int = 256 << 10) -> LogWork:
    files, tp = RealFiles(), TopicPartition(name, 0)
    checkpoints = Checkpoints({tp: first_dirty_offset}, {}, {}, {})
    snapshot = scan_partition(PartitionDir.of(files, str(log_dir), tp), tp, checkpoints, is_kafka=False)
    assert snapshot is not None
    stability = read_stability(files, snapshot, now_ms=NOW_MS, expiration_ms=86_400_000)
    facts = LogFacts(
        tuple(s.facts for s in snapshot.segments), snapshot.log_start_offset, snapshot.log_end_offset,
        stability.last_stable_offset, None, snapshot.checkpoint,
    )  # fmt: skip
    found = cleanable_range(facts, CompactionConfig(0.0, 0, 2**63 - 1), NOW_MS)
    config = resolve(read_sources()).topic(name)
    candidate = Candidate(snapshot, stability, found, config)
    return plan_cleaning(files, candidate, now_ms=NOW_MS, chunk_bytes=chunk_bytes, pace=unpaced).work


def run(
    session: LazySpark,
    works: Sequence[LogWork],
    budget: Budget,
    *,
    write: bool = True,
    between: Callable[[], object] = lambda: None,
) -> tuple[list[IndexedLog], list[RewrittenLog]]:
    """Index and rewrite in one resident job, and something `between`."""
    with Channel(lambda _: GO_ON) as channel:
        pipeline = Pipeline(session, budget, channel.reporter)
        with pipeline.together(works):
            indexed = pipeline.index(works, [(11 + i, 12) for i in range(len(works))])
            between()
            return indexed, pipeline.rewrite(indexed, write=write)


def offsets_in(log: RewrittenLog) -> np.ndarray:
    """Offsets of all records in the part files, in order."""
    found = [np.zeros(0, np.int64)]
    for group in sorted(log.parts):
        for path in dict.fromkeys(part.path for part in log.parts[group]):
            assert path is not None
            stat = os.stat(path)
            source = Source(path, FileStat.of(stat), 0, stat.st_size, 0)
            found += [
                part.records["offset"].copy() for piece in read_pieces(source) for part in slices(piece)
            ]
    return np.concatenate(found)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def assert_newest(log: RewrittenLog, keys: np.ndarray) -> None:
    assert log.error is None
    np.testing.assert_array_equal(offsets_in(log), newest_offsets(keys))


@pytest.mark.soak
def test_plan_through_files_is_exact_with_a_budget_of_1000_keys_on_1000000_records(
    spark: LazySpark, tmp_path: Path
) -> None:
    """Any number of keys in one pass: 290 000 keys with room for 1 000 in a bucket."""
    shape = Shape(keys=300_000, records_per_batch=100, value_bytes=10, segment_bytes=8 << 20)
    keys = write_log(tmp_path / "big-0", 1_000_000, shape)

    (indexed,), (rewritten,) = run(spark, [plan(tmp_path, "big", chunk_bytes=4 << 20)], TIGHT)

    assert indexed.buckets >= 1000
    assert_newest(rewritten, keys)


@pytest.mark.parametrize(("budget", "buckets"), [(AMPLE, 4), (Budget(int(5_000 * KEY_BYTES)), 64)])
def test_a_log_of_many_chunks_has_few_blocks(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: Budget, buckets: int
) -> None:
    """Chunks times buckets would grow with the square of a log. The budget, shared by all cores, comes first."""
    keys = write_log(tmp_path / "big-0", 100_000, Shape(keys=30_000, records_per_batch=100, value_bytes=10))
    work = plan(tmp_path, "big", chunk_bytes=256 << 10)
    monkeypatch.setattr(job, "BUCKET_RECORDS", 100)
    monkeypatch.setattr(job, "_BLOCKS_MAX", 7)  # for two processes, which hold all of their chunks

    (indexed,), (rewritten,) = run(spark, [work], budget)

    assert indexed.buckets == buckets
    assert_newest(rewritten, keys)


def test_a_log_with_too_many_blocks_is_refused(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they take of this process is not bounded by the budget; others of its job are cleaned."""
    write_log(tmp_path / "big-0", 100_000, Shape(keys=30_000, records_per_batch=100, value_bytes=10))
    keys = write_log(tmp_path / "log-0", 5_000, SMALL)
    work = [plan(tmp_path, "big"), plan(tmp_path, "log")]
    monkeypatch.setattr(job, "_BLOCKS_LIMIT", 40)

    (refused, _), (_, rewritten) = run(spark, work, TIGHT)

    assert isinstance(refused.error, LogUncleanable)
    assert re.search(
        r"big-0: up to 1\d{5} records need a log.cleaner.dedupe.buffer.size of \d+ times", str(refused.error)
    )
    assert_newest(rewritten, keys)


@pytest.mark.parametrize(("budget", "first_dirty_offset"), [(TIGHT, 0), (AMPLE, 0), (AMPLE, 30_025)])
@pytest.mark.parametrize("is_resident", [False, True], ids=["jobs", "resident"])
def test_who_asks_is_told_when_tasks_run(
    spark: LazySpark, tmp_path: Path, budget: Budget, first_dirty_offset: int, is_resident: bool
) -> None:
    """For each of the three steps of both plans, before any of its tasks reports."""
    write_log(tmp_path / "log-0", 60_000, SMALL)
    told: list[str] = []

    def report(_: Moved) -> ReportAnswer:
        told.append("report")
        return GO_ON

    with Channel(report) as channel:
        pipeline = Pipeline(spark, budget, channel.reporter, lambda: told.append("begun"))
        works = [plan(tmp_path, "log", first_dirty_offset)]
        with pipeline.together(works) if is_resident else nullcontext():
            pipeline.rewrite(pipeline.index(works, [(1, 2)]), write=True)
    assert told.count("begun") == 3
    assert told[0] == "begun"
    assert "report" in told


@pytest.mark.parametrize("budget", [TIGHT, AMPLE], ids=["through-files", "map-side"])
@pytest.mark.parametrize("first_dirty_offset", [0, 30_025, 59_950])
def test_survivors_with_a_clean_section(
    spark: LazySpark, tmp_path: Path, budget: Budget, first_dirty_offset: int
) -> None:
    """Keys of the dirty section supersede everywhere; clean records do not supersede each other (rules 3.9, 4.19)."""
    keys = write_log(tmp_path / "mixed-0", 60_000, SMALL)
    newest_dirty: dict[int, int] = {}
    for offset in range(first_dirty_offset, len(keys)):
        newest_dirty[keys[offset]] = offset
    expected = [o for o, key in enumerate(keys.tolist()) if o >= newest_dirty.get(key, -1)]

    work = plan(tmp_path, "mixed", first_dirty_offset)
    (indexed,), (rewritten,) = run(spark, [work], budget)

    assert rewritten.error is None
    unchanged = set(range(work.groups)) - indexed.changed_groups
    assert not unchanged or first_dirty_offset > 0
    np.testing.assert_array_equal(offsets_in(rewritten), np.array(expected))


@pytest.mark.parametrize("budget", [TIGHT, AMPLE], ids=["through-files", "map-side"])
def test_logs_share_a_job_and_a_damaged_one_harms_nobody(
    spark: LazySpark, tmp_path: Path, budget: Budget
) -> None:
    """Small logs share a job; damage is reported with file and position and stops only its own log."""
    keys = {name: write_log(tmp_path / f"{name}-0", 20_000, SMALL, seed) for seed, name in enumerate("abc")}
    damaged = tmp_path / "b-0" / f"{0:020d}.log"
    flip(damaged, 100_000)

    _, rewritten = run(spark, [plan(tmp_path, name) for name in "abc"], budget)

    error = rewritten[1].error
    assert isinstance(error, CorruptFile)
    assert error.path == str(damaged)
    assert 98_000 < error.position <= 100_000
    for log, name in ((rewritten[0], "a"), (rewritten[2], "c")):
        assert_newest(log, keys[name])


def test_nothing_is_left_among_the_scratch_files(spark: LazySpark, tmp_path: Path) -> None:
    """With either plan: the files of blocks end with their step, those of a step with its job."""
    write_log(tmp_path / "scratch-0", 20_000, SMALL)
    before = set(os.listdir(spark.context()._temp_dir))
    for budget in (TIGHT, AMPLE):
        run(spark, [plan(tmp_path, "scratch")], budget)
    spark.residents.end()
    assert not [
        name
        for name in set(os.listdir(spark.context()._temp_dir)) - before
        if os.path.isdir(os.path.join(spark.context()._temp_dir, name))
    ]


def test_a_task_that_is_told_to_stop_aborts_its_log(spark: LazySpark, tmp_path: Path) -> None:
    """An abort is noticed at the next report of a task."""
    write_log(tmp_path / "stop-0", 20_000, SMALL)
    with Channel(lambda _: STOP) as channel:
        (indexed,) = Pipeline(spark, AMPLE, channel.reporter).index([plan(tmp_path, "stop")], [(1, 2)])

    assert isinstance(indexed.error, Aborted)


@pytest.mark.fault("the JVM or the engine is killed")
@pytest.mark.soak
def test_the_death_of_the_jvm_costs_one_retry(spark: LazySpark, tmp_path: Path) -> None:
    """The JVM is killed between two jobs; the next one starts a new session by itself."""
    keys = write_log(tmp_path / "dead-0", 20_000, SMALL)
    jvm_of(spark).kill()

    _, (rewritten,) = run(spark, [plan(tmp_path, "dead")], AMPLE)

    assert_newest(rewritten, keys)


@pytest.mark.soak
def test_a_jvm_that_dies_between_two_steps_costs_one_retry(spark: LazySpark, tmp_path: Path) -> None:
    """What is known of the log is here: the next step is a job of its own in the next session."""
    keys = write_log(tmp_path / "between-0", 20_000, SMALL)
    jvm = jvm_of(spark)

    def kill() -> None:
        jvm.kill()
        jvm.wait()

    _, (rewritten,) = run(spark, [plan(tmp_path, "between")], AMPLE, between=kill)

    assert_newest(rewritten, keys)


@pytest.mark.soak
def test_executors_in_processes_of_their_own(spark: LazySpark, tmp_path: Path) -> None:
    """`local-cluster[2,1,1024]`: a master, two workers and their executors, over sockets as on a cluster, share a secret."""
    spark.stop()
    keys = write_log(tmp_path / "apart-0", 60_000, SMALL)
    with session("local-cluster[2,1,1024]") as apart:
        assert apart.context().getConf().get("spark.authenticate") == "true"
        _, (rewritten,) = run(apart, [plan(tmp_path, "apart")], TIGHT)
    assert_newest(rewritten, keys)
