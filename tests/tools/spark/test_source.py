"""`kafka-segments`, in a real Spark session and without: rows and schema against the plain Python reader."""

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cleanerd.errors import SourceChanged
from cleanerd.format import names
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.segments import log_batches
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter
from tests.tools.insight import damage
from tests.tools.insight.logdirs import GOLDEN
from tests.tools.spark.sessions import session_of

pytest.importorskip("pyarrow", reason="needs the extra cleanerd[spark]")

from cleanerd.tools.spark.source import KafkaSegments
from tests.tools.spark.test_write import schema

TOPICS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir() and not path.name.startswith("__"))
KAFKA_SCHEMA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
    "headers:array<struct<key:string,value:binary>>>"
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def sql(spark: LazySpark) -> Any:
    """A session for data frames, which share the context of all tests."""
    session = session_of(spark)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def load(sql: Any, **options: str) -> Any:
    return sql.read.format("kafka-segments").options(**{"path": str(GOLDEN), **options}).load()


def expected(isolation: str) -> set[tuple]:
    """Every record of every partition, in plain Python."""
    return {
        (
            record.key, record.value, name.removesuffix("-0"), 0, record.offset,
            EPOCH + timedelta(milliseconds=record.timestamp_ms), int(name == "append-time-0"),
            tuple(record.headers) or None,
        )
        for name in TOPICS
        for record in read_records(str(GOLDEN / name), isolation=isolation)
    }  # fmt: skip


def as_tuples(frame: Any) -> set[tuple]:
    return tuples_of(frame.where("topic not like '\\\\_\\\\_%'").collect())


def tuples_of(rows: Iterable[Any]) -> set[tuple]:
    return {
        (
            None if row.key is None else bytes(row.key), None if row.value is None else bytes(row.value),
            row.topic, row.partition, row.offset, row.timestamp.astimezone(UTC), row.timestampType,
            row.headers and tuple((h.key, None if h.value is None else bytes(h.value)) for h in row.headers),
        )
        for row in rows
    }  # fmt: skip


@pytest.mark.parametrize("isolation", ["uncommitted", "committed"])
def test_rows_of_its_parts(isolation: str) -> None:
    """As Spark asks for them: in parts, each read by itself."""
    options = {"path": str(GOLDEN), "isolation": isolation, "includeHeaders": "true"}
    source = KafkaSegments({**options, "maxBytesPerPartition": "300"})
    reader = source.reader(schema(source.schema().replace("`", "")))
    parts = reader.partitions()
    assert len(parts) > len(TOPICS)
    rows = [
        SimpleNamespace(**row) for part in parts for batch in reader.read(part) for row in batch.to_pylist()
    ]
    for row in rows:
        row.headers = row.headers and [SimpleNamespace(**header) for header in row.headers]
    assert tuples_of(row for row in rows if not row.topic.startswith("__")) == expected(f"read_{isolation}")


def test_ending_offsets_that_cannot_be_read_yet(log_dir: Path) -> None:
    (log_dir / names.REPLICATION_CHECKPOINT).write_text("0\n1\nplain 0 5\n")
    options = {"path": str(log_dir), "subscribe": "plain", "endingOffsets": '{"plain": {"0": 7}}'}
    for more in ({"failOnDataLoss": "false"}, {"endingTimestamp": "1"}):
        assert KafkaSegments(options | more).reader(schema("offset bigint")).partitions() is not None
    with pytest.raises(SourceChanged, match="can be read up to offset 5, not up to 7"):
        KafkaSegments(options).reader(schema("offset bigint")).partitions()


@pytest.mark.parametrize("time_ms", [2**62, 2**63 - 1, -(2**62)])
def test_a_time_that_spark_cannot_hold_is_the_last_one_or_the_first(time_ms: int, tmp_path: Path) -> None:
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=1000) as writer:
        Producer(writer).put(b"k", b"v", time_ms)
    reader = KafkaSegments({"path": str(tmp_path)}).reader(schema("timestamp timestamp"))
    (batch,) = reader.read(reader.partitions()[0])
    (found,) = batch.column("timestamp").cast("int64").to_pylist()
    assert found == (9223372036854775000 if time_ms > 0 else -9223372036854775000)


@pytest.mark.soak
@pytest.mark.parametrize("isolation", ["uncommitted", "committed"])
def test_rows(sql: Any, isolation: str) -> None:
    """All eight columns of every record, whatever the split."""
    frame = load(sql, isolation=isolation, includeHeaders="true", maxBytesPerPartition="300")
    assert frame.schema.simpleString() == KAFKA_SCHEMA
    assert frame.rdd.getNumPartitions() > len(TOPICS)
    assert as_tuples(frame) == expected(f"read_{isolation}")


@pytest.mark.soak
def test_selection_and_offsets(sql: Any) -> None:
    """Only what is asked for, only the columns that are."""
    frame = load(
        sql, subscribe="plain", columns="offset,key", startingOffsets='{"plain": {"0": 3}}',
        endingOffsets='{"plain": {"0": 7}}',
    )  # fmt: skip
    assert frame.columns == ["offset", "key"]
    assert [row.offset for row in frame.orderBy("offset").collect()] == [3, 4, 5, 6]
    assert load(sql, subscribe="nothing").count() == 0


@pytest.mark.soak
def test_a_schema_of_the_user(sql: Any) -> None:
    """Says which columns are wanted, and only what there is can be."""
    source = sql.read.format("kafka-segments").option("path", str(GOLDEN)).option("subscribe", "zstd")
    frame = source.schema("offset bigint, _codec string").load()
    assert {row[:] for row in frame.collect()} == {(offset, "zstd") for offset in range(16)}
    with pytest.raises(Exception, match="no column offset of type int"):
        source.schema("offset int").load().collect()


@pytest.mark.soak
def test_control_records_and_batches(sql: Any) -> None:
    """Transaction markers, and what the headers of the batches say."""
    options = {"subscribe": "transactions", "includeBatch": "true", "isolation": "committed"}
    frame = load(sql, **options, includeControl="true")
    path = GOLDEN / "transactions-0"
    expected = {
        (
            record.offset, header.is_control, header.is_transactional, header.base_offset, header.producer_id,
            header.producer_epoch, header.base_sequence, header.leader_epoch, header.codec.name.lower(),
            os.path.basename(batch.path), str(GOLDEN),
        )
        for batch in log_batches(str(path), 0)
        if (header := batch.header)
        for record in batch.records()
    }  # fmt: skip
    visible = {record.offset for record in read_records(str(path), isolation="read_committed")}
    names = (
        "offset", "_is_control", "_is_transactional", "_batch_base_offset", "_producer_id", "_producer_epoch",
        "_base_sequence", "_leader_epoch", "_codec", "_segment", "_log_dir",
    )  # fmt: skip
    found = {row[:] for row in frame.select(*names).collect()}
    assert found == {row for row in expected if row[0] in visible or row[1]}
    assert any(row[1] for row in found)
    assert load(sql, **options).where("_is_control").count() == 0
    assert load(sql, includeControl="true").columns[-1] == "_is_control"


@pytest.mark.soak
def test_bounds_by_time(sql: Any) -> None:
    """For all partitions, or for some; a time wins over an offset."""
    path = GOLDEN / "plain-0"
    every = list(read_records(str(path)))
    middle = sorted(record.timestamp_ms for record in every)[8]
    first = next(record.offset for record in every if record.timestamp_ms >= middle)

    def offsets(**options: str) -> list[int]:
        return sorted(
            row.offset for row in load(sql, subscribe="plain", columns="offset", **options).collect()
        )

    rest, before = list(range(first, 16)), list(range(first))
    assert 0 < first < 16
    assert offsets(startingTimestamp=str(middle), startingOffsets='{"plain": {"0": 15}}') == rest
    assert offsets(endingTimestamp=str(middle)) == before
    assert offsets(startingOffsetsByTimestamp=f'{{"plain": {{"0": {middle}}}}}') == rest
    assert offsets(endingOffsetsByTimestamp=f'{{"plain": {{"0": {middle}}}}}') == before
    assert offsets(startingTimestamp="99999999999999") == []


@pytest.mark.soak
def test_filters(sql: Any) -> None:
    """Several on one data frame: those of one query are not those of the next, whatever the session allows."""
    sql.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(sql)
        assert frame.where("topic = 'plain' and offset < 3").count() == 3
        assert frame.where("topic = 'zstd'").count() == 16
        assert frame.count() > 32
    finally:
        sql.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.soak
def test_sql(sql: Any) -> None:
    """The table is there for SQL too."""
    sql.sql(f"CREATE TEMPORARY VIEW logs USING `kafka-segments` OPTIONS (path '{GOLDEN}', subscribe 'zstd')")
    assert sql.sql("SELECT count(*), max(offset) FROM logs").first()[:] == (16, 15)


@pytest.mark.soak
def test_damage(sql: Any, log_dir: Path) -> None:
    """Fails naming file and byte, or goes on without it."""
    path, position = damage.bad_crc(log_dir)
    options = {"path": str(log_dir), "subscribe": "plain"}
    with pytest.raises(Exception, match=f"{path}: at byte {position}"):
        load(sql, **options).collect()
    assert 0 < load(sql, **options, onCorrupt="skip").count() < 16


@pytest.mark.soak
def test_an_option_that_is_unknown(sql: Any) -> None:
    """Told when the table is named, not when it is read."""
    with pytest.raises(Exception, match="unknown option subscribes"):
        load(sql, subscribes="plain")
