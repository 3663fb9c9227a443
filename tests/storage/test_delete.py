"""Deletion of the oldest segments (rule 6.7): however it ends, what is left is the end of the log, without a hole."""

import contextlib
import itertools
import os
from collections.abc import Sequence

import pytest

from cleanerd.errors import SourceChanged
from cleanerd.storage.delete import deleted_files, retire_segments, unlink_all
from cleanerd.storage.partition_dir import PartitionDir, bases_of
from tests.harness.disks import kafka_startup
from tests.harness.disks.crashes import killed, switched_off
from tests.harness.disks.simulated import SimDisk, SwitchedOff
from tests.harness.logs.model import DIRECTORY

BASES = (0, 10, 20, 30, 40)
GOING = BASES[:3]
KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


def a_log() -> SimDisk:
    """Five segments, each with transactions of its own."""
    disk = SimDisk()
    disk.mkdir(DIRECTORY)
    for base, kind in itertools.product(BASES, KINDS):
        disk.put(f"{DIRECTORY}/{base:020d}{kind}", f"{kind} of {base}".encode())
    disk.restart()
    return disk


def delete_segments(disk: SimDisk, bases: Sequence[int]) -> None:
    """All steps, one after the other."""
    if bases:
        assert unlink_all(disk, retire_segments(PartitionDir(disk, DIRECTORY), bases)) == {}


def interrupted() -> list[SimDisk]:
    """The disk before every operation of a deletion, and after the last."""
    return list(killed(a_log(), lambda disk: delete_segments(disk, GOING)))


def live(disk: SimDisk) -> list[int]:
    """Base offsets of the segments."""
    return bases_of(disk.list_names(DIRECTORY))


def assert_is_end_of_log(disk: SimDisk) -> None:
    """A suffix of the segments, and each of them has its transaction index: else aborted data would count."""
    bases = live(disk)
    assert tuple(bases) == BASES[len(BASES) - len(bases) :]
    assert set(bases) >= set(BASES) - set(GOING)
    for base in bases:
        assert disk.exists(f"{DIRECTORY}/{base:020d}.txnindex"), f"{base} lost its transaction index"


def test_a_deletion_killed_anywhere_is_ended_by_the_next_one() -> None:
    for disk in interrupted():
        disk.restart()
        delete_segments(disk, [base for base in live(disk) if base in GOING])
        assert live(disk) == [30, 40]


@pytest.mark.fault("the power fails")
@pytest.mark.parametrize("with_broker", [False, True])
def test_power_cut_anywhere_leaves_the_end_of_the_log(with_broker: bool) -> None:
    """So does a kill. Of what was not synced any subset may be lost; a newer segment never goes before an older one."""
    for disk in interrupted():
        for after in (disk, *switched_off(disk)):
            if with_broker:
                after.restart()
                kafka_startup.start(after, DIRECTORY, lambda content, base: base + 10)
                assert not [name for name in after.list_names(DIRECTORY) if name.endswith(".deleted")]
            assert_is_end_of_log(after)


def test_power_cut_after_a_killed_deletion_went_on_leaves_no_hole() -> None:
    """What the killed process renamed is seen by the next one, but need not be on disk yet."""
    for disk, operations in itertools.product(interrupted()[:8], range(5)):
        disk.restart()
        disk.stop_after = operations
        with contextlib.suppress(SwitchedOff):
            delete_segments(disk, [base for base in live(disk) if base in GOING])
        for after in switched_off(disk):
            assert_is_end_of_log(after)


def test_6_7_nothing_of_a_retired_segment_is_deleted_before_its_time() -> None:
    """`.log`, indexes and the producer snapshots at their bases are renamed (5.6); nothing else is touched."""
    disk = a_log()
    disk.put(f"{DIRECTORY}/leader-epoch-checkpoint", b"")
    paths = retire_segments(PartitionDir(disk, DIRECTORY), GOING)
    assert set(paths) == {
        f"{DIRECTORY}/{base:020d}{kind}.deleted" for base, kind in itertools.product(GOING, KINDS)
    }
    kept = {f"{DIRECTORY}/{base:020d}{kind}" for base, kind in itertools.product((30, 40), KINDS)}
    kept.add(f"{DIRECTORY}/leader-epoch-checkpoint")
    assert {f"{DIRECTORY}/{name}" for name in disk.list_names(DIRECTORY)} == {*kept, *paths}
    assert set(deleted_files(PartitionDir(disk, DIRECTORY))) == set(paths)
    assert disk.unsynced(DIRECTORY) == 0


def test_what_an_interrupted_deletion_left_goes_with_the_next() -> None:
    """Indexes without a `.log`, snapshots below the log start (rules 5.19, 10.5), `.deleted` files."""
    disk = a_log()
    disk.rename(f"{DIRECTORY}/{0:020d}.log", f"{DIRECTORY}/{0:020d}.log.deleted")
    disk.put(f"{DIRECTORY}/{7:020d}.snapshot", b"stray")
    delete_segments(disk, [10])
    expected = {f"{base:020d}{kind}" for base, kind in itertools.product((20, 30, 40), KINDS)}
    assert set(disk.list_names(DIRECTORY)) == expected


def test_a_segment_is_never_taken_from_the_middle() -> None:
    disk = a_log()
    before = disk.listing(DIRECTORY)
    with pytest.raises(SourceChanged, match=r"00000\.log"):
        retire_segments(PartitionDir(disk, DIRECTORY), [10, 20])
    assert disk.listing(DIRECTORY) == before


def test_5_8_every_file_is_attempted_and_missing_ones_are_passed_over() -> None:
    class Failing(SimDisk):
        def unlink(self, path: str) -> None:
            if path.endswith(".index.deleted"):
                raise PermissionError(13, "not this one", path)
            super().unlink(path)

    disk = Failing()
    disk.mkdir(DIRECTORY)
    paths = [f"{DIRECTORY}/{0:020d}{kind}.deleted" for kind in KINDS]
    for path in paths[:-1]:
        disk.put(path, b"")
    failed = unlink_all(disk, paths)
    assert list(failed) == [paths[1]]
    assert disk.list_names(DIRECTORY) == [os.path.basename(paths[1])]
