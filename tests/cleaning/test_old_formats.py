"""Logs of magic 0 and 1 become magic 2 (rule 4.33): they may grow, which needs room, and a segment has an end."""

from pathlib import Path

import pytest

from cleanerd.cleaning.room import _LEGACY_GROWTH_BYTES, Reservations
from cleanerd.format.batch import encode_batch, iterate_batches
from cleanerd.format.codecs import Codec
from cleanerd.format.legacy import encode_message
from cleanerd.format.record import Record
from cleanerd.pipeline import whole_log
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.tools.client.reader import read_records
from tests.harness.logs.troubled import GOOD, assert_cleaned, assert_settled, clean, contents, put, write_logs

RECORDS = 1000


def write(log_dir: Path, magic: int, codec: Codec) -> Path:
    """Small records of unique keys, every third a tombstone: all of them stay, and none is worth a batch of its own."""
    log_dir.mkdir()
    records = [(b"%d" % number, None if number % 3 == 0 else b"v") for number in range(RECORDS)]
    put(log_dir, "t", records, segment_bytes=9000, index_interval_bytes=300, magic=magic, codec=codec)
    return log_dir / "t-0"


def magics(partition: Path) -> list[set[int]]:
    """Of the segments, the active one last."""
    logs = sorted(partition.glob("*.log"))
    return [{magic for _, _, magic in iterate_batches(log.read_bytes())} for log in logs]


class Told(Reservations):
    """Remembers what was asked for."""

    wanted: dict[str, int]

    def take(self, wanted: "dict[str, int]", least_free_bytes: int) -> int | None:  # type: ignore[override]
        Told.wanted = dict(wanted)
        return super().take(wanted, least_free_bytes)


@pytest.mark.trap("output larger than its input")
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_log_that_grows(
    spark: LazySpark, tmp_path: Path, magic: int, codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is removed, all is converted; the room that was asked for before is enough."""
    monkeypatch.setattr("cleanerd.cleaning.clean.Reservations", Told)
    partition = write(tmp_path / "logs", magic, codec)
    before = list(read_records(str(partition)))
    ran = clean(spark, tmp_path / "logs")
    result = ran.results["logs", "t"]
    assert (ran.code, result["outcome"], result["removed"]) == (0, "committed", {})
    assert result["bytes_after"] > result["bytes_before"]
    assert magics(partition)[:-1] == [{2}] * (len(magics(partition)) - 1)
    assert list(read_records(str(partition))) == before
    written_bytes = sum(path.stat().st_size for path in sorted(partition.glob("*.log"))[:-1])
    assert Told.wanted[str(partition)] >= written_bytes
    assert_settled(partition)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_new_segment_that_no_index_could_describe(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    """Kafka gives up on the log too (rule 4.33)."""
    monkeypatch.setattr(whole_log, "SEGMENT_MAX_BYTES", 9500)
    good = write_logs(tmp_path / "good", GOOD)
    partition = write(tmp_path / "old", 1, Codec.NONE)
    before = contents(partition)
    ran = clean(
        spark, tmp_path / "old", good, options=["--topic-set=t:segment.bytes=9000"] + ["--dry-run"] * dry_run
    )
    assert "expected at most 9500 bytes in its new segment, found " in ran.reason("t", "old")
    assert contents(partition) == before
    if not dry_run:
        assert_cleaned(ran, good / f"{GOOD}-0")


@pytest.mark.trap("output larger than its input")
def test_growth_of_one_message_is_within_its_bound() -> None:
    """The worst: an empty tombstone of magic 0 that gets the latest horizon."""
    record = Record(0, -1, b"", None)
    horizon_ms = 2**63 - 2
    after = encode_batch([record], base_offset=0, delete_horizon_ms=horizon_ms)
    assert len(after) - len(encode_message(record, magic=0)) <= _LEGACY_GROWTH_BYTES
