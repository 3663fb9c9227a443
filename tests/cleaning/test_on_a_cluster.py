"""`cleanerd clean` where Spark may be anywhere leaves the same bytes as on one machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanerd.format.names import FileKind
from cleanerd.pipeline import small_log
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.cleaning.logs import assert_cleaned, clean, segment, size_of, write_logs


@pytest.fixture
def cluster(spark: LazySpark) -> Iterator[LazySpark]:
    """A session that takes its tasks for those of other machines."""
    spark.stop()
    session = LazySpark("local[2,2]")
    yield session
    session.stop()


@pytest.mark.parametrize("is_small", [False, True])
def test_a_log_is_left_with_the_same_bytes(
    cluster: LazySpark, spark: LazySpark, tmp_path: Path, is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one task, and by tasks that exchange fingerprints through files of their hosts."""
    monkeypatch.setattr(small_log, "SMALL_LOG_BYTES", 1 << 20 if is_small else 0)
    here, there = (write_logs(tmp_path / name, "a") for name in ("here", "there"))
    ran = clean(cluster, there)
    assert_cleaned(ran, there / "a-0")
    cluster.stop()
    assert_cleaned(clean(spark, here), here / "a-0")
    assert size_of(here / "a-0") == size_of(there / "a-0")
    for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
        assert segment(here / "a-0", 0, kind).read_bytes() == segment(there / "a-0", 0, kind).read_bytes()
