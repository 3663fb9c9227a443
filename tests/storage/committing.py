"""A commit of one group, with every sync done at once: what `Committer.under` does for several logs side by side."""

from cleanerd.env.files import Files
from cleanerd.storage.commit import commit_steps
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.staged import StagedGroup


def commit_group(files: Files, directory: str, group: StagedGroup, live: list[int] | None = None) -> None:
    """Steps 0 to 7."""
    for _ in commit_steps(PartitionDir(files, directory), group, live):
        files.fsync_dir(directory)
