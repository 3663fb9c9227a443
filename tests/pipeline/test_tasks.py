"""What the chunks of one Spark task tell about each other before anything is shipped."""

import os
import random
import threading
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanerd.errors import Aborted
from cleanerd.format.names import FileKind, Suffix, segment_path
from cleanerd.kernels.tables import Bytes
from cleanerd.pipeline import rewrite, tasks
from cleanerd.pipeline.index import Block, Blocks, resolve
from cleanerd.pipeline.part_file import PartFile
from cleanerd.pipeline.small_log import SmallLogTask
from cleanerd.pipeline.tasks import (
    Indexed,
    IndexTask,
    ResolvedBucket,
    RewriteTask,
    by_chunk,
    index_together,
    loaded,
)
from cleanerd.pipeline.values import ChunkSummary, IndexedLog, PackedBits, Part
from cleanerd.spark_runtime.channel import Channel, Reporter
from cleanerd.spark_runtime.messages import GO_ON, STOP, Message, Moved, Phase, ReportAnswer
from tests.harness.kernels.real_path import Layout, RealPath
from tests.harness.logs.random_log import LogSegment, RandomLog, random_facts
from tests.harness.spark.in_process import Silent

BUCKETS = 4
SILENT = cast(Reporter, Silent())


def logs(tmp_path: Path) -> tuple[list[IndexTask], list[Any]]:
    work, contexts = [], []
    for number in range(2):
        rng = random.Random(number)
        log = RandomLog(rng, kinds=("plain",), keys=[b"a", b"b", b"c", b"d"]).append(60)
        segment = LogSegment(0, log.data)
        directory = tmp_path / str(number)
        directory.mkdir()
        path = RealPath(
            directory, [segment], random_facts(rng, log), Layout(chunk_bytes=700, buckets=BUCKETS)
        )
        work += [
            IndexTask(number, chunk, one, number * BUCKETS) for chunk, one in enumerate(path.work.chunks)
        ]
        contexts.append(path.context())
    return work, contexts


def run(work: list[IndexTask], contexts: list[Any], held: int) -> list[Indexed]:
    answers = list(index_together(held, work, (contexts, SILENT), lambda data: data))
    blocks = dict(chain.from_iterable(loaded(answer)[1].items() for answer in answers))
    return [
        (answer[0], blocks.get((task.log, task.chunk), {}))
        for task, answer in zip(work, answers, strict=True)
    ]


def bits(work: list[IndexTask], found: list[Indexed], log: int) -> list[list[bool]]:
    """Superseded or not, per bucket, over all chunks of a log that could be read."""
    read = [blocks for task, (_, blocks) in zip(work, found, strict=True) if task.log == log]
    return [
        np.concatenate(resolve([blocks[bucket] for blocks in read if bucket in blocks])[0]).tolist()
        for bucket in range(BUCKETS)
    ]


def shipped(found: list[Indexed]) -> int:
    return sum(len(block.fingerprints) for _, blocks in found for block in blocks.values())


@pytest.mark.parametrize("held", [1, 30, 1 << 22])
def test_answers_are_those_of_each_chunk_alone(held: int, tmp_path: Path) -> None:
    """However many records are held before they are combined: in order, each log by itself."""
    work, contexts = logs(tmp_path)
    assert len(work) > 8
    alone = [task.run(contexts, SILENT) for task in work]
    together = run(work, contexts, held)
    for log in range(2):
        assert bits(work, together, log) == bits(work, alone, log)
    assert [one.first_offset for one, _ in together] == [one.first_offset for one, _ in alone]
    assert shipped(together) < shipped(alone)
    if held > 30:  # of each key of two logs at most one clean and one dirty record
        assert shipped(together) <= 2 * 4 * 2


def test_chunks_that_come_back_from_a_lost_process_are_resolved_in_the_order_of_offsets(
    tmp_path: Path,
) -> None:
    """Another process gets them after later ones, and holds them together: the newest record stays the newest."""
    work, contexts = logs(tmp_path)
    alone = [task.run(contexts, SILENT) for task in work]
    again = [*work[2:5], *work[:2], *work[5:]]
    together = dict(zip((id(task) for task in again), run(again, contexts, 1 << 22), strict=True))
    for log in range(2):
        assert bits(work, [together[id(task)] for task in work], log) == bits(work, alone, log)


@pytest.mark.parametrize(("held", "most"), [(1, None), (1 << 22, 2 * BUCKETS)])
def test_the_blocks_of_a_bucket_travel_together(held: int, most: int | None, tmp_path: Path) -> None:
    """However many chunks are held together: this process keeps a reference to each."""
    work, contexts = logs(tmp_path)
    answers = list(index_together(held, work, (contexts, SILENT), lambda data: data))
    found = [one for _, shipped in answers for one in shipped.values()]
    assert {one.log for one in found} == {0, 1}
    assert len(found) == (most or sum(one.chunks for one in found))
    assert sum(one.records for one in found) == sum(
        summary.competing for summary, _ in answers if isinstance(summary, ChunkSummary)
    )


def block(records: int, keys: int, first_key: int) -> Block:
    numbers = np.arange(records, dtype=np.uint64) % np.uint64(keys) + np.uint64(first_key)
    return Block(None, np.stack([numbers << np.uint64(40), numbers], axis=1), 0)


def test_duplicates_are_looked_for_where_there_are_many() -> None:
    """A hot key fills its bucket, which is always looked at; where most keys differ, no time is spent on them."""
    hot, warm = {0: block(900, 1, 1)}, {1: block(300, 3, 10)}
    cold = {2: block(200, 200, 100), 3: block(199, 198, 1000)}
    chunks: Blocks = {**cold, **warm, **hot}
    tasks._combine([(0, (cast(ChunkSummary, None), chunks))])
    assert {bucket: len(one.fingerprints) for bucket, one in chunks.items()} == {0: 1, 1: 3, 2: 200, 3: 199}
    assert chunks[3].superseded is None, "the bucket before it was not worth it"


@given(
    held=st.lists(st.dictionaries(st.integers(0, 5), st.integers(0, 20), max_size=6), max_size=4),
    seed=st.integers(0, 99),
)
@settings(max_examples=200, deadline=None)
def test_every_chunk_gets_the_answers_of_its_own_records(held: list[dict[int, int]], seed: int) -> None:
    """`held[bucket]`: how many records each chunk has in it. Chunks that are in no bucket get none."""
    rng = random.Random(seed)
    answers, expected = [], [dict[int, list[bool]]() for _ in range(7)]
    for bucket, counts in enumerate(held):
        chunks = sorted(counts)
        sizes = np.array([counts[chunk] for chunk in chunks], np.int32)
        told = [rng.random() < 0.5 for chunk in chunks for _ in range(counts[chunk])]
        superseded = PackedBits.of(np.array(told, np.bool_))
        answers.append(ResolvedBucket(0, bucket, np.array(chunks, np.int32), sizes, superseded))
        for chunk in chunks:
            expected[chunk][bucket], told = told[: counts[chunk]], told[counts[chunk] :]
    found = [{bucket: bits.tolist() for bucket, bits in one.items()} for one in by_chunk(answers, 7)]
    assert found == expected


@pytest.fixture
def cleaned(tmp_path: Path) -> RealPath:
    """A log of one chunk that was indexed."""
    rng = random.Random(1)
    log = RandomLog(rng, kinds=("plain",), keys=[b"a", b"b"]).append(40)
    path = RealPath(tmp_path, [LogSegment(0, log.data)], random_facts(rng, log), Layout(buckets=BUCKETS))
    path.clean()
    return path


def attempt(path: RealPath, reporter: Reporter, *, is_small: bool) -> object:
    """The part, or the error."""
    if is_small:
        indexed, rewritten = SmallLogTask(IndexedLog(path.work, (1, 2), BUCKETS)).run(reporter)
        return indexed.error if rewritten is None else rewritten.parts[0][0]
    where = segment_path(str(path.directory), 0, FileKind.PART, Suffix.STAGED)
    task = RewriteTask(0, 0, path.work.chunks[0], path.indexed.verdicts[0], where, 0, 0)
    return task.run([path.context()], reporter, None, {})


@pytest.mark.parametrize("is_small", [False, True])
def test_an_attempt_that_spark_repeats_meanwhile_writes_to_its_own_file(
    tmp_path: Path, cleaned: RealPath, monkeypatch: pytest.MonkeyPatch, is_small: bool
) -> None:
    """Speculation, or an executor that was given up too early: the first is verified while the second is half done."""
    is_half_done, may_go_on = threading.Event(), threading.Event()
    parts: list[object] = []
    second = threading.Thread(target=lambda: parts.append(attempt(cleaned, SILENT, is_small=is_small)))
    write, verify = PartFile._write, rewrite.verify_part

    def write_late(self: PartFile, fd: int, data: list[Bytes]) -> None:
        if threading.current_thread() is second:
            write(self, fd, [data[0][:10]])
            os.lseek(fd, 0, os.SEEK_SET)
            is_half_done.set()
            assert may_go_on.wait(20)
        write(self, fd, data)

    def verify_first(*given: Any) -> None:
        if threading.current_thread() is not second:
            second.start()
            assert is_half_done.wait(20)
        verify(*given)

    monkeypatch.setattr(PartFile, "_write", write_late)
    monkeypatch.setattr(rewrite, "verify_part", verify_first)
    parts.append(attempt(cleaned, SILENT, is_small=is_small))
    may_go_on.set()
    second.join(20)
    first, other = (str(part.path) for part in parts if isinstance(part, Part))
    assert first != other
    assert Path(first).read_bytes() == Path(other).read_bytes() != b""
    assert len(list(tmp_path.glob("*.part.cleanerd"))) == 2


@pytest.mark.parametrize("is_small", [False, True])
def test_an_attempt_that_ends_after_its_job_leaves_no_part(
    tmp_path: Path, cleaned: RealPath, is_small: bool
) -> None:
    """A log that was staged meanwhile is not looked through again until its next cleaning."""
    seen: list[Path] = []

    def answer(message: Message) -> ReportAnswer:
        if isinstance(message, Moved) and message.phase is Phase.VERIFY:
            seen.extend(tmp_path.glob("*.part.cleanerd"))
            return STOP
        return GO_ON

    with Channel(answer) as channel:
        found = attempt(cleaned, channel.reporter, is_small=is_small)
    assert isinstance(found, Aborted), found
    assert len(seen) == 1, "it was written"
    assert not seen[0].exists()
