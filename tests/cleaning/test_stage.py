"""The logs of a job are staged side by side, each for itself: what happens to one is its own."""

import errno
import threading
from pathlib import Path

from cleanerd.env.files import RealFiles
from cleanerd.format.names import FileKind, Suffix
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.cleaning.logs import clean, write_logs

STAGED_LOG = f"{FileKind.LOG.value}{Suffix.STAGED.value}"
PATIENCE_S = 30.0


class Meeting(RealFiles):
    """The first sync of a staged log in each directory waits until another log has come as far."""

    def __init__(self, logs: int) -> None:
        self._barrier = threading.Barrier(logs, timeout=PATIENCE_S)
        self._met: set[str] = set()

    def fsync(self, path: str) -> None:
        directory = path.rpartition("/")[0]
        if path.endswith(STAGED_LOG) and directory not in self._met:
            self._met.add(directory)
            self._barrier.wait()
        super().fsync(path)


class FullFor(RealFiles):
    """No space is left for the staged files of one log."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def fsync(self, path: str) -> None:
        if path.endswith(STAGED_LOG) and f"/{self._topic}-0/" in path:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        super().fsync(path)


def test_the_disk_syncs_several_logs_at_a_time(tmp_path: Path, spark: LazySpark) -> None:
    """One after the other, the first log would wait for the second in vain."""
    log_dir = write_logs(tmp_path / "logs", "one", "two")
    ran = clean(spark, log_dir, files=Meeting(2))
    assert [ran.outcome(topic) for topic in ("one", "two")] == ["committed", "committed"]


def test_a_log_that_cannot_be_staged_leaves_the_others_alone(tmp_path: Path, spark: LazySpark) -> None:
    topics = [f"t{number}" for number in range(20)]
    log_dir = write_logs(tmp_path / "logs", *topics)
    ran = clean(spark, log_dir, files=FullFor("t7"))
    assert "No space left" in ran.reason("t7")
    assert not list((log_dir / "t7-0").glob("*.cleanerd"))
    assert {ran.outcome(topic) for topic in topics if topic != "t7"} == {"committed"}
    again = clean(spark, log_dir)
    assert again.outcome("t7") == "committed"
