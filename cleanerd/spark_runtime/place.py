"""Where the part of a chunk begins in the new segment of its group, so that it is written once: straight to its place.

A part begins where the one before it ends, and how large a part is shows when its chunk has been encoded. So a task holds
what it encodes, tells how large it is, asks where it begins, and is answered when all parts before it have told their sizes.

No task waits for ever: Spark starts the tasks of a job in order and, on one machine, repeats none. So of the parts that have
not told their size, the first is being encoded, or its task has failed and says so, or its process is gone and with it the
job. On a cluster tasks are repeated, and several machines must not write to one file: there, parts are files of their own.
"""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from .channel import STOP, Channel, Phase, Reporter

_NONE = -1  # the size of a part that will never be
_UNKNOWN = -2  # of one that is not whole yet
_DONE = 0


@dataclass(frozen=True, slots=True)
class Place:
    """The part `number` (from 0) of segment group `group` of log `log`; travels with the task."""

    log: int
    group: int
    number: int


@dataclass(slots=True)
class _Group:
    """Ends of the first parts, as far as they are known, the sizes of those behind them, and which there will not be."""

    ends: list[int] = field(default_factory=lambda: [0])
    sizes: dict[int, int] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)

    def add(self, number: int, size_bytes: int) -> None:
        """A size, or that there will be none."""
        if size_bytes == _NONE:
            self.missing.add(number)
            return
        self.sizes[number] = size_bytes
        while len(self.ends) - 1 in self.sizes:
            self.ends.append(self.ends[-1] + self.sizes.pop(len(self.ends) - 1))

    def position(self, number: int) -> int | None:
        """Where a part begins: STOP when it never will, because one before it failed; None: not known yet."""
        if number < len(self.ends):
            return self.ends[number]
        return STOP if any(other < number for other in self.missing) else None


class Places:
    """The driver's end: knows the sizes of all parts of one job."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, int], _Group] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    def answer(self, log: int, phase: Phase, group: int, number: int, size_bytes: int) -> int:
        """Takes in a size, and waits until a position is known if that is asked for; STOP when it never will be."""
        with self._changed:
            parts = self._groups.setdefault((log, group), _Group())
            if size_bytes != _UNKNOWN:
                parts.add(number, size_bytes)
                self._changed.notify_all()
            if phase is Phase.SIZE:
                return _DONE
            while (position := parts.position(number)) is None and not self._is_closed:
                self._changed.wait()
            return STOP if position is None else position

    def close(self) -> None:
        """Wake the tasks that wait: no size will be told any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


@contextlib.contextmanager
def places(host: str) -> Iterator[Reporter]:
    """What the tasks of one job ask, as long as the block lasts."""
    known = Places()
    with Channel(known.answer, host) as channel:
        try:
            yield channel.reporter
        finally:
            known.close()


@dataclass(frozen=True, slots=True)
class Known:
    """`Asked` for parts that one task writes one after the other: this one begins at `start`."""

    number: int
    start: int

    @property
    def is_first(self) -> bool:
        """Whether the part begins its segment."""
        return self.number == 0

    def tell(self, size_bytes: int) -> None:
        """The next part is made by who knows."""

    def give_up(self) -> None:
        """There will be no next part."""

    def position(self, _: int | None = None) -> int:
        """Where the part begins."""
        return self.start


@dataclass(frozen=True, slots=True)
class Asked:
    """The task's end: a place, and whom to ask. Everything but `give_up` raises Aborted when the job has failed."""

    place: Place
    reporter: Reporter

    @property
    def is_first(self) -> bool:
        """Whether the part begins its segment."""
        return self.place.number == 0

    def tell(self, size_bytes: int) -> None:
        """So large is the part."""
        self._ask(Phase.SIZE, size_bytes)

    def give_up(self) -> None:
        """There will be no part: those behind it need not wait."""
        with contextlib.suppress(Exception):  # the job has ended: no task waits
            self._ask(Phase.SIZE, _NONE)

    def position(self, size_bytes: int | None = None) -> int:
        """Where the part begins; waits for the sizes of those before it. `size_bytes`: of the part, once it is known."""
        return self._ask(Phase.PLACE, _UNKNOWN if size_bytes is None else size_bytes)

    def _ask(self, phase: Phase, size_bytes: int) -> int:
        return self.reporter.ask(self.place.log, phase, self.place.group, self.place.number, size_bytes)
