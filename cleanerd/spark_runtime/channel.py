"""The one channel from tasks to the driver: a task reports what it moved and is answered whether to go on.

A message is `<log, phase, read bytes, written bytes, records>`; the answer is a number, sent when the task may go on, so
that an answer held back is a brake; a negative one means stop. Tasks run in other processes, on a cluster on other machines,
hence TCP; a random token keeps others out.
"""

import contextlib
import hmac
import re
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from cleanerd.errors import Aborted

_MESSAGE = struct.Struct(">IBqqq")
_TOKEN_BYTES = 16
_ANSWER = struct.Struct(">q")
STOP = -1
_TIMEOUT_S = 60.0
_TOKEN_TIMEOUT_S = 10.0  # in which a task shows its token
_STRANGERS_MAX = 64  # connections that have not shown one
_ACCEPT_PAUSE_S = 0.1  # until descriptors may have come free
_LEAVE_S = 1.0  # for a task that is being answered
_REPORT_BYTES = 4 << 20  # a message costs two processes some 100 us
_REPORT_S = 0.02  # one that was held back is followed by the next after as few bytes
_REPORT_BYTES_MAX = 32 << 20
_OPEN_MAX = 3  # a cleaning has one channel for progress, one for places and one for steps


class Phase(IntEnum):
    """Which step a report is about."""

    INDEX = 0
    REWRITE = 1
    VERIFY = 2  # reads what the rewrite wrote
    EXAMINE = 3  # what is read before there are tasks; logs are numbered as they were asked for
    SIZE = 4  # of a part: (group, number, bytes), on a channel of `place`
    PLACE = 5  # asks where a part begins: (group, number, bytes or that they are not known yet), likewise
    STEP = 6  # asks for the step behind that one: (number, 0, 0), on a channel of `resident_job`


Advance = Callable[[int, int, int], None]
"""Called with (read bytes, written bytes, records) since the last call; raises Aborted when the work is to stop."""

OnReport = Callable[[int, Phase, int, int, int], int]
"""`(log number, phase, read bytes, written bytes, records)` since the task's last report -> whether to go on (False, or a
negative number: not), or the number that was asked for.

Called from several threads.
"""


def driver_host(spark_master: str) -> str:
    """Address at which the tasks of a Spark master reach this machine: the one that it is reached from itself."""
    found = re.fullmatch(r"spark://([^:,/]+|\[[^]]+\]):(\d+).*", spark_master)
    if spark_master.startswith("local"):
        return "127.0.0.1"
    if found is None:
        return socket.gethostbyname(socket.gethostname())
    family, _, _, _, address = socket.getaddrinfo(
        found[1].strip("[]"), int(found[2]), type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing, but chooses the way
        return str(probe.getsockname()[0])


class Channel:
    """Driver's end: listens on `host` and hands every report to `answer`. Use as a context manager.

    When it is left, listener and connections are closed and their threads have ended, but for one that is inside
    `answer`, which ends with its answer.
    """

    def __init__(self, answer: OnReport, host: str = "127.0.0.1") -> None:
        self._answer = answer
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._listener = socket.create_server((host, 0))
        self._closing = threading.Event()
        self._mutex = threading.Lock()
        self._strangers: dict[socket.socket, None] = {}  # have not shown the token yet, oldest first
        self._served: dict[socket.socket, threading.Thread] = {}
        self._acceptor = threading.Thread(target=self._accept, name="cleanerd-channel", daemon=True)
        self.reporter = Reporter(host, self._listener.getsockname()[1], self._token)

    def __enter__(self) -> "Channel":
        self._acceptor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        _shut(self._listener)  # closing it alone would leave the thread in `accept` for ever
        self._acceptor.join()
        self._listener.close()
        with self._mutex:
            served = dict(self._served)
            for connection in served:
                _shut(connection)
        for thread in served.values():
            thread.join(_LEAVE_S)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:  # no descriptor or memory to be had, a caller that is gone again, or the end
                self._closing.wait(_ACCEPT_PAUSE_S)
                continue
            with self._mutex:
                if len(self._strangers) >= _STRANGERS_MAX:
                    oldest = next(iter(self._strangers))  # a task shows its token at once: this is none
                    del self._strangers[oldest]
                    _shut(oldest)
                thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                self._strangers[connection] = None
                self._served[connection] = thread
            try:
                thread.start()
            except RuntimeError:  # no thread to be had
                self._forget(connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._is_known(connection):
                self._answer_all(connection)
        except OSError:
            return  # the task's process is gone; Spark knows
        finally:
            self._forget(connection)

    def _is_known(self, connection: socket.socket) -> bool:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(_TOKEN_TIMEOUT_S)
        token = _receive(connection, _TOKEN_BYTES)
        with self._mutex:
            self._strangers.pop(connection, None)
        connection.settimeout(None)
        return token is not None and hmac.compare_digest(token, self._token)

    def _answer_all(self, connection: socket.socket) -> None:
        while (message := _receive(connection, _MESSAGE.size)) is not None:
            log, phase, *done = _MESSAGE.unpack(message)
            answer = self._answer(log, Phase(phase), *done)
            connection.sendall(_ANSWER.pack(STOP if answer is False else answer))

    def _forget(self, connection: socket.socket) -> None:
        with self._mutex:
            self._strangers.pop(connection, None)
            self._served.pop(connection, None)
            connection.close()


def _shut(connection: socket.socket) -> None:
    """Wake the threads that wait at a socket: it has ended."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _receive(connection: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            return None
        data += more
    return data


def _ask(connection: socket.socket, message: bytes) -> int:
    """The answer to a report. Raises OSError."""
    connection.sendall(message)
    answer = _receive(connection, _ANSWER.size)
    if answer is None:
        raise ConnectionResetError("connection closed")
    return int(_ANSWER.unpack(answer)[0])


def _go_on(ask: Callable[[], int]) -> int:
    """The answer to a report. Raises Aborted when told to stop or when the driver is gone."""
    try:
        answer = ask()
    except OSError as error:
        raise Aborted(f"the driver does not answer: {error}") from error
    if answer < 0:
        raise Aborted("told to stop")
    return answer


_open: dict["Reporter", socket.socket] = {}  # connections of this worker process


@dataclass(frozen=True, slots=True)
class Reporter:
    """Task's end; travels with the task."""

    host: str
    port: int
    token: bytes

    @contextlib.contextmanager
    def advance(self, log: int, phase: Phase) -> Iterator[Advance]:
        """The `Advance` of one task: reports once in a while and at the end.

        It, and the end, raise Aborted when told to stop or when the driver is gone.
        """
        unsaid, said_s = [0, 0, 0], time.monotonic()

        def say() -> None:
            nonlocal said_s
            said_s = time.monotonic()
            message = _MESSAGE.pack(log, phase, *unsaid)
            unsaid[:] = 0, 0, 0
            _go_on(lambda: self._ask(message))

        def advance(read_bytes: int, written_bytes: int, records: int) -> None:
            unsaid[:] = unsaid[0] + read_bytes, unsaid[1] + written_bytes, unsaid[2] + records
            moved = unsaid[0] + unsaid[1]
            is_time = moved >= _REPORT_BYTES_MAX or time.monotonic() - said_s >= _REPORT_S
            if moved >= _REPORT_BYTES and is_time:
                say()

        yield advance
        if any(unsaid):
            say()

    def ask(self, log: int, phase: Phase, *numbers: int) -> int:
        """The number that a message of three numbers is answered with. Raises Aborted when told to stop."""
        message = _MESSAGE.pack(log, phase, *numbers)
        return _go_on(lambda: self._ask(message))

    def live(self, log: int, phase: Phase) -> None:
        """Heartbeat for work that moves no bytes; an abort arrives with the next report."""
        with contextlib.suppress(OSError):
            self._ask(_MESSAGE.pack(log, phase, 0, 0, 0))

    @contextlib.contextmanager
    def examining(self) -> Iterator[Callable[[int, int], None]]:
        """Tells `(log, bytes read)` over a connection of its own, from any thread; raises Aborted when told to stop.

        Raises OSError when the driver cannot be reached.
        """
        mutex = threading.Lock()
        with self._connect() as connection:

            def tell(log: int, read_bytes: int) -> None:
                with mutex:
                    _go_on(lambda: _ask(connection, _MESSAGE.pack(log, Phase.EXAMINE, read_bytes, 0, 0)))

            yield tell

    def _ask(self, message: bytes) -> int:
        """The answer. Raises OSError, after which the next task of this process connects again."""
        connection = _open.pop(self, None)
        if connection is None:
            while len(_open) >= _OPEN_MAX:
                _open.pop(next(iter(_open))).close()  # the one that was used longest ago
            connection = self._connect()
        answer = _ask(connection, message)
        _open[self] = connection
        return answer

    def _connect(self) -> socket.socket:
        connection = socket.create_connection((self.host, self.port), _TIMEOUT_S)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(self.token)
        return connection
