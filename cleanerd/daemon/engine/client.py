"""The daemon's end of the engine: started when there is work, stopped after a while without."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

from cleanerd.cleaning.result import LogResult
from cleanerd.config.load import Configuration
from cleanerd.config.model import CleanerdConfig
from cleanerd.daemon.engine.calls import (
    CleanCall,
    EngineCall,
    EngineReply,
    ExamineCall,
    PlannedBytes,
    RestDropped,
    SparkJob,
    StepDone,
)
from cleanerd.daemon.values.log_id import LogId
from cleanerd.env.clock import Clock
from cleanerd.env.host import passed_on
from cleanerd.errors import JobFailed
from cleanerd.spark_runtime.scratch import sweep_those_of, temporary_place
from cleanerd.spark_runtime.spark_master import SparkPlace

_POLL_S = 0.5
_ENDING_S = 60.0  # a JVM that leaves an archive of its classes takes seconds
STALL_LIMIT_S = 300.0
"""How long the tasks of a Spark job may be silent: they report each piece that they read, seconds apart on a slow disk."""
_ABORT_PATIENCE_S = 15.0  # in which the tasks of a job that is to stop report, if they are alive


class EngineDied(JobFailed):
    """The engine process ended in the middle of a call; nothing was committed."""


class EngineStalled(JobFailed):
    """The tasks of a Spark job did not report for too long; the engine process was ended, nothing was committed."""


class CallHost:
    """The caller of the engine during a call: takes reports and answers questions, from several threads. This one never
    stops a call.
    """

    def progressed(self, message: PlannedBytes | StepDone) -> None:
        """A log was planned, or has finished a step."""

    def is_aborted(self) -> bool:
        """Whether a log of the call is to stop. Then the call ends as soon as its tasks have learned of it."""
        return False


class _Child:
    """One engine process and the calls that it owes answers."""

    def __init__(self, place: SparkPlace, clock: Clock) -> None:
        self.place = place
        self._clock = clock
        self._beat_s = clock.monotonic_s()
        self._in_spark: set[int] = set()  # calls of which a Spark job runs
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cleanerd.daemon.engine.process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=passed_on(os.environ) | temporary_place(dict(place.conf), os.environ),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a signal to the daemon's group is the daemon's to answer
            )
        self._connection = Connection(ours.detach())
        self._connection.send(place)  # not an argument: every user of the machine can read those
        self._mutex = threading.Lock()
        self._calls: dict[int, tuple[Future[Any], CallHost]] = {}
        self._closed = False
        self._asked_to_end_s: float | None = None  # by the clock; None: it was not
        threading.Thread(target=self._read, name="cleanerd-engine-reader", daemon=True).start()

    def call(self, call: EngineCall, host: CallHost) -> "Future[Any]":
        """Send a call. The future raises EngineDied when the process ends before it has answered."""
        future: Future[Any] = Future()
        with self._mutex:
            if self._closed:
                future.set_exception(EngineDied("the engine has ended"))
                return future
            self._calls[call.id] = (future, host)
            try:
                self._connection.send(call)
            except OSError:
                del self._calls[call.id]
                future.set_exception(EngineDied("the engine has ended"))
        return future

    def tell(self, message: RestDropped) -> None:
        """Send what nobody answers."""
        with self._mutex, contextlib.suppress(OSError):
            if not self._closed:
                self._connection.send(message)

    @property
    def is_alive(self) -> bool:
        return not self._closed and self.process.poll() is None  # the reader may not have met its end yet

    @property
    def is_busy(self) -> bool:
        return bool(self._calls)

    def beat(self) -> None:
        """A task or the engine has reported."""
        self._beat_s = self._clock.monotonic_s()

    @property
    def silent_s(self) -> float:
        """Seconds since the last report of a task of a running Spark job; 0 without one."""
        return self._clock.monotonic_s() - self._beat_s if self._in_spark else 0.0

    def _read(self) -> None:
        """On exit, fail every pending future, so no caller waits for a dead engine."""
        try:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    self._take(self._connection.recv())
        finally:
            with self._mutex:
                self._closed = True
                calls, self._calls = self._calls, {}
            for future, _ in calls.values():
                future.set_exception(EngineDied("the engine ended in the middle of the work"))

    def _take(self, message: object) -> None:
        self.beat()
        if isinstance(message, PlannedBytes | StepDone):
            with self._mutex:
                found = self._calls.get(message.call_id)
            if found is not None:
                found[1].progressed(message)
        elif isinstance(message, SparkJob):
            (self._in_spark.add if message.is_running else self._in_spark.discard)(message.call_id)
        elif isinstance(message, EngineReply):
            with self._mutex:
                found = self._calls.pop(message.call_id, None)
            if found is not None:
                found[0].set_result(message.value)

    def try_end(self) -> bool:
        """Ask the process to end; return whether it has by now. One that takes too long is killed."""
        now_s = self._clock.monotonic_s()
        if self._asked_to_end_s is None:
            self._asked_to_end_s = now_s
            with contextlib.suppress(OSError):
                self._connection.send(None)
            self._close()
        if self.process.poll() is None and now_s - self._asked_to_end_s < _ENDING_S:
            return False
        self.kill()
        self._connection.close()
        return True

    def _close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):  # wakes the reader on both ends
            socket.socket(fileno=os.dup(self._connection.fileno())).shutdown(socket.SHUT_RDWR)

    def stop(self, timeout_s: float) -> None:
        """Close the pipe, which ends the process; kill it when it does not."""
        self._close()
        self._wait(timeout_s)
        self.kill()
        self._connection.close()

    def _wait(self, timeout_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):  # a sandbox may refuse wait4
            self.process.wait(timeout_s)

    def kill(self) -> None:
        """Kill the process and its JVM, and delete their scratch files."""
        with contextlib.suppress(
            OSError
        ):  # it is gone, or a sandbox refuses: it ends with its connection, too
            os.killpg(self.process.pid, signal.SIGKILL)
        self._wait(_ENDING_S)
        sweep_those_of(dict(self.place.conf))


class Engine:
    """Calls into the engine process; thread-safe.

    `place_of` names the place before every call: when it is another one, a new process takes the calls from there on and
    the old one ends with its last.
    """

    def __init__(
        self,
        configuration: Callable[[], Configuration],
        place_of: Callable[[CleanerdConfig], SparkPlace],
        clock: Clock,
    ) -> None:
        self._configuration = configuration
        self._place_of = place_of
        self._clock = clock
        self._ids = itertools.count(1)
        self._mutex = threading.Lock()
        self._child: _Child | None = None
        self._retired: list[_Child] = []  # idle, or of another place; each finishes its calls
        self._idle_since_s = clock.monotonic_s()
        self._jobs = 0  # that run: between two rounds of one there is no call, but what to go on with
        self.starts = 0
        self.stalled: str | None = None  # why the last cleaning was ended, until one comes through

    def clean(self, task: CleanCall, host: CallHost) -> list[LogResult]:
        """Examine, clean and stage; blocks. Raises EngineDied, EngineStalled, other errors of a job, Fatal without Java."""
        try:
            results = self._call(task, host)
        except EngineStalled as error:
            if not host.is_aborted():  # who asked for a stop got it
                self.stalled = str(error)
            raise
        self.stalled = None
        assert isinstance(results, list)
        return results

    def examine(self, task: ExamineCall) -> LogResult:
        """Examine a log as a cleaning would; blocks, but needs no Spark session."""
        result = self._call(task, CallHost())
        assert isinstance(result, LogResult)
        return result

    @contextlib.contextmanager
    def job(self) -> Iterator[None]:
        """Keep the engine inside the block, whatever its calls."""
        with self._mutex:
            self._jobs += 1
        try:
            yield
        finally:
            with self._mutex:
                self._jobs -= 1
                self._idle_since_s = self._clock.monotonic_s()

    def drop_rest(self, log: LogId) -> None:
        """Nobody will ask for the groups that are left of a log."""
        with self._mutex:
            if self._child is not None:
                self._child.tell(RestDropped(log.directory))

    def beat(self) -> None:
        """A task reports: the engine works."""
        for child in (self._child, *self._retired):
            if child is not None:
                child.beat()

    def _call(self, task: ExamineCall, host: CallHost) -> object:
        with self._mutex:
            child = self._current()
            future = child.call(EngineCall(next(self._ids), task), host)
        try:
            value = self._await(child, future, host)
        finally:
            self._idle_since_s = self._clock.monotonic_s()
        if isinstance(value, Exception):
            raise value
        return value

    def _current(self) -> _Child:
        """A process for the place that holds now. The mutex is held."""
        place = self._place_of(self._configuration().broker)
        if self._child is not None and self._child.is_alive and self._child.place != place:
            self._retire(self._child)
        if self._child is None or not self._child.is_alive:
            if self._child is not None:  # of one that has ended by itself no zombie stays
                self._child.stop(1.0)
                self._child = None
            try:
                self._child = _Child(place, self._clock)
            except OSError as error:
                raise JobFailed(f"the engine cannot be started: {error}") from error
            self.starts += 1
        return self._child

    def _await(self, child: _Child, future: "Future[object]", host: CallHost) -> object:
        while True:
            try:
                return future.result(_POLL_S)
            except TimeoutError:
                silent_s = child.silent_s
                if silent_s >= STALL_LIMIT_S or (silent_s >= _ABORT_PATIENCE_S and host.is_aborted()):
                    child.kill()
                    raise EngineStalled(
                        f"no task of Spark has reported for {silent_s:.0f} s; the engine was ended"
                    ) from None

    @property
    def pid(self) -> int | None:
        """Process id of the running engine; None while none runs."""
        child = self._child
        return child.process.pid if child is not None and child.is_alive else None

    def stop_if_idle(self, timeout_ms: int) -> bool:
        """Stop an engine that has been idle for `timeout_ms`; True if it was."""
        with self._mutex:
            self._end_retired()
            if self._child is None or self._child.is_busy or self._jobs:
                return False
            if (self._clock.monotonic_s() - self._idle_since_s) * 1000 < timeout_ms and self._child.is_alive:
                return False
            self._retire(self._child)
            return True

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop the engine, within `timeout_s`, even in the middle of a call: an engine commits nothing."""
        with self._mutex:
            for child in (self._child, *self._retired):
                if child is not None:
                    child.stop(timeout_s)
            self._child = None
            self._retired.clear()

    def _retire(self, child: _Child) -> None:
        """It gets no more calls."""
        self._child = None
        self._retired.append(child)
        self._end_retired()

    def _end_retired(self) -> None:
        self._retired = [child for child in self._retired if child.is_busy or not child.try_end()]
