"""What one seed's world stands on: its disk, clock and locks, and what is done before every operation.

Every step is drawn from the seed. `trace` is what happened; the same seed gives the same trace to the last byte, and
`digest` is its hash, file operations included.
"""

import contextlib
import errno
import hashlib
import os
import random
import shutil
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import structlog

from cleanerd.env.files import RealFiles
from cleanerd.env.space import Space, floor_bytes
from cleanerd.format import names
from cleanerd.format.batch import iterate_batches, parse_header
from tests.harness.clock import Tick
from tests.harness.disks.simulated import SwitchedOff
from tests.simulation import judge
from tests.simulation.cleaner import Cleanerd, Locks, instead_of_the_machine
from tests.simulation.directories import LOOKS, STAGED, Directories
from tests.simulation.disk import Disk
from tests.simulation.rules import Rules
from tests.simulation.writer import Log

if TYPE_CHECKING:
    from tests.simulation.broker import Broker

START_NS = 1_790_000_000 * 10**9
FAULTS = (errno.EIO, errno.ENOSPC, errno.EACCES)
KAFKA_SHARE = 0.5
"""Of the worlds whose log directory belongs to a broker."""
LOG_DIRS = (1, 1, 2, 2, 2, 3)
"""How many log directories worlds have."""
FILES = RealFiles()


def next_offset(content: bytes, base: int) -> int:
    """The offset after the last batch of a `.log`."""
    starts = [position for position, _, _ in iterate_batches(content)]
    return parse_header(content, starts[-1]).next_offset if starts else base


class Stage(ABC):
    """See the head of this module. `path`: where its files may be."""

    def __init__(self, seed: int, path: str) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.clock = Tick(START_NS)
        self.aside_s = 0.0  # of its time, what is charged to nobody
        self.disk = Disk(path, self.clock, self._before)
        self.locks = Locks()
        self.trace: deque[str] = deque(maxlen=400)
        self.counts: Counter[str] = Counter()
        self.digest = hashlib.sha256()
        self.state = f"{path}.state"
        self.log_dirs = tuple(f"{path}/{number}/logs" for number in range(self.chance.choice(LOG_DIRS)))
        self.directories = Directories(self)
        self.daemon: Cleanerd | None = None
        self.actor = ""
        self.doing = ""  # the step of the daemon that is taken
        self.kill_in: int | None = None  # operations until who acts is killed, or the power goes
        self.fault_rate = 0.0
        self.faulty = ""  # where calls fail: a log directory, or all
        self.held: dict[str, Log] = {}  # hold -> log that it keeps the cleaner from
        self.problems: list[str] = []  # found by code that could not raise
        self.is_calm = False
        self.rules = Rules(delete_retention_ms=0)
        self.is_kafka = self.chance.random() < KAFKA_SHARE
        self.broker: Broker | None = None
        self.aborted: set[str] = set()  # directories whose cleaning was asked to stop, in this step
        self.logs: list[Log] = []

    # -- around -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The world instead of this process's; everything is put back afterwards."""
        os.makedirs(f"{self.state}/topics.d")
        configured = structlog.get_config()
        structlog.configure(processors=[self._log_event], cache_logger_on_first_use=False)
        try:
            with (
                instead_of_the_machine(
                    self.clock, self.locks, self.seed, self._interlude, self.problems.append
                ),
                self.disk.installed(),
            ):
                self._begin()
                yield
        finally:
            structlog.configure(**configured)
            if self.daemon is not None:
                self.daemon.close()
            for log in self.logs:
                log.die()
            self.disk.remove()
            shutil.rmtree(self.state)

    def _log_event(self, _: object, __: str, event: dict[str, object]) -> dict[str, object]:
        self.note(f"  log {event.get('event')} {event.get('reason', '')}")
        raise structlog.DropEvent

    def note(self, text: str) -> None:
        text = text.replace(self.disk.root, "")
        self.trace.append(text)
        self.digest.update(text.encode() + b"\n")

    # -- before every operation ---------------------------------------------------------------------------------

    def _before(self, operation: str, path: str) -> None:
        if not self.actor:
            return
        self.directories.fail_if_offline(operation, path)
        self.digest.update(f"{operation} {path.replace(self.disk.root, '')}\n".encode())
        if operation in LOOKS:
            if self.actor == "daemon" and (operation == "look" or self.directories.is_of_partition(path)):
                self._maybe_fail(operation, path, (errno.EIO,))
            return
        self.counts["operations"] += 1
        self._die_if_due(f"{operation} {path}")
        if self.actor == "daemon":
            self.aside(partial(self._check, operation, path))
            self._maybe_fail(operation, path, FAULTS)

    def _die_if_due(self, what: str) -> None:
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in < 0:
                self.disk.is_off = True
                self.note(f"  killed before {what}")
                raise SwitchedOff

    def _maybe_fail(self, operation: str, path: str, numbers: tuple[int, ...]) -> None:
        if self.fault_rate and path.startswith(self.faulty) and self.chance.random() < self.fault_rate:
            number = self.chance.choice(numbers)
            self.counts["faults"] += 1
            self.note(f"  {errno.errorcode[number]} at {operation} {path}")
            raise OSError(number, os.strerror(number), path)

    @contextlib.contextmanager
    def _unsettling(self) -> Iterator[None]:
        """A step of retention that is killed, or reports that it could not sync the directory of a log: what it has renamed
        is not gone for good before a later sync, which a power cut may come before.
        """
        before = [self.disk.retired(log.directory) for log in self.logs]
        try:
            yield
        finally:
            for log, retired in zip(self.logs, before, strict=True):
                log.model.unsettled |= self.disk.retired(log.directory) - retired

    def _check(self, operation: str, path: str) -> None:
        """What the daemon must not do."""
        self.directories.check(operation, path)
        for hold, log in self.held.items():
            is_inside = path.startswith(f"{log.directory}/")
            if is_inside and not self._is_recovery(operation, path, log.directory):
                self.problems.append(f"{operation} {path} under hold {hold}")
        is_commit = operation == "rename" and not path.endswith(STAGED)
        if is_commit and os.path.dirname(path.partition(" -> ")[0]) in self.aborted:
            self.problems.append(f"{operation} {path} after its cleaning was aborted")
        room = self.disk.systems.room(path)
        if room.is_small and operation == "write" and path.endswith((".part.cleanerd", ".log.cleanerd")):
            free_bytes = self.disk.free_bytes(path)
            least_bytes = floor_bytes(Space(room.capacity_bytes, free_bytes), 0.0)
            if free_bytes < least_bytes // 2:  # meanwhile others may have written a little
                self.problems.append(
                    f"{operation} {path} with {free_bytes} bytes free, the floor is {least_bytes}"
                )
        if self.broker is not None:
            self.broker.before(operation, path)

    @staticmethod
    def _is_recovery(operation: str, path: str, directory: str) -> bool:
        """Whether it ends what had begun, as recovery does in a held log, too (architecture 2).

        Staged files may go at any time, `.deleted` ones when their delay is over. A commit, which begins with a rename of
        a staged file, may be finished or undone while files of it lie there; the last of them is tried again where it is
        gone. A truncation that was interrupted counts as ended.
        """
        source = path.partition(" -> ")[0]
        is_removal = operation == "unlink" and source.endswith((STAGED, ".deleted"))
        is_generation = os.path.basename(source).startswith(names.GENERATION)
        is_under_way = source.endswith(judge.TRANSITIONAL) or judge.in_transition(directory)
        return is_removal or is_generation or (is_under_way and not source.endswith(STAGED))

    # -- acting -------------------------------------------------------------------------------------------------

    def act(self, actor: str, work: Callable[[], object]) -> bool:
        """Do something as somebody who may be killed; whether he lives."""
        self.actor = actor
        if actor == "daemon":
            self.aborted.clear()  # what was asked to stop ends with this step
        is_retention = actor == "daemon" and self.doing == "retention"
        try:
            with self._unsettling() if is_retention else contextlib.nullcontext():
                work()
        except SwitchedOff:
            self.disk.is_off = False
            return False
        finally:
            self.actor, self.kill_in = "", None
        return True

    def aside(self, work: Callable[[], object]) -> None:
        """In the middle of somebody's step somebody else does something."""
        actor, kill_in = self.actor, self.kill_in
        self.actor, self.kill_in = "", None
        try:
            work()
        finally:
            self.actor, self.kill_in = actor, kill_in

    def pass_aside_s(self, seconds: float) -> None:
        """Time that passes because somebody takes it who may not be the actor: it is not charged to them."""
        self.clock.pass_s(seconds)
        self.aside_s += seconds

    def maybe_killed(self, share: float, most: int) -> None:
        """Who acts next is killed before one of so many operations."""
        if not self.is_calm and self.chance.random() < share:
            self.kill_in = self.chance.randint(0, most)

    def observe(self) -> None:
        for log in self.logs:
            log.model.window.observe(self.clock.now_ms(), self.rules)

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _interlude(self) -> None: ...

    @abstractmethod
    def _meanwhile(self) -> None: ...
