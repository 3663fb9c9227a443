"""Results tell how long which phase took, in every way in which a cleaning can end."""

from pathlib import Path

import pytest

from cleanerd.cleaning.phases import Stopwatch
from cleanerd.format import names
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.harness.clock import HandClock
from tests.harness.logs.troubled import clean, lock_of_another, segment, write_logs

INDEXED = {"plan", "index", "rewrite"}


def test_phases_of_committed_unchanged_and_staged_logs(tmp_path: Path, spark: LazySpark) -> None:
    """Logs of one job share its phases, the stage too; each has its own commit; all within its seconds."""
    spark.context()
    log_dir = write_logs(tmp_path / "logs", "one", "two")
    first = clean(spark, log_dir).results
    again = clean(spark, log_dir).results
    (log_dir / names.CLEANER_OFFSET_CHECKPOINT).unlink()
    whole = clean(spark, log_dir).results
    brokers = write_logs(tmp_path / "brokers", "three")
    with lock_of_another(brokers / names.LOCK):
        staged = clean(spark, brokers).results["brokers", "three"]
    for result in first.values():
        assert set(result["phase_seconds"]) == INDEXED | {"stage", "commit"}
        assert 0 < sum(result["phase_seconds"].values()) <= result["seconds"] + 0.003  # rounded
    one, two = (first["logs", topic]["phase_seconds"] for topic in ("one", "two"))
    shared = INDEXED | {"stage"}
    assert {phase: one[phase] for phase in shared} == {phase: two[phase] for phase in shared}
    assert [result["phase_seconds"] for result in again.values()] == [{}, {}], "there was nothing to look at"
    assert [set(result["phase_seconds"]) for result in whole.values()] == [
        INDEXED | {"stage", "checkpoint"}
    ] * 2
    assert (staged["outcome"], set(staged["phase_seconds"])) == ("staged", INDEXED | {"stage"})


def test_a_log_that_fails_tells_how_far_its_job_came(tmp_path: Path, spark: LazySpark) -> None:
    spark.context()
    log_dir = write_logs(tmp_path / "logs", "good", "bad")
    damaged = segment(log_dir / "bad-0", 1)
    damaged.write_bytes(damaged.read_bytes()[:-5] + b"\xff" + damaged.read_bytes()[-4:])
    result = clean(spark, log_dir).results["logs", "bad"]
    assert (result["outcome"], set(result["phase_seconds"])) == ("failed", INDEXED | {"stage"})


@pytest.mark.soak
def test_the_start_of_spark_is_a_phase_but_no_part_of_the_seconds(tmp_path: Path, spark: LazySpark) -> None:
    """Once for a session: MB/s of the first cleaning are those of the second."""
    log_dir = write_logs(tmp_path / "logs", "one")
    spark.stop()
    (first,) = clean(spark, log_dir).results.values()
    (second,) = clean(spark, write_logs(tmp_path / "more", "two")).results.values()
    assert set(first["phase_seconds"]) == INDEXED | {"start", "stage", "commit"}
    assert set(second["phase_seconds"]) == INDEXED | {"stage", "commit"}
    spent_s = sum(first["phase_seconds"].values())
    assert spent_s - first["phase_seconds"]["start"] <= first["seconds"] + 0.003 < spent_s


def test_a_phase_that_ends_in_an_error_has_none() -> None:
    clock = HandClock()
    watch = Stopwatch(clock)
    with watch.phase("plan"):
        clock.advance(10)
    with pytest.raises(ZeroDivisionError), watch.phase("stage"):
        raise ZeroDivisionError
    assert watch.phase_seconds == {"plan": 0.01}
    assert watch.seconds == 0.01


def test_pauses_are_no_part_of_the_seconds() -> None:
    """A job that is planned waits for its turn."""
    clock = HandClock()
    watch = Stopwatch(clock)
    watch.resume()  # no pause: nothing happens
    clock.advance(1000)
    watch.pause()
    clock.advance(10_000)
    assert watch.seconds == 1.0
    watch.resume()
    clock.advance(2000)
    assert watch.seconds == 3.0
