"""What takes the space of logs, against plain Python over the same records."""

import shutil
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from cleanerd.format.batch import encode_batch
from cleanerd.format.record import Record
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.spark.inspect import AGES_DAYS, Inspection, inspect
from cleanerd.units import key_text
from tests.harness.damage import directories as damage
from tests.harness.logs.logdirs import GOLDEN, segment

pytestmark = pytest.mark.soak
DAY_MS = 86_400_000
NOW_MS = 400 * DAY_MS


def write(
    log_dir: Path, partition: int, records: list[tuple[bytes | None, bytes | None, int]], base: int = 0
) -> str:
    """One segment of a topic `t`: (key, value, days ago)."""
    directory = log_dir / f"t-{partition}"
    directory.mkdir(parents=True, exist_ok=True)
    made = [
        Record(base + n, NOW_MS - days * DAY_MS, key, value, ())
        for n, (key, value, days) in enumerate(records)
    ]
    segment(directory, base).write_bytes(encode_batch(made, base_offset=base))
    return str(directory)


def ask(spark: LazySpark, log_dir: Path, *names: str) -> Inspection:
    return spark.run(
        lambda context: inspect(context, {str(log_dir): [str(log_dir / name) for name in names]}, NOW_MS)
    )


def weight(record: Any) -> int:
    return len(record.key or b"") + len(record.value or b"")


def test_every_question_about_logs_of_a_broker(spark: LazySpark) -> None:
    names = ("idempotent-0", "transactions-0", "plain-0", "zstd-0")
    found = ask(spark, GOLDEN, *names)
    assert found.failed == []
    for name in names:
        log = next(row for row in found.logs if f"{row['topic']}-{row['partition']}" == name)
        records = list(read_records(str(GOLDEN / name), isolation="read_committed"))
        newest = {record.key: record for record in records if record.key is not None}
        superseded = [one for one in records if one.key is not None and one is not newest[one.key]]
        assert log["records"] == len(records)
        assert log["bytes"] == sum(map(weight, records))
        assert log["keys"] == len(newest)
        assert log["tombstones"] == sum(one.value is None for one in newest.values())
        assert (log["superseded_records"], log["superseded_bytes"]) == (
            len(superseded),
            sum(map(weight, superseded)),
        )
        assert log["no_key_records"] == sum(record.key is None for record in records)
        counted, wasted = Counter(one.key for one in records if one.key), Counter[bytes | None]()
        for one in superseded:
            wasted[one.key] += weight(one)
        hot = {row["key"]: row for row in found.keys if row["topic"] == log["topic"]}
        assert {key: (row["records"], row["superseded_bytes"]) for key, row in hot.items()} == {
            key_text(key): (counted[key], wasted[key])
            for key in sorted(wasted, key=lambda key: (-wasted[key], key))[:10]
        }
    codecs = {(row["topic"], row["codec"]): row["batches"] for row in found.codecs}
    assert codecs["zstd", "zstd"] == 4
    assert codecs["plain", "none"] == 4


def test_how_long_records_have_been_superseded(spark: LazySpark, tmp_path: Path) -> None:
    """By the time of the record that superseded them, not by their own."""
    write(
        tmp_path,
        0,
        [(b"k", b"1", 399), (b"k", b"2", 300), (b"k", b"3", 20), (b"k", b"4", 0), (b"other", b"1", 390)],
    )
    found = ask(spark, tmp_path, "t-0")
    assert {row["below_days"]: row["records"] for row in found.ages} == {365: 1, 30: 1, 1: 1}
    assert set(AGES_DAYS) >= {365, 30, 1}


def test_what_is_superseded_in_the_active_segment(spark: LazySpark, tmp_path: Path) -> None:
    """A cleaning does not go there before it is rolled."""
    write(tmp_path, 0, [(b"k", b"old", 9), (b"x", b"1", 9)])
    write(tmp_path, 0, [(b"k", b"mid", 8), (b"k", b"new", 7)], base=2)
    (log,) = ask(spark, tmp_path, "t-0").logs
    assert (log["superseded_bytes"], log["superseded_active_bytes"]) == (8, 4)


def test_keys_in_several_partitions(spark: LazySpark, tmp_path: Path) -> None:
    """As after partitions were added."""
    parts = defaultdict(list, {0: [(b"k%d" % n, b"old", 9) for n in range(6)]})
    for n in range(0, 6, 2):
        parts[1 + n % 3].append((b"k%d" % n, b"new", 1))
    for partition, records in parts.items():
        write(tmp_path, partition, records)
    found = ask(spark, tmp_path, *(f"t-{partition}" for partition in parts)).spread
    assert {row["key"]: row["partitions"] for row in found} == {"k0": [0, 1], "k2": [0, 3], "k4": [0, 2]}
    assert {row["keys"] for row in found} == {3}


def test_a_damaged_log_is_named_and_the_others_are_answered_for(spark: LazySpark, tmp_path: Path) -> None:
    for name in ("plain-0", "lz4-0"):
        shutil.copytree(GOLDEN / name, tmp_path / name)
    log = segment(tmp_path / "plain-0", 0)
    damage.overwrite(log, 70, b"\xff\xff")
    found = ask(spark, tmp_path, "plain-0", "lz4-0")
    assert [row["topic"] for row in found.logs] == ["lz4"]
    (failed,) = found.failed
    assert failed["directory"] == str(tmp_path / "plain-0")
    assert str(log) in failed["reason"]
    assert "CRC" in failed["reason"]
