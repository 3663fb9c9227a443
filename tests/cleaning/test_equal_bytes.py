"""The promise of the README: one log, one clock and one configuration give one result, however the work was divided."""

import shutil
from pathlib import Path

import pytest

from cleanerd.policy.winner import KEY_BYTES
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.tools.client.writer import LogWriter
from tests.harness.logs.troubled import clean
from tests.harness.logs.written import busy
from tests.harness.spark.rounds import small_rounds

CLEANED_MS, AGAIN_MS = 1_000_000, 90_000_000
DEDUPE_BYTES = 128 << 20
AMPLE, TIGHT = 0.9, 60 * KEY_BYTES / DEDUPE_BYTES
"""Shares of the dedupe buffer: the first has room for all keys of the log, the second for 60 of them."""


def write(log_dir: Path) -> None:
    """Aborted and committed transactions that cross segments, compressed batches, tombstones; two cleanings' worth."""
    log_dir.mkdir()
    with LogWriter(str(log_dir), "t", 0, segment_bytes=3000, index_interval_bytes=200) as writer:
        busy(writer, range(1, 90))
        writer.roll()


def contents(log_dir: Path) -> dict[str, bytes]:
    """All files but the locks, which are empty."""
    found = [path for path in log_dir.rglob("*") if path.is_file() and not path.name.endswith("lock")]
    return {str(path.relative_to(log_dir)): path.read_bytes() for path in found}


def cleaned(session: LazySpark, source: Path, load_factor: float, *more: str) -> dict[str, bytes]:
    """What two cleanings make of a copy: the second finds tombstones and markers whose horizon has passed."""
    log_dir = source.with_name("copy") / "logs"
    shutil.copytree(source, log_dir)
    for now_ms in (CLEANED_MS, AGAIN_MS):
        options = [
            "--assume=now", f"--now-ms={now_ms}", f"--set=log.cleaner.io.buffer.load.factor={load_factor}",
            "--set=cleanerd.chunk.bytes=1000", "--set=log.cleaner.delete.retention.ms=1000", *more,
        ]  # fmt: skip
        assert clean(session, log_dir, options=options).outcome("t") in ("committed", "unchanged")
        with LogWriter(str(log_dir), "t", 0, segment_bytes=3000, index_interval_bytes=200) as writer:
            busy(writer, range(90, 100))
            writer.roll()
    found = contents(log_dir)
    shutil.rmtree(log_dir.parent)
    return found


@pytest.mark.soak
def test_a_cleaning_gives_equal_bytes_with_either_plan_on_any_number_of_cores(
    spark: LazySpark, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    write(source)
    expected = cleaned(spark, source, AMPLE)
    assert expected != contents(source)
    assert cleaned(spark, source, AMPLE) == expected, "the same again, with other fingerprints"
    assert cleaned(spark, source, TIGHT) == expected, "through files"
    spark.stop()  # a process has one Spark context at a time; the shared one comes back when it is used
    one_core = LazySpark("local[1]")
    try:
        assert cleaned(one_core, source, AMPLE) == expected, "on one core"
        assert cleaned(one_core, source, TIGHT) == expected, "on one core, through files"
    finally:
        one_core.stop()


@pytest.mark.parametrize("load_factor", [AMPLE, TIGHT])
def test_a_cleaning_gives_equal_bytes_in_any_number_of_rounds(
    spark: LazySpark, tmp_path: Path, load_factor: float
) -> None:
    source, groups = tmp_path / "source", "--topic-set=t:segment.bytes=6000"
    write(source)
    expected = cleaned(spark, source, load_factor, groups)
    with small_rounds() as rounds:
        assert cleaned(spark, source, load_factor, groups) == expected
    assert len(rounds) > 4
