"""The outermost boundary: an unexpected exception becomes one line; CLEANERD_LOG_LEVEL=debug adds the traceback."""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType

from cleanerd.errors import InternalError, in_words

_DETAILS = "CLEANERD_LOG_LEVEL"


def catch_unexpected(say: Callable[[str], None]) -> None:
    """Pass a line to `say` for every uncaught exception of this process, in any thread."""

    def hook(_: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(
            error, SystemExit
        ):  # PYTHONINSPECT, which is for programs that somebody writes, sends it here
            os._exit(error.code if isinstance(error.code, int) else 1)
        if isinstance(error, InternalError):  # whose line is a result, or is in one
            _show_details(error, trace)
        else:
            say(line_of(error))

    def of_thread(found: threading.ExceptHookArgs) -> None:
        if found.exc_value is not None and found.exc_type is not SystemExit:
            hook(found.exc_type, found.exc_value, found.exc_traceback)

    sys.excepthook = hook
    threading.excepthook = of_thread
    sys.unraisablehook = lambda found: _show_details(found.exc_value, found.exc_traceback)


def line_of(error: BaseException) -> str:
    """An exception in one line, followed by its traceback if CLEANERD_LOG_LEVEL is debug."""
    _show_details(error, error.__traceback__)
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.filename is not None):
        return in_words(error)
    if isinstance(error, OSError):
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{in_words(error)}, at `{last.line}`; {_DETAILS}=debug shows more"
    return f"internal error: {in_words(error)}; {_DETAILS}=debug shows where"


def _show_details(error: BaseException | None, trace: TracebackType | None) -> None:
    if error is not None and os.environ.get(_DETAILS, "").lower() == "debug":
        traceback.print_exception(type(error), error, trace)
