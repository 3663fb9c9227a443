"""The daemon's end of the engine: started when there is work, stopped when there has been none for a while."""

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

import cleanerd
from cleanerd.cleaning.result import LogResult
from cleanerd.daemon.engine.calls import Call, CleanCall, ExamineCall, Planned, Reply
from cleanerd.env.clock import Clock
from cleanerd.errors import JobFailed

PlannedHook = Callable[[Planned], None]


class EngineDied(JobFailed):
    """The engine process ended in the middle of a call; nothing was committed."""


class _Child:
    """One engine process and the calls that it owes answers."""

    def __init__(self, spark_master: str) -> None:
        ours, theirs = socket.socketpair()
        root = os.path.dirname(os.path.dirname(os.path.abspath(cleanerd.__file__)))
        paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cleanerd.daemon.engine.process", str(theirs.fileno()), spark_master],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))},
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a signal to the daemon's group is the daemon's to answer
            )
        self._connection = Connection(ours.detach())
        self._mutex = threading.Lock()
        self._calls: dict[int, tuple[Future[Any], PlannedHook]] = {}
        self._closed = False
        threading.Thread(target=self._read, name="cleanerd-engine-reader", daemon=True).start()

    def call(self, call: Call, planned: PlannedHook) -> "Future[Any]":
        """Send a call. The future raises EngineDied when the process ends before it has answered."""
        future: Future[Any] = Future()
        with self._mutex:
            if self._closed:
                future.set_exception(EngineDied("the engine has ended"))
                return future
            self._calls[call.id] = (future, planned)
            try:
                self._connection.send(call)
            except OSError:
                del self._calls[call.id]
                future.set_exception(EngineDied("the engine has ended"))
        return future

    @property
    def is_alive(self) -> bool:
        return not self._closed

    @property
    def is_busy(self) -> bool:
        return bool(self._calls)

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = self._connection.recv()
                if isinstance(message, Planned):
                    with self._mutex:
                        found = self._calls.get(message.call_id)
                    if found is not None:
                        found[1](message)
                elif isinstance(message, Reply):
                    with self._mutex:
                        found = self._calls.pop(message.call_id, None)
                    if found is not None:
                        found[0].set_result(message.value)
        self._fail_all()

    def _fail_all(self) -> None:
        with self._mutex:
            self._closed = True
            calls, self._calls = self._calls, {}
        for future, _ in calls.values():
            future.set_exception(EngineDied("the engine ended in the middle of the work"))

    def stop(self, timeout_s: float) -> None:
        """Close the pipe, which ends the process; kill it when it does not."""
        self._closed = True
        with contextlib.suppress(OSError):  # wakes the reader on both ends
            socket.socket(fileno=os.dup(self._connection.fileno())).shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._connection.close()


class Engine:
    """Calls into the engine process; thread-safe. `spark_master` is asked for at every start of the process."""

    def __init__(self, spark_master: Callable[[], str], clock: Clock) -> None:
        self._spark_master = spark_master
        self._clock = clock
        self._ids = itertools.count(1)
        self._mutex = threading.Lock()
        self._child: _Child | None = None
        self._idle_since_s = clock.monotonic_s()
        self.starts = 0

    def clean(self, task: CleanCall, planned: PlannedHook) -> list[LogResult]:
        """Examine, clean and stage; blocks. Raises EngineDied, other Retryable errors, Fatal without Java."""
        results = self._call(task, planned)
        assert isinstance(results, list)
        return results

    def examine(self, task: ExamineCall) -> LogResult:
        """What a cleaning would find; blocks, but needs no Spark session."""
        result = self._call(task, lambda _: None)
        assert isinstance(result, LogResult)
        return result

    def _call(self, task: CleanCall | ExamineCall, planned: PlannedHook) -> object:
        with self._mutex:
            if self._child is None or not self._child.is_alive:
                self._reap()
                self._child = _Child(self._spark_master())
                self.starts += 1
            future = self._child.call(Call(next(self._ids), task), planned)
        try:
            value = future.result()
        finally:
            self._idle_since_s = self._clock.monotonic_s()
        if isinstance(value, Exception):
            raise value
        return value

    @property
    def pid(self) -> int | None:
        """Of the running process, None when there is none."""
        child = self._child
        return child.process.pid if child is not None and child.is_alive else None

    def stop_if_idle(self, timeout_ms: int) -> bool:
        """Stop a process that has had nothing to do for so long; whether it was."""
        with self._mutex:
            if self._child is None or self._child.is_busy:
                return False
            if (self._clock.monotonic_s() - self._idle_since_s) * 1000 < timeout_ms and self._child.is_alive:
                return False
            self._stop(5.0)
            return True

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop the process whatever it does: nothing of it is committed by itself."""
        with self._mutex:
            self._stop(timeout_s)

    def _stop(self, timeout_s: float) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.stop(timeout_s)

    def _reap(self) -> None:
        """Wait for a process that has ended by itself, so that no zombie stays."""
        self._stop(1.0)
