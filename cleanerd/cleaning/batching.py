"""Small logs share one job, a large log has its own (architecture 4): each job costs some tenths of a second."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")
JOB_MAX_BYTES = 256 << 20
JOB_MAX_LOGS = 256


def in_jobs(logs: Iterable[_T], size_bytes: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Cut logs, most urgent first, into jobs of at most `JOB_MAX_BYTES` and `JOB_MAX_LOGS`.

    A log that is larger than that is a job of its own.
    """
    job: list[_T] = []
    size = 0
    for log in logs:
        log_bytes = size_bytes(log)
        if job and (size + log_bytes > JOB_MAX_BYTES or len(job) >= JOB_MAX_LOGS):
            yield job
            job, size = [], 0
        job.append(log)
        size += log_bytes
    if job:
        yield job
