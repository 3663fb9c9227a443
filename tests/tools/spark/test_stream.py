"""`kafka-segments` as a stream: batches of a growing log, limits, AvailableNow, restarts, lost records."""

import json
from pathlib import Path
from typing import Any

import pytest

from cleanerd.errors import BadUsage, SourceChanged
from cleanerd.format import names
from cleanerd.format.batch import encode_batch
from cleanerd.format.record import Record
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.tools.client.writer import LogWriter
from tests.tools.insight.logdirs import segment
from tests.tools.spark.sessions import session_of

pytest.importorskip("pyarrow", reason="needs the extra cleanerd[spark]")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from cleanerd.tools.spark.options import parse_options
from cleanerd.tools.spark.stream import SegmentsStreamReader

ALL = ReadAllAvailable()


def append(root: Path, count: int, topic: str = "t", partition: int = 0, segment_bytes: int = 400) -> None:
    with LogWriter(str(root), topic, partition, segment_bytes=segment_bytes) as writer:
        for _ in range(count):
            start = writer.log_end_offset
            kept = [Record(start + i, 1000 + start + i, b"k", b"v%d" % (start + i)) for i in range(3)]
            writer.append(encode_batch(kept, base_offset=start))


def reader(root: Path, **options: str) -> SegmentsStreamReader:
    wanted = {"path": str(root), "startingOffsets": "earliest", **options}
    return SegmentsStreamReader(
        parse_options(wanted, streaming=True), ("topic", "partition", "offset", "value")
    )


def rows(stream: SegmentsStreamReader, start: dict, end: dict) -> list[tuple]:
    return [
        tuple(row.values())
        for part in stream.partitions(start, end)
        for batch in stream.read(InputPartition(part.value))
        for row in batch.to_pylist()
    ]


def expected(first: int, end: int, topic: str = "t", partition: int = 0) -> list[tuple]:
    return [(topic, partition, offset, b"v%d" % offset) for offset in range(first, end)]


def test_a_log_that_grows(tmp_path: Path) -> None:
    """Each record once: in the middle of a segment, over rolls, of a partition that appears."""
    append(tmp_path, 2)
    stream = reader(tmp_path)
    start = stream.initialOffset()
    assert start == {"t": {"0": 0}}
    end = stream.latestOffset(start, ALL)
    assert rows(stream, start, end) == expected(0, 6)
    assert stream.latestOffset(end, ALL) == end
    assert rows(stream, end, end) == []
    append(tmp_path, 9)
    append(tmp_path, 1, partition=1)
    start, end = end, stream.latestOffset(end, ALL)
    assert end == {"t": {"0": 33, "1": 3}} == stream.reportLatestOffset()
    assert len(list((tmp_path / "t-0").glob("*.log"))) > 2
    assert rows(stream, start, end) == expected(6, 33) + expected(0, 3, partition=1)


def test_where_a_query_starts(tmp_path: Path) -> None:
    """As Spark's Kafka source: at the end unless told otherwise."""
    append(tmp_path, 3)
    assert reader(tmp_path, startingOffsets="latest").initialOffset() == {"t": {"0": 9}}
    given = {"path": str(tmp_path)}
    assert SegmentsStreamReader(parse_options(given, streaming=True), ()).initialOffset() == {"t": {"0": 9}}
    assert reader(tmp_path, startingOffsets='{"t": {"0": 4}}').initialOffset() == {"t": {"0": 4}}
    assert reader(tmp_path, startingOffsets='{"t": {"0": -1}}').initialOffset() == {"t": {"0": 9}}
    assert reader(tmp_path, startingTimestamp="1005").initialOffset() == {"t": {"0": 5}}
    assert reader(tmp_path, startingTimestamp="2000").initialOffset() == {"t": {"0": 9}}
    with pytest.raises(BadUsage, match="endingOffsets makes no sense for streams"):
        reader(tmp_path, endingOffsets="latest")


def test_limits(tmp_path: Path) -> None:
    """In proportion to what there is, to the end; cut inside of batches, no record twice."""
    append(tmp_path, 30)
    append(tmp_path, 1, partition=1)
    stream = reader(tmp_path, maxOffsetsPerTrigger="7")
    limit = stream.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    start, found, batches = stream.initialOffset(), [], 0
    while (end := stream.latestOffset(start, limit)) != start:
        part = rows(stream, start, end)
        assert 0 < len(part) <= 8
        found += part
        start, batches = end, batches + 1
    assert sorted(found) == sorted(expected(0, 90) + expected(0, 3, partition=1))
    assert batches >= 12


def test_available_now(tmp_path: Path) -> None:
    """What comes later belongs to the next run, a partition that appears too; no offset goes back."""
    append(tmp_path, 2)
    stream = reader(tmp_path)
    stream.prepareForTriggerAvailableNow()
    append(tmp_path, 2)
    append(tmp_path, 1, partition=1)
    end = stream.latestOffset(stream.initialOffset() | {}, ALL)
    assert end["t"]["0"] == 6
    assert stream.latestOffset(end, ALL) == end
    assert stream.latestOffset({"t": {"0": 8}}, ALL) == {"t": {"0": 8}}


def test_nothing_above_the_high_watermark(log_dir: Path) -> None:
    """Of a broker's directory; more when the broker has written down more."""

    def watermark(offset: int) -> None:
        (log_dir / names.REPLICATION_CHECKPOINT).write_text(f"0\n1\nplain 0 {offset}\n")

    watermark(5)
    stream = reader(log_dir, subscribe="plain")
    first = stream.latestOffset(stream.initialOffset(), ALL)
    assert first == {"plain": {"0": 5}}
    watermark(12)
    second = stream.latestOffset(first, ALL)
    assert [row[2] for row in rows(stream, first, second)] == [5, 6, 7, 8, 9, 10, 11]
    watermark(3)  # a broker that starts: what was read stays read
    assert stream.latestOffset(second, ALL) == second
    with pytest.raises(SourceChanged, match="not all there"):
        rows(stream, first, second)


def test_the_last_stable_offset(log_dir: Path) -> None:
    """With `isolation=committed`."""
    both = [
        reader(log_dir, subscribe="transactions", isolation=name) for name in ("committed", "uncommitted")
    ]
    found = [
        [row[2] for row in rows(one, one.initialOffset(), one.latestOffset(one.initialOffset(), ALL))]
        for one in both
    ]
    assert 0 < len(found[0]) < len(found[1])


def test_lost_records(tmp_path: Path) -> None:
    """Deleted by retention, truncated, a topic that is gone: told, or gone on without them."""
    append(tmp_path, 9)
    strict, loose = reader(tmp_path), reader(tmp_path, failOnDataLoss="false")
    end = strict.latestOffset(strict.initialOffset(), ALL)
    bases = sorted(int(path.stem) for path in (tmp_path / "t-0").glob("*.log"))
    segment(tmp_path / "t-0", bases[0]).unlink()
    with pytest.raises(SourceChanged, match="not all there"):
        rows(strict, {"t": {"0": 1}}, end)
    assert rows(loose, {"t": {"0": 1}}, end) == expected(bases[1], 27)
    later = {"t": {"0": 100}}
    with pytest.raises(SourceChanged, match="created again"):
        strict.latestOffset(later, ALL)
    assert loose.latestOffset(later, ALL) == later
    gone = {"t": {"0": 27}, "u": {"0": 5}}
    with pytest.raises(SourceChanged, match="u-0: gone"):
        strict.latestOffset(gone, ALL)
    assert loose.latestOffset(gone, ALL) == gone
    assert rows(loose, {"u": {"0": 2}}, {"u": {"0": 5}}) == []


@pytest.fixture(scope="module")
def sql(spark: LazySpark) -> Any:
    return session_of(spark)


def run(sql: Any, root: Path, work: Path, **options: str) -> None:
    stream = sql.readStream.format("kafka-segments").options(
        path=str(root), columns="offset,value", **options
    )
    query = (
        stream.load().writeStream.format("json").option("path", str(work / "out"))
        .option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    try:
        assert query.awaitTermination(300)
        assert query.exception() is None
    finally:
        query.stop()


@pytest.mark.soak
def test_runs_with_a_checkpoint(sql: Any, tmp_path: Path) -> None:
    """A query that ends and is started again takes what came meanwhile, each record once; in several batches."""
    root, work = tmp_path / "logs", tmp_path / "work"
    append(root, 4)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "8"}
    run(sql, root, work, **options)
    append(root, 3)
    run(sql, root, work, **options)
    lines = [line for path in (work / "out").glob("*.json") for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["offset"] for line in lines) == list(range(21))
    assert len(list((work / "checkpoint" / "commits").glob("[0-9]*"))) == 4
