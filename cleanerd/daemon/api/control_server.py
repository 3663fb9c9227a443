"""The control API: HTTP/1.1 and JSON over a unix socket, one request on each connection.

=====================  ==================================================================================================
what                   how it is limited
=====================  ==================================================================================================
who may connect        mode and group of the socket (control_socket.py)
who may change things  root, the daemon's user, members of the socket's group. No others can connect (mode 0660) unless
                       that mode is widened by hand; those may look (403)
size of a request      `RequestLimits.max_body_bytes`, and as much again as a head may have (413, 431)
time for a request     `RequestLimits.request_s` from the connection to its last byte, however slowly it drips (408)
time for an answer     `RequestLimits.answer_s` from its first byte to its last
connections at once    `RequestLimits.max_connections` (503); a verb that waits takes one for `MAX_WAIT_MS` at most
=====================  ==================================================================================================

An error is `{"apiVersion": ..., "error": {"code", "message"}}`; what went wrong inside is in the daemon's log only. Every
request that would change something is handed to `audit`, whatever became of it.
"""

import contextlib
import io
import json
import select
import shlex
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, NoReturn
from urllib.parse import parse_qsl, unquote

import structlog
from pydantic import ValidationError

from cleanerd import API_VERSION, __version__
from cleanerd.daemon.api import openapi
from cleanerd.daemon.api.control_socket import Listening, Peer, group_of, may_change, peer_of
from cleanerd.daemon.api.http import Answer, Page, Request, RequestLimits
from cleanerd.daemon.api.operations import Invalid, OperationError, Operations
from cleanerd.daemon.api.routes import ROUTES, Parameters, Route
from cleanerd.env.clock import Clock, SystemClock

_log = structlog.get_logger("cleanerd")
_HEAD_BYTES = 16_384
_MAX_QUERY_FIELDS = 16
_ACCEPT_PAUSE_MS = 100


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A request to change something: who, what, and what became of it: `ok`, or the code of an error with its message."""

    peer: Peer
    verb: str
    parameters: Mapping[str, Any]
    outcome: str
    problem: str | None = None

    def __str__(self) -> str:
        """One line: the verb, its parameters as words of a shell, then the message of the error."""
        words = [self.verb]
        for name, value in self.parameters.items():
            if value is True:
                words.append(name)
            elif value is not None and value is not False:
                words.append(f"{name}={shlex.quote(str(value))}")
        return " ".join(words) + (f": {self.problem}" if self.problem else "")


Audit = Callable[[AuditEntry], None]
Observe = Callable[[str, int, float], None]
"""Called with every answer: the verb, `other` where there was none, the status, seconds from the connection on."""


class ControlServer:
    """Serves `operations` on a socket in threads of its own, from `start` to `stop`."""

    def __init__(
        self,
        listening: Listening,
        operations: Operations,
        *,
        audit: Audit,
        pages: Mapping[str, Page] | None = None,
        observe: Observe | None = None,
        limits: RequestLimits | None = None,
        own_uid: int,
        clock: Clock | None = None,
    ) -> None:
        self._listening = listening
        document = json.dumps(openapi.document(ROUTES)).encode()
        self._server = _Server(listening.socket, limits or RequestLimits(), clock or SystemClock(), observe)
        self._server.dispatcher = _Dispatcher(
            operations, audit, {"/openapi.json": lambda _: Answer(document), **(pages or {})}, own_uid
        )
        self._accepting = threading.Thread(
            target=self._server.accept_until_stopped, name="control", daemon=True
        )

    def start(self) -> None:
        """Begin to answer."""
        self._accepting.start()

    def stop(self, drain_s: float) -> None:
        """Stop accepting, wait up to `drain_s` for requests in progress, remove the socket."""
        self._server.stop_accepting()
        self._accepting.join()
        self._server.drain(drain_s)
        self._listening.close()


class _Dispatcher:
    """From a request to its answer; knows nothing of connections."""

    def __init__(self, operations: Operations, audit: Audit, pages: Mapping[str, Page], own_uid: int) -> None:
        self._operations = operations
        self._audit = audit
        self._pages = pages
        self._own_uid = own_uid

    def page(self, path: str) -> Page | None:
        """What makes the answer on a path beside the verbs."""
        return self._pages.get(path)

    def call(self, route: Route, parameters: Parameters) -> Answer:
        """Do what a route says; raises `OperationError`."""
        value = getattr(self._operations, route.verb)(**parameters.arguments())
        head = f'{{"apiVersion":"{API_VERSION}","{route.key}":'.encode()
        return Answer(head + route.answer.dump_json(value) + b"}\n")

    def change(
        self, route: Route, peer: Peer, socket_gid: int | None, parse: Callable[[], Parameters]
    ) -> Answer:
        """Like `call` where something may change: only for those who may, and never without an audit entry."""
        parameters: Mapping[str, Any] = {}
        outcome, problem = "ok", None
        try:
            if not may_change(peer, self._own_uid, socket_gid):
                _refuse(
                    403,
                    "forbidden",
                    f"uid {peer.uid} may look, but not change; ask root or a member of the socket's group",
                )
            parsed = parse()
            parameters = parsed.model_dump(mode="json", exclude_unset=True)
            return self.call(route, parsed)
        except OperationError as error:
            outcome, problem = error.code, str(error)
            raise
        except _Unreadable:
            outcome, problem = "unreadable", "the request did not come in whole"
            raise
        except Exception as error:
            outcome, problem = "internal", type(error).__name__
            raise
        finally:
            self._record(AuditEntry(peer, route.verb, parameters, outcome, problem))

    def _record(self, entry: AuditEntry) -> None:
        try:
            self._audit(entry)
        except Exception:  # noqa: BLE001  # the request is answered all the same
            _log.exception("audit_lost", entry=str(entry))


def _refuse(status: int, code: str, message: str) -> NoReturn:
    error = OperationError(message)
    error.status, error.code = status, code
    raise error


def _error(status: int, code: str, message: str) -> Answer:
    content = {"apiVersion": API_VERSION, "error": {"code": code, "message": message}}
    return Answer(json.dumps(content).encode() + b"\n", status)


def _parsed(validate: Callable[[], Parameters]) -> Parameters:
    try:
        return validate()
    except ValidationError as error:
        problems = (
            f"{'.'.join(map(str, problem['loc'])) or 'parameters'}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)
        )
        raise Invalid("; ".join(problems)) from None


class _Unreadable(Exception):
    """A request that does not come in within the limits, or whose sender has gone (`status` None)."""

    def __init__(self, status: HTTPStatus | None) -> None:
        super().__init__(status)
        self.status = status


class _Incoming(io.RawIOBase):
    """Bytes of one request, with a limit on their number and on the time that all of them take."""

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
            raise _Unreadable(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        if left_s <= 0:
            raise _Unreadable(HTTPStatus.REQUEST_TIMEOUT)
        try:
            self._connection.settimeout(left_s)
            count = self._connection.recv_into(memoryview(buffer)[: self._left_bytes])
        except TimeoutError:
            raise _Unreadable(HTTPStatus.REQUEST_TIMEOUT) from None
        except OSError:
            raise _Unreadable(None) from None
        self._left_bytes -= count
        return count


class _Server(socketserver.ThreadingUnixStreamServer):
    """Accepts connections on a socket that is there already, each in a thread, and only so many."""

    daemon_threads = True
    block_on_close = False
    dispatcher: _Dispatcher

    def __init__(
        self, listening: socket.socket, limits: RequestLimits, clock: Clock, observe: Observe | None
    ) -> None:
        super().__init__("", _Connection, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.limits = limits
        self.clock = clock
        self.observe = observe
        self._slots = threading.Semaphore(limits.max_connections)
        self._stop_receiver, self._stop_sender = socket.socketpair()
        listening.setblocking(False)

    def accept_until_stopped(self) -> None:
        """Take connections; wakes for them and for `stop_accepting` only."""
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
                _log.error("control_accept_failed", reason=str(error))
                stopped.poll(_ACCEPT_PAUSE_MS)
                continue
            self.process_request(connection, "")

    def stop_accepting(self) -> None:
        """Make `accept_until_stopped` return."""
        self._stop_sender.close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection its thread, or turn it away."""
        if self._slots.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except RuntimeError:  # no thread to be had
                self._slots.release()
            else:
                return
        with contextlib.suppress(OSError):
            _send(request, _error(503, "busy", "too many connections; try again"), 0.0)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log the error that ended a connection."""
        _log.exception("control_connection_failed")

    def drain(self, timeout_s: float) -> None:
        """Wait until no request is in progress any more."""
        deadline_s = self.clock.monotonic_s() + timeout_s
        for _ in range(self.limits.max_connections):
            self._slots.acquire(timeout=max(deadline_s - self.clock.monotonic_s(), 0.0))


def _send(connection: socket.socket, answer: Answer, timeout_s: float) -> None:
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
    connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + answer.body)


class _Connection(BaseHTTPRequestHandler):
    """One connection: reads a request within its limits, answers it, ends."""

    server: _Server

    def setup(self) -> None:
        """No writing yet; reading within limits."""
        self.connection = self.request
        self.rfile = io.BufferedReader(_Incoming(self.request, self.server.limits, self.server.clock))
        self.answer: Answer | None = None
        self.verb = "other"
        self.began_s = self.server.clock.monotonic_s()

    def handle(self) -> None:
        """Read, act, answer."""
        try:
            self.raw_requestline = self.rfile.readline(_HEAD_BYTES)
            if not self.raw_requestline:
                return
            if self.parse_request():
                self.answer = self._respond()
        except _Unreadable as unreadable:
            if unreadable.status is not None:
                self.send_error(unreadable.status)
        except OperationError as error:
            self.answer = _error(error.status, error.code, str(error))
        except Exception:  # noqa: BLE001  # the boundary of a request
            _log.exception("control_request_failed", request=repr(self.raw_requestline))
            self.answer = _error(500, "internal", "internal error; the daemon's log says more")

    def finish(self) -> None:
        """Send the answer, if the client is still there."""
        if self.answer is not None:
            if self.server.observe is not None:
                seconds = self.server.clock.monotonic_s() - self.began_s
                self.server.observe(self.verb, self.answer.status, seconds)
            try:
                _send(self.connection, self.answer, self.server.limits.answer_s)
            except OSError as error:
                _log.info("control_answer_lost", reason=str(error))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Answer to a request that is not even HTTP, or not within the limits."""
        status = HTTPStatus(code)
        self.answer = _error(code, status.name.lower(), message or status.description or status.phrase)

    def handle_expect_100(self) -> bool:
        """Never tell a client to go on: requests are small, and it will go on by itself."""
        return True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: what matters is in the audit log."""

    def _respond(self) -> Answer:
        path, _, query = self.path.partition("?")
        page = self.server.dispatcher.page(path)
        if page is not None:
            self.verb = path.removeprefix("/")
            if self.command != "GET":
                return self._wrong_method(["GET"])
            return page(Request(self.headers.get("Accept", ""), query))
        found = [(route, in_path) for route in ROUTES if (in_path := route.match(path)) is not None]
        if not found:
            _refuse(404, "no_such_path", "no such path; GET /openapi.json lists all")
        for route, in_path in found:
            if route.method == self.command:
                self.verb = route.verb
                return self._run(route, in_path, query)
        return self._wrong_method([route.method for route, _ in found])

    def _wrong_method(self, allowed: list[str]) -> Answer:
        refusal = _error(405, "method_not_allowed", f"this path takes {' and '.join(allowed)}")
        return Answer(refusal.body, refusal.status, headers={"Allow": ", ".join(allowed)})

    def _run(self, route: Route, in_path: dict[str, str], query: str) -> Answer:
        dispatcher = self.server.dispatcher
        if not route.changes:
            values = _query(query) | {name: unquote(value) for name, value in in_path.items()}
            return dispatcher.call(route, _parsed(lambda: route.parameters.model_validate(values)))
        return dispatcher.change(
            route,
            peer_of(self.connection),
            group_of(self.server.socket),
            lambda: _parsed(lambda: route.parameters.model_validate_json(self._body() or b"{}", strict=True)),
        )

    def _body(self) -> bytes:
        if "Transfer-Encoding" in self.headers:
            _refuse(411, "length_required", "send the body with a Content-Length")
        length = self.headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdecimal()):
            raise Invalid("Content-Length is not a number")
        if int(length[:20]) > self.server.limits.max_body_bytes:
            _refuse(413, "too_large", f"the body may have {self.server.limits.max_body_bytes} bytes")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise _Unreadable(None)
        return body


def _query(query: str) -> dict[str, str]:
    try:
        fields = parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_QUERY_FIELDS)
    except ValueError as error:
        raise Invalid(f"query: {error}") from None
    values = dict(fields)
    if len(values) < len(fields):
        raise Invalid("query: a parameter is there twice")
    return values
