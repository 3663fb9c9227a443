"""Reading a log in use: cleanings replace its segments, retention deletes them, and it grows.

Nothing is locked for that. An exchange under way is waited for; a cleaning that only writes is not.
"""

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from cleanerd.errors import SourceChanged
from cleanerd.format.txn_index import Isolation

from .records import Columns, LogRange, open_log, read_columns, split

_T = TypeVar("_T")
_ATTEMPTS, _PAUSE_S = 70, 0.1
"""The commit of a cleaning takes some renames; a broker writes high watermarks down every five seconds."""
_wait = threading.Event().wait


def when_settled(partition_dir: str, look: Callable[[], _T]) -> _T:
    """Call `look` until it raises no `SourceChanged` and misses no file of the directory; after some seconds raise that."""
    for _ in range(_ATTEMPTS):
        try:
            return look()
        except SourceChanged:
            _wait(_PAUSE_S)
        except FileNotFoundError:
            if not os.path.isdir(partition_dir):
                raise
            _wait(_PAUSE_S)
    return look()


def open_settled(partition_dir: str, **bounds: Any) -> LogRange:
    """`open_log` with these arguments. Raises as it does; `SourceChanged` only when the log does not come to
    rest, or its broker does not write down how far it is committed.
    """
    return when_settled(partition_dir, lambda: open_log(partition_dir, **bounds))


def open_parts(partition_dir: str, max_bytes: int, **bounds: Any) -> tuple[LogRange, list[LogRange]]:
    """`open_settled`, and `split` of it: a segment may be exchanged in between. Raises as both."""

    def look() -> tuple[LogRange, list[LogRange]]:
        log = open_log(partition_dir, **bounds)
        return log, split(log, max_bytes)

    return when_settled(partition_dir, look)


def read_part(part: LogRange, isolation: Isolation, **options: Any) -> Iterator[Columns]:
    """`read_columns` of a part that `split` made, wherever its records lie by now; `options` are those of `read_columns`.

    When a segment was exchanged the log is opened again for the offsets that are left. Raises as `read_columns`;
    `SourceChanged` only when records were deleted, or the log does not come to rest.
    """
    directory = os.path.dirname(part.ranges[0].path)
    view, start = part, part.start_offset
    for _ in range(_ATTEMPTS):
        try:
            for columns in read_columns(view, **options):
                yield columns
                start = int(columns.offsets[-1]) + 1
            return
        except SourceChanged:
            _wait(_PAUSE_S)
        view = _opened_again(directory, isolation, start, part.end_offset)
    raise SourceChanged(f"{directory}: segments change again and again")


def views(part: LogRange, isolation: Isolation) -> Iterator[LogRange]:
    """A part that `split` made, and the same offsets wherever they lie by then, for as long as the caller meets
    `SourceChanged`. Raises it as `read_part`.
    """
    yield part
    directory = os.path.dirname(part.ranges[0].path)
    for _ in range(_ATTEMPTS):
        _wait(_PAUSE_S)
        yield _opened_again(directory, isolation, part.start_offset, part.end_offset)
    raise SourceChanged(f"{directory}: segments change again and again")


def _opened_again(directory: str, isolation: Isolation, start: int, end: int) -> LogRange:
    """Raises `SourceChanged` if not all offsets are left."""
    try:
        view = open_settled(directory, isolation=isolation, start_offset=start, end_offset=end)
    except FileNotFoundError:
        raise SourceChanged(f"{directory}: is gone since it was listed") from None
    if view.start_offset > start:
        found = f"its offsets below {view.start_offset} were deleted since it was listed"
        raise SourceChanged(f"{directory}: {found}")
    return view
