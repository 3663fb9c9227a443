"""Output of a session's JVM and of py4j: kept from the user, who gets the reason in it instead.

py4j reports the end of a JVM, and Ctrl-C in a call to it, with a traceback to the root logger, and raises it all the same.
"""

import contextlib
import itertools
import logging
import os
import re
import tempfile

import py4j

from cleanerd.env.cache import cache_directory, why_untrusted, write_whole

_NAME = "spark.log"
_SEARCHED_BYTES = 64 << 10
_KEPT_BYTES = 1 << 20
_REASONS_MAX = 3
_LINES_MAX = 3
_REASON = re.compile(
    r"(?:Executor updated: \S+ is now (?:EXITED|FAILED|LOST) \((?=.+\))|Application has been killed. Reason: )(.*?)\)?$",
    re.MULTILINE,
)
"""Lines of a standalone cluster's scheduler, see log4j2.properties."""
_FRAME = re.compile(r"\s+at |\s*\.\.\. \d+ more")
_THROWN = re.compile(r"(?:Exception in thread \".*?\" )?((?:[a-z_]\w*\.)+[A-Z][\w$]*(?::.*)?)$")
_FAILED = 'Exception in thread "main" '
_CRASHED = re.compile(
    r"^# A fatal error has been detected by the Java .*\n#\n# +(\S.*)(?:\n# +(\S.*))?", re.MULTILINE
)
_CAUSED = "Caused by: "
_NOISE = re.compile(
    r"WARNING: |Using Spark's default log4j|(NOTE: )?Picked up |Setting default log level|To adjust logging level|"
    r"(OpenJDK|Java HotSpot).* warning: |\S*/spark-class: line |"
    r"(\S+ )?\S+ WARN |\[[\d.]+m?s\]\[warning\]|[_/\\\s.,'`-]+(version \S+)?$"
)
"""Lines of a JVM and Spark that explain no failure, such as their banner."""
_PY4J = os.path.join(os.path.dirname(py4j.__file__), "")
_py4j_logger = logging.getLogger("py4j")


class SessionLog(logging.Handler):
    """The log of one session, in its scratch directory; it has no name, and goes when it is closed."""

    def __init__(self, directory: str) -> None:
        super().__init__(logging.WARNING)
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - open as long as the session
        _py4j_logger.propagate = False
        _py4j_logger.addHandler(self)
        logging.getLogger().addFilter(_is_not_of_py4j)

    def fileno(self) -> int:
        """The descriptor that the JVM writes to."""
        return self._file.fileno()

    def emit(self, record: logging.LogRecord) -> None:
        """A record of py4j. A session may be closed meanwhile."""
        with contextlib.suppress(OSError, ValueError):
            os.write(self.fileno(), f"{self.format(record)}\n".encode(errors="replace"))

    def close(self) -> None:
        """The session has ended."""
        _py4j_logger.removeHandler(self)
        super().close()
        self._file.close()

    def reasons(self) -> list[str]:
        """Why a cluster ended the session, executors first; none for a JVM that just ended."""
        found = [match[1].strip() for match in _REASON.finditer(self._text(_SEARCHED_BYTES))]
        return list(dict.fromkeys(found))[:_REASONS_MAX]

    def says_that_it_failed(self) -> bool:
        """Whether the JVM's first thread has ended with an exception."""
        return _FAILED in self._text(_SEARCHED_BYTES)

    def why_not_started(self, raised: BaseException) -> str:
        """The reason of a failure in a line, and the path of the full output; `raised` is used if there is no output."""
        text = self._text(_KEPT_BYTES)
        reason = reason_of(text) or reason_of(str(raised)) or type(raised).__name__
        path = _kept(text)
        return reason if path is None else f"{reason} (log: {path})"

    def keep_crash(self) -> None:
        """Keep the output of a JVM that has crashed: it ends with the report of that."""
        text = self._text(_KEPT_BYTES)
        if _CRASHED.search(text) is not None:
            _kept(text)

    def _text(self, limit_bytes: int) -> str:
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(size - limit_bytes, 0))
        return self._file.read().decode(errors="replace")


def _kept(text: str) -> str | None:
    """The path of the file that has the text now, in the cache directory; None if there is no text, or no place for it."""
    path = os.path.join(cache_directory(os.environ), _NAME)
    if text.strip() and why_untrusted(os.path.dirname(path)) is None:
        with contextlib.suppress(OSError):
            write_whole(path, text, 0o600)
            return path
    return None


def reason_of(text: str) -> str:
    """The output of a JVM in a line: its first exception with the innermost cause, else the last lines, else empty."""
    if (crashed := _CRASHED.search(text)) is not None:
        return "Java crashed: " + "; ".join(filter(None, crashed.groups()))
    lines = [line for line in text.splitlines() if line.strip() and not _NOISE.match(line)]
    frame = next((number for number, line in enumerate(lines) if _FRAME.match(line)), None)
    if not frame:
        return "; ".join(line.strip() for line in lines[-_LINES_MAX:])
    first = next((number for number in range(frame - 1, -1, -1) if _THROWN.search(lines[number])), frame - 1)
    found = _THROWN.search(lines[first])
    thrown = _with_its_text(lines, first)[found.start(1) if found else 0 :]
    cause = ""
    for number in range(frame, len(lines)):
        if lines[number].startswith(_CAUSED):
            cause = _with_its_text(lines, number)
        elif _THROWN.match(lines[number]):
            break  # another one, which follows from the first
    return f"{thrown}; c{cause[1:]}" if cause else thrown


def _with_its_text(lines: list[str], number: int) -> str:
    """The line of an exception with those that its text goes on in."""
    rest = itertools.takewhile(lambda line: not _FRAME.match(line), lines[number + 1 :])
    return " ".join([lines[number].rstrip(), *(line.strip() for line in rest)])


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Passes records of py4j from the root logger to the logger of its own."""
    if not record.pathname.startswith(_PY4J):
        return True
    _py4j_logger.handle(record)
    return False
