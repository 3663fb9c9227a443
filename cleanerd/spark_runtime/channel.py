"""Channels from tasks to the driver: a task sends a message, and waits for its answer (`messages`).

Blocks of a host are fetched from a listener of this kind, too (`block_store`).

Tasks run in other processes, on a cluster on other machines, hence TCP. Each end proves that it knows a random token, which
travels with the tasks, before anything else is read (`_proof`).
"""

import contextlib
import hmac
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeVar

from cleanerd.errors import Aborted

from .messages import (
    ANSWER,
    MESSAGE_BYTES,
    STOP,
    Message,
    Moved,
    Phase,
    ReportAnswer,
    pack_message,
    unpack_message,
)

_TOKEN_BYTES = 16
_PROOF_BYTES = 32
_TIMEOUT_S = 60.0
_TOKEN_TIMEOUT_S = 10.0  # in which a task proves that it knows the token
_SILENCE_S = 30  # after which a host is gone
_STRANGERS_MAX = 128  # connections that have not
_ACCEPT_PAUSE_S = 0.1  # until descriptors may have come free
_LEAVE_S = 1.0  # for a task that is being answered
_REPORT_BYTES = 4 << 20  # a message costs two processes some 100 us
_REPORT_S = 0.02  # one that was held back is followed by the next after as few bytes
_REPORT_BYTES_MAX = 32 << 20
_OPEN_MAX = 2  # a cleaning has one for progress and one for places


Advance = Callable[[int, int, int], None]
"""Called with (read bytes, written bytes, records) since the last call; raises Aborted when the work is to stop."""

_M = TypeVar("_M", bound=Message)


def driver_host(spark_master: str) -> str:
    """Address at which the tasks of a Spark master reach this machine: the one that it is reached from itself."""
    found = re.fullmatch(r"spark://([^:,/]+|\[[^]]+\]):\d+.*", spark_master)
    if spark_master.startswith("local"):
        return "127.0.0.1"
    if found is None:
        return socket.gethostbyname(socket.gethostname())
    return address_towards(found[1].strip("[]"))


def address_towards(host: str) -> str:
    """Address of this machine on its way to another one. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing, but chooses the way
        return str(probe.getsockname()[0])


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a `Listener` and its token; sent along with each task."""

    host: str
    port: int
    token: bytes

    def connect(self) -> socket.socket:
        """A connection of its own. Raises OSError."""
        connection = socket.create_connection((self.host, self.port), _TIMEOUT_S)
        try:
            _prove(connection, self.token)
        except BaseException:
            connection.close()
            raise
        return connection


class Listener:
    """Listens on `host`, and has a thread for each task that knows the token. Use as a context manager.

    `converse`: with a task, until it hangs up; may raise OSError. When the listener is left, it and its connections are
    closed and their threads have ended, or end within a conversation that waits for something else.
    """

    def __init__(self, converse: Callable[[socket.socket], None], host: str) -> None:
        self._converse = converse
        self._listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
        self._closing = threading.Event()
        self._mutex = threading.Lock()
        # Have not proved that they know the token yet, oldest first.
        self._strangers: dict[socket.socket, None] = {}
        self._served: dict[socket.socket, threading.Thread] = {}
        self.endpoint = Endpoint(host, self._listener.getsockname()[1], secrets.token_bytes(_TOKEN_BYTES))

    def __enter__(self) -> Self:
        # Not before: the server of blocks forks in between, and Python 3.13.0 takes a thread that was made before for ended.
        self._acceptor = threading.Thread(target=self._accept, name="cleanerd-channel", daemon=True)
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

    def leave_to_fork(self) -> None:
        """Stop listening here: a process that was forked before goes on."""
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:  # no descriptor or memory to be had, a caller that is gone again, or the end
                self._closing.wait(_ACCEPT_PAUSE_S)
                continue
            self._push_out_strangers()
            with self._mutex:
                thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                self._strangers[connection] = None
                self._served[connection] = thread
            try:
                thread.start()
            except RuntimeError:  # no thread to be had
                self._forget(connection)

    def _push_out_strangers(self) -> None:
        """Close the oldest connection that has sent no token, with its thread; tasks send theirs at once."""
        with self._mutex:
            if len(self._strangers) < _STRANGERS_MAX:
                return
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            thread = self._served[oldest]
            _shut(oldest)
        thread.join(_LEAVE_S)

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._is_known(connection):
                self._converse(connection)
        except OSError:
            return  # the task's process is gone; Spark knows
        finally:
            self._forget(connection)

    def _is_known(self, connection: socket.socket) -> bool:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host without power does not hang up.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
            connection.setsockopt(socket.IPPROTO_TCP, option, _SILENCE_S // 3)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _SILENCE_S)
        connection.settimeout(_TOKEN_TIMEOUT_S)
        challenge = secrets.token_bytes(_TOKEN_BYTES)
        connection.sendall(challenge)
        answer = _receive(connection, _PROOF_BYTES + _TOKEN_BYTES)
        with self._mutex:
            self._strangers.pop(connection, None)
        if answer is None:
            return False
        proof, theirs = answer[:_PROOF_BYTES], answer[_PROOF_BYTES:]
        if not hmac.compare_digest(proof, _proof(self.endpoint.token, b"task", challenge)):
            return False
        connection.sendall(_proof(self.endpoint.token, b"driver", theirs))
        connection.settimeout(None)
        return True

    def _forget(self, connection: socket.socket) -> None:
        with self._mutex:
            self._strangers.pop(connection, None)
            self._served.pop(connection, None)
            connection.close()


class Channel(Listener, Generic[_M]):
    """Driver's end: hands every message to `answer`, in several threads."""

    def __init__(self, answer: Callable[[_M], ReportAnswer], host: str = "127.0.0.1") -> None:
        super().__init__(self._answer_all, host)
        self._answer: Callable[[Any], ReportAnswer] = answer
        self.reporter = Reporter(self.endpoint.host, self.endpoint.port, self.endpoint.token)

    def _answer_all(self, connection: socket.socket) -> None:
        while (message := _receive(connection, MESSAGE_BYTES)) is not None:
            connection.sendall(ANSWER.pack(self._answer(unpack_message(message))))


def _proof(token: bytes, role: bytes, challenge: bytes) -> bytes:
    """Proof of the token: an eavesdropper cannot learn, replay or reflect it."""
    return hmac.digest(token, role + challenge, "sha256")


def _prove(connection: socket.socket, token: bytes) -> None:
    """Prove the token as a task, and check the driver's proof. Raises OSError."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own, challenge = secrets.token_bytes(_TOKEN_BYTES), _receive(connection, _TOKEN_BYTES)
    connection.sendall(_proof(token, b"task", challenge or b"") + own)
    answer = _receive(connection, _PROOF_BYTES)
    if answer is None:
        raise ConnectionResetError("the other end has hung up")
    if answer != _proof(token, b"driver", own):
        raise ConnectionRefusedError("the process that listens there does not know the token")
    connection.settimeout(None)


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


def _ask(connection: socket.socket, message: Message) -> ReportAnswer:
    connection.sendall(pack_message(message))
    answer = _receive(connection, ANSWER.size)
    if answer is None:
        raise ConnectionResetError("connection closed")
    (number,) = ANSWER.unpack(answer)
    return int(number)


def _go_on(ask: Callable[[Message], ReportAnswer], message: Message) -> int:
    """The number in the answer. Raises Aborted when the task is to stop or the driver is gone."""
    try:
        answer = ask(message)
    except OSError as error:
        raise Aborted(f"the driver does not answer: {error}") from error
    if answer == STOP:
        raise Aborted("asked to stop")
    return answer


_open: dict["Reporter", socket.socket] = {}  # connections of this worker process


@dataclass(frozen=True, slots=True)
class Reporter(Endpoint):
    """Task's end of a `Channel`."""

    @contextlib.contextmanager
    def advance(self, log: int, phase: Phase) -> Iterator[Advance]:
        """The `Advance` of one task: reports once in a while and at the end.

        It, and the end, raise Aborted when it is to stop or when the driver is gone.
        """
        unreported, reported_s = [0, 0, 0], time.monotonic()

        def report() -> None:
            nonlocal reported_s
            reported_s = time.monotonic()
            message = Moved(log, phase, *unreported)
            unreported[:] = 0, 0, 0
            self.ask(message)

        def advance(read_bytes: int, written_bytes: int, records: int) -> None:
            unreported[:] = unreported[0] + read_bytes, unreported[1] + written_bytes, unreported[2] + records
            moved = unreported[0] + unreported[1]
            is_time = moved >= _REPORT_BYTES_MAX or time.monotonic() - reported_s >= _REPORT_S
            if moved >= _REPORT_BYTES and is_time:
                report()

        yield advance
        if any(unreported):
            report()

    def ask(self, message: Message) -> int:
        """The number in the answer to the message. Raises Aborted when the task is to stop or the driver is gone."""
        return _go_on(self._ask, message)

    def live(self, log: int, phase: Phase) -> None:
        """Heartbeat for work that moves no bytes; an abort arrives with the next report."""
        with contextlib.suppress(OSError):
            self._ask(Moved(log, phase, 0, 0, 0))

    @contextlib.contextmanager
    def examining(self) -> Iterator[Callable[[int, int], None]]:
        """Reports `(log, bytes read)` over a connection of its own, from any thread; raises Aborted when it is to stop.

        Raises OSError when the driver cannot be reached.
        """
        mutex = threading.Lock()
        with self.connect() as connection:

            def report(log: int, read_bytes: int) -> None:
                with mutex:
                    _go_on(partial(_ask, connection), Moved(log, Phase.EXAMINE, read_bytes, 0, 0))

            yield report

    def _ask(self, message: Message) -> ReportAnswer:
        """The answer. Raises OSError, after which the next task of this process connects again."""
        connection = _open.pop(self, None)
        if connection is None:
            while len(_open) >= _OPEN_MAX:
                _open.pop(next(iter(_open))).close()  # the one that was used longest ago
            connection = self.connect()
        answer = _ask(connection, message)
        _open[self] = connection
        return answer
