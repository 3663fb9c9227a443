"""Rewritten batches take the codec of their topic where cleanerd.compression=topic, and nothing else changes."""

import random
from pathlib import Path

import pytest

from cleanerd.format.batch import BatchHeader, iterate_batches, parse_header
from cleanerd.format.codecs import Codec, compress, decompress
from cleanerd.pipeline import whole_log
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.tools.client.producer import Producer, ProducerRecord
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter
from tests.cleaning.test_old_formats import Told
from tests.harness.logs.troubled import Ran, assert_settled, clean

pytestmark = pytest.mark.soak

TYPES = {"uncompressed" if codec is Codec.NONE else codec.name.lower(): codec for codec in Codec}
BATCHES, ROWS, SEGMENT_BYTES = 300, 12, 100_000


def write(log_dir: Path, codec: Codec = Codec.LZ4, *, magic: int = 2) -> Path:
    """Batches whose first key comes again, but for every fourth, which loses nothing; transactions of another producer,
    of which every other one is aborted."""
    words = [random.Random(number).randbytes(6).hex().encode() for number in range(80)]
    rng = random.Random(1)
    log_dir.mkdir()
    with LogWriter(str(log_dir), "t", 0, segment_bytes=SEGMENT_BYTES, index_interval_bytes=3000) as writer:
        producer = Producer(writer, codec=codec, magic=magic)
        other = Producer(writer, codec=codec, producer_id=7) if magic == 2 else None
        for number in range(BATCHES):
            first = b"own %d" % number if number % 4 == 0 else b"hot"
            keys = [first] + [b"%d %d" % (number, row) for row in range(1, ROWS)]
            producer.send(
                [ProducerRecord(key, b" ".join(rng.choices(words, k=30)), 1000 + number) for key in keys]
            )
            if other is not None and number % 50 == 0:
                other.begin()
                other.send([ProducerRecord(b"in transaction", b"x", 1000 + number)])
                (other.abort if number % 100 else other.commit)(1000 + number)
        return Path(writer.directory)


def run(session: LazySpark, log_dir: Path, compression_type: str, mode: str = "topic", *more: str) -> Ran:
    values = {
        "compression.type": compression_type,
        "cleanerd.compression": mode,
        "segment.bytes": SEGMENT_BYTES,
    }
    options = [f"--topic-set=t:{key}={value}" for key, value in values.items()]
    return clean(session, log_dir, options=[*options, *more])


def batches(partition: Path) -> dict[int, tuple[BatchHeader, bytes]]:
    """Header and bytes of each batch below the active segment, by base offset."""
    found = {}
    for log in sorted(partition.glob("*.log"))[:-1]:
        data = log.read_bytes()
        for position, size, magic in iterate_batches(data):
            assert magic == 2
            header = parse_header(data, position)
            found[header.base_offset] = header, data[position : position + size]
    return found


def body(header: BatchHeader, batch: bytes) -> bytes:
    return decompress(header.codec, batch[61:])


@pytest.mark.parametrize("compression_type", TYPES)
def test_batches_that_lose_a_record_take_the_codec(
    spark: LazySpark, tmp_path: Path, compression_type: str
) -> None:
    """Batches that lose nothing are the same bytes, markers stay as brokers write them, and no record differs."""
    source = Codec.ZSTD if compression_type == "lz4" else Codec.LZ4
    partition, same = write(tmp_path / "logs", source), write(tmp_path / "same", source)
    before = batches(partition)
    assert run(spark, tmp_path / "logs", compression_type).outcome("t") == "committed"
    assert run(spark, tmp_path / "same", compression_type, "batch").outcome("t", "same") == "committed"
    assert_settled(partition)
    assert list(read_records(str(partition))) == list(read_records(str(same)))
    after, in_own = batches(partition), batches(same)
    assert after.keys() == in_own.keys()
    changed = [number for number in after if in_own[number][1] != before[number][1]]
    assert 100 < len(changed) < len(after)
    assert {after[number][0].codec for number in changed if not after[number][0].is_control} == {
        TYPES[compression_type]
    }
    assert {in_own[number][0].codec for number in changed if not in_own[number][0].is_control} == {source}
    for number, (header, batch) in after.items():
        if number not in changed:
            assert batch == before[number][1]
        if header.is_control:
            assert (header.codec, batch) == (Codec.NONE, in_own[number][1])
    assert any(header.is_control for header, _ in after.values())


@pytest.mark.parametrize(
    ("compression_type", "level"), [("gzip", 9), ("lz4", 12), ("lz4", 9), ("zstd", -3), ("zstd", 19)]
)
def test_at_the_level_of_the_topic(
    spark: LazySpark, tmp_path: Path, compression_type: str, level: int
) -> None:
    """What the library makes of the same records at that level."""
    partition = write(tmp_path / "logs", Codec.NONE)
    option = f"--set=compression.{compression_type}.level={level}"
    run(spark, tmp_path / "logs", compression_type, "topic", option)
    codec = TYPES[compression_type]
    rewritten = [(header, batch) for header, batch in batches(partition).values() if header.codec is codec]
    assert rewritten
    for header, batch in rewritten:
        assert batch[61:] == compress(codec, body(header, batch), level=level)


@pytest.mark.parametrize("magic", [0, 1])
def test_batches_of_old_formats_take_it_with_the_new_one(
    spark: LazySpark, tmp_path: Path, magic: int
) -> None:
    """Rule 4.33: all of them are rewritten."""
    partition = write(tmp_path / "logs", Codec.GZIP, magic=magic)
    keys = {record.key for record in read_records(str(partition))}
    assert run(spark, tmp_path / "logs", "zstd").outcome("t") == "committed"
    assert {header.codec for header, _ in batches(partition).values()} == {Codec.ZSTD}
    assert {record.key for record in read_records(str(partition))} == keys


def test_room_for_batches_that_grow(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked for before they are written is enough."""
    monkeypatch.setattr("cleanerd.cleaning.clean.Reservations", Told)
    partition = write(tmp_path / "logs", Codec.ZSTD)
    result = run(spark, tmp_path / "logs", "uncompressed").results["logs", "t"]
    assert result["bytes_after"] > 2 * result["bytes_before"]
    written_bytes = sum(path.stat().st_size for path in sorted(partition.glob("*.log"))[:-1])
    assert written_bytes <= Told.wanted[str(partition)] < 2 * written_bytes


@pytest.mark.parametrize("dry_run", [True, False])
def test_batches_keep_theirs_where_a_segment_would_be_too_large(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    """No index can point into more than 2 GiB; a log is not left dirty for that. Nor do aborted records look committed
    afterwards, as they may where a cleaner goes back in the log (KAFKA-20036)."""
    monkeypatch.setattr(whole_log, "SEGMENT_MAX_BYTES", 110_000)
    partition = write(tmp_path / "logs", Codec.ZSTD)
    ran = run(spark, tmp_path / "logs", "uncompressed", "topic", *["--dry-run"] * dry_run)
    assert ran.outcome("t") == ("planned" if dry_run else "committed")
    assert ran.results["logs", "t"]["bytes_after"] < ran.results["logs", "t"]["bytes_before"]
    assert {header.codec for header, _ in batches(partition).values()} <= {Codec.ZSTD, Codec.NONE}
    assert ran.results["logs", "t"]["removed"]["aborted"] == 2  # the third lies in the active segment
    assert_settled(partition)


def planned(session: LazySpark, log_dir: Path, compression_type: str, mode: str) -> tuple[int, int | None]:
    """Bytes that would be left, and about how many of them the codec of the topic saves."""
    result = run(session, log_dir, compression_type, mode, "--dry-run").results["logs", "t"]
    return result["bytes_after"], result["topic_codec_saves_bytes"]


@pytest.mark.parametrize(("source", "compression_type"), [(Codec.NONE, "zstd"), (Codec.ZSTD, "uncompressed")])
def test_a_dry_run_estimates_what_it_would_save(
    spark: LazySpark, tmp_path: Path, source: Codec, compression_type: str
) -> None:
    """Whether it will be taken or not; a codec that takes more saves less than nothing."""
    write(tmp_path / "logs", source)
    own_bytes, would_save = planned(spark, tmp_path / "logs", compression_type, "batch")
    topic_bytes, saves = planned(spark, tmp_path / "logs", compression_type, "topic")
    assert would_save == pytest.approx(own_bytes - topic_bytes, rel=0.05)
    assert saves == pytest.approx(would_save, rel=0.05)
    assert (would_save > 0) == (compression_type == "zstd")
    assert planned(spark, tmp_path / "logs", "producer", "topic") == (own_bytes, None)
