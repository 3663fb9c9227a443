"""A Python daemon that is ready before Spark asks for one: forked from a driver that has imported all that workers need.

Spark's JVM starts `python_daemon` when the first job comes, and the job would wait for two seconds until that process and
its workers have imported and loaded what they need. Here the driver forks while the JVM still starts, and what the JVM
starts later only hands over its place: its standard streams, its environment and its arguments, through a Unix socket that
answers this user alone. Then it waits, because the JVM watches it, and ends when the other one does.

Whatever is wrong, nothing is lost but time: a daemon that nothing answers imports what it needs by itself.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import secrets
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

ADDRESS = "CLEANERD_FORKED_DAEMON"
"""Environment variable with the name of the socket; in Linux's abstract namespace, so it vanishes with its processes."""

TASKS = "cleanerd.pipeline.tasks"
"""The module with the functions of tasks, imported by name before workers are forked. The runtime calls its `make_ready`."""
_ANSWER_LIMIT_S = 20.0  # it loads kernels: where that takes longer, so does a new process
_END_LIMIT_S = 5.0
_POLL_S = 0.005
_LENGTH = struct.Struct("!I")
_PEER = struct.Struct("3i")  # pid, uid, gid
_STREAMS = 3
_MALLOC = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2, "MALLOC_MMAP_THRESHOLD_": -3}
"""Variables that glibc reads at the start of a process, and the parameters of mallopt(3) that set the same later."""


class ForkedDaemon:
    """A forked Python daemon; before `fork` only an address to give to a JVM."""

    def __init__(self) -> None:
        self.address = f"cleanerd-{secrets.token_hex(16)}"
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(f"\0{self.address}")
        self._listening.listen(1)
        self._alive: int | None = None  # the end of a pipe that the daemon sees closed when we are gone
        self._pid: int | None = None

    def fork(self) -> None:
        """Start it; once. Raises OSError."""
        if self._pid is not None:
            return
        tasks = importlib.import_module(TASKS)
        theirs, self._alive = os.pipe()
        pid = os.fork()
        if pid == 0:
            _run(self._listening, theirs, tasks.make_ready)
        self._pid = pid
        os.close(theirs)
        self._listening.close()

    def stop(self) -> None:
        """End a daemon that was never used; wait for one that ends with its JVM."""
        self._listening.close()
        if self._alive is None or self._pid is None:
            return
        os.close(self._alive)
        self._alive = None
        deadline_s = time.monotonic() + _END_LIMIT_S
        while os.waitpid(self._pid, os.WNOHANG)[0] == 0:  # no pidfd_open: old kernels and sandboxes refuse it
            if time.monotonic() > deadline_s:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                return
            threading.Event().wait(_POLL_S)


def hand_over(address: str) -> bool:
    """Let the one that listens at `address` take this process's place; returns when it has ended.

    False at once if there is none that answers.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_ANSWER_LIMIT_S)
        connection.connect(f"\0{address}")
        if not _is_ours(connection) or not connection.recv(1):
            return False
    except OSError:
        return False
    connection.settimeout(None)
    mask = os.umask(0)
    os.umask(mask)
    about = json.dumps([sys.argv, dict(os.environ), mask]).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(about))], range(_STREAMS))
    connection.sendall(about)
    devnull = os.open(os.devnull, os.O_RDWR)
    for stream in range(_STREAMS):  # the other process gets the JVM's messages, and notices its end
        os.dup2(devnull, stream)
    connection.recv(1)
    return True


def _run(listening: socket.socket, alive: int, make_ready: Callable[[], None]) -> NoReturn:
    """The life of the forked process. It runs none of the driver's code, not even at its end."""
    code = 1
    try:
        _leave_driver(keep=(listening.fileno(), alive))
        make_ready()
        connection = _asked(listening, alive)
        if connection is not None:
            _take_place(connection)
            _serve(connection)
        code = 0
    except BaseException:  # noqa: BLE001, S110 - there is no caller, and Spark starts another one
        pass
    finally:
        os._exit(code)


def _leave_driver(keep: tuple[int, ...]) -> None:
    """Forget the driver's files, signals and terminal. `keep`: descriptors that stay open."""
    # What is garbage here would close descriptors that others have by then; and collections in workers would copy
    # the pages of all that is imported.
    gc.freeze()
    os.setpgid(0, 0)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for descriptor in _descriptors():
        if descriptor >= _STREAMS and descriptor not in keep:
            with contextlib.suppress(OSError):  # that of the list itself
                os.close(descriptor)
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 1)
    os.close(devnull)


def _descriptors() -> Iterable[int]:
    try:
        return map(int, os.listdir("/proc/self/fd"))
    except OSError:  # /proc is not mounted
        return range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _asked(listening: socket.socket, alive: int) -> socket.socket | None:
    """The connection of the one whose place to take; None when the driver has ended."""
    poll = select.poll()  # `select` knows no descriptors above 1023, and the driver may have had as many open
    for descriptor in (listening.fileno(), alive):
        poll.register(descriptor, select.POLLIN)
    while True:
        if alive in dict(poll.poll()):
            return None
        connection, _ = listening.accept()
        if _is_ours(connection):
            listening.close()
            os.close(alive)
            return connection
        connection.close()


def _is_ours(connection: socket.socket) -> bool:
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return bool(_PEER.unpack(found)[1] == os.geteuid())


def _take_place(connection: socket.socket) -> None:
    connection.sendall(b"+")
    length, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, _STREAMS, socket.MSG_WAITALL)
    with connection.makefile("rb") as file:
        sys.argv, environment, mask = json.loads(file.read(*_LENGTH.unpack(length)))
    for stream, given in enumerate(streams):
        os.dup2(given, stream)
        os.close(given)
    for stream, name in enumerate(("stdin", "stdout", "stderr")):
        setattr(sys, name, open(stream, "w" if stream else "r", closefd=False))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.umask(mask)
    mallopt: Any = getattr(ctypes.CDLL(None), "mallopt", None)
    for name, number in _MALLOC.items():
        if mallopt is not None and name in os.environ:
            mallopt(number, int(os.environ[name]))


def _serve(connection: socket.socket) -> None:
    from .pyspark_privates import serve_workers  # noqa: PLC0415 - `hand_over` must be quick

    # Workers close the connection, so the other end notices the end of the daemon, not of the last worker.
    os.register_at_fork(after_in_child=connection.close)
    with contextlib.suppress(SystemExit):
        serve_workers()
