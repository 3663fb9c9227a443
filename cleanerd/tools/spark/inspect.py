"""Find what takes the space of logs, with Spark SQL over the data source `kafka-segments`.

Of each log its committed records are read up to the last stable offset, once for the keys and once, without keys and values,
for the batches. Everything is counted, nothing is estimated. Spark sorts and groups, and spills to its scratch directory, so
memory depends neither on the number of keys nor on that of records.

Bytes are those of keys and values, not compressed, but for `disk_bytes` of a log.
"""

import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.window import Window

from cleanerd.tools.spark import session_of
from cleanerd.units import key_text

AGES_DAYS = (1, 7, 30, 90, 365)
"""Upper bounds of the bands of age; older records have a band of their own."""
TOP = 10
"""How many keys of each log, and of each topic, are named."""

Row = dict[str, Any]
_LOG = ("_log_dir", "topic", "partition")
_DAY_S = 86_400
_OF_RECORDS = "key,value,topic,partition,offset,timestamp,_log_dir,_segment"
_OF_BATCHES = "topic,partition,offset,_log_dir,_segment,_codec,_batch_base_offset"
_ERROR = re.compile(r"cleanerd\.errors\.\w+: (.*)")


@dataclass(slots=True)
class Inspection:
    """Answers, a list of rows for each question.

    `logs`: one row a log. `ages`: superseded records by the time since they are. `keys`: those with the most superseded
    bytes. `spread`: keys that lie in several partitions of their topic. `codecs`: batches by codec. `failed`: logs that
    could not be read, with the reason.
    """

    logs: list[Row] = field(default_factory=list)
    ages: list[Row] = field(default_factory=list)
    keys: list[Row] = field(default_factory=list)
    spread: list[Row] = field(default_factory=list)
    codecs: list[Row] = field(default_factory=list)
    failed: list[Row] = field(default_factory=list)

    def add(self, other: "Inspection") -> None:
        """Add the answers about other logs."""
        for name in self.__slots__:
            getattr(self, name).extend(getattr(other, name))


def inspect(context: Any, directories: Mapping[str, Sequence[str]], now_ms: int) -> Inspection:
    """Answers about partition directories, which are given by their log directory.

    A log that cannot be read is in `failed`, and the others are answered for. Raises `ImportError` without the extra
    `spark`, py4j's errors when the JVM is lost.
    """
    session = session_of(context)
    try:
        return _ask(session, directories, now_ms)
    except PySparkException:
        found = Inspection()
    # Some log is damaged, or changes all the time: which one shows when each is read alone.
    for log_dir, paths in directories.items():
        for path in paths:
            try:
                found.add(_ask(session, {log_dir: [path]}, now_ms))
            except PySparkException as error:
                found.failed.append({"log_dir": log_dir, "directory": path, "reason": reason_of(error)})
    return found


def reason_of(error: PySparkException) -> str:
    """Our own error inside an exception of Spark, else the first line of the exception."""
    ours = _ERROR.findall(str(error))
    return str(ours[-1] if ours else str(error).partition("\n")[0])


def _ask(session: SparkSession, directories: Mapping[str, Sequence[str]], now_ms: int) -> Inspection:
    records = _read(session, directories, _OF_RECORDS)
    by_log, by_key = Window.partitionBy(*_LOG), Window.partitionBy(*_LOG, "key").orderBy("offset")
    counted = records.select(
        *_LOG,
        "key",
        "timestamp",
        (sql.coalesce(sql.length("key"), sql.lit(0)) + sql.coalesce(sql.length("value"), sql.lit(0))).alias("bytes"),
        (sql.col("key").isNotNull() & sql.col("value").isNull()).alias("is_tombstone"),
        (sql.col("_segment") == sql.max("_segment").over(by_log)).alias("is_active"),
        # A record without a key supersedes nothing, and nothing supersedes it.
        sql.when(sql.col("key").isNotNull(), sql.lead("timestamp").over(by_key)).alias("superseded_at"),
    ).persist(StorageLevel.DISK_ONLY)  # fmt: skip
    try:
        superseded = counted.where(sql.col("superseded_at").isNotNull())
        return Inspection(
            logs=_with_size(_rows(_logs(counted)), directories),
            ages=_rows(_ages(superseded, now_ms)),
            keys=_named(_rows(_keys(counted))),
            spread=_named(_rows(_spread(counted))),
            codecs=_rows(_codecs(_read(session, directories, _OF_BATCHES))),
        )  # fmt: skip
    finally:
        counted.unpersist()


def _read(session: SparkSession, directories: Mapping[str, Sequence[str]], columns: str) -> Any:
    """The committed records. One read for each log directory: two brokers' may have logs of one name."""
    frames = [
        session.read.format("kafka-segments")
        .option("path", ",".join(glob.escape(path) for path in paths))
        .option("isolation", "committed")
        .option("includeBatch", "true")
        .option("failOnDataLoss", "false")  # a broker deletes and cleans meanwhile
        .option("columns", columns)
        .load()
        for paths in directories.values()
        if paths
    ]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    return whole


def _logs(counted: Any) -> Any:
    is_superseded = sql.col("superseded_at").isNotNull()
    is_newest = sql.col("key").isNotNull() & ~is_superseded

    def count(which: Any) -> Any:
        return sql.count(sql.when(which, True))

    def bytes_of(which: Any) -> Any:
        return sql.coalesce(sql.sum(sql.when(which, sql.col("bytes"))), sql.lit(0))

    return (
        counted.groupBy(*_LOG)
        .agg(
            sql.count("*").alias("records"),
            sql.sum("bytes").alias("bytes"),
            count(is_newest).alias("keys"),
            count(is_newest & sql.col("is_tombstone")).alias("tombstones"),
            count(is_superseded).alias("superseded_records"),
            bytes_of(is_superseded).alias("superseded_bytes"),
            bytes_of(is_superseded & sql.col("is_active")).alias("superseded_active_bytes"),
            count(sql.col("key").isNull()).alias("no_key_records"),
            bytes_of(sql.col("key").isNull()).alias("no_key_bytes"),
        )
        .orderBy(sql.desc("bytes"), *_LOG)
    )


def _ages(superseded: Any, now_ms: int) -> Any:
    days = (sql.lit(now_ms // 1000) - sql.unix_timestamp("superseded_at")) / _DAY_S
    band = sql.lit(None).cast("int")
    for bound in reversed(AGES_DAYS):
        band = sql.when(days < bound, sql.lit(bound)).otherwise(band)
    return (
        superseded.groupBy(*_LOG, band.alias("below_days"))
        .agg(sql.count("*").alias("records"), sql.sum("bytes").alias("bytes"))
        .orderBy(*_LOG, sql.asc_nulls_last("below_days"))
    )


def _keys(counted: Any) -> Any:
    is_superseded = sql.col("superseded_at").isNotNull()
    by_bytes = Window.partitionBy(*_LOG).orderBy(sql.desc("superseded_bytes"), "key")
    return (
        counted.where(sql.col("key").isNotNull())
        .groupBy(*_LOG, "key")
        .agg(
            sql.count("*").alias("records"),
            sql.sum("bytes").alias("bytes"),
            sql.sum(sql.when(is_superseded, sql.col("bytes")).otherwise(0)).alias("superseded_bytes"),
        )
        .where(sql.col("records") > 1)
        .withColumn("place", sql.row_number().over(by_bytes))
        .where(sql.col("place") <= TOP)
        .orderBy(*_LOG, "place")
        .drop("place")
    )


def _spread(counted: Any) -> Any:
    """Keys whose newest records lie in several partitions, as after partitions were added."""
    by_bytes = Window.partitionBy("topic").orderBy(sql.desc("bytes"), "key")
    return (
        counted.where(sql.col("key").isNotNull() & sql.col("superseded_at").isNull())
        .groupBy("topic", "key")
        .agg(
            sql.sort_array(sql.collect_set("partition")).alias("partitions"), sql.sum("bytes").alias("bytes")
        )
        .where(sql.size("partitions") > 1)
        .withColumn("keys", sql.count("*").over(Window.partitionBy("topic")))
        .withColumn("place", sql.row_number().over(by_bytes))
        .where(sql.col("place") <= TOP)
        .orderBy("topic", "place")
        .drop("place")
    )


def _codecs(batches: Any) -> Any:
    return (
        batches.groupBy(*_LOG, sql.col("_codec").alias("codec"))
        .agg(
            sql.count_distinct("_segment", "_batch_base_offset").alias("batches"),
            sql.count("*").alias("records"),
        )
        .orderBy(*_LOG, "codec")
    )


def _rows(frame: Any) -> list[Row]:
    rows = [row.asDict() for row in frame.collect()]
    return [{"log_dir": row.pop("_log_dir"), **row} if "_log_dir" in row else row for row in rows]


def _named(rows: list[Row]) -> list[Row]:
    return [row | {"key": key_text(bytes(row["key"]))} for row in rows]


def _with_size(rows: list[Row], directories: Mapping[str, Sequence[str]]) -> list[Row]:
    """Add the bytes of the segments on disk, and a row for each log without a committed record."""
    found = {(row["log_dir"], f"{row['topic']}-{row['partition']}"): row for row in rows}
    for log_dir, paths in directories.items():
        for path in paths:
            name = os.path.basename(path)
            topic, _, partition = name.rpartition("-")
            empty = dict.fromkeys(_COUNTED, 0)
            row = found.setdefault(
                (log_dir, name), {"log_dir": log_dir, "topic": topic, "partition": int(partition), **empty}
            )
            row["disk_bytes"] = disk_bytes(path)
    return sorted(
        found.values(), key=lambda row: (-row["disk_bytes"], row["log_dir"], row["topic"], row["partition"])
    )


_COUNTED = (
    "records", "bytes", "keys", "tombstones", "superseded_records", "superseded_bytes", "superseded_active_bytes",
    "no_key_records", "no_key_bytes",
)  # fmt: skip


def disk_bytes(directory: str) -> int:
    """Bytes of the segments of a partition directory; 0 for one that cannot be listed."""
    try:
        return sum(entry.stat().st_size for entry in os.scandir(directory) if entry.name.endswith(".log"))
    except OSError:  # what reads it says why
        return 0
