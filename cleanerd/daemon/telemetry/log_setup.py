"""Log lines: one event each, JSON unless stderr is a terminal; under journald with its priorities."""

import logging
import os
import sys
from typing import IO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from cleanerd.units import printable

_PRIORITIES = {"critical": 2, "exception": 3, "error": 3, "warning": 4, "info": 6, "debug": 7}
"""sd-daemon(3), by the method that was called."""
_PROCESSORS: list[Processor] = []
"""One list for good: loggers that were used before keep it, and what it holds then."""


def configure(log_format: str, level: str, stream: IO[str] = sys.stderr) -> None:
    """Send events of structlog and of the standard library to `stream`.

    `log_format`: json, console, or auto (console on a terminal). `level`: debug, info, warning or error.
    """
    is_console = log_format == "console" or (log_format == "auto" and stream.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([] if is_console else [structlog.processors.format_exc_info]),
    ]
    last: list[Processor] = [structlog.processors.JSONRenderer()]
    if is_console:
        last = [_printable, structlog.dev.ConsoleRenderer(colors="NO_COLOR" not in os.environ)]
    if _is_journal(stream):
        last.append(_priority)
    _PROCESSORS[:] = (
        structlog.stdlib.filter_by_level,
        *shared,
        structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
    )
    structlog.configure(
        processors=_PROCESSORS,
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _printable(_: WrappedLogger, __: str, fields: EventDict) -> EventDict:
    return {name: printable(value) if isinstance(value, str) else value for name, value in fields.items()}


def _is_journal(stream: IO[str]) -> bool:
    """Whether journald reads the stream (JOURNAL_STREAM names its device and inode)."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _priority(_: WrappedLogger, method: str, text: EventDict | str) -> str:
    return f"<{_PRIORITIES.get(method, 6)}>{text}"
