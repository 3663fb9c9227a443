"""`cleanerd clean` obeys the limits that the daemon obeys: I/O, size of jobs, what may wait staged beside a broker."""

import time
from pathlib import Path

import pytest

from cleanerd.cleaning.clean import Cleaner
from cleanerd.format import names
from cleanerd.pipeline.lazy_spark import LazySpark
from tests.cleaning.logs import assert_cleaned, clean, contents, lock_of_another, size_of, write_logs

BURST_S = 0.3


@pytest.mark.parametrize(
    ("key", "moved"),
    [
        ("log.cleaner.io.max.bytes.per.second", 2.0),  # index, rewrite; what is written is small
        ("cleanerd.io.max.read.bytes.per.second", 2.0),
        ("cleanerd.io.max.write.bytes.per.second", 0.02),
    ],
)
def test_limits_of_io_hold_for_a_one_shot_cleaning(
    key: str, moved: float, spark: LazySpark, tmp_path: Path
) -> None:
    """The log is read at least `moved` times (or written), so that it takes so many seconds at least."""
    log_dir = write_logs(tmp_path / "logs", "good")
    clean(spark, write_logs(tmp_path / "warm", "good"))
    moved_bytes = int(moved * size_of(log_dir / "good-0") * 0.8)  # but for the active segment
    rate = moved_bytes / 2.0
    began_s = time.monotonic()
    ran = clean(spark, log_dir, options=[f"--set={key}={rate}"])
    assert time.monotonic() - began_s >= moved_bytes / rate - BURST_S
    assert_cleaned(ran, log_dir / "good-0")


@pytest.mark.parametrize(
    ("options", "jobs"),
    [([], [3]), (["--set=cleanerd.job.max.logs=2"], [2, 1]), (["--set=cleanerd.job.max.bytes=1"], [1, 1, 1])],
)
def test_logs_share_jobs_within_the_limits(
    options: list[str], jobs: list[int], spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    write = Cleaner.write
    monkeypatch.setattr(
        Cleaner, "write", lambda self, logs, **more: found.append(len(logs)) or write(self, logs, **more)
    )
    log_dir = write_logs(tmp_path / "logs", "a", "b", "c")
    assert clean(spark, log_dir, options=options).code == 0
    assert found == jobs


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("cleanerd.staged.max.bytes=0", "cleanerd.staged.max.bytes is 0"),
        ("cleanerd.staged.min.free.ratio=1", "cleanerd.staged.min.free.ratio is 1.0"),
    ],
)
def test_no_more_is_staged_beside_a_live_broker_than_it_allows(
    limit: str, reason: str, spark: LazySpark, tmp_path: Path
) -> None:
    """Where nobody lives, nothing has to wait, and the limit is none."""
    log_dir = write_logs(tmp_path / "logs", "good")
    before = contents(log_dir / "good-0")
    with lock_of_another(log_dir / names.LOCK):
        ran = clean(spark, log_dir, options=[f"--set={limit}"])
    assert ran.outcome("good") == "skipped"
    assert reason in str(ran.results["logs", "good"]["reason"])
    assert contents(log_dir / "good-0") == before
    assert_cleaned(clean(spark, log_dir, options=[f"--set={limit}"]), log_dir / "good-0")
