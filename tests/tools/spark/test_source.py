"""`kafka-segments`, as Spark asks for parts and in a real session: rows and schema against the plain Python reader."""

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cleanerd.errors import BadUsage, CorruptFile, SourceChanged
from cleanerd.format import names
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.segments import log_batches
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter
from tests.harness.damage import directories as damage
from tests.harness.logs.logdirs import GOLDEN
from tests.harness.spark.frames import session_of

pytest.importorskip("pyarrow", reason="needs the extra cleanerd[spark]")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)  # fmt: skip

from cleanerd.tools.spark.source import KafkaSegments, SegmentsReader

TOPICS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir() and not path.name.startswith("__"))
KAFKA_SCHEMA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
    "headers:array<struct<key:string,value:binary>>>"
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TYPES: dict[str, DataType] = {
    "binary": BinaryType(), "string": StringType(), "int": IntegerType(), "bigint": LongType(), "boolean": BooleanType(),
    "timestamp": TimestampType(),
    "array<struct<key:string,value:binary>>": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}  # fmt: skip


def schema(ddl: str) -> StructType:
    return StructType(
        [StructField(name, TYPES[kind]) for name, kind in (part.split() for part in ddl.split(", "))]
    )


def reader_of(ddl: str = "", **options: str) -> SegmentsReader:
    """`ddl`: a schema that the user gave."""
    source = KafkaSegments({"path": str(GOLDEN), **options})
    return source.reader(schema(ddl or source.schema().replace("`", "")))


def read(ddl: str = "", **options: str) -> list[dict[str, Any]]:
    """Rows of all parts, each read by itself."""
    reader = reader_of(ddl, **options)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def offsets(**options: str) -> list[int]:
    return [row["offset"] for row in read("offset bigint", subscribe="plain", **options)]


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


def tuples_of(rows: Iterable[Any]) -> set[tuple]:
    return {
        (
            None if row.key is None else bytes(row.key), None if row.value is None else bytes(row.value),
            row.topic, row.partition, row.offset, row.timestamp.astimezone(UTC), row.timestampType,
            row.headers and tuple((h["key"], h["value"] and bytes(h["value"])) for h in row.headers),
        )
        for row in rows
        if not row.topic.startswith("__")
    }  # fmt: skip


@pytest.mark.parametrize("isolation", ["uncommitted", "committed"])
def test_rows_of_its_parts(isolation: str) -> None:
    """All eight columns of every record, whatever the split."""
    options = {"isolation": isolation, "includeHeaders": "true", "maxBytesPerPartition": "300"}
    assert len(reader_of(**options).partitions()) > len(TOPICS)
    rows = read(**options)
    assert tuples_of(SimpleNamespace(**row) for row in rows) == expected(f"read_{isolation}")


@pytest.mark.soak
@pytest.mark.parametrize("isolation", ["uncommitted", "committed"])
def test_rows_in_a_session(spark: LazySpark, isolation: str) -> None:
    """Filters of one query on a data frame are not those of the next, whatever the session allows; no part is no row."""
    session = session_of(spark)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    source = session.read.format("kafka-segments").options(path=str(GOLDEN), isolation=isolation)
    frame = source.options(includeHeaders="true", maxBytesPerPartition="300").load()
    assert frame.schema.simpleString() == KAFKA_SCHEMA
    assert frame.rdd.getNumPartitions() > len(TOPICS)
    assert frame.where("topic = 'plain' and offset < 3").count() == 3
    assert tuples_of(frame.collect()) == expected(f"read_{isolation}")
    assert source.options(subscribe="nothing").load().count() == 0
    with pytest.raises(Exception, match="no column offset of type int"):
        source.schema("offset int").load().collect()


def test_a_schema_of_the_user() -> None:
    """Says which columns are wanted, and only what there is can be."""
    found = read("offset bigint, _codec string", subscribe="zstd")
    assert found == [{"offset": offset, "_codec": "zstd"} for offset in range(16)]
    with pytest.raises(BadUsage, match="no column offset of type int"):
        read("offset int")


def test_bounds() -> None:
    """By offset or by time, for all partitions or for some; a time wins over an offset."""
    every = list(read_records(str(GOLDEN / "plain-0")))
    middle = sorted(record.timestamp_ms for record in every)[8]
    first = next(record.offset for record in every if record.timestamp_ms >= middle)
    rest, before = list(range(first, 16)), list(range(first))
    assert 0 < first < 16
    assert offsets(startingOffsets='{"plain": {"0": 3}}', endingOffsets='{"plain": {"0": 7}}') == [3, 4, 5, 6]
    assert offsets(startingTimestamp=str(middle), startingOffsets='{"plain": {"0": 15}}') == rest
    assert offsets(endingTimestamp=str(middle)) == before
    assert offsets(startingOffsetsByTimestamp=f'{{"plain": {{"0": {middle}}}}}') == rest
    assert offsets(endingOffsetsByTimestamp=f'{{"plain": {{"0": {middle}}}}}') == before
    assert offsets(startingTimestamp="99999999999999") == []


def test_ending_offsets_that_cannot_be_read_yet(log_dir: Path) -> None:
    (log_dir / names.REPLICATION_CHECKPOINT).write_text("0\n1\nplain 0 5\n")
    options = {"path": str(log_dir), "endingOffsets": '{"plain": {"0": 7}}'}
    for more in ({"failOnDataLoss": "false"}, {"endingTimestamp": "1"}):
        assert offsets(**options, **more) is not None
    with pytest.raises(SourceChanged, match="can be read up to offset 5, not up to 7"):
        offsets(**options)


@pytest.mark.parametrize("time_ms", [2**62, 2**63 - 1, -(2**62)])
def test_a_time_that_spark_cannot_hold_is_the_last_one_or_the_first(time_ms: int, tmp_path: Path) -> None:
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=1000) as writer:
        Producer(writer).put(b"k", b"v", time_ms)
    reader = reader_of("timestamp timestamp", path=str(tmp_path))
    (batch,) = reader.read(reader.partitions()[0])
    (found,) = batch.column("timestamp").cast("int64").to_pylist()
    assert found == (9223372036854775000 if time_ms > 0 else -9223372036854775000)


def test_control_records_and_batches() -> None:
    """Transaction markers, and what the headers of the batches say."""
    options = {"subscribe": "transactions", "includeBatch": "true", "isolation": "committed"}
    path = GOLDEN / "transactions-0"
    wanted = {
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
    columns = (
        "offset", "_is_control", "_is_transactional", "_batch_base_offset", "_producer_id", "_producer_epoch",
        "_base_sequence", "_leader_epoch", "_codec", "_segment", "_log_dir",
    )  # fmt: skip
    found = {tuple(row[name] for name in columns) for row in read(**options, includeControl="true")}
    assert found == {row for row in wanted if row[0] in visible or row[1]}
    assert any(row[1] for row in found)
    assert not any(row["_is_control"] for row in read(**options))


def test_damage(log_dir: Path) -> None:
    """Fails naming file and byte, or goes on without it."""
    path, position = damage.bad_crc(log_dir)
    with pytest.raises(CorruptFile, match=f"{path}: at byte {position}"):
        offsets(path=str(log_dir))
    assert 0 < len(offsets(path=str(log_dir), onCorrupt="skip")) < 16
