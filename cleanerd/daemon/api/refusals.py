"""How a verb refuses: each error has an HTTP status, and a code for programs.

The message names the next step.
"""

from cleanerd.errors import CleanerdError

MAX_WAIT_MS = 60_000
"""Longest that one request may block; a client that waits longer repeats the request."""
DEFAULT_WAIT_MS = 30_000


class OperationError(CleanerdError):
    """An operation that was not done; `status` is the HTTP status, `code` is for programs."""

    status = 500
    code = "failed"


class Invalid(OperationError):
    """The parameters make no sense."""

    status, code = 400, "invalid"


class NotFound(OperationError):
    """There is no such log, job or hold."""

    status, code = 404, "not_found"


class Conflict(OperationError):
    """The operation is impossible in the current state, for example because a live broker owns the directory."""

    status, code = 409, "conflict"


class Refused(Conflict):
    """The operation is impossible as things are configured: to ask again changes nothing."""

    code = "refused"


class Unavailable(OperationError):
    """The daemon is starting, stopping, or short of something."""

    status, code = 503, "unavailable"


class Timeout(OperationError):
    """The awaited event has not happened within the time limit."""

    status, code = 504, "timeout"
