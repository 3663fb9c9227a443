"""`inspect` for many logs: each in one of several processes, largest first. A failure stays with its log."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from cleanerd.errors import CleanerdError, attempt
from cleanerd.format.names import TopicPartition
from cleanerd.pipeline.values import TopicCodec

from .inspect import Inspection, inspect_partition
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


def inspect_logs(
    tasks: Sequence[InspectTask], processes: int | None, read: ReadProgress
) -> dict[InspectTask, Inspection | CleanerdError]:
    """What is in some logs, or why one cannot be read; the largest first. Memory is that of `keys_max` for each process.

    `processes`, `read`: as `answers` has them.
    """
    found = answers(inspect_task, tasks, _killed, processes, read)
    return {
        task: found[task]
        for task in sorted(tasks, key=lambda task: (-task.size_bytes, task.log_dir, task.topic_partition))
    }


def size_of_log(directory: str) -> int:
    """Bytes of its segments."""
    try:
        return sum(entry.stat().st_size for entry in os.scandir(directory) if entry.name.endswith(".log"))
    except OSError:  # it is gone, or cannot be read: opening it reports that
        return 0


def inspect_task(task: InspectTask) -> Inspection | CleanerdError:
    """Look at one log; what cannot be read is the answer."""
    look = partial(
        inspect_partition,
        task.directory,
        now_ms=task.now_ms,
        keys_max=task.keys_max,
        prefix_bytes=task.prefix_bytes,
        topic_codec=task.topic_codec,
    )
    return attempt(look, task.directory)


def _killed(_: InspectTask) -> Inspection | CleanerdError:
    return CleanerdError("the process that read it was killed")
