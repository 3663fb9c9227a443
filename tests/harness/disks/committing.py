"""A commit with every sync done at once: what `CommitUnderLock.run` does for several logs side by side; and its recovery."""

import os
from collections.abc import Callable

from cleanerd.env.files import Files
from cleanerd.storage.commit import commit_steps
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import recover
from cleanerd.storage.staged import StagedGroup, read_manifests
from tests.harness.disks.simulated import SimDisk
from tests.harness.logs.model import DIRECTORY, next_offset


def commit_group(files: Files, directory: str, group: StagedGroup, live: list[int] | None = None) -> None:
    for _ in commit_steps(PartitionDir(files, directory), group, live):
        files.fsync_dir(directory)


def commit_all(disk: SimDisk) -> None:
    """Commit what waits, as its manifests say."""
    for group in read_manifests(PartitionDir(disk, DIRECTORY)):
        commit_group(disk, DIRECTORY, group)


def recover_here(disk: SimDisk) -> str | None:
    def end_of(path: str) -> int:
        return next_offset(disk.read(path), int(os.path.basename(path)[:20]))

    return recover(PartitionDir(disk, DIRECTORY), is_kafka=False, next_offset=end_of)


def recover_beside_broker(disk: SimDisk) -> str | None:
    return recover(PartitionDir(disk, DIRECTORY), is_kafka=True)


def check_refused(
    disk: SimDisk, because: str, recovery: Callable[[SimDisk], str | None] = recover_here
) -> None:
    """Recovery gives this reason, and leaves everything as it is."""
    before = disk.listing(DIRECTORY)
    assert because in str(recovery(disk))
    assert disk.listing(DIRECTORY) == before
