"""The logs of a job are staged and committed side by side; that what happens to one is its own is in `test_bad_input`."""

import threading
from pathlib import Path

from cleanerd.env.files import RealFiles
from cleanerd.format.names import CLEANER_OFFSET_CHECKPOINT, FileKind, Suffix
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.checkpoints import read_offsets
from tests.cleaning.logs import clean, write_logs
from tests.sim.hooked import HookedFiles

STAGED_LOG = f"{FileKind.LOG.value}{Suffix.STAGED.value}"
PATIENCE_S = 30.0


def test_logs_share_their_waits_for_the_disk(tmp_path: Path, spark: LazySpark) -> None:
    """One after the other, the first log would wait for the second in vain; their checkpoint is written once for all."""
    log_dir, barrier = write_logs(tmp_path / "logs", "one", "two"), threading.Barrier(2, timeout=PATIENCE_S)
    met, checkpoints = set[str](), list[str]()

    def meet(call: str, path: str) -> None:
        """The first sync of a staged log in each directory waits until another log has come as far."""
        directory = path.rpartition("/")[0]
        if call == "fsync" and path.endswith(STAGED_LOG) and directory not in met:
            met.add(directory)
            barrier.wait()
        if call == "rename" and path.endswith(CLEANER_OFFSET_CHECKPOINT):
            checkpoints.append(path)

    ran = clean(spark, log_dir, files=HookedFiles(meet))
    assert [ran.outcome(topic) for topic in ("one", "two")] == ["committed", "committed"]
    assert len(checkpoints) == 1
    assert len(read_offsets(RealFiles(), str(log_dir / CLEANER_OFFSET_CHECKPOINT))) == 2


def test_parts_of_other_attempts_go_with_the_stage(tmp_path: Path, spark: LazySpark) -> None:
    """Another attempt at a task writes its part while what the first one wrote is staged."""
    log_dir = write_logs(tmp_path / "logs", "one")

    def repeat(call: str, path: str) -> None:
        if call == "fsync" and path.endswith(STAGED_LOG):
            Path(path.replace(STAGED_LOG, f".{'0' * 16}.part.cleanerd")).write_bytes(b"part")

    ran = clean(spark, log_dir, files=HookedFiles(repeat))
    assert ran.outcome("one") == "committed"
    assert not list((log_dir / "one-0").glob("*.cleanerd"))
