"""Staging on a real directory: whatever interrupts it, only staged names come into being, and recovery removes them."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cleanerd.env.files import RealFiles
from cleanerd.format.names import FileKind, SegmentFileName, Suffix
from cleanerd.format.offset_index import OffsetIndex
from cleanerd.format.time_index import TimeIndex
from cleanerd.format.txn_index import AbortedTxn, parse_txn_index
from cleanerd.storage.assemble import assemble
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import recover
from cleanerd.storage.staged import discard_staged, read_manifests, write_manifest
from tests.harness.disks.counted import StoppingFiles
from tests.harness.disks.simulated import SwitchedOff
from tests.harness.logs.model import group_of

FILES = RealFiles()
MTIME_NS = 1_600_000_000_123_456_789
PARTS = {5: b"first part, ", 9: b"second part, ", 12: b"third part"}
ABORTED = (AbortedTxn(3, 5, 9, 10),)


def name(base: int, kind: FileKind, suffix: Suffix = Suffix.LIVE) -> str:
    return str(SegmentFileName(base, kind, suffix))


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """One closed segment, an active one, and the parts that the pipeline wrote for the former."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    for base in (0, 20):
        for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
            (directory / name(base, kind)).write_bytes(f"{kind.value} of {base}".encode())
    write_parts(directory)
    return directory


def write_parts(directory: Path) -> None:
    for offset, content in PARTS.items():
        path = directory / name(offset, FileKind.PART, Suffix.STAGED)
        FILES.write(str(path), content, str(directory / name(0, FileKind.LOG)))


def assembled(
    directory: Path, aborted: tuple[AbortedTxn, ...] = ABORTED, files: RealFiles = FILES
) -> dict[FileKind, int]:
    return assemble(
        PartitionDir(files, str(directory)),
        0,
        [str(directory / name(offset, FileKind.PART, Suffix.STAGED)) for offset in PARTS],
        offset_index=OffsetIndex(np.array([9]), np.array([len(PARTS[5])])),
        time_index=TimeIndex(np.array([77]), np.array([12])),
        aborted_txns=aborted,
        like=str(directory / name(0, FileKind.LOG)),
        mtime_ns=MTIME_NS,
    )


def stage(files: RealFiles, directory: Path) -> None:
    """Assemble and declare, as a cleaning does."""
    partition = PartitionDir(files, str(directory))
    sizes = assembled(directory, files=files)
    write_manifest(partition, replace(group_of(partition, [0], 20, sizes, 12), log_mtime_ns=MTIME_NS))


def live_files(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Everything that a broker looks at: content and inode."""
    return {
        entry.name: (entry.read_bytes(), entry.stat().st_ino)
        for entry in directory.iterdir()
        if not entry.name.endswith(Suffix.STAGED.value)
    }


def staged_files(directory: Path) -> list[str]:
    return sorted(entry for entry in os.listdir(directory) if entry.endswith(Suffix.STAGED.value))


def test_parts_are_joined_in_order_and_gone(partition: Path) -> None:
    sizes = assembled(partition)
    assert (partition / name(0, FileKind.LOG, Suffix.STAGED)).read_bytes() == b"".join(PARTS.values())
    assert staged_files(partition) == sorted(name(0, kind, Suffix.STAGED) for kind in sizes)
    assert {k: (partition / name(0, k, Suffix.STAGED)).stat().st_size for k in sizes} == sizes
    assert parse_txn_index((partition / name(0, FileKind.TXN_INDEX, Suffix.STAGED)).read_bytes()) == ABORTED


def test_4_12_all_files_have_the_time_of_the_last_source(partition: Path) -> None:
    """D16: log and indexes alike."""
    for kind in assembled(partition):
        assert (partition / name(0, kind, Suffix.STAGED)).stat().st_mtime_ns == MTIME_NS


def test_4_23_without_aborted_transactions_there_is_no_txn_index(partition: Path) -> None:
    assert FileKind.TXN_INDEX not in assembled(partition, aborted=())


def test_parts_are_joined_where_the_kernel_cannot_copy(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old file systems refuse copy_file_range, some claim to have copied nothing."""

    def refuse(*_: object) -> int:
        raise OSError

    for stub in (refuse, lambda *_: 0):
        monkeypatch.setattr(os, "copy_file_range", stub)
        assembled(partition)
        assert (partition / name(0, FileKind.LOG, Suffix.STAGED)).read_bytes() == b"".join(PARTS.values())
        write_parts(partition)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_d4_6_the_broker_can_open_what_root_staged(partition: Path) -> None:
    log = partition / name(0, FileKind.LOG)
    os.chown(log, 1234, 1235)
    log.chmod(0o640)
    write_parts(partition)
    for kind in assembled(partition):
        found = (partition / name(0, kind, Suffix.STAGED)).stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (1234, 1235, 0o640)


def test_killed_anywhere_touches_nothing_live_and_recovery_removes_the_rest(partition: Path) -> None:
    """Only a group whose manifest is complete survives recovery."""
    before = live_files(partition)
    for operations in range(100):
        try:
            stage(StoppingFiles(operations), partition)
        except SwitchedOff:
            is_done = False
        else:
            is_done = True
        assert live_files(partition) == before
        declared = [group.base_offset for group in read_manifests(PartitionDir(FILES, str(partition)))]
        assert recover(PartitionDir(FILES, str(partition)), is_kafka=True) is None
        assert live_files(partition) == before
        assert [
            group.base_offset for group in read_manifests(PartitionDir(FILES, str(partition)))
        ] == declared
        assert bool(staged_files(partition)) == bool(declared)
        discard_staged(PartitionDir(FILES, str(partition)))
        assert staged_files(partition) == []
        if is_done:
            assert declared == [0]
            return
        write_parts(partition)
    raise AssertionError("staging never ends")
