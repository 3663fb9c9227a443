"""A large log is committed round by round; a run that ends between two is taken up by the next."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pytest

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.broker_agent.live_logs import LiveLog
from cleanerd.broker_agent.swap import Swap, Swapped
from cleanerd.cleaning import round_size
from cleanerd.cleaning.choose import Candidate, examine_all
from cleanerd.cleaning.clean import Cleaner, CleaningJob
from cleanerd.cleaning.commit.committer import Committer
from cleanerd.cleaning.outcomes import Staged
from cleanerd.cleaning.result import LogResult, Progress, Size
from cleanerd.cleaning.rounds import LogUnderWay
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.errors import SourceChanged
from cleanerd.format import names
from cleanerd.format.batch import decode_batch, iterate_batches
from cleanerd.format.names import TopicPartition
from cleanerd.pipeline import job, one_pass
from cleanerd.pipeline.values import IndexedLog
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.commit import commit_steps
from cleanerd.storage.log_dir import LogDir
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.writer import LogWriter
from tests.harness.clock import HandClock
from tests.harness.logs.silent import request_of
from tests.harness.logs.troubled import (
    assert_settled,
    clean,
    contents,
    leave_to_nobody,
    lock_of_another,
    newest,
    put,
    stop_broker,
)
from tests.harness.spark.in_process import TP, Cleaning, defaults
from tests.harness.spark.rounds import small_rounds

SEGMENT_BYTES = 4000
OPTIONS = (f"--topic-set=t:segment.bytes={SEGMENT_BYTES}", "--set=cleanerd.chunk.bytes=1500")
GROUPS = 6
OLD_S = 1_700_000_000


class Killed(BaseException):
    """kill -9 of the run."""


def write(log_dir: Path, records: range) -> None:
    found = ((b"key %d" % n, os.urandom(60)) for n in records)
    stop_broker(log_dir, {"t": put(log_dir, "t", found, segment_bytes=SEGMENT_BYTES)})


@pytest.fixture
def log_dir(tmp_path: Path, spark: LazySpark) -> Path:
    """A log with a clean section, a third of whose records is superseded since, and a dirty one."""
    log_dir = tmp_path / "logs"
    log_dir.mkdir()
    write(log_dir, range(400))
    assert clean(spark, log_dir, options=OPTIONS).outcome("t") == "unchanged"
    write(log_dir, range(0, 400, 3))
    write(log_dir, range(0, 400, 9))
    return log_dir


def inodes(log_dir: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in (log_dir / "t-0").glob("*.log")}


@contextlib.contextmanager
def killed_after(count: int) -> Iterator[None]:
    """The run ends once so many rounds are committed."""
    rest, left = Cleaner.rest, [count]

    def dying(cleaner: Cleaner, directory: str) -> CleaningJob | None:
        left[0] -= 1
        if not left[0]:
            raise Killed
        return rest(cleaner, directory)

    with mock.patch.object(Cleaner, "rest", dying), contextlib.suppress(Killed):
        yield


def test_what_was_committed_before_a_kill_is_not_written_again(spark: LazySpark, log_dir: Path) -> None:
    """Whatever number of rounds there was; the checkpoint moves with the last one."""
    before = newest(log_dir / "t-0")
    checkpoint = (log_dir / names.CLEANER_OFFSET_CHECKPOINT).read_text()
    for count in range(1, 10_000, 3):
        copy = log_dir.with_name(f"killed {count}")
        shutil.copytree(log_dir, copy)
        old = inodes(copy)
        with small_rounds() as rounds:
            with killed_after(count):
                clean(spark, copy, options=OPTIONS)
                break
            between, committed = inodes(copy), len(rounds) + 1
            assert committed == count
            assert newest(copy / "t-0") == before
            assert (copy / names.CLEANER_OFFSET_CHECKPOINT).read_text() == checkpoint
            written = {name for name, inode in between.items() if old.get(name) != inode}
            assert len(written) == count
            assert clean(spark, copy, options=OPTIONS).outcome("t", copy.name) == "committed"
        after = inodes(copy)
        assert {name: after[name] for name in written} == {name: between[name] for name in written}
        assert newest(copy / "t-0") == before
        assert_settled(copy / "t-0")
        assert (copy / names.CLEANER_OFFSET_CHECKPOINT).read_text() != checkpoint
    assert count > GROUPS


def test_the_rounds_of_a_log_are_one_result(spark: LazySpark, log_dir: Path) -> None:
    """And the dry run tells what it will be, and the room that the largest round takes."""
    copy = log_dir.with_name("copy")
    shutil.copytree(log_dir, copy)
    same = ("removed", "records_read", "records_kept", "bytes_read", "bytes_before", "bytes_after",
            "segments_before", "segments_after", "first_dirty_offset", "end_offset", "reason")  # fmt: skip
    at_once = clean(spark, copy, options=OPTIONS).results["copy", "t"]
    with small_rounds() as rounds:
        plan = clean(spark, log_dir, options=[*OPTIONS, "--dry-run"]).results["logs", "t"]
        assert not rounds
        ran = clean(spark, log_dir, options=OPTIONS).results["logs", "t"]
    assert len(rounds) >= GROUPS
    assert {name: ran[name] for name in same} == {name: at_once[name] for name in same}
    assert plan["peak_extra_bytes"] == ran["peak_extra_bytes"]
    assert at_once["peak_extra_bytes"] > 3 * ran["peak_extra_bytes"]


def test_a_log_that_shows_transactions_late_is_read_as_a_whole_between_two_rounds(
    spark: LazySpark, tmp_path: Path
) -> None:
    """They stand in a later group than those that were looked up with the rewrite, and committed before."""
    log_dir = tmp_path / "logs"
    log_dir.mkdir()
    put(log_dir, "t", ((b"key %d" % n, os.urandom(60)) for n in range(300)), segment_bytes=SEGMENT_BYTES)
    with LogWriter(str(log_dir), "t", 0, segment_bytes=SEGMENT_BYTES, index_interval_bytes=300) as writer:
        for n in range(0, 90, 3):
            transactional = Producer(writer, producer_id=4, next_sequence=2 * n)
            transactional.begin()
            transactional.put(b"key %d" % n, os.urandom(60), n)
            transactional.put(b"txn %d" % n, os.urandom(60), n)
            transactional.commit(n)
        writer.roll()
    clean(spark, log_dir, options=OPTIONS)
    put(log_dir, "t", ((b"key %d" % n, b"new") for n in range(0, 300, 2)), segment_bytes=SEGMENT_BYTES)
    before, read_rest, read = newest(log_dir / "t-0"), job.Pipeline._read_rest, list[int]()

    def reading(pipeline: job.Pipeline, logs: list[IndexedLog]) -> None:
        read.append(len(rounds))
        read_rest(pipeline, logs)

    with (
        small_rounds() as rounds,
        mock.patch.object(job.Pipeline, "_read_rest", reading),
        mock.patch.object(one_pass, "_is_seen_to_change", return_value=True),
    ):
        assert clean(spark, log_dir, options=OPTIONS).outcome("t") == "committed"
    assert read
    assert max(read) > 0, "after a commit"
    assert newest(log_dir / "t-0") == before
    assert_settled(log_dir / "t-0")


def test_what_a_dead_broker_had_not_flushed_is_read_before_the_first_round(
    spark: LazySpark, log_dir: Path
) -> None:
    """`storage.unflushed`, rule 3. Rot in a late group of the clean section: the broker will cut the log there, with all
    that superseded earlier records.
    """
    (log_dir / names.RECOVERY_POINT_CHECKPOINT).write_text("0\n1\nt 0 0\n")
    first_dirty_offset = int((log_dir / names.CLEANER_OFFSET_CHECKPOINT).read_text().split()[-1])
    clean_section = [path for path in inodes(log_dir) if int(Path(path).stem) < first_dirty_offset]
    rotten = log_dir / "t-0" / max(clean_section)
    content = bytearray(rotten.read_bytes())
    content[-1] ^= 1
    rotten.write_bytes(content)
    before = contents(log_dir / "t-0")
    with small_rounds():
        ran = clean(spark, log_dir, options=OPTIONS)
    assert ran.outcome("t") == "failed"
    assert rotten.name in ran.reason("t")
    assert contents(log_dir / "t-0") == before


def test_a_truncation_between_two_rounds_ends_the_cleaning(spark: LazySpark, log_dir: Path) -> None:
    """What is committed stays, and what follows is the next cleaning's."""
    leave_to_nobody(log_dir)
    before = newest(log_dir / "t-0")
    checkpoint = (log_dir / names.CLEANER_OFFSET_CHECKPOINT).read_text()
    write_round, left = Cleaner.write, [3]

    def truncated(cleaner: Cleaner, job: CleaningJob, **more: object) -> CleaningJob:
        left[0] -= 1
        if not left[0]:
            with LogWriter(str(log_dir), "t", 0, segment_bytes=SEGMENT_BYTES) as writer:
                writer.truncate(writer.log_end_offset - 1)
        return write_round(cleaner, job, **more)  # type: ignore[arg-type]

    with small_rounds(), mock.patch.object(Cleaner, "write", truncated):
        ran = clean(spark, log_dir, options=OPTIONS)
    assert "truncated or created again" in ran.reason("t"), ran.reason("t")
    assert (log_dir / names.CLEANER_OFFSET_CHECKPOINT).read_text() == checkpoint
    assert_settled(log_dir / "t-0")
    assert newest(log_dir / "t-0").keys() == before.keys()
    assert clean(spark, log_dir, options=OPTIONS).outcome("t") == "committed"


@pytest.fixture
def by_hand(tmp_path: Path) -> Cleaning:
    """A cleaning of a log with a checkpoint in the middle of a group, round by round: nothing has been committed yet."""
    log_dir = tmp_path / "by hand"
    log_dir.mkdir()
    keys = (b"%d" % (n % 12) if n % 3 else b"only %d" % n for n in range(90))
    put(log_dir, "t", ((key, b"v" * 40) for key in keys), segment_bytes=200)
    first = Cleaning(RealFiles(), str(log_dir), 1000)
    assert first.choose()
    assert first.plan is not None
    joined = next(group for group in first.plan.groups[3:] if len(group.sources) > 1)
    checkpoint = log_dir / names.CLEANER_OFFSET_CHECKPOINT
    checkpoint.write_text(f"0\n1\nt 0 {joined.sources[1].base_offset}\n")
    for path in sorted((log_dir / "t-0").glob("*.log")):
        is_clean = int(path.stem) < joined.sources[1].base_offset
        os.utime(path, (OLD_S, OLD_S) if is_clean else (OLD_S + 200, OLD_S + 200))
    os.utime(checkpoint, (OLD_S + 100, OLD_S + 100))
    cleaning = Cleaning(RealFiles(), str(log_dir), 1000, groups_at_once=1)
    assert cleaning.choose()
    cleaning.index()
    return cleaning


def entry(cleaning: Cleaning) -> int | None:
    return read_checkpoints(RealFiles(), cleaning.log_dir).cleaner.get(TP)


class Broker(LiveBrokers):
    """It swaps at once, and has no cleaner."""

    def swap(self, log_dir: str, swap: Swap) -> Swapped:
        for group in swap.groups:
            for _ in commit_steps(swap.partition, group):
                swap.partition.sync()
        return Swapped("swapped", "", "", (0.0,) * len(swap.groups), log_dir, has_cleaner=False)

    def describe_if_live(self, *_: object) -> tuple[LiveLog, ...]:
        return ()

    def check(self, *_: object) -> None:
        """It can be asked."""


@pytest.mark.parametrize("is_live", [False, True])
def test_the_first_dirty_offset_of_a_log_stays_between_its_rounds(by_hand: Cleaning, is_live: bool) -> None:
    """A group that joins clean and dirty segments is newer than the offset; those of other logs are written meanwhile."""
    log_dir = LogDir(
        RealFiles(), by_hand.log_dir, SystemClock(), is_kafka=is_live, log_dirs=(by_hand.log_dir,)
    )
    (Path(log_dir.path) / "other-0").mkdir()
    brokers = Broker(RealFiles(), SystemClock(), lambda: defaults().broker) if is_live else None
    checkpoint, rounds = entry(by_hand), 1
    assert checkpoint is not None

    def commit() -> None:
        done = LogResult(TP, log_dir.path, Staged())
        (settled,) = Committer(log_dir, brokers=brokers).settle([done])
        assert settled.outcome.word == "committed", settled.reason

    with lock_of_another(Path(log_dir.path) / names.LOCK) if is_live else contextlib.nullcontext():
        by_hand.stage()
        commit()
        while by_hand.goes_on():
            log_dir.record_cleaned({TopicPartition("other", 0): rounds})
            assert entry(by_hand) == checkpoint
            by_hand.stage()
            if by_hand.staged[0].base_offset < checkpoint:
                os.utime(Path(log_dir.path) / names.CLEANER_OFFSET_CHECKPOINT, (OLD_S + 100, OLD_S + 100))
            commit()
            rounds += 1
    assert rounds > GROUPS
    assert by_hand.plan is not None
    assert entry(by_hand) == by_hand.plan.work.round_end


def test_a_first_dirty_offset_that_is_older_than_the_log_gets_no_younger_between_two_rounds(
    by_hand: Cleaning,
) -> None:
    """A segment below it was written by a broker without a cleaner: no cleaning has seen that before this one."""
    path = Path(by_hand.log_dir) / names.CLEANER_OFFSET_CHECKPOINT
    newer = sorted(Path(by_hand.directory).glob("*.log"))[5]
    os.utime(newer, (OLD_S + 150, OLD_S + 150))
    again = Cleaning(RealFiles(), by_hand.log_dir, 1000, groups_at_once=1)
    assert again.choose()
    assert again.plan is not None
    assert again.plan.work.first_dirty_offset == int(newer.stem)
    again.index()
    again.stage()
    before = path.stat()
    again.commit()
    assert again.goes_on()
    assert path.stat() == before


def test_a_round_is_refused_without_the_one_before_it(by_hand: Cleaning) -> None:
    """(E): what it drops may delete a value in a segment that a power failure brings back."""
    assert by_hand.plan is not None
    by_hand.stage()
    group = by_hand.staged[0]
    assert len(group.sources) > 1
    back = Path(by_hand.directory) / f"{group.sources[-1].base_offset:020}.log"
    content = back.read_bytes()
    by_hand.commit()
    assert not back.exists()
    assert by_hand.goes_on()
    by_hand.stage()
    back.write_bytes(content)
    with pytest.raises(SourceChanged, match="relies"):
        by_hand.commit()


def test_how_much_is_a_round(by_hand: Cleaning) -> None:
    """A GiB a core; ten seconds of limited I/O, of which a limit on reads plus writes counts both; at least a group. All
    where the result waits for a broker's stop.
    """
    plan, indexed, config = by_hand.plan, by_hand.indexed, defaults().broker
    assert plan is not None
    assert indexed is not None
    log, groups = LogUnderWay(plan, Size(), indexed), sorted(indexed.changed_groups)
    sizes = {n: sum(segment.size_bytes for segment in plan.groups[n].sources) for n in groups}
    assert list(log.rounds(1, config)) == [groups]
    for key in ("io_max_bytes_per_second", "io_max_read_bytes_per_second", "io_max_write_bytes_per_second"):
        limited = config.but(**{key: 240.0 if key == "io_max_bytes_per_second" else 120.0})
        found = list(log.rounds(1, limited))
        assert [group for now in found for group in now] == groups
        assert len(found) < len(groups)
        for now, after in pairwise(found):
            assert sum(map(sizes.__getitem__, now)) <= 1200 < sum(map(sizes.__getitem__, [*now, after[0]]))
    assert list(log.rounds(1, config.but(io_max_bytes_per_second=1.0))) == [[group] for group in groups]
    waiting = LogUnderWay(replace(plan, waits=True), Size(), indexed)
    assert list(waiting.rounds(1, config.but(io_max_bytes_per_second=1.0))) == [groups]


def planned(spark: LazySpark, log_dir: Path, clock: HandClock, **topic: str) -> tuple[Cleaner, CleaningJob]:
    request = request_of(log_dir, "t", topic, force=True)
    cleaner = Cleaner(request, Progress(), clock, RealFiles(), spark)
    place = LogDir.at(RealFiles(), str(log_dir), clock)
    (found,) = examine_all(place, [TopicPartition("t", 0)], request, cleaner.pace_of)
    assert isinstance(found, Candidate), found
    return cleaner, cleaner.plan([found])


@pytest.mark.parametrize("has_aborted", [False, True])
@pytest.mark.parametrize("is_large", [False, True])
def test_a_group_begins_at_the_first_dirty_offset_of_a_log_with_aborted_transactions(
    spark: LazySpark, log_dir: Path, has_aborted: bool, is_large: bool
) -> None:
    """A broker's cleaner that takes over between two rounds would find it within a segment, behind markers (10.1)."""
    with LogWriter(str(log_dir), "t", 0, segment_bytes=SEGMENT_BYTES, index_interval_bytes=300) as writer:
        if has_aborted:
            producer = Producer(writer, producer_id=4)
            producer.begin()
            producer.put(b"key 1", b"aborted", 1)
            producer.abort(1)
        writer.roll()
        stop_broker(log_dir, {"t": writer.log_end_offset})
    with mock.patch.object(round_size, "_BYTES_PER_CORE", 0 if is_large else 1 << 30):
        _, job = planned(spark, log_dir, HandClock())
    (log,) = job.logs
    bases = [group.sources[0].base_offset for group in log.plan.groups]
    assert 0 < log.plan.work.first_dirty_offset < log.plan.work.round_end
    assert bases == [0, log.plan.work.first_dirty_offset][: 1 + (has_aborted and is_large)]


def test_new_delete_horizons_count_from_the_writing(spark: LazySpark, log_dir: Path) -> None:
    """A job may have been planned while a long one was cleaned: who has just read a value has all of delete.retention.ms."""
    end = put(
        log_dir,
        "t",
        [(b"key 1", None), *((b"other %d" % n, b"") for n in range(200))],
        segment_bytes=SEGMENT_BYTES,
    )
    stop_broker(log_dir, {"t": end})
    clock = HandClock()
    cleaner, job = planned(spark, log_dir, clock, delete_retention_ms="1000")
    clock.advance(5_000)
    (result,) = cleaner.end(cleaner.write(job))
    assert isinstance(result.outcome, Staged)
    staged = [path.read_bytes() for path in (log_dir / "t-0").glob("*.log.cleanerd")]
    batches = [
        decode_batch(data[at : at + size])[0] for data in staged for at, size, _ in iterate_batches(data)
    ]
    assert {batch.delete_horizon_ms for batch in batches} - {None} == {clock.now_ms() + 1000}
