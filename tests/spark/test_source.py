"""`kafka-segments` in a real Spark session: rows and schema against the plain Python reader."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cleanerd.client.reader import read_records
from cleanerd.pipeline.lazy_spark import LazySpark
from tests.insight import damage
from tests.insight.logdirs import GOLDEN, broker_log_dir

pytest.importorskip("pyarrow", reason="needs the extra cleanerd[spark]")

import cleanerd.spark

TOPICS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir() and not path.name.startswith("__"))
KAFKA_SCHEMA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
    "headers:array<struct<key:string,value:binary>>>"
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def sql(spark: LazySpark) -> Iterator[Any]:
    """A session for data frames, which share the context of all tests."""
    import pyspark.sql

    session = pyspark.sql.SparkSession(spark.context())
    session.conf.set("spark.sql.session.timeZone", "UTC")
    cleanerd.spark.register(session)
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
    return {
        (
            None if row.key is None else bytes(row.key), None if row.value is None else bytes(row.value),
            row.topic, row.partition, row.offset, row.timestamp.astimezone(UTC), row.timestampType,
            row.headers and tuple((h.key, None if h.value is None else bytes(h.value)) for h in row.headers),
        )
        for row in frame.where("topic not like '\\\\_\\\\_%'").collect()
    }  # fmt: skip


@pytest.mark.parametrize("isolation", ["uncommitted", "committed"])
def test_rows(sql: Any, isolation: str) -> None:
    """All eight columns of every record, whatever the split."""
    frame = load(sql, isolation=isolation, includeHeaders="true", maxBytesPerPartition="300")
    assert frame.schema.simpleString() == KAFKA_SCHEMA
    assert frame.rdd.getNumPartitions() > len(TOPICS)
    assert as_tuples(frame) == expected(f"read_{isolation}")


def test_selection_and_offsets(sql: Any) -> None:
    """Only what is asked for, only the columns that are."""
    frame = load(
        sql, subscribe="plain", columns="offset,key", startingOffsets='{"plain": {"0": 3}}',
        endingOffsets='{"plain": {"0": 7}}',
    )  # fmt: skip
    assert frame.columns == ["offset", "key"]
    assert [row.offset for row in frame.orderBy("offset").collect()] == [3, 4, 5, 6]
    assert load(sql, subscribe="nothing").count() == 0


def test_sql(sql: Any) -> None:
    """The table is there for SQL too."""
    sql.sql(f"CREATE TEMPORARY VIEW logs USING `kafka-segments` OPTIONS (path '{GOLDEN}', subscribe 'zstd')")
    assert sql.sql("SELECT count(*), max(offset) FROM logs").first()[:] == (16, 15)


def test_damage(sql: Any, tmp_path: Path) -> None:
    """Fails naming file and byte, or goes on without it."""
    log_dir = broker_log_dir(tmp_path / "logs")
    path, position = damage.bad_crc(log_dir)
    options = {"path": str(log_dir), "subscribe": "plain"}
    with pytest.raises(Exception, match=f"{path}: at byte {position}"):
        load(sql, **options).collect()
    assert 0 < load(sql, **options, onCorrupt="skip").count() < 16


def test_an_option_that_is_unknown(sql: Any) -> None:
    """Told when the table is named, not when it is read."""
    with pytest.raises(Exception, match="unknown option subscribes"):
        load(sql, subscribes="plain")
