"""Keeping checkpoints true while logs come, go, move and shrink (rules 2.12, 2.14, 7.16b; cases C043 to C050)."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.env.files import RealFiles
from cleanerd.errors import CorruptFile
from cleanerd.format import names
from cleanerd.format.checkpoint import render_offset_checkpoint
from cleanerd.format.names import TopicPartition
from cleanerd.storage.checkpoints import (
    forget_partition,
    lower_checkpoint,
    read_checkpoints,
    read_offsets,
    truncate_cleaner_checkpoint,
    truncate_leader_epochs,
    update_cleaner_checkpoint,
)
from cleanerd.storage.partition_dir import PartitionDir
from tests.sim.disk import SimDisk, SwitchedOff

FILES = RealFiles()
A, B = "/a", "/b"
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
Entries = dict[TopicPartition, int]


def log_dirs(a: Entries, b: Entries | None = None) -> SimDisk:
    """Two log directories with these cleaner checkpoints, and a partition directory for each entry."""
    disk = SimDisk()
    for path, entries in ((A, a), (B, b or {})):
        disk.mkdir(path)
        disk.put(f"{path}/{names.LOCK}", b"")
        for tp in entries:
            disk.mkdir(f"{path}/{tp}")
        if entries:
            disk.put(f"{path}/{names.CLEANER_OFFSET_CHECKPOINT}", render_offset_checkpoint(entries))
    disk.restart()
    return disk


def cleaner(disk: SimDisk, log_dir: str = A) -> Entries:
    return read_offsets(disk, f"{log_dir}/{names.CLEANER_OFFSET_CHECKPOINT}")


def accidents(disk: SimDisk, action: Callable[[SimDisk], object]) -> list[SimDisk]:
    """What a kill, or a power cut, before any operation of `action` leaves, and after the last."""
    found = []
    while True:
        copy = disk.copy()
        copy.stop_after = len(found)
        try:
            action(copy)
        except SwitchedOff:
            found.append(copy)
            continue
        killed = [*found, copy]
        cuts = [one.copy() for one in killed for _ in range(8)]
        for seed, cut in enumerate(cuts):
            cut.crash(seed)
        for one in killed:
            one.restart()
        return [*killed, *cuts]


# -- 2.12 ----------------------------------------------------------------------------------------------------


def test_c043_add_offset_to_partition() -> None:
    disk = log_dirs({})
    update_cleaner_checkpoint(disk, A, {T0: 999})
    assert cleaner(disk) == {T0: 999}


def test_c044_remove_partition_data() -> None:
    disk = log_dirs({})
    update_cleaner_checkpoint(disk, A, {T0: 999})
    update_cleaner_checkpoint(disk, A, {T0: None})
    assert cleaner(disk) == {}


def test_c048_partition_that_is_gone_and_removed_is_no_longer_listed() -> None:
    disk = log_dirs({T0: 5, T1: 6})
    disk.rmdir(f"{A}/{T0}")
    update_cleaner_checkpoint(disk, A, {T0: None})
    assert disk.read(f"{A}/{names.CLEANER_OFFSET_CHECKPOINT}") == b"0\n1\nt 1 6\n"


def test_2_12_entries_of_partitions_that_are_gone_are_dropped_but_what_is_added_need_not_be_there() -> None:
    disk = log_dirs({T0: 5, T1: 6, U0: 7})
    for gone in (T1, U0):
        disk.rmdir(f"{A}/{gone}")
    update_cleaner_checkpoint(disk, A, {U0: 8})
    assert cleaner(disk) == {T0: 5, U0: 8}


tps = st.builds(TopicPartition, st.sampled_from(["t", "u.v", "w-x"]), st.integers(0, 3))
offsets = st.integers(0, 2**63 - 1)


@given(st.dictionaries(tps, offsets), st.dictionaries(tps, st.none() | offsets), st.sets(tps))
def test_2_12_in_kafkas_order(
    before: Entries, change: dict[TopicPartition, int | None], gone: set[TopicPartition]
) -> None:
    """Drop what is gone, remove, add; whatever the entries are, what is written is what is read."""
    disk = log_dirs(before)
    for tp in gone & before.keys():
        disk.rmdir(f"{A}/{tp}")
    update_cleaner_checkpoint(disk, A, change)
    expected = {tp: offset for tp, offset in before.items() if tp not in gone}
    for tp, offset in change.items():
        expected.pop(tp, None)
        if offset is not None:
            expected[tp] = offset
    assert cleaner(disk) == expected


@pytest.mark.parametrize(
    ("moved", "segments", "kept"),
    [
        (False, (60, 60), 20),  # nothing was created or deleted in the directory since
        (True, (-60, -60), 20),
        (True, (60, 60), 0),
        (True, (-60, 60), 10),
        (True, (), 20),
    ],
)
def test_2_11_what_was_written_after_the_checkpoint_is_not_clean_because_another_entry_is_written(
    tmp_path: Path, moved: bool, segments: tuple[int, ...], kept: int
) -> None:
    """Seconds after the checkpoint; the file has one time for all its entries."""
    path = tmp_path / names.CLEANER_OFFSET_CHECKPOINT
    path.write_bytes(render_offset_checkpoint({T0: 20}))
    (tmp_path / names.LOCK).touch()
    directory = tmp_path / str(T0)
    directory.mkdir()
    written_s = path.stat().st_mtime
    for base, after_s in zip((0, 10), segments, strict=False):
        log = directory / f"{base:020}.log"
        log.touch()
        os.utime(log, (written_s + after_s, written_s + after_s))
    dir_s = written_s + (60 if moved else -60)
    os.utime(directory, (dir_s, dir_s))
    update_cleaner_checkpoint(FILES, str(tmp_path), {T1: 7})
    assert read_offsets(FILES, str(path)) == {T0: kept, T1: 7}


# -- 2.14 ----------------------------------------------------------------------------------------------------


def test_c046_maybe_truncate_checkpoint_should_truncate_data() -> None:
    disk = log_dirs({T0: 999})
    assert not truncate_cleaner_checkpoint(disk, A, T0, 1000)
    assert cleaner(disk) == {T0: 999}
    assert truncate_cleaner_checkpoint(disk, A, T0, 1)
    assert cleaner(disk) == {T0: 1}


def test_2_14_only_downwards() -> None:
    """The default is 0: what has no entry gets none. Nothing is written where nothing changes."""
    disk = log_dirs({T0: 999})
    assert not truncate_cleaner_checkpoint(disk, A, T1, 0)
    assert not truncate_cleaner_checkpoint(disk, A, T0, 999)
    assert disk.operations == []
    assert cleaner(disk) == {T0: 999}


# -- 2.15, one entry for all directories -----------------------------------------------------------------------


def test_c045_only_the_directory_that_works_is_read() -> None:
    """A directory that failed is not asked; the entries of the other are there as before."""
    disk = log_dirs({T0: 999}, {T1: 9})
    assert read_checkpoints(disk, B).cleaner == {T1: 9}


# -- logs that are gone --------------------------------------------------------------------------------------

ALL_FOUR = (
    names.CLEANER_OFFSET_CHECKPOINT,
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_CHECKPOINT,
    names.REPLICATION_CHECKPOINT,
)


def test_forgotten_partition_is_in_no_checkpoint_and_others_are_as_they_were() -> None:
    disk = log_dirs({U0: 7})
    for name in ALL_FOUR[:3]:
        disk.put(f"{A}/{name}", b"0\n2\nt 0 5\nu 0 7\n")
    disk.put(f"{A}/{names.REPLICATION_CHECKPOINT}", b"0\n1\nu 0 7\n")
    before = disk.stat(f"{A}/{names.REPLICATION_CHECKPOINT}")
    for left in accidents(disk, lambda d: forget_partition(d, A, T0)):
        forget_partition(left, A, T0)
        assert all(read_offsets(left, f"{A}/{name}") == {U0: 7} for name in ALL_FOUR)
    assert disk.stat(f"{A}/{names.REPLICATION_CHECKPOINT}") == before, "no entry, no write"


@pytest.mark.parametrize("name", ALL_FOUR)
def test_lowering_works_on_each_of_the_four(name: str) -> None:
    disk = log_dirs({U0: 7})
    disk.put(f"{A}/{name}", b"0\n2\nt 0 5\nu 0 7\n")
    assert lower_checkpoint(disk, A, name, T0, 3)
    assert read_offsets(disk, f"{A}/{name}") == {T0: 3, U0: 7}


# -- damage --------------------------------------------------------------------------------------------------

DAMAGED = {
    "c050-version": (b"1\n1\nt 0 5\n", 0, "version 0"),
    "7.16b-offset": (b"0\n1\nt 0 much\n", 4, "a number"),
    "7.16b-partition": (b"0\n1\nt zero 5\n", 4, "a number"),
    "fields": (b"0\n1\nt 5\n", 4, "3 fields"),
    "count": (b"0\n7\nt 0 5\n", 2, "7 entries"),
}
MAINTENANCE: dict[str, Callable[[str], object]] = {
    "read": lambda a: read_checkpoints(FILES, a),
    "update": lambda a: update_cleaner_checkpoint(FILES, a, {T0: 1}),
    "truncate": lambda a: truncate_cleaner_checkpoint(FILES, a, T0, 0),
    "forget": lambda a: forget_partition(FILES, a, T0),
}


@pytest.mark.parametrize("verb", MAINTENANCE)
@pytest.mark.parametrize("case", DAMAGED)
def test_7_16b_damage_is_an_error_with_file_byte_expected_and_found(
    tmp_path: Path, verb: str, case: str
) -> None:
    """Never a dead thread, never a file written over, whoever meets it."""
    content, position, expected = DAMAGED[case]
    path = tmp_path / names.CLEANER_OFFSET_CHECKPOINT
    path.write_bytes(content)
    (tmp_path / names.LOCK).touch()
    with pytest.raises(CorruptFile, match=expected) as caught:
        MAINTENANCE[verb](str(tmp_path))
    assert (caught.value.path, caught.value.position) == (str(path), position)
    assert caught.value.found
    assert path.read_bytes() == content
    assert sorted(os.listdir(tmp_path)) == [names.LOCK, path.name]


# -- leader epochs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "kept"),
    [(0, b"0\n0\n"), (1, b"0\n1\n0 0\n"), (40, b"0\n1\n0 0\n"), (41, b"0\n2\n0 0\n3 40\n")],
)
def test_leader_epochs_that_start_at_the_new_end_or_later_go(offset: int, kept: bytes) -> None:
    """Spec disk A6."""
    disk = log_dirs({})
    path = f"{A}/{names.LEADER_EPOCH_CHECKPOINT}"
    disk.put(path, b"0\n2\n0 0\n3 40\n")
    truncate_leader_epochs(PartitionDir(disk, A), offset)
    assert disk.read(path) == kept
    truncate_leader_epochs(PartitionDir(disk, B), offset)
    assert not disk.exists(f"{B}/{names.LEADER_EPOCH_CHECKPOINT}")
