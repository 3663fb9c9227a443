"""What an interrupted commit left is finished or undone, with `.lock` held for a moment at a time."""

import os
import threading
from collections.abc import Callable, Iterable
from functools import partial

from cleanerd.cleaning.boundary import attempt
from cleanerd.cleaning.lock import AIM_S, commit_lock, pause_after
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.errors import CleanerdError
from cleanerd.format.names import TopicPartition
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import Acted, recover

Recovered = Callable[[str, str | CleanerdError | None], None]
"""Called with the name of a partition directory and why its log must be skipped, None if it need not be."""


def recover_dir(
    files: Files,
    log_dir: str,
    names: Iterable[str],
    clock: Clock,
    recovered: Recovered,
    *,
    is_kafka: bool,
    acted: Acted = lambda _: None,
) -> None:
    """Recover partition directories of a log directory by their names; a broker that waits for the lock goes first.

    Raises LockHeld when another process owns the log directory, DirOffline. What goes wrong with one log is its own.
    """
    left = list(names)
    while True:
        with commit_lock(log_dir, is_kafka=is_kafka) as lock:
            ends_s = clock.monotonic_s() + AIM_S
            while left and clock.monotonic_s() < ends_s and not lock.is_wanted:
                name = left.pop(0)
                directory = os.path.join(log_dir, name)
                step = partial(recover, PartitionDir(files, directory), is_kafka=is_kafka, acted=acted)
                recovered(name, attempt(step, directory))
            pause_s = pause_after(lock, AIM_S)
        if not left:
            return
        threading.Event().wait(pause_s)


def recover_log(
    files: Files, log_dir: str, tp: TopicPartition, *, is_kafka: bool, acted: Acted = lambda _: None
) -> CleanerdError | None:
    """Finish a commit that went wrong or take it back; returns what keeps us from it: then the next start will."""
    directory = f"{log_dir}/{tp}"

    def under_the_lock() -> None:
        with commit_lock(log_dir, is_kafka=is_kafka):
            recover(PartitionDir(files, directory), is_kafka=is_kafka, acted=acted)

    return attempt(under_the_lock, directory)
