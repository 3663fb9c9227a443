"""A job over several logs that fails as a whole is done again log by log."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from cleanerd.errors import JobFailed

_T = TypeVar("_T")
_Log = TypeVar("_Log")


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
