"""Where output goes: documents for programs and tables for people to stdout, all else to stderr.

The JSON document of `clean` is `{"apiVersion": "cleanerd/v1", "results": [...]}` with `LogResult.fields` of each log, and
`assumed` where something was (`--assume`). What is not known or does not apply is null.
"""

import atexit
import codecs
import contextlib
import io
import json
import os
import sys
from collections.abc import Mapping

from cleanerd import API_VERSION
from cleanerd.errors import CleanerdError
from cleanerd.units import printable

_PLAIN = {"─": "-", "━": "-", "╸": "-", "╺": "-", "±": "+-", "≥": ">=", "…": "...", "•": "*"}
INTERRUPTED = 130
"""Exit code after Ctrl-C, as of a shell."""


def is_table(form: str) -> bool:
    """Whether a format (`options.FORMATS`) is for people."""
    return form in ("table", "wide")


def rendered(document: Mapping[str, object], form: str, *, indent: int | None = 2) -> str:
    """A document in a format for programs: `json`, `jsonl` or `yaml`.

    `jsonl`: if the document has exactly one list, a line for each of its items; else one line with the whole document.
    """
    if form == "yaml":
        import yaml  # noqa: PLC0415 - takes longer to import than most verbs run

        return str(yaml.safe_dump(json.loads(json.dumps(document)), sort_keys=False))
    if form == "jsonl":
        lists = [value for value in document.values() if isinstance(value, list)]
        rows = lists[0] if len(lists) == 1 else [document]
        return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    return json.dumps(document, indent=indent, allow_nan=False) + "\n"


def prepare_streams() -> None:
    """Open standard streams that the caller has closed (`>&-`), because other files would get their descriptors.

    Replace characters that the encoding of a stream lacks (cron and old locales have no UTF-8) instead of failing.
    """
    if None in (sys.stdin, sys.stdout, sys.stderr):
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(descriptor)
        sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - open as long as the process
        sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    atexit.register(_end_messages)
    codecs.register_error("cleanerd", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="cleanerd")


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks: lines of tables by dashes, others by Python's ASCII escapes."""
    assert isinstance(error, UnicodeEncodeError)
    found = error.object[error.start : error.end]
    return "".join(_PLAIN.get(char) or ascii(char)[1:-1] for char in found), error.end


def write_document(form: str, **content: object) -> None:
    """A document of this API version to stdout, in a format for programs. Raises `CleanerdError`."""
    write(rendered({"apiVersion": API_VERSION, **content}, form))


def write(text: str) -> bool:
    """Text to stdout; False, and silently to nowhere, once the reader has gone. Raises `CleanerdError`."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    except OSError as error:  # a full disk
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing to write when Python ends
        raise CleanerdError(f"standard output cannot be written: {error.strerror}") from None
    return True


def write_line(text: str) -> None:
    """A line for people to stdout. Raises `CleanerdError`."""
    write(f"{printable(text)}\n")


def print_message(text: str, program: str = "cleanerd") -> None:
    """A line for people, on stderr. What follows a line feed is indented, so that no name passes for a message.

    One that cannot be written, to a file on a full disk or a pipe that nobody reads, ends nothing: it may be said later.
    """
    first, *others = map(printable, text.split("\n"))
    with contextlib.suppress(OSError):
        print("\n  ".join([f"{program}: {first}", *map(str.strip, others)]), file=sys.stderr)


def _end_messages() -> None:
    """Forget what could not be said, for which Python would exchange the exit code."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
