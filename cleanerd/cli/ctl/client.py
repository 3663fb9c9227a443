"""The client side of the control API: one request on one connection to the daemon's unix socket.

Small on purpose: cleanerctl is started by scripts and health checks, and the HTTP client of the standard library takes
longer to import than all the rest.
"""

import contextlib
import json
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from cleanerd.errors import CleanerdError

FAILED, USAGE, NOT_RUNNING, NO_SUCH_LOG, BUSY, NO_PERMISSION = 1, 2, 3, 4, 75, 77

_EXIT_CODES = {400: USAGE, 403: NO_PERMISSION, 408: BUSY, 409: BUSY, 503: BUSY, 504: BUSY}
_BY_CODE = {"not_found": NO_SUCH_LOG, "refused": FAILED}
_CONNECT_S = 5.0
_ANSWER_S = 60.0  # for verbs that work and do not wait
_LEAST_ANSWER_S = 0.001  # 0 would mean: do not wait even for the kernel


class ControlError(CleanerdError):
    """The request was not carried out. `code` is that of the API's error, "" where no daemon answered."""

    def __init__(self, message: str, exit_code: int, code: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.code = code


class NoDaemon(ControlError):
    """Nothing listens on the socket."""


class Client:
    """Asks the daemon behind the socket at `path`. Every method raises `ControlError`.

    `answer_s`: time limit for an answer, without the time that a request asks the daemon to wait; None is a minute.
    """

    def __init__(self, path: str, answer_s: float | None = None) -> None:
        self._path = path
        self._answer_s = _ANSWER_S if answer_s is None else max(answer_s, _LEAST_ANSWER_S)

    def get(self, path: str, wait_s: float = 0.0, **query: object) -> dict[str, Any]:
        """Look at something; parameters that are None are left out. `wait_s`: how long the daemon may take longer."""
        given = {name: str(value) for name, value in query.items() if value is not None}
        return self._ask("GET", f"{path}?{urlencode(given)}" if given else path, b"", wait_s)

    def send(self, method: str, path: str, body: Mapping[str, object], wait_s: float = 0.0) -> dict[str, Any]:
        """Have something done."""
        return self._ask(method, path, json.dumps(body).encode(), wait_s)

    def _ask(self, method: str, target: str, body: bytes, wait_s: float) -> dict[str, Any]:
        head = f"{method} {target} HTTP/1.1\r\nHost: cleanerd\r\nContent-Length: {len(body)}\r\n\r\n"
        with self._connected() as connection:
            connection.settimeout(self._answer_s + wait_s)
            try:
                received = _exchange(connection, head.encode("ascii") + body)
            except TimeoutError:
                raise ControlError(f"the daemon behind {self._path} does not answer", BUSY) from None
            except OSError as error:
                raise ControlError(f"the daemon behind {self._path} has gone: {error}", NOT_RUNNING) from None
        return _content(received)

    def _connected(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(min(_CONNECT_S, self._answer_s))
        try:
            connection.connect(self._path)
        except OSError as error:
            connection.close()
            raise _not_connected(self._path, error) from None
        return connection


def _not_connected(path: str, error: OSError) -> ControlError:
    if isinstance(error, PermissionError):
        return ControlError(f"{path}: no permission to connect", NO_PERMISSION)
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return NoDaemon(f"no daemon answers on {path}", NOT_RUNNING)
    if isinstance(error, TimeoutError | BlockingIOError):
        return ControlError(f"the daemon behind {path} accepts no connections at the moment", BUSY)
    return ControlError(f"{path}: {error}", NOT_RUNNING)


def _exchange(connection: socket.socket, request: bytes) -> bytes:
    """Send a request and read to the end of the answer.

    One that is turned away before it has been read breaks the connection; the answer that is there already has the reason.
    """
    received = bytearray()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(request)
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65_536):
            received += data
    return bytes(received)


def _content(received: bytes) -> dict[str, Any]:
    """The document in an answer; raises `ControlError` for a refusal."""
    head, _, body = received.partition(b"\r\n\r\n")
    try:
        status = int(head.split(b" ", 2)[1])
        content = json.loads(body)
    except (ValueError, IndexError):
        raise ControlError("the daemon's answer is cut off or not HTTP", NOT_RUNNING) from None
    if status == 200 and isinstance(content, dict):
        return content
    error = content.get("error", {}) if isinstance(content, dict) else {}
    code, message = error.get("code", ""), error.get("message", f"HTTP status {status}")
    exit_code = _BY_CODE.get(str(code), _EXIT_CODES.get(status, FAILED))
    raise ControlError(str(message), exit_code, str(code))
