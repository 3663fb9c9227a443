"""Tables for people: coloured for a terminal unless NO_COLOR is set, wide and plain for a pipe."""

import io
import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cleanerd.cleaning.result import LogResult
from cleanerd.cli import output
from cleanerd.units import reasons, size

_PIPE_WIDTH = 200
_STYLES = {
    "committed": "green",
    "staged": "cyan",
    "failed": "red",
    "aborted": "yellow",
    "superseded_by_broker": "cyan",
}
_NUMERIC = {
    "BYTE", "BEFORE", "AFTER", "PEAK EXTRA", "BY GROUP", "SECONDS", "MB/S", "SIZE", "RECORDS", "KEYS", "NEWEST",
    "SUPERSEDED", "SHARE", "TOMBSTONES", "ABORTED", "NO KEY", "BYTES/BATCH", "RECORDS/BATCH", "BATCHES", "BATCHES OF",
    "STORED", "RECORD", "SAVES", "SUPERSEDED SINCE", "LARGEST AT OFFSET", "TOPIC'S CODEC SAVES",
}  # fmt: skip


def results_table(results: Sequence[LogResult]) -> Table:
    """A row for each log; columns without anything to say are left out."""
    is_plan = any(result.outcome == "planned" for result in results)
    is_one_dir = len({result.log_dir for result in results}) == 1
    columns: dict[str, Sequence[str | Text]] = {
        "LOG": [log_name(result) for result in results],
        "LOG DIR": ["" if is_one_dir else result.log_dir for result in results],
        "OUTCOME": [styled(result.outcome, _STYLES) for result in results],
        "BEFORE": [size(result.bytes_before) for result in results],
        "AFTER": [size(result.bytes_after) for result in results],
        "PEAK EXTRA": [size(result.peak_extra_bytes) if is_plan else "" for result in results],
        "BY GROUP": [size(result.peak_group_bytes) if is_plan else "" for result in results],
        "TOPIC'S CODEC SAVES": [
            _about(result.topic_codec_saves_bytes) if is_plan else "" for result in results
        ],
        "REMOVED": [reasons(result.removed) for result in results],
        "SECONDS": [f"{result.seconds:.2f}" for result in results],
        "MB/S": [f"{result.mb_per_s:.1f}" if result.bytes_read else "" for result in results],
        "REASON": [result.reason or "" for result in results],
    }
    return side_by_side(columns)


def _about(saved_bytes: int | None) -> str:
    return f"about {'-' * (saved_bytes < 0)}{size(abs(saved_bytes))}" if saved_bytes else ""


def log_name(result: LogResult) -> str:
    """The log that a result is about; some are about a whole log directory."""
    return f"{result.topic}-{result.partition}" if result.topic else "(all)"


def side_by_side(columns: Mapping[str, Sequence[str | Text]]) -> Table:
    """Columns of equal length side by side, the empty ones left out; numbers stand to the right."""
    rendered = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    for name in shown:
        rendered.add_column(name, justify="right" if name in _NUMERIC else "left", overflow="fold")
    for row in zip(*shown.values(), strict=True):
        rendered.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return rendered


def styled(word: str, styles: Mapping[str, str]) -> Text:
    """A word in the colour that it has in `styles`."""
    return Text(word, styles.get(word, ""))


def write_table(content: Table, *, is_wide: bool = False) -> None:
    """Draw a table on stdout; `is_wide`: whatever the width of the terminal."""
    is_terminal = sys.stdout.isatty()
    console = Console(
        file=io.StringIO(),
        width=shutil.get_terminal_size().columns if is_terminal and not is_wide else _PIPE_WIDTH,
        force_terminal=is_terminal and not os.environ.get("NO_COLOR"),
    )
    with console.capture() as capture:
        console.print(content)
    output.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))
