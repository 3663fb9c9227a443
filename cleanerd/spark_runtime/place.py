"""Where the part of a chunk begins in the new segment of its group, so that it is written once: straight to its place.

A part begins where the one before it ends, and how large a part is shows when its chunk has been encoded. So a task holds
what it encodes, reports its size, asks where it begins, and is answered when the sizes of all parts before it are known.

No task waits for ever: Spark starts the tasks of a job in order and, on one machine, repeats none. So of the parts whose
size is not known, the first is being encoded, or its task has failed and reports it, or its process is gone and with it the
job. On a cluster tasks are repeated, and several machines must not write to one file: there, parts are files of their own.
"""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from .channel import Channel, Reporter
from .messages import GO_ON, STOP, PartMissing, PartSize, PartStart, Place, ReportAnswer


@dataclass(slots=True)
class _Group:
    """Ends of the first parts, as far as they are known, the sizes of those behind them, and which there will not be."""

    ends: list[int] = field(default_factory=lambda: [0])
    sizes: dict[int, int] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)

    def add(self, number: int, size_bytes: int) -> None:
        """The size of a part."""
        self.sizes[number] = size_bytes
        while len(self.ends) - 1 in self.sizes:
            self.ends.append(self.ends[-1] + self.sizes.pop(len(self.ends) - 1))

    def start(self, number: int) -> ReportAnswer | None:
        """First byte of a part; STOP if a part before it has failed, None if it is not known yet."""
        if number < len(self.ends):
            return self.ends[number]
        return STOP if any(other < number for other in self.missing) else None


class Places:
    """The driver's end: knows the sizes of all parts of one job."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, int], _Group] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    def answer(self, message: PartSize | PartMissing | PartStart) -> ReportAnswer:
        """Record a size, or wait until the start of a part is known or the part is missing."""
        with self._changed:
            parts = self._groups.setdefault((message.log, message.group), _Group())
            match message:
                case PartSize():
                    parts.add(message.number, message.size_bytes)
                    self._changed.notify_all()
                case PartMissing():
                    parts.missing.add(message.number)
                    self._changed.notify_all()
                    return GO_ON
            while (start := parts.start(message.number)) is None and not self._is_closed:
                self._changed.wait()
            return STOP if start is None else start

    def close(self) -> None:
        """Wake the tasks that wait: no size will be reported any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


@contextlib.contextmanager
def places() -> Iterator[Reporter]:
    """Answers the place requests of one job's tasks inside the block."""
    known = Places()
    with Channel(known.answer) as channel:
        try:
            yield channel.reporter
        finally:
            known.close()


@dataclass(frozen=True, slots=True)
class PlaceClient:
    """The task's end: a place, and the driver to ask. All but `give_up` raises Aborted when the job has failed."""

    place: Place
    reporter: Reporter

    def report_size(self, size_bytes: int) -> int:
        """The part is whole: those behind it need its size. Returns where it begins, as `start` does."""
        return self.reporter.ask(PartSize(*self.place, size_bytes))

    def give_up(self) -> None:
        """There will be no part: those behind it need not wait."""
        with contextlib.suppress(Exception):  # the job has ended: no task waits
            self.reporter.ask(PartMissing(*self.place))

    def start(self) -> int:
        """First byte of the part; waits until the sizes of the parts before it are known."""
        return self.reporter.ask(PartStart(*self.place))
