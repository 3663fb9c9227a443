"""A cleaning leaves the page cache to the broker: what was cold before is cold afterwards, what was warm stays."""

import os
from pathlib import Path

import pytest

from cleanerd.env.page_cache import Ranges, cold_ranges, drop, size_bytes
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.harness.logs.troubled import clean, put

BLOCK = 2 << 20
SEGMENT_BYTES = 3 * BLOCK
VALUE_BYTES = 64 << 10


def write_cold(log_dir: Path, topic: str, *, keys: int) -> Path:
    """Two closed segments of three blocks and an active one, none of them cached."""
    log_dir.mkdir(exist_ok=True)
    numbers = range(2 * SEGMENT_BYTES // VALUE_BYTES)
    records = ((b"key %d" % (number % keys), os.urandom(VALUE_BYTES)) for number in numbers)
    put(log_dir, topic, records, segment_bytes=SEGMENT_BYTES)
    partition = log_dir / f"{topic}-0"
    for path in partition.glob("*.log"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            drop(file.fileno(), ((0, path.stat().st_size),))
            if size_bytes(cold_ranges(file.fileno(), BLOCK)) == 0 and path.stat().st_size > BLOCK:
                pytest.skip("a file system without a page cache of its own (tmpfs)")
    return partition


def cold_of(path: Path) -> Ranges:
    with path.open("rb") as file:
        return cold_ranges(file.fileno(), path.stat().st_size)


def closed(partition: Path) -> list[Path]:
    return sorted(partition.glob("*.log"))[:-1]


def test_segments_that_stay_are_as_cold_and_as_warm_as_before(tmp_path: Path, spark: LazySpark) -> None:
    partition = write_cold(tmp_path / "logs", "distinct", keys=10_000)
    first, second = closed(partition)[:2]
    with second.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file.fileno(), 4096, BLOCK + 4096)
    before = cold_of(first), cold_of(second)
    assert [size_bytes(cold) for cold in before] == [first.stat().st_size, second.stat().st_size - BLOCK]
    assert clean(spark, tmp_path / "logs").outcome("distinct") == "unchanged"
    assert (cold_of(first), cold_of(second)) == before


def test_new_segments_of_cold_ones_are_cold(tmp_path: Path, spark: LazySpark) -> None:
    partition = write_cold(tmp_path / "logs", "cold", keys=70)
    warm = write_cold(tmp_path / "logs", "warm", keys=70)
    for path in closed(warm):
        path.read_bytes()
    ran = clean(spark, tmp_path / "logs")
    assert {ran.outcome("cold"), ran.outcome("warm")} == {"committed"}
    (new,) = closed(partition)
    assert BLOCK < new.stat().st_size == size_bytes(cold_of(new))
    (new,) = closed(warm)
    assert cold_of(new) == ()
