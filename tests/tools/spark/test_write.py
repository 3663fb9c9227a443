"""Writing with `kafka-segments`: what is read back, what is refused, and what is left when a task or a commit fails."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from cleanerd.env.files import Files, RealFiles
from cleanerd.errors import BadUsage, CorruptFile, LockHeld
from cleanerd.format import names
from cleanerd.format.checkpoint import parse_leader_epochs
from cleanerd.format.partition_metadata import parse_partition_metadata
from cleanerd.format.record import Record
from cleanerd.format.uuid_text import render_uuid
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.insight.verify import verify
from tests.cleaning.logs import lock_of_another
from tests.kernels.reference import read_batches
from tests.tools.client.killed import killed_at_every_operation
from tests.tools.insight.logdirs import GOLDEN
from tests.tools.spark.sessions import session_of

pytest.importorskip("pyarrow", reason="needs the extra cleanerd[spark]")

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
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

from cleanerd.tools.spark import partition_files
from cleanerd.tools.spark.partition_files import discard_job
from cleanerd.tools.spark.source import KafkaSegments
from cleanerd.tools.spark.write import SegmentsWriter, Written

TYPES: dict[str, DataType] = {
    "binary": BinaryType(), "string": StringType(), "int": IntegerType(), "bigint": LongType(), "boolean": BooleanType(),
    "timestamp": TimestampType(),
    "array<struct<key:string,value:binary>>": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}  # fmt: skip
DDL = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def schema(ddl: str) -> StructType:
    return StructType(
        [StructField(name, TYPES[kind]) for name, kind in (part.split() for part in ddl.split(", "))]
    )


def writer(path: Path, ddl: str = DDL, **options: str) -> SegmentsWriter:
    return KafkaSegments({"path": str(path), **options}).writer(schema(ddl), False)


def batch(rows: list[dict], ddl: str = DDL) -> Any:
    return pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(schema(ddl), timezone="UTC"))


def row(topic: str, partition: int, record: Record) -> dict:
    return {
        "key": record.key, "value": record.value, "topic": topic, "partition": partition, "offset": record.offset,
        "timestamp": record.timestamp_ms * 1000,
        "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
    }  # fmt: skip


def some(count: int, start: int = 0, step: int = 1, tag: str = "") -> list[Record]:
    return [
        Record(
            start + step * n, 1_700_000_000_000 + n, None if n % 5 == 0 else b"k%d" % (n % 50),
            None if n % 7 == 0 else f"{tag}v{n}".encode() * (n % 9), (("h", b"x"), ("", None)) if n % 3 == 0 else (),
        )
        for n in range(count)
    ]  # fmt: skip


def task(one: SegmentsWriter, records: list[Record], topic: str = "t", partition: int = 0) -> Written:
    """What a task that has the records of one partition tells the driver."""
    return one.write(iter([batch([row(topic, partition, record) for record in records])]))


def listing(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir())


def test_rows_come_back(tmp_path: Path) -> None:
    """Of several partitions that take turns, in small segments, with indexes; nothing for `verify` to find."""
    for codec in CODECS:
        root = tmp_path / codec
        one = writer(root, compression=codec, segmentBytes="4000", batchBytes="500")
        wanted = {("t", 0): some(400), ("t", 12): some(300, tag="b"), ("u-v", 0): some(100, tag="c")}
        turns = [
            [row(*tp, record) for tp, records in wanted.items() for record in records[n : n + 70]]
            for n in range(0, 400, 70)
        ]
        one.commit([one.write(batch(rows) for rows in turns), None])
        assert listing(root) == ["t-0", "t-12", "u-v-0"]
        assert verify([str(root)]).findings == []
        for (topic, partition), records in wanted.items():
            directory = root / f"{topic}-{partition}"
            assert list(read_records(str(directory))) == records
            assert len(list(directory.glob("*.log"))) > (codec == "none" and topic == "t")
            assert parse_leader_epochs((directory / names.LEADER_EPOCH_CHECKPOINT).read_bytes()) == ((0, 0),)


def test_kept_offsets(tmp_path: Path) -> None:
    """With their gaps; also from two tasks whose offsets follow each other."""
    one = writer(tmp_path, offsets="keep", topicIds='{"t": "4eFzbq7dRIeCqPmmJJ3cZA"}')
    first, second = some(50, start=100, step=3), some(50, start=1000, step=2)
    done = [task(one, records) for records in (second, first)]
    one.commit(done)
    directory = tmp_path / "t-0"
    assert list(read_records(str(directory))) == first + second
    assert sorted(path.name for path in directory.glob("*.log")) == [f"{n:020d}.log" for n in (100, 1000)]
    assert parse_leader_epochs((directory / names.LEADER_EPOCH_CHECKPOINT).read_bytes()) == ((0, 100),)
    topic_id = parse_partition_metadata((directory / names.PARTITION_METADATA).read_bytes())
    assert render_uuid(topic_id) == "4eFzbq7dRIeCqPmmJJ3cZA"
    assert verify([str(tmp_path)]).findings == []
    with pytest.raises(BadUsage, match="does not rise"):
        task(one, first[::-1], "v")
    assert listing(tmp_path) == ["t-0"]


def test_less_columns(tmp_path: Path) -> None:
    """A value is enough: topic by option, partition 0, no key, the time of the writing."""
    one = writer(tmp_path, "value string", topic="t")
    one.commit([one.write(iter([batch([{"value": "a"}, {"value": None}], "value string")]))])
    found = list(read_records(str(tmp_path / "t-0")))
    assert [(r.offset, r.key, r.value, r.headers) for r in found] == [
        (0, None, b"a", ()),
        (1, None, None, ()),
    ]
    assert all(record.timestamp_ms > 1_700_000_000_000 for record in found)


def test_no_rows(tmp_path: Path) -> None:
    one = writer(tmp_path)
    one.commit([one.write(iter([])), one.write(iter([batch([])]))])
    assert listing(tmp_path) == []


def test_nothing_is_overwritten(log_dir: Path) -> None:
    """Not one partition is added when one of them is there; an empty directory is none."""
    before = {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()}
    (log_dir / "new-1").mkdir()
    one = writer(log_dir)
    done = one.write(iter([batch([row(t, p, r) for t, p in (("new", 1), ("plain", 0)) for r in some(5)])]))
    with pytest.raises(BadUsage, match=r"plain-0: holds something already"):
        one.commit([done])
    one.abort([done])
    assert {
        path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file() and path.name != ".lock"
    } == before
    assert os.listdir(log_dir / "new-1") == []
    one = writer(log_dir)
    one.commit([task(one, some(5), "new", 1)])
    assert list(read_records(str(log_dir / "new-1"))) == some(5)


def test_entries_of_an_earlier_log_go(log_dir: Path) -> None:
    """Its log start would hide the new records (rule 6.12)."""
    (log_dir / names.LOG_START_CHECKPOINT).write_text("0\n1\nnew 0 4\n")
    one = writer(log_dir)
    one.commit([task(one, some(9), "new")])
    assert "new" not in (log_dir / names.LOG_START_CHECKPOINT).read_text()
    assert list(read_records(str(log_dir / "new-0"))) == some(9)
    found = os.stat(log_dir / "new-0" / f"{0:020d}.log")
    assert found.st_mode & 0o777 == os.stat(log_dir / names.META_PROPERTIES).st_mode & 0o777


def test_two_tasks_with_one_partition(tmp_path: Path) -> None:
    """Their order is not known: refused, and said what to do."""
    one = writer(tmp_path)
    done = [task(one, some(5)) for _ in range(2)]
    with pytest.raises(BadUsage, match="t-0: several tasks wrote it; repartition"):
        one.commit(done)
    one.abort(done)
    assert listing(tmp_path) == []


def test_a_task_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Nor does one that was killed, after abort or after the commit of another attempt."""
    one = writer(tmp_path)

    def rows() -> Iterator[Any]:
        yield batch([row("t", 0, r) for r in some(100)])
        raise OSError("the rows end here")

    with pytest.raises(OSError, match="end here"):
        one.write(rows())
    assert listing(tmp_path) == []
    task(one, some(7))  # of which nothing is heard again
    done = task(one, some(9))
    assert len(listing(tmp_path)) == 2
    assert all(name.endswith("-delete") for name in listing(tmp_path))
    other = writer(tmp_path)
    other_done = task(other, some(3), "u")
    one.commit([done])
    assert list(read_records(str(tmp_path / "t-0"))) == some(9)
    other.commit([other_done])  # what another job has staged is its own
    assert listing(tmp_path) == ["t-0", "u-0"]


@pytest.mark.parametrize("torn", [False, True])
def test_what_was_written_is_read_back(torn: bool, tmp_path: Path) -> None:
    """Bytes that the disk lost or changed: the task fails, and nothing gets a name."""
    one = writer(tmp_path, batchBytes="500")

    def rows() -> Iterator[Any]:
        yield batch([row("t", 0, r) for r in some(100)])
        (log,) = tmp_path.glob("t-0.*-delete/*.log.cleanerd")
        data = log.read_bytes()
        last = sum(len(found.data) for found in list(read_batches(data))[:-1])
        log.write_bytes(data[:last] if torn else data[:-1] + bytes([data[-1] ^ 1]))
        yield batch([])

    with pytest.raises(CorruptFile, match="expected 100 records, found 9" if torn else "expected CRC"):
        one.write(rows())
    assert listing(tmp_path) == []


def test_segments_that_are_gone_by_the_commit_fail_it(tmp_path: Path) -> None:
    """A broker that ran meanwhile, or a daemon, has begun to delete what is named like a deleted log."""
    one = writer(tmp_path, batchBytes="100", segmentBytes="400")
    done = task(one, some(40))
    (directory,) = tmp_path.glob("t-0.*-delete")
    assert len(list(directory.glob("*.log"))) > 2
    (directory / f"{0:020d}.log").unlink()
    with pytest.raises(CorruptFile, match=r"expected \d+ segments, found \d+"):
        one.commit([done])
    one.abort([done])
    assert listing(tmp_path) == []


def test_files_are_synced_before_they_get_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Power that fails after a rename finds each byte; the log directory is synced last."""
    synced: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def fsync(fd: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        real_sync(fd)

    def replace(name: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        source = os.path.join(os.readlink(f"/proc/self/fd/{src_dir_fd}"), name)
        if os.path.isdir(source):
            inside = [name for name in os.listdir(source) if name != names.GENERATION]
            for file in inside:
                assert {file, f"{file}.cleanerd"} & set(synced), file
            assert os.path.basename(source) in synced
        real_replace(name, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    one = writer(tmp_path / "logs", topicIds='{"t": "4eFzbq7dRIeCqPmmJJ3cZA"}')
    one.commit([task(one, some(50))])
    assert synced[-1] == "logs"


def test_a_log_directory_in_use(tmp_path: Path) -> None:
    """Refused before any row is read, and at the commit."""
    one = writer(tmp_path)
    done = task(one, some(5))
    with lock_of_another(tmp_path / names.LOCK):
        with pytest.raises(LockHeld):
            one.commit([done])
        with pytest.raises(LockHeld, match="is in use by process"):
            writer(tmp_path)
    one.commit([done])
    assert listing(tmp_path) == ["t-0"]


@pytest.mark.parametrize(
    ("ddl", "options", "told"),
    [
        ("key binary", {"topic": "t"}, "column value is required"),
        ("value int", {"topic": "t"}, "column value of type int"),
        ("value binary, _is_control boolean", {"topic": "t"}, "column _is_control"),
        ("value binary", {}, "the topic is either"),
        ("value binary, topic string", {"topic": "t"}, "the topic is either"),
        ("value binary", {"topic": "t", "offsets": "keep"}, "column offset"),
        ("value binary", {"topic": "t", "offsets": "mine"}, "option offsets"),
        ("value binary", {"topic": "t", "compression": "brotli"}, "option compression"),
        ("value binary", {"topic": "t", "batchBytes": "0"}, "option batchBytes"),
        ("value binary", {"topic": "t", "segmentBytes": "3000000000"}, "option segmentBytes"),
        ("value binary", {"topic": "t", "topicIds": '{"t": "x"}'}, "option topicIds"),
        ("value binary", {"topic": "t", "acks": "all"}, "unknown option acks"),
        ("value binary", {"topic": "t", "path": ""}, "path is required"),
    ],
)
def test_what_makes_no_sense(ddl: str, options: dict[str, str], told: str, tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match=told):
        KafkaSegments({"path": str(tmp_path), **options}).writer(schema(ddl), False)
    assert listing(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"topic": None}, "without a topic"),
        ({"topic": "a/b"}, "no name for a partition"),
        ({"topic": ".."}, "no name for a partition"),
        ({"partition": -1}, "no name for a partition"),
        ({"partition": None}, "column partition"),
        ({"headers": [{"key": None, "value": b"x"}]}, "header without a key"),
        ({"timestamp": -1001}, "before 1970"),
    ],
)
def test_rows_that_make_no_sense(change: dict, told: str, tmp_path: Path) -> None:
    """Fail their task."""
    one = writer(tmp_path)
    with pytest.raises(BadUsage, match=told):
        one.write(iter([batch([row("t", 0, some(1)[0]), row("t", 0, some(1)[0]) | change])]))
    assert listing(tmp_path) == []


def test_many_partitions_at_a_time(tmp_path: Path) -> None:
    """More than a task keeps open: further segments, no record lost."""
    one = writer(tmp_path)
    turns = [batch([row("t", p, r) for p in range(300) for r in some(2, start=2 * n)]) for n in range(2)]
    one.commit([one.write(iter(turns))])
    assert len(listing(tmp_path)) == 300
    for p in range(300):
        assert [r.offset for r in read_records(str(tmp_path / f"t-{p}"))] == [0, 1, 2, 3]
    discard_job(str(tmp_path), "0" * 16)


def test_killed_anywhere_each_partition_is_whole_or_not_there(tmp_path: Path) -> None:
    """What is left of others is named as a broker names what it deletes, and the table can be written again."""
    rows = [row("w", partition, record) for partition in (0, 1) for record in some(40)]

    def write(root: Path, files: Files) -> None:
        with mock.patch.object(partition_files, "RealFiles", return_value=files):
            one = writer(root, segmentBytes="1000", batchBytes="300")
            one.commit([one.write(iter([batch(rows)]))])

    (tmp_path / "empty").mkdir()
    counts = set()
    for root in killed_at_every_operation(tmp_path / "empty", tmp_path / "killed", write):
        found = {path.name for path in root.iterdir() if path.name.startswith("w-")}
        named = found & {"w-0", "w-1"}
        counts.add(len(named))
        for name in named:
            assert [r.offset for r in read_records(str(root / name))] == list(range(40))
        assert all(re.fullmatch(r"w-[01]\.[0-9a-f]{32}-delete", name) for name in found - named)
        if not named:
            write(root, RealFiles())
            assert len(list(read_records(str(root / "w-1")))) == 40
    assert counts == {0, 1, 2}


@pytest.fixture(scope="module")
def sql(spark: LazySpark) -> Any:
    return session_of(spark)


@pytest.mark.soak
def test_through_spark(sql: Any, tmp_path: Path) -> None:
    """A table of the logs of a broker becomes the same logs again; a job that fails leaves nothing."""
    root = tmp_path / "logs"
    source = sql.read.format("kafka-segments").options(path=str(GOLDEN), includeHeaders="true").load()
    frame = source.where("topic not like '\\\\_\\\\_%'").repartition(3, "topic", "partition")
    sink = frame.sortWithinPartitions("topic", "offset").write.format("kafka-segments")
    sink.options(path=str(root), offsets="keep", compression="zstd").mode("append").save()
    expected = {
        path.name: list(read_records(str(path)))
        for path in GOLDEN.iterdir()
        if path.is_dir() and not path.name.startswith("__")
    }
    assert listing(root) == sorted(expected)
    assert {name: list(read_records(str(root / name))) for name in expected} == expected
    assert verify([str(root)]).findings == []
    with pytest.raises(Exception, match="holds something already"):
        sink.options(path=str(root)).mode("append").save()
    with pytest.raises(Exception, match="mode overwrite"):
        sink.options(path=str(root)).mode("overwrite").save()
    bad = frame.selectExpr("topic", "value", "if(offset = 3, -1, 0) partition")
    with pytest.raises(Exception, match="no name for a partition"):
        bad.write.format("kafka-segments").option("path", str(tmp_path / "bad")).mode("append").save()
    assert listing(root) == sorted(expected)
    assert listing(tmp_path / "bad") == []
