"""HTTP/1.1 on a listening socket: one request per connection, each in a thread, all within limits.

=====================  ==================================================================================================
what                   how it is limited
=====================  ==================================================================================================
size of a request      `RequestLimits.max_body_bytes`, and as much again as a head may have (413, 431)
time for a request     `RequestLimits.request_s` from the connection to its last byte, however slowly it drips (408)
time for an answer     `RequestLimits.answer_s` from its first byte to its last
connections at once    `RequestLimits.max_connections`: one more takes the place of the one that has been silent for longest;
                       where all have asked, it is turned away (503)
=====================  ==================================================================================================
"""

import contextlib
import io
import select
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

import structlog

from cleanerd import __version__
from cleanerd.env.clock import Clock

JSON = "application/json"
_log = structlog.get_logger("cleanerd")
_HEAD_BYTES = 16_384
_ACCEPT_PAUSE_MS = 100


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits for one client: size and time of a request and its answer, number of connections."""

    max_connections: int = 32
    max_body_bytes: int = 65_536
    request_s: float = 10.0
    answer_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: body, status and headers."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """A request. `query` is the part of the target after `?`; keys of `headers` are in lower case."""

    method: str = "GET"
    path: str = "/"
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    connection: socket.socket | None = None
    body: io.BufferedIOBase = field(default_factory=io.BytesIO)  # reads the body from the connection


Page = Callable[[Request], Answer]
"""Makes the answer to GET on one path."""


class UnreadableRequest(Exception):
    """A request that does not come in within the limits, or whose sender has gone (`status` None)."""

    def __init__(self, status: HTTPStatus | None) -> None:
        super().__init__(status)
        self.status = status


class HttpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves a listening socket in threads of its own, from `start` to `stop`; a subclass implements `answer`."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, name: str, limits: RequestLimits, clock: Clock) -> None:
        """`name`: of its thread, and in its log."""
        socketserver.BaseServer.__init__(self, "", _Connection)
        self.socket, self.name, self.limits, self.clock = listening, name, limits, clock
        self._changed = threading.Condition()
        self._silent: dict[socket.socket, bool] = {}  # connections by age; whether they have yet to ask
        self._stop_receiver, self._stop_sender = socket.socketpair()
        self._accepting = threading.Thread(target=self._accept_until_stopped, name=name, daemon=True)
        listening.setblocking(False)

    def answer(self, request: Request, began_s: float) -> Answer:
        """The answer to a request; may raise UnreadableRequest. `began_s`: when its connection came, by the clock."""
        raise NotImplementedError

    def error(self, status: int, code: str, message: str) -> Answer:
        """The answer to a request that is malformed, too large or incomplete."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin to answer."""
        self._accepting.start()

    def stop(self, drain_s: float = 0.0) -> None:
        """Stop accepting and wait up to `drain_s` for requests in progress. The socket stays open."""
        self._stop_sender.close()
        self._accepting.join()
        with self._changed:
            self._changed.wait_for(lambda: not self._silent, drain_s)

    def _accept_until_stopped(self) -> None:
        """Take connections; wakes for them and for `stop` only."""
        ready, stopped = select.poll(), select.poll()
        ready.register(self.socket, select.POLLIN)
        for poll in (ready, stopped):
            poll.register(self._stop_receiver, select.POLLIN)
        while self._stop_receiver.fileno() not in dict(ready.poll()):
            try:
                connection, _ = self.socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as error:  # too many open files, for example: it stays readable, so do not spin
                _log.error("accept_failed", server=self.name, reason=str(error))
                stopped.poll(_ACCEPT_PAUSE_MS)
                continue
            self.process_request(connection, "")

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection its thread, or turn it away."""
        try:
            if self._take_place(request):
                return super().process_request(request, client_address)
        except RuntimeError:  # no thread to be had
            self._forget(request)
        with contextlib.suppress(OSError):
            _send(request, self.error(503, "busy", "too many connections; try again"), 0.0)
        self.shutdown_request(request)
        return None

    def _take_place(self, connection: socket.socket) -> bool:
        """Take a place, False where there is none: a client that connects and sends nothing keeps no other from asking."""
        with self._changed:
            if len(self._silent) >= self.limits.max_connections:
                silent = next((one for one, is_silent in self._silent.items() if is_silent), None)
                if silent is None:
                    return False
                del self._silent[silent]
                with contextlib.suppress(OSError):
                    silent.shutdown(socket.SHUT_RDWR)  # its thread wakes and closes it
            self._silent[connection] = True
            return True

    def keep_place(self, connection: socket.socket) -> bool:
        """The head of a request came in: its place is kept from now on. False for one whose place was taken."""
        with self._changed:
            if connection not in self._silent:
                return False
            self._silent[connection] = False
            return True

    def _forget(self, connection: socket.socket) -> None:
        with self._changed:
            self._silent.pop(connection, None)
            self._changed.notify_all()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log the error that ended a connection."""
        _log.exception("connection_failed", server=self.name)


class _Incoming(io.RawIOBase):
    """Bytes of one request, with a limit on their number and on their total time."""

    def __init__(self, connection: socket.socket, limits: RequestLimits, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._deadline_s = clock.monotonic_s() + limits.request_s
        self._left_bytes = _HEAD_BYTES + limits.max_body_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._deadline_s - self._clock.monotonic_s()
        if self._left_bytes == 0:
            raise UnreadableRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        if left_s <= 0:
            raise UnreadableRequest(HTTPStatus.REQUEST_TIMEOUT)
        try:
            self._connection.settimeout(left_s)
            count = self._connection.recv_into(memoryview(buffer)[: self._left_bytes])
        except TimeoutError:
            raise UnreadableRequest(HTTPStatus.REQUEST_TIMEOUT) from None
        except OSError:
            raise UnreadableRequest(None) from None
        self._left_bytes -= count
        return count


class _Connection(BaseHTTPRequestHandler):
    """One connection: reads a request within its limits, answers it, ends."""

    server: HttpServer

    def setup(self) -> None:
        self.connection = self.request
        self.rfile = io.BufferedReader(_Incoming(self.request, self.server.limits, self.server.clock))
        self.answer: Answer | None = None
        self.command = ""
        self.began_s = self.server.clock.monotonic_s()

    def handle(self) -> None:
        try:
            self.raw_requestline = self.rfile.readline(_HEAD_BYTES)
            if self.raw_requestline and self.parse_request() and self.server.keep_place(self.connection):
                path, _, query = self.path.partition("?")
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, path, query, headers, self.connection, self.rfile)
                self.answer = self.server.answer(request, self.began_s)
        except UnreadableRequest as unreadable:
            if unreadable.status is not None:
                self.send_error(unreadable.status)
        except Exception:  # noqa: BLE001  # the boundary of a request
            _log.exception("request_failed", server=self.server.name, request=repr(self.raw_requestline))
            self.answer = self.server.error(500, "internal", "internal error; see the daemon's log")

    def finish(self) -> None:
        if self.answer is None:
            return
        limit_s, is_head = self.server.limits.answer_s, self.command == "HEAD"
        try:
            _send(self.connection, self.answer, limit_s, is_head=is_head)
        except OSError as error:
            _log.info("answer_lost", server=self.server.name, reason=str(error))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Answer to a request that is not even HTTP, or not within the limits."""
        status = HTTPStatus(code)
        text = message or status.description or status.phrase
        self.answer = self.server.error(code, status.name.lower(), text)

    def handle_expect_100(self) -> bool:
        """Never ask a client to go on: requests are small, and it goes on by itself."""
        return True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing: requests that matter are in the audit log."""


def _send(connection: socket.socket, answer: Answer, timeout_s: float, *, is_head: bool = False) -> None:
    headers = {
        "Server": f"cleanerd/{__version__}",
        "Content-Type": answer.content_type,
        "Content-Length": str(len(answer.body)),
        "Connection": "close",
        **answer.headers,
    }
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    connection.settimeout(timeout_s)
    connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if is_head else answer.body))
