"""`inspect` for many logs: each in one of several processes, largest first. One log's trouble is its own."""

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from cleanerd.errors import CleanerdError
from cleanerd.format.names import TopicPartition
from cleanerd.pipeline.values import TopicCodec

from .inspect import KEYS_MAX, Inspection, inspect_partition
from .log_dir_check import list_log_dir
from .processes import ReadProgress, answers


@dataclass(frozen=True, slots=True)
class InspectTask:
    """A log to look at, and how; see `inspect_partition`."""

    log_dir: str
    topic_partition: TopicPartition
    directory: str
    size_bytes: int
    now_ms: int
    keys_max: int
    prefix_bytes: int
    topic_codec: TopicCodec | None


@dataclass(frozen=True, slots=True)
class Failed:
    """A log that could not be looked at, and why."""

    log_dir: str
    topic: str
    partition: int
    reason: str


def inspect_logs(
    log_dirs: Sequence[str],
    *,
    now_ms: int,
    topics: Collection[str] | None,
    partitions: Collection[int] | None,
    processes: int | None,
    keys_max: int = KEYS_MAX,
    prefix_bytes: int = 0,
    topic_codec: Callable[[str], TopicCodec | None] = lambda _: None,
    read: ReadProgress,
) -> list[tuple[InspectTask, Inspection | Failed]]:
    """What is in the logs of some directories, or only in some topics or partitions, the largest first.

    `processes`: as many as there are cores if None. Memory is that of `keys_max` for each of them.
    """
    tasks = [
        InspectTask(
            log_dir,
            tp,
            directory,
            _size_bytes(directory),
            now_ms,
            keys_max,
            prefix_bytes,
            topic_codec(tp.topic),
        )
        for log_dir in log_dirs
        for tp, directory in list_log_dir(log_dir).partitions
        if (topics is None or tp.topic in topics) and (partitions is None or tp.partition in partitions)
    ]
    tasks.sort(key=lambda task: (-task.size_bytes, task.log_dir, task.topic_partition))
    total, done = sum(task.size_bytes for task in tasks), 0
    processes = processes or len(os.sched_getaffinity(0))
    found: dict[InspectTask, Inspection | Failed] = {}
    for task, one in answers(inspect_task, tasks, total, processes, _killed):
        found[task] = one
        done += task.size_bytes
        read(done, total)
    return [(task, found[task]) for task in tasks]


def _size_bytes(directory: str) -> int:
    try:
        return sum(entry.stat().st_size for entry in os.scandir(directory) if entry.name.endswith(".log"))
    except OSError:  # it is gone, or cannot be read: opening it tells
        return 0


def inspect_task(task: InspectTask) -> Inspection | Failed:
    """Look at one log; what cannot be read is the answer."""
    try:
        return inspect_partition(
            task.directory,
            now_ms=task.now_ms,
            keys_max=task.keys_max,
            prefix_bytes=task.prefix_bytes,
            topic_codec=task.topic_codec,
        )
    except (CleanerdError, OSError) as error:
        return _failed(task, str(error))


def _killed(task: InspectTask) -> Inspection | Failed:
    return _failed(task, "the process that read it was killed")


def _failed(task: InspectTask, reason: str) -> Failed:
    tp = task.topic_partition
    return Failed(task.log_dir, tp.topic, tp.partition, reason)
