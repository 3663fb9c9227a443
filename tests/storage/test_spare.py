"""A group that was written on another file system takes the place of its sources (`storage.spare`): stopped at each
operation on a disk in memory with two file systems, by a kill, a power failure and an error; and what goes on from there.
"""

import errno
import itertools
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from cleanerd.errors import LogUncleanable, NoSpace, SourceChanged
from cleanerd.format.names import RESCUE, FileKind, SegmentFileName
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.spare import commit_from_spare, interrupted, on_spare, resume
from cleanerd.storage.staged import SourceSegment, StagedGroup, write_manifest
from tests.harness.disks.crashes import killed
from tests.harness.disks.simulated import SimDisk

LOG, SPARE = "/log/t-0", "/spare/t-0"
BASES, NEXT = (0, 10), 20
KINDS = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)
NEW = {kind: b"new " + kind.value.encode() * 20 for kind in KINDS}


def full_disk() -> SimDisk:
    """Two sources, the segment behind them, and what is to replace them staged on the spare."""
    disk = SimDisk()
    for directory in (LOG, SPARE):
        disk.mkdir(directory)
    for base, kind in itertools.product((*BASES, NEXT), (*KINDS, FileKind.PRODUCER_SNAPSHOT)):
        disk.put(f"{LOG}/{SegmentFileName(base, kind)}", f"{kind.value} of {base}".encode())
    log, spare = PartitionDir(disk, LOG), PartitionDir(disk, SPARE)
    sources = [SourceSegment.of(base, log.stat(SegmentFileName(base, FileKind.LOG))) for base in BASES]
    group = StagedGroup(
        sources=tuple(sources), next_base_offset=NEXT, round_end=NEXT, sizes={kind: len(NEW[kind]) for kind in KINDS},
        log_mtime_ns=sources[-1].mtime_ns, last_offset=15, leader_epochs=(), is_last=True, moves_checkpoint=False,
    )  # fmt: skip
    for kind in KINDS:
        disk.put(spare.path_of(group.staged(kind)), NEW[kind])
        disk.set_mtime_ns(spare.path_of(group.staged(kind)), group.log_mtime_ns)
    write_manifest(spare, group, like=log.path_of(SegmentFileName(0, FileKind.LOG)))
    disk.restart()
    return disk


def commit(disk: SimDisk) -> None:
    commit_from_spare(PartitionDir(disk, LOG), PartitionDir(disk, SPARE))


def old_log(disk: SimDisk) -> bool:
    """All that was there, and nothing that keeps a broker from loading it."""
    before, found = full_disk().listing(LOG), disk.listing(LOG)
    return before.items() <= found.items() and set(found) - set(before) <= {f"{RESCUE}.cleanerd"}


def new_log(disk: SimDisk) -> bool:
    found = {
        name: content for name, content in disk.listing(LOG).items() if not name.startswith(f"{NEXT:020}")
    }
    expected = {str(SegmentFileName(0, kind)): NEW[kind] for kind in KINDS}
    return found == expected | {f"{0:020}.snapshot": b".snapshot of 0"}


def bytes_used(disk: SimDisk) -> int:
    return sum(map(len, disk.listing(LOG).values()))


def switched_off(disk: SimDisk) -> Iterator[SimDisk]:
    """What a power cut may leave of both file systems."""
    for on_log, on_other in itertools.product(disk.power_cuts(LOG), disk.power_cuts(SPARE, 1)):
        copy = disk.copy()
        copy.power_cut(LOG, on_log, seed=len(on_log))
        copy.power_cut(SPARE, on_other, seed=len(on_other))
        yield copy


def assert_ends_well(disk: SimDisk) -> None:
    """A broker that starts now has all of the old log, or all of the new one, or does not start; the next rescue ends it."""
    log = PartitionDir(disk, LOG)
    if interrupted(log):
        with pytest.raises(LogUncleanable, match="a rescue was interrupted"):
            log.names()  # whoever else comes leaves it alone
        resume(log)
        resume_again = not interrupted(log)
        assert resume_again
    assert old_log(disk) or new_log(disk), disk.listing(LOG)


def test_whenever_it_is_killed_the_log_is_old_or_new_or_no_broker_loads_it() -> None:
    ends = [new_log(disk) for disk in killed(full_disk(), commit) if not assert_ends_well(disk)]
    assert ends[0] is False
    assert ends[-1] is True


def test_whatever_a_power_failure_leaves_is_ended_by_the_next_rescue() -> None:
    for stopped in killed(full_disk(), commit):
        for disk in switched_off(stopped):
            assert_ends_well(disk)


def test_a_rescue_that_is_killed_while_it_goes_on_is_gone_on_with() -> None:
    for stopped in killed(full_disk(), commit):
        if interrupted(PartitionDir(stopped, LOG)):
            stopped.restart()
            for again in killed(stopped, lambda disk: resume(PartitionDir(disk, LOG))):
                assert_ends_well(again)


def test_going_on_takes_no_more_room_than_the_exchange() -> None:
    """The disk is full: there is room for the new segment once, in the place of its sources."""
    most = max(map(bytes_used, killed(full_disk(), commit)))
    for stopped in killed(full_disk(), commit):
        if interrupted(PartitionDir(stopped, LOG)):
            again = killed(stopped, lambda disk: resume(PartitionDir(disk, LOG)))
            assert max(map(bytes_used, again)) <= most, stopped.listing(LOG).keys()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_error_at_any_operation_on_either_file_system_is_what_a_kill_is(number: int) -> None:
    """Before the first source goes, what was written is taken back."""
    count = sum(1 for _ in killed(full_disk(), commit)) - 1
    for failing in range(count):
        disk, seen = full_disk(), itertools.count()

        def record(real: Any, *operation: str, _seen: Any = seen, _failing: int = failing) -> None:
            if next(_seen) == _failing:
                raise OSError(number, "injected", operation[1])
            real(*operation)

        disk._record = partial(record, disk._record)  # type: ignore[method-assign]
        with pytest.raises(OSError, match="injected"):
            commit(disk)
        del disk._record
        assert old_log(disk) or interrupted(PartitionDir(disk, LOG)) or new_log(disk)
        assert_ends_well(disk)


def test_where_others_have_taken_the_room_it_is_told_how_much_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = next(disk for disk in killed(full_disk(), commit) if not disk.exists(f"{LOG}/{0:020}.log"))

    def fail(_disk: SimDisk, _source: str, target: str, _like: str) -> None:
        raise OSError(errno.ENOSPC, "injected", target)

    monkeypatch.setattr(SimDisk, "copy_in", fail)
    with pytest.raises(
        NoSpace, match=rf"no room any more for what lies in {SPARE}, {sum(map(len, NEW.values()))} B"
    ):
        resume(PartitionDir(disk, LOG))
    assert interrupted(PartitionDir(disk, LOG))


def test_where_the_spare_is_lost_only_what_is_whole_is_given_back() -> None:
    """A spare in memory after a power failure: the broker must not start with half a log, and the operator is told."""
    given_back, refused = 0, 0
    for disk in killed(full_disk(), commit):
        log = PartitionDir(disk, LOG)
        if not interrupted(log):
            continue
        for name in disk.list_names(SPARE):
            disk.unlink(f"{SPARE}/{name}")
        if disk.exists(f"{LOG}/{0:020}.log") and disk.exists(f"{LOG}/{10:020}.log"):
            resume(log)
            assert old_log(disk)
            given_back += 1
        else:
            with pytest.raises(LogUncleanable, match="does not have its group, from offset 0 on"):
                resume(log)
            assert interrupted(log)
            refused += 1
    assert given_back
    assert refused


@pytest.mark.parametrize("keeps_times", [True, False])
@pytest.mark.parametrize("copied", [(SPARE,), (LOG,), (LOG, SPARE)])
def test_a_copy_is_as_good_as_what_was_copied(copied: Sequence[str], keeps_times: bool) -> None:
    """The log was moved to a larger disk, or a volume restored: the inodes are others. The new segment never lies beside an
    old one that it replaces; where nothing shows any more which one that is, nothing is touched.
    """
    ends = set[str]()
    for disk in filter(lambda disk: interrupted(PartitionDir(disk, LOG)), killed(full_disk(), commit)):
        for path in (f"{directory}/{name}" for directory in copied for name in disk.list_names(directory)):
            content, mtime_ns = disk.read(path), disk.stat(path).mtime_ns
            disk.unlink(path)
            disk.put(path, content)
            if keeps_times:
                disk.set_mtime_ns(path, mtime_ns)
        before = disk.listing(LOG)
        try:
            resume(PartitionDir(disk, LOG))
        except LogUncleanable:
            assert disk.listing(LOG) == before
            ends.add("refused")
        else:
            assert old_log(disk) or new_log(disk), disk.listing(LOG).keys()
            ends.add("new" if new_log(disk) else "old")
    assert ends >= {"new", "old"} if keeps_times else "refused" in ends


def test_a_log_that_has_changed_since_is_not_touched() -> None:
    disk = full_disk()
    disk.fill(f"{LOG}/{10:020}.log", b"appended")
    before = disk.listing(LOG)
    with pytest.raises(SourceChanged, match=r"the \.log of 10 was inode"):
        commit(disk)
    assert disk.listing(LOG) == before


def test_what_lies_on_a_spare_alone_nobody_else_may_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a /tmp where everybody may make names, but remove only their own, that is so. The name of the new directory is
    on the disk before anything is in it (rule B.8).
    """
    synced = list[int]()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    with TemporaryDirectory(dir="/dev/shm") as spare:
        os.chmod(spare, 0o777)
        with pytest.raises(LogUncleanable, match="so nobody else may exchange it"):
            on_spare(spare, str(tmp_path), "t-0")
        os.chmod(spare, 0o755)
        if os.geteuid() == 0:
            os.chown(spare, 65534, -1)
            with pytest.raises(LogUncleanable, match="belongs to user 65534"):
                on_spare(spare, str(tmp_path), "t-0")
            os.chown(tmp_path, 65534, -1)  # then it is that of the log's owner
            on_spare(spare, str(tmp_path), "t-0")
        synced.clear()
        os.chmod(spare, 0o1777)
        made = Path(on_spare(spare, str(tmp_path), "t-0"))
        assert (made.stat().st_mode & 0o777, synced) == (0o700, [Path(spare).stat().st_ino])
