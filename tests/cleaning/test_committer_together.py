"""The logs of one `clean` are committed side by side, each for itself: what happens to one is its own."""

import errno
from pathlib import Path

from cleanerd.env.files import RealFiles
from cleanerd.format.names import CLEANER_OFFSET_CHECKPOINT, FileKind, Suffix
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.checkpoints import read_offsets
from tests.cleaning.logs import assert_settled, clean, write_logs

TOPICS = [f"t{number}" for number in range(5)]
TO_SWAP = f"{FileKind.LOG.value}{Suffix.SWAP.value}"


class Renames(RealFiles):
    """Counts the checkpoints; the commit of the logs of one topic fails at its first rename."""

    def __init__(self, failing: str = "") -> None:
        self.checkpoints = 0
        self._failing = f"/{failing}-0/"

    def rename(self, source: str, target: str) -> None:
        if self._failing in target and target.endswith(TO_SWAP):
            raise OSError(errno.EACCES, "Permission denied", target)
        self.checkpoints += target.endswith(CLEANER_OFFSET_CHECKPOINT)
        super().rename(source, target)


def test_logs_share_the_syncs_of_their_checkpoint(tmp_path: Path, spark: LazySpark) -> None:
    """It is written once for all of them."""
    log_dir, files = write_logs(tmp_path / "logs", *TOPICS), Renames()
    ran = clean(spark, log_dir, files=files)
    assert {ran.outcome(topic) for topic in TOPICS} == {"committed"}
    assert files.checkpoints == 1
    assert len(read_offsets(files, str(log_dir / CLEANER_OFFSET_CHECKPOINT))) == len(TOPICS)


def test_a_log_that_cannot_be_committed_leaves_the_others_alone(tmp_path: Path, spark: LazySpark) -> None:
    log_dir = write_logs(tmp_path / "logs", *TOPICS)
    ran = clean(spark, log_dir, files=Renames(failing="t2"))
    assert "Permission denied" in ran.reason("t2")
    assert_settled(log_dir / "t2-0")
    assert {ran.outcome(topic) for topic in TOPICS if topic != "t2"} == {"committed"}
    assert clean(spark, log_dir).outcome("t2") == "committed"
