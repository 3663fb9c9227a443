"""The boundary around every step that a host does for one log: whatever it raises is that log's failure, not the others'."""

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from cleanerd.errors import CleanerdError, InternalError, JobFailed, guarded

_T = TypeVar("_T")
_Log = TypeVar("_Log")


def attempt(step: Callable[[], _T], where: str) -> _T | CleanerdError:
    """Result of `step`, or what went wrong with the log as a value; `where` is its directory.

    The traceback of what no code expected goes to `sys.excepthook` here, once: to standard error, in the daemon to its log.
    """
    found = guarded(step, where)
    if isinstance(found, InternalError):
        tell_unexpected(found)
    return found


def tell_unexpected(error: InternalError) -> None:
    """The traceback of what no code expected, where it was met with `guarded`."""
    if error.__cause__ is not None:
        sys.excepthook(type(error), error, error.__traceback__)  # with its cause


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
