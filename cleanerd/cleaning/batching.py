"""Small logs share one job, a large log has its own (architecture 4): each job costs some tenths of a second."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from cleanerd.config.model import CleanerdConfig

_T = TypeVar("_T")


def in_jobs(
    logs: Iterable[_T], size_bytes: Callable[[_T], int], config: CleanerdConfig
) -> Iterator[list[_T]]:
    """Cut logs, most urgent first, into jobs of at most cleanerd.job.max.bytes and cleanerd.job.max.logs.

    A log that is larger than that is a job of its own.
    """
    job: list[_T] = []
    size = 0
    for log in logs:
        log_bytes = size_bytes(log)
        if job and (size + log_bytes > config.job_max_bytes or len(job) >= config.job_max_logs):
            yield job
            job, size = [], 0
        job.append(log)
        size += log_bytes
    if job:
        yield job
