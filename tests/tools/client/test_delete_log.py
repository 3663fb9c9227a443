"""Deletion of a log (rules 2.9, 5.23): nothing of it is taken for a new log of that name."""

import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.errors import CorruptFile, LockHeld, Retryable, SourceChanged
from cleanerd.format import names
from cleanerd.format.names import DirKind, TopicPartition, deleted_dir_name, parse_partition_dir
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.lock import LogDirLock, probe
from cleanerd.tools.client.delete_log import delete_log
from cleanerd.tools.client.producer import Producer
from tests.tools.client.cleaning import Cleaning
from tests.tools.client.killed import KilledFiles, killed_at_every_operation
from tests.tools.client.logs import Recording, contents, open_writer

FILES = RealFiles()
TP, OTHER = TopicPartition("t", 0), TopicPartition("u", 0)
CHECKPOINTS = (
    names.CLEANER_OFFSET_CHECKPOINT,
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_CHECKPOINT,
    names.REPLICATION_CHECKPOINT,
)


def fill(log_dir: Path) -> dict[str, bytes]:
    """A log that is in every checkpoint, beside another one."""
    with open_writer(log_dir) as writer:
        for n in range(5):
            Producer(writer).put(b"k", b"old %d" % n)
    (log_dir / str(OTHER)).mkdir(exist_ok=True)
    for name in CHECKPOINTS:
        (log_dir / name).write_text("0\n2\nt 0 4\nu 0 7\n")
    return contents(log_dir)


def entries(log_dir: Path, tp: TopicPartition) -> list[int]:
    found = read_checkpoints(FILES, str(log_dir))
    every = (found.cleaner, found.recovery_point, found.log_start, found.high_watermark)
    return [checkpoint[tp] for checkpoint in every if tp in checkpoint]


def test_5_23_renamed_whole_and_forgotten(tmp_path: Path) -> None:
    """C121: the deletion of a topic renames its directory at once."""
    before = fill(tmp_path)
    renamed = delete_log(str(tmp_path), "t", 0)
    assert sorted(os.listdir(tmp_path)) == sorted(
        [os.path.basename(renamed), str(OTHER), names.LOCK, *CHECKPOINTS]
    )
    left = {name: (Path(renamed) / name).read_bytes() for name in sorted(os.listdir(renamed))}
    assert left.pop(names.GENERATION)
    assert left == before
    parsed = parse_partition_dir(os.path.basename(renamed))
    assert parsed == (TP, DirKind.DELETE)
    assert entries(tmp_path, TP) == []
    assert entries(tmp_path, OTHER) == [7, 7, 7, 7]
    assert probe(str(tmp_path)) is None


def test_removed_on_request(tmp_path: Path) -> None:
    fill(tmp_path)
    renamed = delete_log(str(tmp_path), "t", 0, remove=True)
    assert not os.path.exists(renamed)
    assert sorted(os.listdir(tmp_path)) == sorted([str(OTHER), names.LOCK, *CHECKPOINTS])


@pytest.mark.parametrize("length", [1, 204, 205, 206, 249])
@pytest.mark.parametrize("partition", [0, 2**31 - 1])
def test_5_23_name_of_255_characters_at_most(length: int, partition: int) -> None:
    """The topic is cut, never partition or id; a name that fits is not cut."""
    tp = TopicPartition("x" * length, partition)
    name = deleted_dir_name(tp, "0123456789abcdef" * 2)
    assert len(name) == min(255, len(str(tp)) + 40)
    parsed = parse_partition_dir(name)
    assert parsed is not None
    assert parsed[0].partition == partition
    assert parsed[0].topic == "x" * min(length, 255 - 40 - len(str(partition)) - 1)
    assert parsed[1] is DirKind.DELETE


def test_no_such_log(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        delete_log(str(tmp_path), "t", 0)
    assert os.listdir(tmp_path) == [names.LOCK]


@pytest.mark.parametrize("reason", ["lock", "cleaner", *CHECKPOINTS])
def test_what_is_refused_keeps_the_log(tmp_path: Path, reason: str) -> None:
    """The lock of another, a cleaner that does not stop, a damaged checkpoint."""
    before = fill(tmp_path)
    if reason in CHECKPOINTS:
        (tmp_path / reason).write_text("0\n1\nt zero 5\n")
    error = {"lock": LockHeld, "cleaner": Retryable}.get(reason, CorruptFile)
    control = Recording(refuses=True) if reason == "cleaner" else None
    with LogDirLock(str(tmp_path)) if reason == "lock" else nullcontext(), pytest.raises(error):
        delete_log(str(tmp_path), "t", 0, control=control, lock_wait_s=0)
    assert contents(tmp_path) == before
    if reason not in CHECKPOINTS:
        assert len(entries(tmp_path, TP)) == 4


def test_killed_anywhere_and_made_anew(tmp_path: Path) -> None:
    """The log is there whole or it is gone; a new one of its name inherits no offset of it."""
    before = fill(tmp_path / "log")

    def delete(log_dir: Path, files: KilledFiles) -> None:
        delete_log(str(log_dir), "t", 0, files=files)

    gone = set()
    for log_dir in killed_at_every_operation(tmp_path / "log", tmp_path / "killed", delete):
        is_gone = not (log_dir / "t-0").exists()
        gone.add(is_gone)
        if not is_gone:
            assert contents(log_dir) == before
            assert read_checkpoints(FILES, str(log_dir)).log_start[TP] == 4, "what was deleted stays deleted"
            delete_log(str(log_dir), "t", 0)
        with open_writer(log_dir) as writer:
            assert writer.log_end_offset == 0
            assert entries(log_dir, TP) == []
            assert entries(log_dir, OTHER) == [7, 7, 7, 7]
            assert Producer(writer).put(b"k", b"new") == 0
        shutil.rmtree(log_dir)
    assert gone == {False, True}


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
    delete_log(str(tmp_path), "t", 0, remove=removed)
    write()
    before = contents(tmp_path)
    if cleaning.staged:
        assert cleaning.commit() is None, "what was staged went with the log"
    else:
        with pytest.raises(SourceChanged, match="created again"):
            cleaning.commit()
    assert contents(tmp_path) == before
    assert read_checkpoints(FILES, str(tmp_path)).cleaner == {}
