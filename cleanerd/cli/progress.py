"""Progress on standard error, if that is a terminal: a bar per log with bytes, records a second and the time left."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Self, TextIO

from rich import progress as rich
from rich.console import Console
from rich.text import Text

from cleanerd.cleaning.result import LogResult
from cleanerd.cleaning.result import Progress as RunProgress
from cleanerd.format.names import TopicPartition

_WAITING = "starting Spark ..."
"""Of a log until the first of its bytes is read. Where Spark is up, that is too soon to be seen."""


class Bars(RunProgress):
    """Draws between entering and leaving; the bar of a log goes away when the log is finished."""

    def __init__(self, stream: TextIO) -> None:
        self._bars = _bars(stream)
        self._mutex = threading.Lock()  # guards what follows
        self._tasks: dict[tuple[TopicPartition, str], rich.TaskID] = {}
        self._records: dict[tuple[TopicPartition, str], int] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def planned(self, tp: TopicPartition, log_dir: str, total_bytes: int) -> None:
        """Show the bar of a log."""
        with self._mutex:
            if (tp, log_dir) in self._tasks:  # its next round
                return
            self._tasks[tp, log_dir] = self._bars.add_task(
                str(tp), total=total_bytes, phase=_WAITING, records=0
            )
            self._records[tp, log_dir] = 0

    def advanced(
        self, tp: TopicPartition, log_dir: str, phase: str, bytes_done_delta: int, records_delta: int
    ) -> None:
        """Move the bar of a log."""
        with self._mutex:
            log = tp, log_dir
            self._records[log] += records_delta
            self._bars.update(
                self._tasks[log], advance=bytes_done_delta, phase=phase, records=self._records[log]
            )

    def finished(self, result: LogResult) -> None:
        """Take the bar of a log away."""
        log = result.topic_partition, result.log_dir
        with self._mutex:
            if log in self._tasks:
                self._bars.remove_task(self._tasks.pop(log))


def progress_on(stream: TextIO) -> contextlib.AbstractContextManager[RunProgress]:
    """Bars if `stream` is a terminal that can draw them."""
    return Bars(stream) if _is_drawable(stream) else contextlib.nullcontext(RunProgress())


@contextlib.contextmanager
def bytes_on(stream: TextIO, what: str) -> Iterator[Callable[[int, int], None]]:
    """A function that shows (bytes done, bytes in all) as one bar, if `stream` is a terminal that can draw it."""
    if not _is_drawable(stream):
        yield lambda *_: None
        return
    with _bars(stream) as bars:
        task = bars.add_task(what, total=None, phase="", records=0)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _is_drawable(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class _Rate(rich.ProgressColumn):
    """Records a second since the log was planned."""

    def render(self, task: rich.Task) -> Text:
        records = task.fields["records"]
        return Text(f"{records / task.elapsed:,.0f} records/s" if records and task.elapsed else "")


def _bars(stream: TextIO) -> rich.Progress:
    return rich.Progress(
        rich.TextColumn("{task.description}"),
        rich.TextColumn("{task.fields[phase]}"),
        rich.BarColumn(),
        rich.DownloadColumn(),
        _Rate(),
        rich.TimeRemainingColumn(),
        console=Console(file=stream, color_system=None if os.environ.get("NO_COLOR") else "auto"),
        transient=True,
    )
