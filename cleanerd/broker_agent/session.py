"""A conversation with the agent in one broker.

Where the broker was started with `-javaagent:cleanerd-agent.jar`, over a unix socket in the log directory: nothing but that
directory has to be shared, so the broker may be in another container. Otherwise over two pipes, after an attach:

1. cleanerd makes two FIFOs in the log directory, which broker and cleanerd both see, and opens its sides; where others may
   write to it, in a directory of their user (`meeting`).
2. The agent is loaded with their token, and opens its sides in a thread of its own (`java/cleanerd/agent/Entry.java`).
3. With the first answer the names of the FIFOs go. A kill before that leaves them: files that no broker looks at, and
   that a later session takes away.

On both, requests and answers are four bytes of length, the highest first, and JSON. One request at a time, each with a time
limit. A process that ends closes its side, or the kernel does if it is killed: that ends the thread in the broker.
"""

import contextlib
import errno
import json
import os
import re
import select
import socket
import stat
import struct
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.env.trust import open_directory
from cleanerd.errors import NoWayIn

from .attach import Jvm, check_tmp, find_jvm, load_agent, peer_of
from .jar import AgentJar, agent_jar
from .meeting import is_seen, jar_for, meeting_place

VERSION = 1
REQUEST_MAX_BYTES = 4 << 20
"""Limit of a request in bytes; the agent ends the session at a larger one."""
_ANSWER_MAX_BYTES = 16 << 20
_HELLO_S = 30.0
_LENGTH = struct.Struct(">I")
_SOCKET = ".cleanerd-agent.sock"
_SAME_PATH = "mount the log directories at the same path in both"
_PIPES = re.compile(r"\.cleanerd-agent-[0-9a-f]{16}\.(requests|answers)")


class NotLoaded(NoWayIn):
    """The agent would have to be loaded into the broker, which was not asked for."""


class Session:
    """Opened by the constructor, which returns when the agent has answered; thread-safe.

    `hello` is that answer: `release` of Kafka, `collections` (java or scala), `capabilities` (the requests that it serves),
    `node_id` (None until the broker has started), `log_dirs` (those that work, by their real paths). Raises NoWayIn; and so
    does each request when the broker has ended or does not answer in time: after that the session is closed.
    """

    def __init__(self, pid: int, log_dir: str, files: Files, clock: Clock, *, loads: bool = True) -> None:
        """`pid`: of the process that has the directory's `.lock`, 0 for one that cannot be seen from here. Not `loads`: only
        an agent that the broker has brought along is asked; else NotLoaded, where nothing is seen to be in the way.
        """
        self.pid = pid
        self._who = f"the broker, process {pid}," if pid else "the broker"
        self._clock = clock
        self._mutex = threading.Lock()
        self._requests = self._answers = -1
        log_dir = os.path.realpath(log_dir)
        try:
            if not self._connect(log_dir):
                jvm, jar = find_jvm(self.pid), agent_jar()
                if not is_seen(jvm, log_dir):  # as `check_has`, before there is a session
                    raise NoWayIn(f"{log_dir} is not where process {pid} has it: {_SAME_PATH}")
                check_tmp(jvm)
                directory = meeting_place(jvm, log_dir)
                if not loads:
                    raise NotLoaded(
                        f"nothing is seen to be in the way; the agent was not loaded into process {pid}"
                    )
                self._attach(jvm, jar, log_dir, directory, files)
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether the broker still listens, as far as one can know without asking."""
        with self._mutex:
            return self._answers >= 0 and not _is_ready(self._answers, select.POLLIN, 0.0)

    def check_has(self, log_dir: str) -> None:
        """Raise NoWayIn unless the broker has this log directory, under the same path: requests name logs by that."""
        log_dirs = self.hello.get("log_dirs") or []
        if os.path.realpath(log_dir) not in log_dirs:
            raise NoWayIn(
                f"{log_dir} is not where {self._who} has it, among {', '.join(log_dirs)}: {_SAME_PATH}"
            )

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The answer to a request. Raises NoWayIn."""
        message = json.dumps({"version": VERSION, **request}).encode()
        if len(message) > REQUEST_MAX_BYTES:
            raise NoWayIn(
                f"the request has {len(message)} bytes, and the broker's agent takes {REQUEST_MAX_BYTES}"
            )
        with self._mutex:
            if self._answers < 0:
                raise NoWayIn(f"{self._who} has ended or did not answer: it is asked again later")
            try:
                return self._asked(message, timeout_s)
            except OSError as error:  # of a socket
                self._close()
                raise NoWayIn(f"{self._who} has ended ({error.strerror}): it is asked again later") from error
            except BaseException:
                self._close()
                raise

    def close(self) -> None:
        """Ends the agent's thread."""
        with self._mutex:
            self._close()

    def _close(self) -> None:
        for fd in {self._requests, self._answers} - {-1}:
            os.close(fd)
        self._requests = self._answers = -1

    def _connect(self, log_dir: str) -> bool:
        """Whether the broker listens on its socket, which is its user's only."""
        path = f"{log_dir}/{_SOCKET}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connected:
            try:
                connected.connect(path)
            except (FileNotFoundError, ConnectionRefusedError):
                return False  # or left of a broker that has ended
            except OSError as error:
                if error.errno is None:
                    return False  # longer than such a path may be
                raise NoWayIn(f"{path}: {error.strerror}: cleanerd must run as the broker's user") from error
            if not self._is_brokers(connected, log_dir):
                return False
            self._requests = self._answers = connected.detach()
        self._greet()
        return True

    def _is_brokers(self, connected: socket.socket, log_dir: str) -> bool:
        """Whether the broker itself listens on the socket; to any other process nothing is sent."""
        pid, uid = peer_of(connected)
        users = {os.geteuid()} if os.geteuid() else {0, os.stat(log_dir).st_uid}
        return pid == self.pid if self.pid else uid in users

    def _greet(self) -> None:
        self.hello = self.ask({"request": "hello"}, _HELLO_S)
        if self.hello.get("outcome") != "hello":
            raise NoWayIn(str(self.hello.get("reason")))

    def _attach(self, jvm: Jvm, jar: AgentJar, log_dir: str, directory: str, files: Files) -> None:
        try:
            placed = jar_for(jvm, directory, jar, files)
            _sweep(directory, files, self._clock)
            token = os.urandom(8).hex()
            with _pipes(directory, token, jvm.uid) as (self._requests, self._answers):
                load_agent(jvm, placed, f"{jar.sha256} {token} {directory}\n{placed}", self._clock)
                self._greet()
        except OSError as error:
            raise NoWayIn(
                f"{error.filename or log_dir}: {error.strerror}: cleanerd must be able to write there"
            ) from error

    def _asked(self, request: bytes, timeout_s: float) -> dict[str, Any]:
        deadline_s = self._clock.monotonic_s() + timeout_s
        rest = memoryview(_LENGTH.pack(len(request)) + request)
        while rest:
            self._wait(self._requests, select.POLLOUT, deadline_s)
            rest = rest[os.write(self._requests, rest[: select.PIPE_BUF]) :]
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline_s))
        if length > _ANSWER_MAX_BYTES:
            raise NoWayIn(f"{self._who} answered with {length} bytes")
        try:
            answer = json.loads(self._read(length, deadline_s))
        except ValueError as error:
            raise NoWayIn(f"{self._who} did not answer with JSON: {error}") from error
        if not isinstance(answer, dict):
            raise NoWayIn(f"{self._who} answered with no object")
        return answer

    def _read(self, length: int, deadline_s: float) -> bytes:
        found = b""
        while len(found) < length:
            self._wait(self._answers, select.POLLIN, deadline_s)
            more = os.read(self._answers, length - len(found))
            if not more:
                raise NoWayIn(f"{self._who} has ended: it is asked again later")
            found += more
        return found

    def _wait(self, fd: int, event: int, deadline_s: float) -> None:
        left_ms = max((deadline_s - self._clock.monotonic_s()) * 1000, 0.0)
        if not _is_ready(fd, event, left_ms):
            raise NoWayIn(f"{self._who} did not answer in time: it is asked again later")


def _is_ready(fd: int, event: int, within_ms: float) -> bool:
    poll = select.poll()  # `select` knows no descriptors above 1023
    poll.register(fd, event)
    return bool(poll.poll(within_ms))


@contextlib.contextmanager
def _pipes(directory: str, token: str, uid: int) -> Iterator[tuple[int, int]]:
    """Our ends of two new FIFOs of that user, which have names inside the block. The ends stay open. Raises OSError."""
    names = [f".cleanerd-agent-{token}.{side}" for side in ("requests", "answers")]
    with open_directory(directory) as place, contextlib.ExitStack() as stack:
        for name in names:
            os.mkfifo(name, 0o600, dir_fd=place)
            stack.callback(_unlink, name, place)
        # Both sides of the first one are open here, so that opening and writing never wait and never fail; the agent
        # sees its end all the same, for these are the only ones.
        requests = _open_pipe(names[0], place, os.O_RDWR, uid)
        try:
            answers = _open_pipe(names[1], place, os.O_RDONLY, uid)
        except OSError:
            os.close(requests)
            raise
        yield requests, answers


def _open_pipe(name: str, directory: int, flags: int, uid: int) -> int:
    """Open the FIFO that was just made and give it to the user; an entry that has replaced it is not touched."""
    fd = os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        found = os.fstat(fd)
        if not stat.S_ISFIFO(found.st_mode) or found.st_uid != os.geteuid():
            raise FileExistsError(errno.EEXIST, "was exchanged for something else", name)
        if uid != found.st_uid:  # we are root
            os.fchown(fd, uid, -1)
    except OSError:
        os.close(fd)
        raise
    return fd


def _unlink(name: str, directory: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=directory)


def _sweep(log_dir: str, files: Files, clock: Clock) -> None:
    """Delete files of a session that was killed while it started."""
    for name in files.list_names(log_dir):
        path = f"{log_dir}/{name}"
        if _PIPES.fullmatch(name) and clock.now_ms() - files.stat(path).mtime_ms > _HELLO_S * 2000:
            files.unlink(path)
