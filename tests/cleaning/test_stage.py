"""The logs of a job are staged and committed side by side; that what happens to one is its own is in `test_bad_input`."""

import random
import threading
from pathlib import Path

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.format.names import CLEANER_OFFSET_CHECKPOINT, FileKind, Suffix
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.checkpoints import read_offsets
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter, WriterOptions
from tests.harness.disks.hooked import HookedFiles
from tests.harness.logs.troubled import clean, write_logs
from tests.harness.spark.in_process import Cleaning
from tests.simulation.play import empty_disk

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


@pytest.mark.parametrize("is_transaction", [False, True])
def test_what_superseded_a_record_outlives_it_where_the_writer_syncs_nothing(is_transaction: bool) -> None:
    """Its transaction ends in the active segment."""
    for seed in range(6):
        with empty_disk() as disk:
            _supersede(disk.root, is_transaction)
            Cleaning(RealFiles(), disk.root, now_ms=1000).run()
            disk.power_cut(random.Random(seed))
            found = read_records(f"{disk.root}/t-0", isolation="read_committed")
            assert [record.value for record in found if record.key == b"k"] == [b"new"]


def test_a_log_never_ends_below_its_first_dirty_offset_where_the_writer_syncs_nothing() -> None:
    """It would grow past it, and tombstones that no cleaning has seen would count as clean: nothing had to be removed."""
    for seed in range(12):
        with empty_disk() as disk:
            writer = LogWriter(disk.root, "t", 0, segment_bytes=10_000)
            Producer(writer).put(b"k", b"value", 1)
            writer.roll()
            cleaning = Cleaning(RealFiles(), disk.root, now_ms=1000)
            assert (cleaning.run(), cleaning.staged) == (1, [])
            disk.power_cut(random.Random(seed))
            options = WriterOptions(repair=True)
            assert LogWriter(disk.root, "t", 0, segment_bytes=10_000, options=options).log_end_offset == 1


def _supersede(log_dir: str, is_transaction: bool) -> None:
    """A record that is on disk, one of the same key in a segment of its own; neither has room in the other's group."""
    with LogWriter(log_dir, "t", 0, segment_bytes=10_000, options=WriterOptions(fsync=True)) as writer:
        Producer(writer).put(b"k", b"old", 1)
        Producer(writer).put(b"x", bytes(300), 1)
        writer.roll()
    writer = LogWriter(log_dir, "t", 0, segment_bytes=10_000)
    producer = Producer(writer, producer_id=7)
    if is_transaction:
        producer.begin()
    producer.put(b"k", b"new", 2)
    producer.put(b"y", bytes(300), 2)
    writer.roll()
    if is_transaction:
        producer.commit(3)
