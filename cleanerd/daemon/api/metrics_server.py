"""/metrics, /healthz, /readyz and the status page over HTTP, for Prometheus and what watches over the process.

========  ======================================================================================================
path      answer
========  ======================================================================================================
/metrics  all metrics, in the format that the Accept header asks for
/healthz  200 while no thread hangs, else 503. Says nothing about disks: a restart would not repair them
/readyz   200 when the log directories are recovered and scanned, 503 before that and while the daemon stops
/, ...    the status page (`status_page`)
========  ======================================================================================================

One request on each connection, from any client that reaches the address: nothing can be changed here, but the paths of log
directories can be read. A connection beyond `RequestLimits.max_connections` takes the place of the one that has been silent
for longest; where all have asked, it is closed at once. Any is closed after `RequestLimits.request_s`.
"""

import contextlib
import re
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import structlog

from cleanerd.daemon.api.http import Answer, Page, Request, RequestLimits
from cleanerd.daemon.telemetry.metrics import Metrics
from cleanerd.env.clock import Clock, SystemClock
from cleanerd.errors import BadConfiguration

_log = structlog.get_logger("cleanerd")
_ADDRESS = re.compile(r"\[?([^\]]+)\]?:([0-9]+)")
_TEXT = "text/plain; charset=utf-8"
_POLL_S = 0.5


def pages(
    metrics: Metrics, trouble: Callable[[], str | None], is_ready: Callable[[], bool]
) -> Mapping[str, Page]:
    """The pages by path, for this server as for the control socket. `trouble`: why the daemon is not well, if so."""

    def metrics_page(request: Request) -> Answer:
        body, content_type = metrics.page(request.accept)
        return Answer(body, content_type=content_type)

    def healthz_page(_: Request) -> Answer:
        wrong = trouble()
        return _yes_or_no(wrong is None, "alive", wrong or "")

    return {
        "/metrics": metrics_page,
        "/healthz": healthz_page,
        "/readyz": lambda _: _yes_or_no(is_ready(), "ready", "not ready"),
    }


def _yes_or_no(is_so: bool, yes: str, no: str) -> Answer:
    return Answer(f"{yes if is_so else no}\n".encode(), 200 if is_so else 503, _TEXT)


class MetricsServer:
    """Serves pages at `host:port` (IPv6 in brackets; port 0: any) in threads of its own, from `start` to `stop`."""

    def __init__(
        self,
        listen: str,
        pages: Mapping[str, Page],
        limits: RequestLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Raises BadConfiguration when the address cannot be listened on."""
        found = _ADDRESS.fullmatch(listen)
        assert found is not None, "the table of keys has checked it"
        address, port = found[1], int(found[2])
        try:
            family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
            self._server = _server(family)(
                (address, port), pages, limits or RequestLimits(), clock or SystemClock()
            )
        except OSError as error:
            raise BadConfiguration(
                [
                    f"cleanerd.metrics.listen: cannot listen on {listen}: {error.strerror}; choose another address, or "
                    f"leave it empty for none"
                ]
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="metrics", daemon=True
        )

    @property
    def address(self) -> str:
        """Where it listens, with the port that was chosen."""
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()
        _log.info("metrics_listening", address=self.address)

    def stop(self) -> None:
        """Stop accepting; requests in progress end by themselves."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """Each connection in a thread, only so many of them, none for long."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = (
        1024  # of a full queue the kernel drops new connections, which are tried again seconds later
    )

    def __init__(
        self, address: tuple[str, int], pages: Mapping[str, Page], limits: RequestLimits, clock: Clock
    ) -> None:
        self.pages = pages
        self._limits = limits
        self._clock = clock
        self._mutex = threading.Lock()
        self._open: dict[socket.socket, float] = {}  # since when, oldest first
        self._silent: dict[socket.socket, bool] = {}  # those of them that have not asked yet
        super().__init__(address, _Connection)

    def server_bind(self) -> None:
        """Without the look at the name service that http.server takes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002
        """Whether there is room for one more: a client that connects and says nothing keeps no other from asking."""
        with self._mutex:
            if len(self._open) >= self._limits.max_connections:
                silent = next(iter(self._silent), None)
                if silent is None:
                    return False
                self._forget(silent)
                _cut(silent)
            self._open[request] = self._clock.monotonic_s()
            self._silent[request] = True
            return True

    def has_asked(self, request: socket.socket) -> bool:
        """The head of a request came in: whether to answer it, however many others connect. Not what was cut off in it."""
        with self._mutex:
            return self._silent.pop(request, False)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        with self._mutex:
            self._forget(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Several times a second: cut off who takes too long, reading or being read."""
        since_s = self._clock.monotonic_s() - self._limits.request_s
        with self._mutex:
            for connection in [one for one, began_s in self._open.items() if began_s < since_s]:
                self._silent.pop(connection, None)
                _cut(connection)

    def _forget(self, connection: socket.socket) -> None:
        self._open.pop(connection, None)
        self._silent.pop(connection, None)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A client that went away is no error."""
        _log.debug("metrics_request_failed", client=str(client_address), error=repr(sys.exc_info()[1]))


def _cut(connection: socket.socket) -> None:
    """End what a thread waits for there; the thread closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _server(family: socket.AddressFamily) -> type[_Server]:
    return type("_Server", (_Server,), {"address_family": family})


class _Connection(BaseHTTPRequestHandler):
    """One request."""

    server: _Server
    server_version = "cleanerd"
    sys_version = ""

    def do_GET(self) -> None:
        """A page, or 404."""
        if not self.server.has_asked(self.connection):
            return
        path, _, query = self.path.partition("?")
        page = self.server.pages.get(path)
        self._send(Answer(b"not found\n", 404, _TEXT) if page is None else self._answer(page, query))

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, page: Page, query: str) -> Answer:
        try:
            return page(Request(self.headers.get("Accept", ""), query))
        except Exception:  # noqa: BLE001  # the boundary of a request
            _log.exception("metrics_page_failed", path=self.path)
            return Answer(b"internal error; the daemon's log says more\n", 500, _TEXT)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Connection", "close")
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing."""
