"""Logs that share a job: small ones, because each job costs some tenths of a second (architecture 4). A job that fails as a
whole is repeated log by log.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from cleanerd.errors import JobFailed

_T = TypeVar("_T")
_Log = TypeVar("_Log")
JOB_MAX_BYTES = 256 << 20
JOB_MAX_LOGS = 256


def in_jobs(logs: Iterable[_Log], size_bytes: Callable[[_Log], int]) -> Iterator[list[_Log]]:
    """Cut logs, most urgent first, into jobs of at most `JOB_MAX_BYTES` and `JOB_MAX_LOGS`.

    A log that is larger than that is a job of its own.
    """
    job: list[_Log] = []
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


def one_by_one(
    clean: Callable[[Sequence[_Log]], list[_T]],
    logs: Sequence[_Log],
    failed: Callable[[_Log, JobFailed], _T],
) -> list[_T]:
    """`clean` for all logs as one job; should that raise JobFailed, for each of them alone.

    So a log that brings down whatever works on it ends its own cleaning only: `failed` makes its result.
    """
    try:
        return clean(logs)
    except JobFailed as error:
        if len(logs) == 1:
            return [failed(logs[0], error)]
    return [result for log in logs for result in one_by_one(clean, [log], failed)]
