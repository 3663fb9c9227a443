"""A log that is deleted and written anew under its name: nothing of the old one is taken for the new one (rule 2.9)."""

import os
import shutil
from pathlib import Path

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.errors import SourceChanged
from cleanerd.format import names
from cleanerd.format.names import TopicPartition
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.tools.client.producer import Producer
from tests.harness.logs.written import contents, open_writer
from tests.harness.spark.in_process import Cleaning

FILES = RealFiles()
TP, OTHER = TopicPartition("t", 0), TopicPartition("u", 0)
CHECKPOINTS = (
    names.CLEANER_OFFSET_CHECKPOINT,
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_CHECKPOINT,
    names.REPLICATION_CHECKPOINT,
)


def delete(log_dir: Path, *, removed: bool) -> None:
    """As a broker does, at once and after its delay; the checkpoints keep what they have, as after a crash."""
    renamed = log_dir / f"t-0.{'0af1' * 8}-delete"
    os.rename(log_dir / str(TP), renamed)
    if removed:
        shutil.rmtree(renamed)


def entries(log_dir: Path, tp: TopicPartition) -> list[int]:
    found = read_checkpoints(FILES, str(log_dir))
    every = (found.cleaner, found.recovery_point, found.log_start, found.high_watermark)
    return [checkpoint[tp] for checkpoint in every if tp in checkpoint]


def test_a_new_log_inherits_no_offset(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        for n in range(5):
            Producer(writer).put(b"k", b"old %d" % n)
    (tmp_path / str(OTHER)).mkdir()
    for name in CHECKPOINTS:
        (tmp_path / name).write_text("0\n2\nt 0 4\nu 0 7\n")
    delete(tmp_path, removed=True)
    with open_writer(tmp_path) as writer:
        assert writer.log_end_offset == 0
        assert entries(tmp_path, TP) == []
        assert entries(tmp_path, OTHER) == [7, 7, 7, 7]
        assert Producer(writer).put(b"k", b"new") == 0


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize("keys", [3, 9])
def test_cleaning_of_a_deleted_log_is_not_committed_over_its_successor(
    tmp_path: Path, keys: int, removed: bool
) -> None:
    """Not even its checkpoint, if it found nothing to change: tombstones below it would go before the values that they
    delete.
    """

    def write() -> None:
        with open_writer(tmp_path, segment_bytes=200) as writer:
            for n in range(9):
                Producer(writer).put(b"%d" % (n % keys), b"v")

    write()
    cleaning = Cleaning(FILES, str(tmp_path), 1000)
    assert cleaning.choose()
    cleaning.index()
    if not cleaning.is_ready:
        cleaning.stage()
    delete(tmp_path, removed=removed)
    write()
    before = contents(tmp_path)
    if cleaning.staged:
        assert cleaning.commit() is None, "what was staged went with the log"
    else:
        with pytest.raises(SourceChanged, match="created again"):
            cleaning.commit()
    assert contents(tmp_path) == before
    assert read_checkpoints(FILES, str(tmp_path)).cleaner == {}
