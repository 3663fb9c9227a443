"""Offset checkpoints and leader epochs of a directory (spec disk A7, rules 0.12, 2.12; cases C043, C045, C049, C050)."""

import os
from pathlib import Path

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.errors import CorruptFile
from cleanerd.format import names
from cleanerd.format.checkpoint import EpochEntry
from cleanerd.format.names import TopicPartition
from cleanerd.storage.checkpoints import (
    read_checkpoints,
    read_leader_epochs,
    read_offsets,
    update_cleaner_checkpoint,
)
from cleanerd.storage.partition_dir import PartitionDir
from tests.sim.disk import SimDisk, SwitchedOff

FILES = RealFiles()
LOG_DIR = "/logs"
CLEANER = f"{LOG_DIR}/{names.CLEANER_OFFSET_CHECKPOINT}"
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
OLD = b"0\n2\nt 0 5\nu 0 7\n"
BEFORE, AFTER = {T0: 5, U0: 7}, {T0: 999, U0: 7}


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A log directory under our lock."""
    (tmp_path / names.LOCK).touch()
    return tmp_path


def disk_with(content: bytes | None) -> SimDisk:
    """A log directory with this cleaner checkpoint."""
    disk = SimDisk()
    disk.mkdir(LOG_DIR)
    for tp in BEFORE:
        disk.mkdir(f"{LOG_DIR}/{tp}")
    disk.put(f"{LOG_DIR}/{names.LOCK}", b"")
    if content is not None:
        disk.put(CLEANER, content)
    disk.restart()
    return disk


def test_c043_c049_added_offset_is_read_back_and_a_second_write_replaces_the_first(log_dir: Path) -> None:
    update_cleaner_checkpoint(FILES, str(log_dir), {T0: 999})
    assert read_checkpoints(FILES, str(log_dir)).cleaner == {T0: 999}
    (log_dir / str(T0)).mkdir()
    update_cleaner_checkpoint(FILES, str(log_dir), {T0: 1000, T1: 3})
    assert read_checkpoints(FILES, str(log_dir)).cleaner == {T0: 1000, T1: 3}


def test_2_12_entries_of_other_partitions_stay(log_dir: Path) -> None:
    path = log_dir / names.CLEANER_OFFSET_CHECKPOINT
    path.write_bytes(OLD)
    for tp in BEFORE:
        (log_dir / str(tp)).mkdir()
    update_cleaner_checkpoint(FILES, str(log_dir), {T0: 999})
    assert path.read_bytes() == b"0\n2\nt 0 999\nu 0 7\n"


def test_c049_no_file_and_an_empty_one_are_no_entries(log_dir: Path) -> None:
    empty = log_dir / names.REPLICATION_CHECKPOINT
    empty.touch()
    found = read_checkpoints(FILES, str(log_dir))
    assert (found.cleaner, found.recovery_point, found.log_start, found.high_watermark) == ({}, {}, {}, {})


def test_each_of_the_four_comes_from_its_own_file(log_dir: Path) -> None:
    files = (
        names.CLEANER_OFFSET_CHECKPOINT,
        names.RECOVERY_POINT_CHECKPOINT,
        names.LOG_START_CHECKPOINT,
        names.REPLICATION_CHECKPOINT,
    )
    for number, name in enumerate(files):
        (log_dir / name).write_bytes(b"0\n1\nt 0 %d\n" % number)
    found = read_checkpoints(FILES, str(log_dir))
    assert [found.cleaner, found.recovery_point, found.log_start, found.high_watermark] == [
        {T0: 0},
        {T0: 1},
        {T0: 2},
        {T0: 3},
    ]


def test_c045_directories_know_nothing_of_each_other(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / names.LOCK).touch()
    update_cleaner_checkpoint(FILES, str(tmp_path / "a"), {T0: 1})
    update_cleaner_checkpoint(FILES, str(tmp_path / "b"), {T1: 2})
    assert read_checkpoints(FILES, str(tmp_path / "b")).cleaner == {T1: 2}


@pytest.mark.parametrize(
    ("content", "position"),
    [
        pytest.param(b"1\n1\nt 0 5\n", 0, id="c050-other-version"),
        pytest.param(b"x\n", 0, id="no-version"),
        pytest.param(b"0\n", 2, id="no-count"),
        pytest.param(b"0\n3\nt 0 5\n", 2, id="wrong-count"),
        pytest.param(b"0\n2\nt 0 5\nu 0\n", 10, id="two-fields"),
        pytest.param(b"0\n1\nt 0 much\n", 4, id="no-number"),
        pytest.param(b"\x00" * 16, 0, id="zeros"),
    ],
)
def test_malformed_checkpoint_is_named_with_its_byte_and_never_overwritten(
    log_dir: Path, content: bytes, position: int
) -> None:
    """C050:"""
    path = log_dir / names.CLEANER_OFFSET_CHECKPOINT
    path.write_bytes(content)
    for action in (
        lambda: read_checkpoints(FILES, str(log_dir)),
        lambda: update_cleaner_checkpoint(FILES, str(log_dir), {T0: 9}),
    ):
        with pytest.raises(CorruptFile) as caught:
            action()
        assert (caught.value.path, caught.value.position) == (str(path), position)
    assert path.read_bytes() == content
    assert sorted(os.listdir(log_dir)) == [names.LOCK, path.name]


@pytest.mark.parametrize("old", [None, OLD])
def test_interrupted_anywhere_leaves_the_old_or_the_new_file(old: bytes | None) -> None:
    """By a kill or a power cut; and the next update is not in the way of what is left."""
    before, after = (BEFORE, AFTER) if old is not None else ({}, {T0: 999})
    for operations in range(20):
        disk = disk_with(old)
        disk.stop_after = operations
        try:
            update_cleaner_checkpoint(disk, LOG_DIR, {T0: 999})
        except SwitchedOff:
            is_done = False
        else:
            is_done = True
        for cut in (None, *disk.power_cuts(LOG_DIR)):
            left = disk.copy()
            if cut is not None:
                left.power_cut(LOG_DIR, cut, seed=operations)
            assert read_offsets(left, CLEANER) in ((after,) if is_done else (before, after))
            update_cleaner_checkpoint(left, LOG_DIR, {T0: 1234})
            assert read_offsets(left, CLEANER) == {**after, T0: 1234}
        if is_done:
            return
    raise AssertionError("the update never ends")


def test_no_file_of_kafkas_own_is_ever_left_behind() -> None:
    """Its `.tmp`, written by another user, would keep the broker from writing its checkpoint (spec disk A7)."""
    for operations in range(5):
        disk = disk_with(OLD)
        disk.stop_after = operations
        with pytest.raises(SwitchedOff):
            update_cleaner_checkpoint(disk, LOG_DIR, {T0: 1})
        assert not [name for name in disk.list_names(LOG_DIR) if name.endswith(".tmp")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_broker_stays_owner_of_its_checkpoint(log_dir: Path) -> None:
    """Written by root under a tight umask, the file is still the broker's to read (spec disk A7: else offline)."""
    os.chown(log_dir / names.LOCK, 1234, 1235)
    (log_dir / names.LOCK).chmod(0o640)
    umask = os.umask(0o077)
    try:
        for _ in range(2):  # created, then replaced
            update_cleaner_checkpoint(FILES, str(log_dir), {T0: 1})
            found = (log_dir / names.CLEANER_OFFSET_CHECKPOINT).stat()
            assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (1234, 1235, 0o640)
    finally:
        os.umask(umask)


def test_what_was_read_belongs_to_the_reader(log_dir: Path) -> None:
    """Equal bytes are parsed once; nobody hears of what another makes of them."""
    path = str(log_dir / names.CLEANER_OFFSET_CHECKPOINT)
    update_cleaner_checkpoint(FILES, str(log_dir), {T0: 1})
    read_offsets(FILES, path).clear()
    assert read_offsets(FILES, path) == {T0: 1}


def test_leader_epochs_are_read_in_order_and_may_be_absent(tmp_path: Path) -> None:
    assert read_leader_epochs(PartitionDir(FILES, str(tmp_path))) == ()
    (tmp_path / names.LEADER_EPOCH_CHECKPOINT).write_bytes(b"0\n2\n0 0\n3 40\n")
    assert read_leader_epochs(PartitionDir(FILES, str(tmp_path))) == (EpochEntry(0, 0), EpochEntry(3, 40))


def test_malformed_leader_epochs_are_named_with_their_byte(tmp_path: Path) -> None:
    path = tmp_path / names.LEADER_EPOCH_CHECKPOINT
    path.write_bytes(b"0\n2\n3 40\n5 -1\n")
    with pytest.raises(CorruptFile) as caught:
        read_leader_epochs(PartitionDir(FILES, str(tmp_path)))
    assert (caught.value.path, caught.value.position) == (str(path), 9)
