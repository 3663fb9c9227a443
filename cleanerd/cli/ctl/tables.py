"""Tables and lists in the output of cleanerctl for people.

Columns line up, sizes and times have human units, empty columns are left out. A word that names a state is coloured on a
terminal, unless NO_COLOR is set.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cleanerd.cli.tables import coloured, terminal_columns
from cleanerd.cli.tables import table as drawn
from cleanerd.units import printable, size

Row = Mapping[str, Any]
"""An object of an answer of the control API, parsed from JSON."""
Cell = Callable[[Row], str]
Columns = Mapping[str, Cell]

_EXPENDABLE = (
    *("SEGMENTS", "POLICY", "JOB", "TRIGGER", "LOG DIR", "STARTED"),
    *("REMOVED", "RECORDS/S", "TOOK", "BEFORE", "AFTER", "KIND"),
)
_NAMES, _PROSE = {"LOG", "LOGS"}, {"REASON"}
_LEAST = 18  # columns for names and for prose: then a table of logs that need attention fits 80 columns


def table(rows: Sequence[Row], columns: Columns) -> str:
    """At least one row, under column heads; columns without any text are left out."""
    cells = {name: [cell(row) for row in rows] for name, cell in columns.items()}
    shown = {name: column for name, column in cells.items() if any(column)}
    width = terminal_columns()
    return drawn(shown if width is None else _fit(shown, width))


def lines(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values, one pair a line, values aligned."""
    width = max(len(name) for name, _ in pairs) + 2
    return "".join(f"{name + ':':<{width}}{coloured(value)}\n" for name, value in pairs)


def wrapped(head: str, value: str, indent: int | None = None) -> list[str]:
    """`head` and `value` in lines that fit the terminal, or in one line for a pipe.

    `indent`: columns before the second line and those after it; by default the length of `head`.
    """
    text, columns = head + printable(value), terminal_columns()
    if columns is None or len(text) <= columns:
        return [text]
    following = " " * (len(head) if indent is None else indent)
    return textwrap.wrap(
        text,
        max(columns, len(following) + 30),
        subsequent_indent=following,
        break_on_hyphens=False,
        break_long_words=False,  # a path is for copying
    )


def _fit(columns: dict[str, list[str]], width: int) -> dict[str, list[str]]:
    """Leave out the least important columns, then shorten names and prose, until the table fits `width`, if it can."""
    first = next(iter(columns))
    for name in _EXPENDABLE:
        if name in columns and name != first and _needed(columns) > width:
            del columns[name]
    for name in _NAMES & columns.keys():
        room = max(width - _needed(columns) + _width(columns, name), _LEAST)
        columns[name] = [_shortened(text, room) for text in columns[name]]
    for name in _PROSE & columns.keys():
        room = max(width - _needed(columns) + min(_width(columns, name), _LEAST), _LEAST)
        columns[name] = [text if len(text) <= room else text[: room - 1] + "…" for text in columns[name]]
    return columns


def _width(columns: Mapping[str, Sequence[str]], name: str) -> int:
    return max(map(len, (name, *columns[name])))


def _needed(columns: Mapping[str, Sequence[str]]) -> int:
    widths = [min(_width(columns, name), _LEAST if name in _PROSE else 1 << 30) for name in columns]
    return sum(widths) + 2 * (len(widths) - 1)


def _shortened(name: str, width: int) -> str:
    """A name with its middle replaced by `~`, which no name contains; the end tells partitions apart."""
    half = (width - 1) // 2
    return name if len(name) <= width else f"{name[: width - 1 - half]}~{name[-half:]}"


def field(key: str, show: Callable[[Any], str] = str) -> Cell:
    """A cell that shows the value under `key`, empty for null."""
    return lambda row: "" if row[key] is None else show(row[key])


def log_name(row: Row) -> str:
    """The topic-partition of a row, like `orders-3`; empty for an event of the daemon itself."""
    return "" if row["topic"] is None else f"{row['topic']}-{row['partition']}"


def first_three(names: Sequence[str]) -> str:
    """At most three names, and the number of the others."""
    return " ".join(names) if len(names) <= 3 else f"{' '.join(names[:3])} and {len(names) - 3} more"


def rate(bytes_per_s: float | None) -> str:
    """Bytes per second in human units, or `unlimited` for None."""
    return "unlimited" if bytes_per_s is None else f"{size(round(bytes_per_s))}/s"


def process(pid: int) -> str:
    """A process by its id."""
    return f"pid {pid}"


WHERE: Columns = {"LOG": log_name, "LOG DIR": field("log_dir")}
"""Columns that name a log."""
