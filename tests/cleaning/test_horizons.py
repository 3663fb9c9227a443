"""Tombstones and markers of a log that nobody writes any more go by the horizons in its batches (rules 0.6, 4.18-4.21).

Each cleaning here is a run of its own and remembers nothing: what has to be known lies in the log.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cleanerd.cleaning.horizons import read_horizons
from cleanerd.cleaning.result import LogResult
from cleanerd.env.pace import unpaced
from cleanerd.errors import CorruptFile
from cleanerd.format import names
from cleanerd.format.batch import Record, encode_batch
from cleanerd.format.codecs import Codec
from cleanerd.format.names import TopicPartition
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.segments import log_batches
from cleanerd.tools.client.producer import Producer, ProducerRecord
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter
from tests.harness.logs.retained import snapshot_of
from tests.harness.logs.silent import clean_at
from tests.harness.logs.troubled import clean as run
from tests.harness.logs.troubled import lock_of_another, stop_broker

TP = TopicPartition("quiet", 0)
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
T0_MS = 1_700_000_000_000
HORIZON_MS = T0_MS + DAY_MS
Rows = dict[bytes | None, bytes | None]
Write = Callable[[Producer], None]


def write(log_dir: Path, *segments: Write, codec: Codec = Codec.NONE, producer_id: int = -1) -> None:
    """Closed segments, and an active one with another record."""
    with LogWriter(str(log_dir), TP.topic, TP.partition, segment_bytes=1 << 24) as log:
        producer = Producer(log, codec=codec, producer_id=producer_id)
        for each in segments:
            each(producer)
            log.roll()
        Producer(log).put(b"last", b"1", T0_MS)


def clean(
    log_dir: Path, spark: LazySpark, now_ms: int, *, force: bool = False, ratio: float = 0.5
) -> LogResult:
    """One run over all there is."""
    settings: dict[str, object] = {"min_cleanable_dirty_ratio": ratio}
    return clean_at(now_ms, log_dir, TP.topic, spark, settings, force=force, horizons=True)


def rows(log_dir: Path) -> Rows:
    return {record.key: record.value for record in read_records(str(log_dir / str(TP)))}


def horizons(log_dir: Path, now_ms: int) -> int | None:
    """Of the closed segments."""
    return read_horizons(snapshot_of(log_dir, TP).segments[:-1], now_ms, unpaced)


def values(producer: Producer) -> None:
    producer.send([ProducerRecord(b"%d" % key, b"value", T0_MS - DAY_MS) for key in range(5)])


def deletions(producer: Producer) -> None:
    producer.send([ProducerRecord(b"%d" % key, None, T0_MS - DAY_MS) for key in range(5)])


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_tombstones_go_in_the_first_run_after_their_horizon_though_nothing_is_dirty(
    tmp_path: Path, spark: LazySpark, codec: Codec, *, force: bool
) -> None:
    write(tmp_path, values, deletions, codec=codec)
    assert clean(tmp_path, spark, T0_MS).outcome.word == "committed"
    before = clean(tmp_path, spark, HORIZON_MS - 1, force=force)
    assert (before.outcome.word, before.outcome.next_horizon_ms) == ("skipped", HORIZON_MS)
    assert before.reason.endswith("the next one passes at 2023-11-15 22:13:20 UTC")
    assert len(rows(tmp_path)) == 6
    after = clean(tmp_path, spark, HORIZON_MS, force=force)
    assert (after.outcome.word, after.statistics.removed) == ("committed", {"tombstone": 5})
    assert rows(tmp_path) == {b"last": b"1"}
    again = clean(tmp_path, spark, HORIZON_MS + DAY_MS, force=force)
    assert (again.outcome.word, again.outcome.next_horizon_ms) == ("skipped", None)


def test_4_21_markers_go_by_their_horizon_too(tmp_path: Path, spark: LazySpark) -> None:
    """And not before their data is gone and a cleaning has stamped them."""

    def aborted(producer: Producer) -> None:
        producer.begin()
        producer.put(b"k", b"aborted", T0_MS - 2 * DAY_MS)
        producer.abort(T0_MS - 2 * DAY_MS)

    write(tmp_path, aborted, producer_id=7)
    assert clean(tmp_path, spark, T0_MS, force=True).statistics.removed == {"aborted": 1}
    assert clean(tmp_path, spark, T0_MS + 9 * DAY_MS, force=True).outcome.word == "skipped", "no horizon yet"
    write(tmp_path, values)
    assert clean(tmp_path, spark, T0_MS, force=True).outcome.word == "committed"
    before = clean(tmp_path, spark, HORIZON_MS - 1)
    assert (before.outcome.word, before.outcome.next_horizon_ms) == ("skipped", HORIZON_MS)
    assert clean(tmp_path, spark, HORIZON_MS).statistics.removed == {"control": 1}
    assert clean(tmp_path, spark, HORIZON_MS).outcome.word == "skipped"


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_4_28_a_batch_that_keeps_its_horizon_without_a_tombstone_is_no_reason_to_clean(
    tmp_path: Path, spark: LazySpark, codec: Codec
) -> None:
    """Kafka never clears the bit: by headers alone the log would be read through with each run, for ever."""

    def both(producer: Producer) -> None:
        producer.send([ProducerRecord(b"a", b"1", T0_MS), ProducerRecord(b"b", None, T0_MS)])

    write(tmp_path, both, codec=codec)
    clean(tmp_path, spark, T0_MS)
    assert clean(tmp_path, spark, HORIZON_MS).statistics.removed == {"tombstone": 1}
    headers = [batch.header for batch in log_batches(str(tmp_path / str(TP)), 0)]
    assert [header and header.delete_horizon_ms for header in headers] == [HORIZON_MS, None]
    result = clean(tmp_path, spark, HORIZON_MS + DAY_MS, force=True)
    assert (result.outcome.word, result.outcome.next_horizon_ms) == ("skipped", None)
    assert rows(tmp_path) == {b"a": b"1", b"last": b"1"}


def test_a_later_horizon_is_seen_beside_one_that_has_passed_for_nothing(
    tmp_path: Path, spark: LazySpark
) -> None:
    """In the same chunk, whose earliest horizon is the one that has passed."""
    with LogWriter(str(tmp_path), TP.topic, TP.partition, segment_bytes=1 << 24) as log:
        for offset, (value, horizon_ms) in enumerate([(b"1", 5), (None, 9), (None, 7)]):
            record = Record(offset, T0_MS, b"%d" % offset, value)
            log.append(encode_batch([record], base_offset=offset, delete_horizon_ms=horizon_ms))
        log.roll()
    assert horizons(tmp_path, 4) == 5
    assert horizons(tmp_path, 6) == 7
    assert horizons(tmp_path, 7) == 7, "it has passed"


def test_what_is_dirty_waits_for_its_ratio(tmp_path: Path, spark: LazySpark) -> None:
    """The visit ends where the dirty section begins; a forced cleaning takes both, as one of Kafka's would."""
    write(tmp_path, values, deletions)
    clean(tmp_path, spark, T0_MS)
    write(tmp_path, values)
    result = clean(tmp_path, spark, HORIZON_MS, ratio=0.99)
    assert (result.outcome.word, result.end_offset, result.statistics.removed) == (
        "committed",
        10,
        {"tombstone": 5},
    )
    assert len(rows(tmp_path)) == 6
    assert clean(tmp_path, spark, HORIZON_MS, ratio=0.99).outcome.word == "skipped"
    assert clean(tmp_path, spark, HORIZON_MS, ratio=0.99, force=True).first_dirty_offset == 10


def test_1_9_a_checkpoint_lifts_no_other_bound(tmp_path: Path, spark: LazySpark) -> None:
    """A broker's directory, restored without a high watermark: nothing says that its tombstones were replicated."""
    write(tmp_path, values, deletions)
    clean(tmp_path, spark, T0_MS)
    stop_broker(tmp_path, {TP.topic: 11})
    entries = (tmp_path / names.REPLICATION_CHECKPOINT).read_text()
    (tmp_path / names.REPLICATION_CHECKPOINT).unlink()
    held = clean(tmp_path, spark, HORIZON_MS, force=True)
    assert (held.outcome.word, held.outcome.next_horizon_ms) == ("skipped", HORIZON_MS + DAY_MS)
    (tmp_path / names.REPLICATION_CHECKPOINT).write_text(entries)
    assert clean(tmp_path, spark, HORIZON_MS).statistics.removed == {"tombstone": 5}


def test_damage_is_reported_where_a_batch_has_to_be_looked_into(tmp_path: Path, spark: LazySpark) -> None:
    """A quiet log with a torn header is none of this look's business; one that a cleaning would change is."""
    write(tmp_path, values, deletions)
    clean(tmp_path, spark, T0_MS)
    oldest = min((tmp_path / str(TP)).glob("*.log"))
    whole = oldest.read_bytes()

    def damage(position: int) -> None:
        oldest.write_bytes(whole[:position] + b"\xff" + whole[position + 1 :])
        os.utime(oldest, ns=(T0_MS, T0_MS))

    damage(len(whole) - 1)
    with pytest.raises(CorruptFile, match="CRC"):
        horizons(tmp_path, HORIZON_MS)
    assert horizons(tmp_path, HORIZON_MS - 1) == HORIZON_MS
    damage(16)  # no magic byte
    assert horizons(tmp_path, HORIZON_MS) is None


@pytest.mark.parametrize("wait_ms", [HOUR_MS, 3 * DAY_MS, 31 * DAY_MS])
def test_a_value_that_goes_when_its_result_has_waited_leaves_its_tombstone(
    tmp_path: Path, spark: LazySpark, wait_ms: int
) -> None:
    """Who has read the value just before the commit must meet the tombstone, whatever is cleaned next."""

    def fill(*records: tuple[bytes, bytes | None]) -> None:
        """A closed segment, and an empty one, of a broker that stops."""
        with LogWriter(str(tmp_path), TP.topic, TP.partition, segment_bytes=1 << 24) as log:
            producer = Producer(log)
            for record in records:
                producer.put(*record, T0_MS)
            log.roll()
            stop_broker(tmp_path, {TP.topic: log.log_end_offset})

    def outcome(after_ms: int) -> str:
        options = [
            f"--set=log.cleaner.delete.retention.ms={DAY_MS}",
            f"--topic={TP.topic}",
            f"--now-ms={T0_MS + after_ms}",
        ]
        return run(spark, tmp_path, options=options).outcome(TP.topic, tmp_path.name)

    fill((b"secret", b"value"), (b"key", b"1"))
    fill((b"secret", None))
    with lock_of_another(tmp_path / names.LOCK):
        assert outcome(0) == "staged"
    fill((b"key", b"2"))
    assert outcome(wait_ms) == "committed"
    assert rows(tmp_path)[b"secret"] is None
