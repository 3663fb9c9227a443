"""The roll of an empty segment at the log end (rule 6.6): however it ends, no offset is lost or handed out twice."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.errors import SourceChanged
from cleanerd.format.producer_snapshot import ProducerEntry, parse_producer_snapshot
from cleanerd.storage.partition_dir import PartitionDir, bases_of
from cleanerd.storage.recover import recover
from cleanerd.storage.roll import roll_segment
from tests.harness.disks import kafka_startup
from tests.harness.disks.crashes import killed, switched_off
from tests.harness.disks.simulated import SimDisk
from tests.harness.logs.model import DIRECTORY

BASES, END = (0, 10, 20), 30
KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
ROLLED = (".index", ".log", ".snapshot", ".timeindex")
OLD_ACTIVE = f"{DIRECTORY}/{20:020d}.log"
PRODUCERS = (ProducerEntry(7, 1, 4, 29, 3, 1000, -1, -1),)


def name(base: int, kind: str) -> str:
    return f"{base:020d}{kind}"


def a_log() -> SimDisk:
    """Three segments that a broker closed, with its snapshot at the log end, and what should not be under the new base."""
    disk = SimDisk()
    disk.mkdir(DIRECTORY)
    for base in BASES:
        for kind in KINDS:
            disk.put(f"{DIRECTORY}/{name(base, kind)}", f"{kind} of {base}".encode())
    disk.put(f"{DIRECTORY}/{name(END, '.snapshot')}", b"of the broker")
    disk.put(f"{DIRECTORY}/{name(END, '.txnindex')}", b"of another segment")
    disk.restart()
    return disk


def roll(disk: SimDisk) -> None:
    roll_segment(PartitionDir(disk, DIRECTORY), END, PRODUCERS, like=OLD_ACTIVE)


def log_bases(disk: SimDisk) -> list[int]:
    return bases_of(disk.list_names(DIRECTORY))


def next_offset(content: bytes, base: int) -> int:
    return base + 10 if content else base


def accidents() -> Iterator[SimDisk]:
    """What a kill or a power cut may leave, anywhere in a roll."""
    for disk in killed(a_log(), roll):
        yield disk
        yield from switched_off(disk)


def assert_is_whole(disk: SimDisk) -> bool:
    """Nothing of the old segments is touched, the log ends where it did; returns whether it is rolled."""
    listing = disk.listing(DIRECTORY)
    for base in BASES:
        for kind in KINDS:
            assert listing[name(base, kind)] == f"{kind} of {base}".encode()
    bases = log_bases(disk)
    assert next_offset(listing[name(bases[-1], ".log")], bases[-1]) == END
    if bases == list(BASES):
        return False
    assert bases == [*BASES, END]
    assert name(END, ".txnindex") not in listing, "it would hide what is written from now on"
    assert {listing[name(END, kind)] for kind in (".index", ".timeindex")} == {b""}
    assert parse_producer_snapshot(listing[name(END, ".snapshot")], END) == PRODUCERS
    return True


def test_the_new_segment_is_empty_and_knows_the_producers() -> None:
    disk = a_log()
    roll(disk)
    assert assert_is_whole(disk)
    assert {n for n in disk.list_names(DIRECTORY) if n.startswith(f"{END:020d}")} == {
        name(END, k) for k in ROLLED
    }
    assert disk.unsynced(DIRECTORY) == 0


def test_a_broker_that_starts_after_any_accident_finds_the_log_whole() -> None:
    """It rebuilds nothing and goes on at the same offset (spec disk D2)."""
    for disk in accidents():
        disk.restart()
        report = kafka_startup.start(disk, DIRECTORY, next_offset)
        assert (report.zero_indexes, report.rebuilt) == ([], [])
        assert_is_whole(disk)
        orphans = [n for n in disk.list_names(DIRECTORY) if n.endswith((".index", ".timeindex", ".txnindex"))]
        assert {int(n[:20]) for n in orphans} == set(log_bases(disk))


def test_cleanerd_sweeps_what_is_left_and_rolls_again() -> None:
    for disk in accidents():
        disk.restart()
        assert recover(PartitionDir(disk, DIRECTORY), is_kafka=True) is None
        assert not [n for n in disk.list_names(DIRECTORY) if n.endswith(".cleanerd")]
        if not assert_is_whole(disk):
            roll(disk)
            assert assert_is_whole(disk)


@pytest.mark.fault("the power fails")
def test_a_roll_killed_anywhere_and_done_again_survives_a_power_cut_anywhere() -> None:
    """What the killed process renamed is seen by the next one, but need not be on disk yet."""
    for first in killed(a_log(), roll):
        first.restart()
        if END in log_bases(first):
            continue
        for second in killed(first, roll):
            for disk in switched_off(second, seeds=1):
                assert_is_whole(disk)


def test_an_existing_segment_is_never_replaced() -> None:
    disk = a_log()
    disk.put(f"{DIRECTORY}/{name(END, '.log')}", b"records")
    before = disk.listing(DIRECTORY)
    with pytest.raises(SourceChanged):
        roll(disk)
    assert disk.listing(DIRECTORY) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_new_segment_belongs_to_the_broker(tmp_path: Path) -> None:
    """Its files are opened for reading and writing; one that cannot be takes the directory offline (spec disk D4.6)."""
    old = tmp_path / name(20, ".log")
    old.write_bytes(b"records")
    os.chown(old, 1234, 1235)
    old.chmod(0o640)
    umask = os.umask(0o077)
    try:
        roll_segment(PartitionDir(RealFiles(), str(tmp_path)), END, PRODUCERS, like=str(old))
    finally:
        os.umask(umask)
    for kind in ROLLED:
        found = (tmp_path / name(END, kind)).stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (1234, 1235, 0o640)
