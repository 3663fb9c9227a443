"""/metrics, /healthz, /readyz and the status page over HTTP (`http`), for Prometheus and process supervisors.

========  ======================================================================================================
path      answer
========  ======================================================================================================
/metrics  all metrics, in the format that the Accept header asks for
/healthz  200 while no thread hangs, else 503. Says nothing about disks: a restart would not repair them
/readyz   200 when the log directories are recovered and scanned, 503 before that and while the daemon stops
/, ...    the status page (`status_page`)
========  ======================================================================================================

Any client that reaches the address may ask: nothing can be changed here, but the paths of log directories can be read.
"""

import re
import socket
from collections.abc import Callable, Mapping

import structlog

from cleanerd.daemon.api.http import Answer, HttpServer, Page, Request, RequestLimits
from cleanerd.daemon.telemetry.metrics import Metrics
from cleanerd.env.clock import SystemClock
from cleanerd.errors import BadConfiguration

_log = structlog.get_logger("cleanerd")
_ADDRESS = re.compile(r"\[?([^\]]+)\]?:([0-9]+)")
_TEXT = "text/plain; charset=utf-8"
_BACKLOG = 1024
"""Of a full queue the kernel drops new connections, which are tried again seconds later."""


def pages(
    metrics: Metrics, trouble: Callable[[], str | None], is_ready: Callable[[], bool]
) -> Mapping[str, Page]:
    """The pages by path, for this server as for the control socket. `trouble`: why the daemon is not well, if so."""

    def metrics_page(request: Request) -> Answer:
        body, content_type = metrics.page(request.headers.get("accept", ""))
        return Answer(body, content_type=content_type)

    return {
        "/metrics": metrics_page,
        "/healthz": lambda _: _yes_unless(trouble(), "alive"),
        "/readyz": lambda _: _yes_unless(None if is_ready() else "not ready", "ready"),
    }


def _yes_unless(wrong: str | None, yes: str) -> Answer:
    return Answer(f"{wrong or yes}\n".encode(), 503 if wrong else 200, _TEXT)


class MetricsServer(HttpServer):
    """Serves pages at `host:port` (IPv6 in brackets; port 0: any)."""

    def __init__(self, listen: str, pages: Mapping[str, Page], limits: RequestLimits | None = None) -> None:
        """Raises BadConfiguration when the address cannot be listened on."""
        super().__init__(_listen(listen), "metrics", limits or RequestLimits(answer_s=10.0), SystemClock())
        self._pages = pages

    @property
    def address(self) -> str:
        """The address of the server, with the actual port."""
        host, port = self.socket.getsockname()[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def start(self) -> None:
        """Begin to answer."""
        super().start()
        _log.info("metrics_listening", address=self.address)

    def stop(self, drain_s: float = 0.0) -> None:
        """Stop accepting; requests in progress end by themselves."""
        super().stop(drain_s)
        self.socket.close()

    def answer(self, request: Request, began_s: float) -> Answer:  # noqa: ARG002
        """A page, or 404."""
        if request.method not in ("GET", "HEAD"):
            return self.error(405, "method_not_allowed", "only GET")
        page = self._pages.get(request.path)
        return self.error(404, "not_found", "not found") if page is None else page(request)

    def error(self, status: int, code: str, message: str) -> Answer:  # noqa: ARG002
        """An error as plain text."""
        return Answer(f"{message}\n".encode(), status, _TEXT)


def _listen(listen: str) -> socket.socket:
    found = _ADDRESS.fullmatch(listen)
    assert found is not None, "the table of keys has checked it"
    try:
        family, *_, address = socket.getaddrinfo(found[1], int(found[2]), type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        wrong = f"cleanerd.metrics.listen: cannot listen on {listen}: {error.strerror}"
        raise BadConfiguration([f"{wrong}; choose another address, or leave it empty for none"]) from error
