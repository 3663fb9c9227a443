"""Tables for people: plain columns for a pipe, drawn by rich on a terminal, coloured unless NO_COLOR is set.

Imports nothing heavy: cleanerctl has to start quickly, and a pipe needs no rich.
"""

import contextlib
import contextvars
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from cleanerd.cli import output
from cleanerd.units import printable

Columns = Mapping[str, Sequence[str]]
"""Cells by the head of their column, all of equal length."""

_STYLES = {
    **dict.fromkeys(("uncleanable", "offline", "failed", "dropped", "NO", "error"), "red"),
    **dict.fromkeys(("clean", "committed"), "green"),
    **dict.fromkeys(("paused", "aborted", "waiting", "ignored", "dirty", "warning"), "yellow"),
    **dict.fromkeys(("cleaning", "running", "staged", "queued", "superseded_by_broker", "info"), "cyan"),
}
_SGR = {"red": 31, "green": 32, "yellow": 33, "cyan": 36}
_NUMERIC = frozenset((
    "ABORTED", "AFTER", "BATCHES", "BEFORE", "BY GROUP", "BYTE", "BYTES", "CLEANABLE", "CLEANINGS", "DELETED", "DIRTY",
    "DONE", "ETA", "FAILURES", "FREE", "FREES", "KEYS", "LOG START", "MB/S", "MEAN SIZE", "NO KEY", "OF THAT ACTIVE",
    "ON DISK", "PEAK EXTRA", "READ", "READS", "RECORDS", "RECORDS/BATCH", "RECORDS/S", "SECONDS",
    "SEGMENTS", "SHARE", "SIZE", "STAGED",
    "SUPERSEDED", "TAKES", "TO", "TOMBSTONES", "TOOK", "TOPIC'S CODEC SAVES", "LARGEST",
))  # fmt: skip
_is_fitted = contextvars.ContextVar("is_fitted", default=True)


def table(columns: Columns) -> str:
    """A table without its empty columns, numbers right-aligned; on a terminal, cells that are too wide are folded."""
    shown = {name: [name, *map(printable, cells)] for name, cells in columns.items() if any(cells)}
    return _drawn(shown) if sys.stdout.isatty() else _plain(shown)


def write_table(columns: Columns) -> None:
    """A table to stdout. Raises `CleanerdError`."""
    output.write(table(columns))


def _plain(columns: Columns) -> str:
    padded = []
    for name, cells in columns.items():
        width = max(map(len, cells))
        padded.append([cell.rjust(width) if name in _NUMERIC else cell.ljust(width) for cell in cells])
    return "".join("  ".join(row).rstrip() + "\n" for row in zip(*padded, strict=True))


def _drawn(columns: Columns) -> str:
    from rich import console, table, text  # noqa: PLC0415 - takes longer to import than most verbs run

    drawn = table.Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    for name in columns:
        drawn.add_column(justify="right" if name in _NUMERIC else "left", overflow="fold")
    for row in zip(*columns.values(), strict=True):
        drawn.add_row(*(text.Text(cell, colour(cell)) for cell in row))
    width = terminal_columns() or 2 * sum(len(cell) + 1 for cells in columns.values() for cell in cells)
    screen = console.Console(width=width, force_terminal=_is_coloured())
    with screen.capture() as capture:
        screen.print(drawn)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def colour(word: str) -> str:
    """The colour of a word that names a state, as rich calls it; empty for any other text."""
    return _STYLES.get(word, "")


def coloured(text: str) -> str:
    """`text` in its `colour`, if stdout is a terminal with colours."""
    if not colour(text) or not sys.stdout.isatty() or not _is_coloured():
        return text
    return f"\x1b[{_SGR[colour(text)]}m{text}\x1b[0m"


def _is_coloured() -> bool:
    return not os.environ.get("NO_COLOR")


@contextlib.contextmanager
def fitted(is_fitted: bool) -> Iterator[None]:
    """A context in which tables are fitted to the terminal, or keep all columns in full (`-o wide`)."""
    token = _is_fitted.set(is_fitted)
    try:
        yield
    finally:
        _is_fitted.reset(token)


def terminal_columns() -> int | None:
    """Width of the terminal, None when it is none or does not matter."""
    if not sys.stdout.isatty() or not _is_fitted.get():
        return None
    return os.get_terminal_size(sys.stdout.fileno()).columns or None
