"""Checkpoints of a directory while logs come, go, move and shrink (spec disk A7, rules 0.12, 2.12, 2.14; C043 to C050)."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cleanerd.env.files import RealFiles
from cleanerd.errors import CorruptFile
from cleanerd.format import names
from cleanerd.format.checkpoint import EpochEntry, render_offset_checkpoint
from cleanerd.format.names import TopicPartition
from cleanerd.storage.checkpoints import (
    LOG_DIR_CHECKPOINTS,
    forget_partition,
    lower_checkpoint,
    read_checkpoints,
    read_leader_epochs,
    read_offsets,
    truncate_leader_epochs,
    update_cleaner_checkpoint,
)
from cleanerd.storage.partition_dir import PartitionDir
from tests.harness.disks.crashes import killed
from tests.harness.disks.simulated import SimDisk

FILES = RealFiles()
A, B = "/a", "/b"
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
Entries = dict[TopicPartition, int]
CLEANER = names.CLEANER_OFFSET_CHECKPOINT


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A log directory under our lock."""
    (tmp_path / names.LOCK).touch()
    return tmp_path


def log_dirs(a: Entries, b: Entries | None = None) -> SimDisk:
    """Two log directories with these cleaner checkpoints, and a partition directory for each entry."""
    disk = SimDisk()
    for path, entries in ((A, a), (B, b or {})):
        disk.mkdir(path)
        disk.put(f"{path}/{names.LOCK}", b"")
        for tp in entries:
            disk.mkdir(f"{path}/{tp}")
        if entries:
            disk.put(f"{path}/{CLEANER}", render_offset_checkpoint(entries))
    disk.restart()
    return disk


def cleaner(disk: SimDisk, log_dir: str = A) -> Entries:
    return read_offsets(disk, f"{log_dir}/{CLEANER}")


def interrupted(disk: SimDisk, action: Callable[[SimDisk], object]) -> Iterator[tuple[SimDisk, bool]]:
    """What a kill, or a power cut, before any operation of `action` leaves; and after the last one, with True.

    Never a `.tmp` of Kafka's own: written by another user, it would keep the broker from writing its checkpoint.
    """
    states = list(killed(disk, action))
    for number, state in enumerate(states):
        for cut in (None, *state.power_cuts(A)):
            left = state.copy()
            if cut is not None:
                left.power_cut(A, cut, seed=number)
            assert not [name for name in left.list_names(A) if name.endswith(".tmp")]
            yield left, number == len(states) - 1


# -- reading -------------------------------------------------------------------------------------------------


def test_c049_no_file_and_an_empty_one_are_no_entries(log_dir: Path) -> None:
    empty = log_dir / names.REPLICATION_CHECKPOINT
    empty.touch()
    found = read_checkpoints(FILES, str(log_dir))
    assert (found.cleaner, found.recovery_point, found.log_start, found.high_watermark) == ({}, {}, {}, {})


def test_each_of_the_four_comes_from_its_own_file(log_dir: Path) -> None:
    for number, name in enumerate(LOG_DIR_CHECKPOINTS):
        (log_dir / name).write_bytes(b"0\n1\nt 0 %d\n" % number)
    found = read_checkpoints(FILES, str(log_dir))
    offsets = [found.cleaner, found.recovery_point, found.log_start, found.high_watermark]
    assert offsets == [{T0: 0}, {T0: 1}, {T0: 2}, {T0: 3}]


def test_what_was_read_cannot_be_changed(log_dir: Path) -> None:
    """Equal bytes are parsed once, for all who read them."""
    update_cleaner_checkpoint(FILES, str(log_dir), {T0: 1})
    with pytest.raises(TypeError):
        read_offsets(FILES, str(log_dir / CLEANER))[T0] = 2  # type: ignore[index]


@pytest.mark.trap("checkpoint entries of another directory")
def test_c045_directories_know_nothing_of_each_other() -> None:
    """Also where one of them has failed: it is not asked, and the entries of the other are there as before."""
    disk = log_dirs({T0: 999}, {T1: 9})
    update_cleaner_checkpoint(disk, A, {T0: 1})
    assert (read_checkpoints(disk, A).cleaner, read_checkpoints(disk, B).cleaner) == ({T0: 1}, {T1: 9})


# -- 2.12 -----------------------------------------------------------------------------------------------------


tps = st.builds(TopicPartition, st.sampled_from(["t", "u.v", "w-x"]), st.integers(0, 3))
offsets = st.integers(0, 2**63 - 1)


@given(st.dictionaries(tps, offsets), st.dictionaries(tps, st.none() | offsets), st.sets(tps))
@example({T0: 5, T1: 6}, {T0: None}, {T0})  # C048
@example({}, {T0: 999}, set())  # C043
@example({T0: 999}, {T0: 1000, T1: 3}, set())  # C049
@example({T0: 999}, {T0: None}, set())  # C044
def test_2_12_c043_c044_c048_c049_in_kafkas_order(
    before: Entries, change: dict[TopicPartition, int | None], gone: set[TopicPartition]
) -> None:
    """Drop what is gone, remove, add; whatever the entries are, what is written is what is read."""
    disk = log_dirs(before)
    for tp in gone & before.keys():
        disk.rmdir(f"{A}/{tp}")
    update_cleaner_checkpoint(disk, A, change)
    after = {tp: offset for tp, offset in before.items() if tp not in gone} | change
    assert cleaner(disk) == {tp: offset for tp, offset in after.items() if offset is not None}


@pytest.mark.parametrize(
    ("moved", "segments", "is_live", "kept"),
    [
        (False, (60, 60, 60), False, 20),  # nothing was created or deleted in the directory since
        (False, (-60, 60), False, 10),  # nor is there what a cleaning has seen: the log is another one
        (True, (-60, -60), False, 20),
        (True, (60, 60), False, 0),
        (True, (-60, 60), False, 10),
        (True, (), False, 20),
        (True, (0.3,), False, 20),
        (True, (0.3,), True, 0),  # between two swaps a log that was created again is never a second newer
    ],
)
def test_2_11_what_was_written_after_the_checkpoint_is_not_clean_because_another_entry_is_written(
    tmp_path: Path, moved: bool, segments: tuple[float, ...], is_live: bool, kept: int
) -> None:
    """Seconds after the checkpoint; the file has one time for all its entries. `is_live`: a broker without cleaner."""
    path = tmp_path / CLEANER
    path.write_bytes(render_offset_checkpoint({T0: 20}))
    (tmp_path / names.LOCK).touch()
    directory = tmp_path / str(T0)
    directory.mkdir()
    written_s = path.stat().st_mtime
    for base, after_s in zip((0, 10, 20), segments, strict=False):
        log = directory / f"{base:020}.log"
        log.touch()
        os.utime(log, (written_s + after_s, written_s + after_s))
    dir_s = written_s + (60 if moved else -60)
    os.utime(directory, (dir_s, dir_s))
    update_cleaner_checkpoint(FILES, str(tmp_path), {T1: 7}, is_live=is_live)
    assert read_offsets(FILES, str(path)) == {T0: kept, T1: 7}


def test_threads_take_turns(log_dir: Path) -> None:
    """Beside a live broker without a cleaner each records what it has swapped, and none has `.lock`."""
    partitions = [TopicPartition("t", number) for number in range(64)]
    for tp in partitions:
        (log_dir / str(tp)).mkdir()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda tp: update_cleaner_checkpoint(FILES, str(log_dir), {tp: 9}), partitions))
    assert read_offsets(FILES, str(log_dir / CLEANER)) == dict.fromkeys(partitions, 9)


@pytest.mark.parametrize("old", [{}, {T0: 5, U0: 7}])
def test_interrupted_anywhere_leaves_the_old_or_the_new_file(old: Entries) -> None:
    """By a kill or a power cut; and the next update is not in the way of what is left."""
    after = old | {T0: 999}
    for left, is_done in interrupted(log_dirs(old), lambda d: update_cleaner_checkpoint(d, A, {T0: 999})):
        assert cleaner(left) in ((after,) if is_done else (old, after))
        update_cleaner_checkpoint(left, A, {T0: 1234})
        assert cleaner(left) == {**after, T0: 1234}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_broker_stays_owner_of_its_checkpoint(log_dir: Path) -> None:
    """Written by root under a tight umask, the file is still the broker's to read (spec disk A7: else offline)."""
    os.chown(log_dir / names.LOCK, 1234, 1235)
    (log_dir / names.LOCK).chmod(0o640)
    umask = os.umask(0o077)
    try:
        for _ in range(2):  # created, then replaced
            update_cleaner_checkpoint(FILES, str(log_dir), {T0: 1})
            found = (log_dir / CLEANER).stat()
            assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (1234, 1235, 0o640)
    finally:
        os.umask(umask)


# -- lowering, and logs that are gone -------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOG_DIR_CHECKPOINTS)
@pytest.mark.parametrize(("tp", "offset"), [(T0, 1000), (T0, 999), (T0, 1), (T1, 0)])
def test_c046_2_14_an_entry_is_only_lowered(name: str, tp: TopicPartition, offset: int) -> None:
    """What has no entry gets none. Nothing is written where nothing changes."""
    disk = log_dirs({U0: 7})
    disk.put(f"{A}/{name}", b"0\n2\nt 0 999\nu 0 7\n")
    is_lower = (tp, offset) == (T0, 1)
    assert lower_checkpoint(disk, A, name, tp, offset) == is_lower
    assert bool(disk.operations) == is_lower
    assert read_offsets(disk, f"{A}/{name}") == {T0: 1 if is_lower else 999, U0: 7}


def test_forgotten_partition_is_in_no_checkpoint_and_others_are_as_they_were() -> None:
    disk = log_dirs({U0: 7})
    *listed, unlisted = LOG_DIR_CHECKPOINTS
    for name in listed:
        disk.put(f"{A}/{name}", b"0\n2\nt 0 5\nu 0 7\n")
    disk.put(f"{A}/{unlisted}", b"0\n1\nu 0 7\n")
    before = disk.stat(f"{A}/{unlisted}")
    for left, _ in interrupted(disk, lambda d: forget_partition(d, A, T0)):
        assert left.stat(f"{A}/{unlisted}") == before, "no entry, no write"
        forget_partition(left, A, T0)
        assert all(read_offsets(left, f"{A}/{name}") == {U0: 7} for name in LOG_DIR_CHECKPOINTS)


# -- damage ---------------------------------------------------------------------------------------------------


DAMAGED = {
    "c050-version": (b"1\n1\nt 0 5\n", 0, "version 0"),
    "7.16b-offset": (b"0\n1\nt 0 much\n", 4, "a number"),
    "fields of the second": (b"0\n2\nt 0 5\nu 0\n", 10, "3 fields"),
}
VERBS: dict[str, Callable[[str], object]] = {
    "read": lambda a: read_checkpoints(FILES, a),
    "update": lambda a: update_cleaner_checkpoint(FILES, a, {T0: 1}),
    "lower": lambda a: lower_checkpoint(FILES, a, CLEANER, T0, 0),
    "forget": lambda a: forget_partition(FILES, a, T0),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("case", DAMAGED)
def test_7_16b_damage_is_an_error_with_file_byte_expected_and_found(
    log_dir: Path, verb: str, case: str
) -> None:
    """C050: never a dead thread, never a file written over, whoever meets it."""
    content, position, expected = DAMAGED[case]
    path = log_dir / CLEANER
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match=expected) as caught:
        VERBS[verb](str(log_dir))
    assert (caught.value.path, caught.value.position) == (str(path), position)
    assert caught.value.found
    assert path.read_bytes() == content
    assert sorted(os.listdir(log_dir)) == [names.LOCK, path.name]


# -- leader epochs --------------------------------------------------------------------------------------------


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
