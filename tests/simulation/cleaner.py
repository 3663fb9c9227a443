"""cleanerd in this process, without its threads: the steps that they repeat are taken one by one, when the schedule decides.

All of it is the daemon's own code but three things. The engine is called and not sent to, with its tasks run in place
instead of by Spark (`tests.harness.spark.in_process.InProcess`). Their reports reach the daemon by a call, at which the
schedule may do something else. Record locks and leases are those of `Locks`: the processes that compete here are one to the
kernel.
"""

import contextlib
import errno
import fcntl
import os
import random
import struct
import sys
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from cleanerd.cleaning import clean, cuts, retain, round_size
from cleanerd.cleaning.commit import host as commit_host
from cleanerd.cleaning.result import LogResult
from cleanerd.cleaning.room import Reservations
from cleanerd.cleaning.throttle import Throttle
from cleanerd.config.load import Configuration, resolve
from cleanerd.config.sources import read_sources
from cleanerd.daemon.configuration.reload import Reloader
from cleanerd.daemon.engine.calls import CleanCall, EngineCall, EngineReply, PlannedBytes
from cleanerd.daemon.engine.client import CallHost, EngineDied
from cleanerd.daemon.engine.process import EngineProcess
from cleanerd.daemon.loops import cleanings
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.store import Store
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work import ownership
from cleanerd.env import files as env_files
from cleanerd.env.files import RealFiles
from cleanerd.errors import Aborted
from cleanerd.format import names
from cleanerd.pipeline import small_log
from cleanerd.policy.schedule import SMALL_LOG_BYTES
from cleanerd.spark_runtime.messages import STOP, Moved, Phase, ReportAnswer
from cleanerd.storage import lock as storage_lock
from cleanerd.storage import log_dir, segments
from cleanerd.tools.client import writer
from tests.harness.clock import Tick
from tests.harness.spark.in_process import InProcess
from tests.simulation.disk import REAL

BROKER_PID = 4242
_FLOCK = struct.Struct("hhqqi0q")


class EngineKilled(BaseException):
    """kill -9 of the engine; the daemon goes on."""


@dataclass
class Locks:
    """`fcntl` as `cleanerd.storage.lock` sees it. `held`: lock files that the broker has. `has_leases`: no NFS."""

    unlocked: Callable[[str], None] = lambda _: None
    has_leases: bool = True
    is_broker: bool = False  # who is asking now
    held: set[str] = field(default_factory=set)
    wanted: str | None = None  # a broker waits in `open` of this one

    LOCK_EX, LOCK_NB, LOCK_UN = fcntl.LOCK_EX, fcntl.LOCK_NB, fcntl.LOCK_UN
    F_SETSIG, F_SETLEASE, F_GETLEASE = fcntl.F_SETSIG, fcntl.F_SETLEASE, fcntl.F_GETLEASE
    F_GETLK = fcntl.F_GETLK
    F_WRLCK, F_UNLCK, F_RDLCK = fcntl.F_WRLCK, fcntl.F_UNLCK, fcntl.F_RDLCK

    def _is_held(self, fd: int) -> bool:
        return not self.is_broker and os.readlink(f"/proc/self/fd/{fd}") in self.held

    def lockf(self, fd: int, command: int) -> None:
        if command == fcntl.LOCK_UN:
            self.unlocked(os.readlink(f"/proc/self/fd/{fd}"))
        elif self._is_held(fd):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def fcntl(self, fd: int, command: int, argument: Any = 0) -> Any:
        if command == fcntl.F_SETLEASE and argument == fcntl.F_WRLCK:
            if not self.has_leases:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            if self._is_held(fd):
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        if command == fcntl.F_GETLEASE:
            is_wanted = self.wanted == os.readlink(f"/proc/self/fd/{fd}")
            return fcntl.F_UNLCK if is_wanted else fcntl.F_WRLCK
        if command == fcntl.F_GETLK:
            kind, pid = (fcntl.F_WRLCK, BROKER_PID) if self._is_held(fd) else (fcntl.F_UNLCK, 0)
            return _FLOCK.pack(kind, 0, 0, 0, pid)
        return 0


_reporters: weakref.WeakValueDictionary[int, "InlineReporter"] = weakref.WeakValueDictionary()


class InlineReporter:
    """What tasks report to. `interlude` is what else happens while they work."""

    def __init__(self, answer: Callable[[Moved], ReportAnswer], interlude: Callable[[], None]) -> None:
        _reporters[id(self)] = self
        self._answer = answer
        self._interlude = interlude

    def _report(self, log: int, phase: Phase, *done: int) -> None:
        self._interlude()
        if self._answer(Moved(log, phase, *done)) == STOP:
            raise Aborted("asked to stop")

    def __reduce__(self) -> tuple[Callable[[int], "InlineReporter"], tuple[int]]:
        """It travels to tasks, and comes out as itself: they are in this process."""
        return _reporter, (id(self),)

    @contextlib.contextmanager
    def advance(self, log: int, phase: Phase) -> Iterator[Callable[[int, int, int], None]]:
        yield lambda *done: self._report(log, phase, *done)

    def live(self, log: int, phase: Phase) -> None:
        self._answer(Moved(log, phase, 0, 0, 0))

    @contextlib.contextmanager
    def examining(self) -> Iterator[Callable[[int, int], None]]:
        yield lambda log, read_bytes: self._report(log, Phase.EXAMINE, read_bytes, 0, 0)


def _reporter(number: int) -> InlineReporter:
    return _reporters[number]


class InlineChannel:
    """`spark_runtime.channel.Channel` without sockets; set `interlude` on the class."""

    interlude: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, answer: Callable[[Moved], ReportAnswer], host: str = "") -> None:
        self.reporter = InlineReporter(answer, type(self).interlude)

    def __enter__(self) -> "InlineChannel":
        return self

    def __exit__(self, *_: object) -> None: ...


class InlinePool:
    """A pool of threads that is none."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> "InlinePool":
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, step: Callable[..., Any], *arguments: Any) -> list[Any]:
        return [step(*each) for each in zip(*arguments, strict=False)]


class InPlace(InProcess):
    """A Spark session that runs its tasks in place."""

    is_up, master = True, "local[1]"

    def context(self) -> "InPlace":
        return self


class InlineEngine:
    """`daemon.engine.client.Engine`, the engine being called."""

    def __init__(self, clock: Tick) -> None:
        self.starts, self.pid, self.stalled = 1, None, None
        self._engine = EngineProcess.__new__(EngineProcess)
        files = RealFiles()
        vars(self._engine).update(
            _call=threading.local(), _session=InPlace(), _files=files, _reservations=Reservations(files),
            _rests={}, _clock=clock, send=self._received,
        )  # fmt: skip
        self._host = CallHost()
        self._reply: object = None

    def _received(self, message: object) -> None:
        if isinstance(message, PlannedBytes):
            self._host.progressed(message)
        elif isinstance(message, EngineReply):
            self._reply = message.value

    def clean(self, task: CleanCall, host: CallHost) -> list[LogResult]:
        self._host = host
        assert task.goes_on or not self._engine._rests, "nothing is kept of a log that nobody goes on with"
        try:
            self._engine._answer(EngineCall(1, task))
        except EngineKilled as error:
            self._engine._reservations, self._engine._rests = Reservations(RealFiles()), {}
            raise EngineDied("the engine ended in the middle of the work") from error
        if isinstance(self._reply, Exception):
            raise self._reply
        assert isinstance(self._reply, list)
        return self._reply

    def beat(self) -> None: ...

    def job(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def drop_rest(self, log: LogId) -> None:
        self._engine._rests.pop(log.directory, None)

    def stop(self, timeout_s: float = 0) -> None: ...

    def stop_if_idle(self, timeout_ms: int) -> bool:
        return False


class Cleanerd:
    """A daemon that has started; `steps` are what its threads would repeat."""

    def __init__(self, state: str, log_dirs: tuple[str, ...], clock: Tick) -> None:
        config_file = f"{state}/server.properties"

        def load() -> Configuration:
            return resolve(read_sources(config_file))

        self.reloader = Reloader(load(), load, lambda: None, lambda plan: self.supervisor.apply(plan), clock)
        history = Store(f"{state}/history.sqlite")
        parts = Parts(lambda: self.reloader.current, log_dirs, history, RealFiles(), clock)
        parts.engine, parts.express_engine = InlineEngine(clock), InlineEngine(clock)
        parts.throttle = Throttle(clock, lambda _, seconds: clock.pass_s(seconds))
        parts.commits = replace(parts.commits, pause=clock.pass_s)
        self.parts = parts
        self.supervisor = parts.supervisor()
        self.supervisor.start_threads = lambda: None  # type: ignore[method-assign]
        workers = self.supervisor.cleaners.workers
        self.steps: dict[str, Callable[[], object]] = {
            "worker": workers._step,
            "express": workers._express.step,
            "scan": self.supervisor.scanner.scan,
            **{keeper.name.removeprefix("cleanerd-"): keeper.step for keeper in self.supervisor.keepers},
        }

    def held_locks(self) -> list[str]:
        """Names of the lock files of log directories that this process holds."""
        return [name for name, _ in held_slots()]

    def close(self) -> None:
        """The end of the process, however it came."""
        self.parts.store.close()
        for _, slot in held_slots():
            assert slot.fd is not None
            with contextlib.suppress(OSError):
                REAL.close(slot.fd)
            slot.fd = None


def held_slots() -> list[tuple[str, storage_lock._Slot]]:
    """Of log directories: a daemon that another test runs in this process keeps the lock of its state directory for good."""
    slots = [(name, slot) for (_, _, name), slot in storage_lock._slots.items() if slot.fd is not None]
    return [(name, slot) for name, slot in slots if name in (names.LOCK, names.CLEANERD_LOCK)]


def without_waiting(clock: Tick) -> SimpleNamespace:
    """`threading` for those who pause, or wait for a thread: time goes by at once, and its work is done in this one."""
    event = SimpleNamespace(wait=lambda seconds=0.0: clock.pass_s(seconds or 0.0))

    def thread(target: Callable[[], object], **_: object) -> SimpleNamespace:
        return SimpleNamespace(start=target, join=lambda _: None)

    return SimpleNamespace(Event=lambda: event, Lock=threading.Lock, Thread=thread)


def one_group_a_round(is_so: bool) -> Iterator[Any]:
    """Else all groups of these small logs are one."""
    for name in ("_BYTES_PER_CORE", "_BYTES_PER_KEY_BYTE") if is_so else ():
        yield mock.patch.object(round_size, name, 0)


@contextlib.contextmanager
def instead_of_the_machine(
    clock: Tick, locks: Locks, seed: int, interlude: Callable[[], None], report: Callable[[str], None]
) -> Iterator[None]:
    """Locks, pauses, threads, sockets and chance of the simulation; `report` gets internal errors."""
    bits = random.Random(seed)

    def identity() -> uuid.UUID:
        return uuid.UUID(int=bits.getrandbits(128))

    patches = [
        mock.patch.object(storage_lock, "fcntl", locks),
        mock.patch.object(storage_lock, "POLL_S", 1e9),  # nobody waits: one attempt
        mock.patch.object(cleanings, "Channel", InlineChannel),
        mock.patch.object(InlineChannel, "interlude", staticmethod(interlude)),
        mock.patch.object(os, "urandom", bits.randbytes),
        mock.patch.object(small_log, "SMALL_LOG_BYTES", seed % 2 * SMALL_LOG_BYTES),
        mock.patch.object(uuid, "uuid4", identity),
        *one_group_a_round(seed // 2 % 2 == 0),
        mock.patch.object(sys, "excepthook", lambda kind, error, _: report(f"{kind.__name__}: {error}")),
    ]
    waiting = (commit_host, log_dir, ownership, retain, storage_lock, segments, writer)
    patches += [mock.patch.object(module, "threading", without_waiting(clock)) for module in waiting]
    patches += [mock.patch.object(module, "ThreadPoolExecutor", InlinePool) for module in (clean, cuts)]
    patches += [mock.patch.object(env_files, "_sync_threads", InlinePool())]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield
