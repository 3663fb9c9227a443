"""One bad log stops no other: whatever a step of the driver meets in a log, expected or not, is that log's failure.

The hostile log lies between two healthy ones, which are cleaned; `cleanerd clean` ends with its document and exit code 1.
"""

from pathlib import Path
from typing import Any

import pytest

from cleanerd.format.names import FileKind
from cleanerd.spark_runtime.lazy_spark import LazySpark, SparkFailed
from tests.harness.disks.hooked import HookedFiles
from tests.harness.logs.troubled import Ran, assert_cleaned, assert_settled, clean, write_logs

HEALTHY = ("a", "z")


def _assert_healthy_cleaned(ran: Ran, log_dir: Path) -> None:
    for topic in HEALTHY:
        assert_cleaned(ran, log_dir / f"{topic}-0")


@pytest.mark.parametrize(
    ("call", "ending"),
    [
        ("list_names", "-0"),  # recover
        ("read_to_hole", FileKind.OFFSET_INDEX.value),  # plan
        ("write", ".index.cleanerd"),  # stage
        ("rename", ".log.cleaned"),  # commit
        ("rename", ".log.swap"),  # in the middle of one
    ],
)
def test_an_error_that_nobody_expects_ends_the_step_of_one_log(
    call: str, ending: str, spark: LazySpark, tmp_path: Path
) -> None:
    """Its text is the reason, with where it was met; its traceback is told once for each log and cleaning."""
    log_dir = write_logs(tmp_path / "logs", "a", "hostile", "z")

    def meet(met: str, path: str) -> None:
        if met == call and "/hostile-0" in path and path.endswith(ending):
            raise MemoryError if call == "read_to_hole" else RuntimeError("nobody expects this")

    ran = clean(spark, log_dir, files=HookedFiles(meet))
    assert ran.code == 1
    assert f"{log_dir}/hostile-0: internal error at meet:" in ran.reason("hostile")
    assert ran.told.count("in meet") == 1, ran.told
    _assert_healthy_cleaned(ran, log_dir)
    ran = clean(spark, log_dir)
    assert_settled(log_dir / "hostile-0")
    assert ran.code == 0


def test_logs_of_a_job_that_failed_as_a_whole_are_tried_one_by_one(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What brings Spark down with one log (here: a job in which that log takes part) leaves the others alone."""
    log_dir = write_logs(tmp_path / "logs", "a", "hostile", "z")
    from cleanerd.pipeline import job

    for step in ("index", "clean_small"):
        real = getattr(job.Pipeline, step)

        def failing(self: job.Pipeline, logs: object, keys: object, real: Any = real) -> object:
            assert isinstance(logs, list)
            if any(log.topic_partition.topic == "hostile" for log in logs):
                raise SparkFailed("a worker was killed")
            return real(self, logs, keys)

        monkeypatch.setattr(job.Pipeline, step, failing)
    ran = clean(spark, log_dir)
    assert ran.code == 1
    assert "a worker was killed" in ran.reason("hostile")
    assert_settled(log_dir / "hostile-0")
    _assert_healthy_cleaned(ran, log_dir)
