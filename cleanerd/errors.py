"""The error tree, sorted by the handler's reaction.

=================  ============================================================
class              reaction of the handler
=================  ============================================================
`Aborted`          drops the work quietly; log and checkpoint are untouched
`Retryable`        gives up this attempt and tries again later
`LogUncleanable`   parks this partition with the reason, goes on with the others
`DirOffline`       parks this log directory, goes on with the others
`Fatal`            ends the process with `exit_code`
=================  ============================================================

Every message names the file, the position and what was expected and found, as far as they are known.
"""

import errno
import os
import pickle
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self, TypeVar

_T = TypeVar("_T")


class CleanerdError(Exception):
    """Root of everything that cleanerd raises on purpose."""


class Aborted(CleanerdError):
    """This work was asked to stop."""


class Retryable(CleanerdError):
    """Something has changed, or is short; the same work may succeed later."""


class SourceChanged(Retryable):
    """A source file is not the one for which the work was planned (KAFKA-631's generation check)."""


class PolicyChanged(SourceChanged):
    """The log may no longer be cleaned like this, or at all: its configuration, or that of the cluster, has changed."""


class LockHeld(Retryable):
    """Another process holds the lock of the log directory; `pid` is the holder where the kernel names it."""

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class NoWayIn(Retryable):
    """A running broker cannot be asked to swap segments; the message gives the reason and a remedy."""


MAKE_ROOM = (
    "make room on this file system: enlarge it, or move a replica away; `cleanerd rescue` shows what can be freed there "
    "without deleting data"
)


class NoSpace(Retryable):
    """The file system has no room for the peak of this work; nothing was changed. `remedy`: advice for the operator.

    `needs_bytes`: of the group that needs least of those whose commit frees any; 0 if that is not known.
    """

    def __init__(self, message: str, remedy: str = MAKE_ROOM, needs_bytes: int = 0) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.needs_bytes = needs_bytes


class JobFailed(Retryable):
    """A job over several logs failed as a whole: it is not known which of them caused that, if any."""


class LogUncleanable(CleanerdError):
    """This partition cannot be cleaned as it is; others are not affected."""


class CorruptFile(LogUncleanable):
    """Bytes on disk violate the format.

    `path` the file, `position` the byte at which it shows, `expected` and `found` in words or numbers.
    """

    def __init__(self, path: str, position: int, expected: object, found: object) -> None:
        super().__init__(f"{path}: at byte {position}: expected {expected}, found {found}")
        self.path = path
        self.position = position
        self.expected = as_fact(expected)
        self.found = as_fact(found)

    def __reduce__(self) -> tuple[type["CorruptFile"], tuple[str, int, object, object]]:
        """Crosses process borders (Spark tasks) with its facts."""
        return (CorruptFile, (self.path, self.position, self.expected, self.found))


def as_fact(value: object) -> object:
    """A detail of an error as a number or text, because exceptions of libraries cannot always be pickled."""
    return value if value is None or type(value) in (str, int) else str(value)


class InternalError(LogUncleanable):
    """An unexpected error in the work on one log; `__cause__` is the exception itself."""


class DirOffline(CleanerdError):
    """A log directory cannot be read or written."""


class Fatal(CleanerdError):
    """The process cannot go on; `exit_code` follows sysexits where one fits."""

    exit_code = 1


class BadConfiguration(Fatal):
    """A configuration that is not valid; lists every problem found."""

    exit_code = 78

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class BadUsage(Fatal):
    """A command line, or options, that make no sense."""

    exit_code = 2


def from_os_error(error: OSError, where: str) -> CleanerdError:
    """Which of our errors an OSError is (7.12, 7.14): a full disk may pass, a file out of reach parks its log. One that is
    gone from where the log lies went with a truncation or deletion, or was exchanged; one missing elsewhere did not.

    `where`: the directory or file that the work is about, named when the error names no file: those of an open descriptor
    do not.
    """
    message = in_words(error) if error.filename else f"{where}: {in_words(error)}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(message)
    if error.errno == errno.ENOENT and _lies_there(error.filename, where):
        return SourceChanged(message)
    if error.errno in (errno.EIO, errno.EROFS):
        return DirOffline(message)
    return LogUncleanable(message)


def _lies_there(filename: object, where: str) -> bool:
    """Whether a file that is gone was in the directory `where`, or, if that is a file or gone as well, beside it."""
    if not isinstance(filename, str | bytes):
        return True
    place = os.path.abspath(where if os.path.isdir(where) else os.path.dirname(where))
    return os.path.commonpath([os.path.abspath(os.fsdecode(filename)), place]) == place


@contextmanager
def naming(path: str) -> Iterator[None]:
    """An OSError of the block that names no file, as those of an open descriptor, names this one."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


_PROCESSES = (
    "no more processes or threads can be started: raise ulimit -u (LimitNPROC= and TasksMax= of a unit, the limit of a "
    "container on pids)"
)
_REMEDIES = {
    errno.EAGAIN: f"{os.strerror(errno.EAGAIN)}; perhaps {_PROCESSES}",
    errno.EMFILE: "too many open files: raise ulimit -n (LimitNOFILE= of a unit, --ulimit nofile= of a container)",
    errno.ENFILE: "the system has too many open files: raise fs.file-max",
}


def in_words(error: BaseException) -> str:
    """An exception in a line: the refused call, and the limit behind the refusal if one is known."""
    if isinstance(error, OSError):
        text = _REMEDIES.get(error.errno or 0) or error.strerror or str(error) or type(error).__name__
        return f"{error.filename}: {text}" if error.filename is not None else text
    if isinstance(error, MemoryError):
        return "out of memory: raise the limit on this process (ulimit -v, MemoryMax= of a unit, that of a container)"
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return _PROCESSES
    return " ".join(f"{type(error).__name__}: {error}".removesuffix(": ").split())


def ours(error: Exception, where: str) -> CleanerdError:
    """Which of our errors an exception is: itself, `from_os_error`, or for a defect InternalError. `where`: as there."""
    if isinstance(error, CleanerdError):
        return error
    if isinstance(error, OSError):
        return from_os_error(error, where)
    line = traceback.extract_tb(error.__traceback__)[-1]
    failure = InternalError(f"{where}: internal error at {line.name}:{line.lineno}: {in_words(error)}")
    failure.__cause__ = error
    return failure


@contextmanager
def raising_ours(where: str) -> Iterator[None]:
    """A context that turns any exception into one of our errors; `where`: the file in question."""
    try:
        yield
    except CleanerdError:
        raise
    except Exception as error:
        raise ours(error, where) from error


class each_log:  # noqa: N801 - reads as a statement
    """The boundary of one log, or of one directory: what goes wrong in the block ends there, and the others go on.

    `error` is what went wrong, None if nothing did; `where` the file that the block is about. The traceback of what no code
    expected goes to `sys.excepthook`: standard error, or the log of the daemon. KeyboardInterrupt and SystemExit pass.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self.error: CleanerdError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self.error = ours(error, self._where)
        if isinstance(self.error, InternalError):
            report_unexpected(self.error)
        return True


_KINDS = (Aborted, SourceChanged, NoSpace, Retryable, DirOffline, Fatal, LogUncleanable)
"""Those that are made of a text alone, nearest first."""


def portable(error: CleanerdError) -> CleanerdError:
    """An error for another process: what cannot be pickled, and read back, goes as its text, of the nearest kind."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - any of a foreign class
        return next(kind for kind in (*_KINDS, CleanerdError) if isinstance(error, kind))(str(error))
    return error


def report_unexpected(error: InternalError) -> None:
    """Report the traceback of an unexpected exception, at the outermost boundary."""
    if error.__cause__ is not None:
        sys.excepthook(type(error), error, error.__traceback__)  # with its cause
