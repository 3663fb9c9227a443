"""What goes from the directory of a stopped broker that has no room for anything (`storage.leftovers`)."""

import os
from pathlib import Path

import pytest

from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.format import names
from cleanerd.storage.leftovers import delete_leftovers, delete_offset_indexes, freed_bytes, leftover_files
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.partition_dir import PartitionDir
from tests.harness.disks.crashes import killed, switched_off
from tests.harness.disks.kafka_startup import start
from tests.harness.disks.simulated import SimDisk
from tests.harness.logs.model import DIRECTORY, next_offset
from tests.harness.logs.troubled import META_PROPERTIES, segment, write_logs

GONE = f"t-1.{'0' * 32}-delete"


def beside(path: Path) -> LogDir:
    return LogDir.at(RealFiles(), str(path), SystemClock())


def test_what_a_broker_would_delete_goes_and_nothing_else(tmp_path: Path) -> None:
    write_logs(tmp_path, "t", "u")
    (tmp_path / names.META_PROPERTIES).write_text(META_PROPERTIES)
    for path in (tmp_path / "t-0" / f"{0:020}.log.deleted", tmp_path / "t-0" / f"{0:020}.index.cleaned"):
        path.write_bytes(b"x" * 100)
    (tmp_path / "u-0" / f"{0:020}.log.cleaned").write_bytes(b"x" * 100)
    (tmp_path / "u-0" / f"{9:020}.log.swap").write_bytes(b"x")  # the other one says that this does not count
    (tmp_path / GONE).mkdir()
    (tmp_path / GONE / f"{0:020}.log").write_bytes(b"x" * 1000)
    stray = tmp_path / f"t-2.{'0' * 32}-stray"
    stray.mkdir()
    (stray / f"{0:020}.log.deleted").write_bytes(b"x")
    with (tmp_path / GONE / f"{0:020}.index").open("wb") as hole:
        hole.truncate(10 << 20)
    os.link(tmp_path / "t-0" / f"{0:020}.log.deleted", tmp_path / "backup")
    log_dir, listed = beside(tmp_path), [path.name for path in tmp_path.iterdir()]
    kept = {path.name for path in (tmp_path / "t-0").iterdir() if path.suffix not in (".deleted", ".cleaned")}
    found = {name: leftover_files(log_dir, name) for name in listed}
    blocks = {name: freed_bytes(RealFiles(), paths) // 4096 for name, paths in found.items() if paths}
    for name in listed:
        delete_leftovers(log_dir, name)
    assert blocks == {"t-0": 1, GONE: 1}, "neither what lies in a backup, too, nor holes come back"
    assert {path.name for path in (tmp_path / "t-0").iterdir()} == kept
    assert not (tmp_path / GONE).exists()
    assert list(stray.iterdir())
    assert (tmp_path / "u-0" / f"{0:020}.log.cleaned").exists()


def test_an_offset_index_goes_only_where_its_broker_would_make_the_same_again(tmp_path: Path) -> None:
    """It cuts off what is damaged when it does, and would have to find the aborted transactions, too."""
    partition = write_logs(tmp_path, "t") / "t-0"
    damaged, aborted = segment(partition, 0), segment(partition, 1).with_suffix(".txnindex")
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    aborted.write_bytes(b"x")
    indexes = sorted(partition.glob("*.index"))
    of_each = delete_offset_indexes(PartitionDir(RealFiles(), str(partition)))
    assert (next(of_each), next(of_each)) == (False, True)
    assert sorted(partition.glob("*.index")) == indexes[:2] + indexes[3:]
    assert all(of_each)
    assert sorted(partition.glob("*.index")) == indexes[:2] + indexes[-1:], "the active segment keeps its own"


def test_an_empty_offset_index_gives_a_name_back_and_one_in_a_backup_gives_nothing(tmp_path: Path) -> None:
    """A segment of a single batch has an empty one: on a disk without inodes that is all that may go."""
    partition = write_logs(tmp_path, "t") / "t-0"
    empty, linked, *_, _ = indexes = sorted(partition.glob("*.index"))
    empty.write_bytes(b"")
    os.link(linked, tmp_path / "backup")
    assert all(delete_offset_indexes(PartitionDir(RealFiles(), str(partition))))
    assert sorted(partition.glob("*.index")) == [linked, indexes[-1]]


@pytest.mark.parametrize("suffix", [".deleted", ".cleaned"])
def test_whatever_of_them_a_power_failure_brings_back_a_broker_deletes(suffix: str) -> None:
    disk = SimDisk()
    disk.mkdir(DIRECTORY)
    for base in (0, 10):
        for kind in (".log", ".index", ".timeindex"):
            disk.put(f"{DIRECTORY}/{base:020}{kind}", b"")
            disk.put(f"{DIRECTORY}/{base:020}{kind}{suffix}", b"x")
    disk.restart()

    def delete(on: SimDisk) -> None:
        delete_leftovers(
            LogDir(on, DIRECTORY.rpartition("/")[0], SystemClock(), is_kafka=True),
            DIRECTORY.rpartition("/")[2],
        )

    for stopped in killed(disk, delete):
        for left in switched_off(stopped):
            start(left, DIRECTORY, next_offset)
            assert sorted(left.list_names(DIRECTORY)) == sorted(
                f"{base:020}{kind}" for base in (0, 10) for kind in (".log", ".index", ".timeindex")
            )
