"""The logs of a job are staged and committed side by side; that what happens to one is its own is in `test_bad_input`."""

import threading
from pathlib import Path

from cleanerd.env.files import RealFiles
from cleanerd.format.names import CLEANER_OFFSET_CHECKPOINT, FileKind, Suffix
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.checkpoints import read_offsets
from tests.cleaning.logs import clean, write_logs

STAGED_LOG = f"{FileKind.LOG.value}{Suffix.STAGED.value}"
PATIENCE_S = 30.0


class Meeting(RealFiles):
    """The first sync of a staged log in each directory waits until another log has come as far. Counts checkpoints."""

    def __init__(self, logs: int) -> None:
        self.checkpoints = 0
        self._barrier = threading.Barrier(logs, timeout=PATIENCE_S)
        self._met: set[str] = set()

    def fsync(self, path: str) -> None:
        directory = path.rpartition("/")[0]
        if path.endswith(STAGED_LOG) and directory not in self._met:
            self._met.add(directory)
            self._barrier.wait()
        super().fsync(path)

    def rename(self, source: str, target: str) -> None:
        self.checkpoints += target.endswith(CLEANER_OFFSET_CHECKPOINT)
        super().rename(source, target)


def test_logs_share_their_waits_for_the_disk(tmp_path: Path, spark: LazySpark) -> None:
    """One after the other, the first log would wait for the second in vain; their checkpoint is written once for all."""
    log_dir, files = write_logs(tmp_path / "logs", "one", "two"), Meeting(2)
    ran = clean(spark, log_dir, files=files)
    assert [ran.outcome(topic) for topic in ("one", "two")] == ["committed", "committed"]
    assert files.checkpoints == 1
    assert len(read_offsets(files, str(log_dir / CLEANER_OFFSET_CHECKPOINT))) == 2


class Repeated(RealFiles):
    """Another attempt at a task writes its part while what the first one wrote is staged."""

    def fsync(self, path: str) -> None:
        if path.endswith(STAGED_LOG):
            Path(path.replace(STAGED_LOG, f".{'0' * 16}.part.cleanerd")).write_bytes(b"part")
        super().fsync(path)


def test_parts_of_other_attempts_go_with_the_stage(tmp_path: Path, spark: LazySpark) -> None:
    log_dir = write_logs(tmp_path / "logs", "one")
    ran = clean(spark, log_dir, files=Repeated())
    assert ran.outcome("one") == "committed"
    assert not list((log_dir / "one-0").glob("*.cleanerd"))
