"""With what a verb refuses: each error has the HTTP status and the code that programs look at.

The message names the next step.
"""

from cleanerd.errors import CleanerdError

MAX_WAIT_MS = 60_000
"""Longest that one request may block; who wants to wait longer asks again."""
DEFAULT_WAIT_MS = 30_000


class OperationError(CleanerdError):
    """An operation that was not done; `status` is that of HTTP, `code` what programs look at."""

    status = 500
    code = "failed"


class Invalid(OperationError):
    """The parameters make no sense."""

    status, code = 400, "invalid"


class NotFound(OperationError):
    """There is no such log, job or hold."""

    status, code = 404, "not_found"


class Conflict(OperationError):
    """It cannot be done as things stand, for example because a live broker owns the directory; later it may."""

    status, code = 409, "conflict"


class Unavailable(OperationError):
    """The daemon is starting, stopping, or short of something."""

    status, code = 503, "unavailable"


class Timeout(OperationError):
    """What was waited for has not happened within the time limit."""

    status, code = 504, "timeout"
