"""Targets that take requests over sockets: the control API, the metrics server, the channel of the tasks.

A server may answer or close, and has to be there for the next client. What it answers is HTTP, and never 500.
"""

import contextlib
import json
import socket
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from cleanerd.daemon.api.http import Answer, RequestLimits
from cleanerd.daemon.api.metrics_server import MetricsServer
from cleanerd.daemon.api.verbs import ROUTES
from cleanerd.spark_runtime.channel import Channel
from cleanerd.spark_runtime.messages import GO_ON, MESSAGE_BYTES
from tests.fuzz.targets import Target
from tests.harness.daemon.served import Served
from tests.harness.damage.bytes import NUMBERS, mutated

_ANSWER_S = 5.0
_TAKEN = ("200", "404", "409", "503", "504")
"""A request is understood also where nothing matches, the state of the daemon forbids it, or it waits in vain."""
_LIMITS = RequestLimits(request_s=0.5)
_WORDS = (
    *NUMBERS, b"\r\n\r\n", b"\r\n", b"\n", b"\0", b" ", b"%", b"%00", b"%ff", b"..", b"/", b"?", b"&", b"=", b"#", b"{",
    b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n",
    b"Host: a\r\nHost: b\r\n", b": x\r\n", b"HTTP/0.9", b"HTTP/9.9", b"GET ", b"PUT ", b"\x80\xff", "é".encode(), b"*",
    b"A" * 70_000, b"[" * 9000,
)  # fmt: skip
EXAMPLES: dict[str, tuple[str, dict[str, object] | None]] = {
    "status": ("/v1/status", None),
    "logs": ("/v1/logs?pattern=orders&state=dirty", None),
    "log": ("/v1/logs/orders-3", None),
    "explain": ("/v1/logs/orders-3/explanation", None),
    "await_cleaned": ("/v1/logs/orders-3/cleaned?offset=10&timeout_ms=0", None),
    "jobs": ("/v1/jobs", None),
    "job": ("/v1/jobs/{job}", None),
    "wait_job": ("/v1/jobs/{job}/done?timeout_ms=5", None),
    "holds": ("/v1/holds", None),
    "history": ("/v1/history?limit=1&since_ms=0", None),
    "throttle": ("/v1/throttle", None),
    "set_throttle": ("/v1/throttle", {"io_bytes_per_s": 1e6}),
    "clean": ("/v1/clean", {"pattern": "orders-3", "force": True}),
    "would_clean": ("/v1/clean?pattern=orders", None),
    "pause": ("/v1/pause", {"pattern": "orders", "owner": "me", "ttl_ms": 1000}),
    "resume": ("/v1/resume", {"selector": "payments"}),
    "abort": ("/v1/abort", {"pattern": "orders", "timeout_ms": 1}),
    "commit": ("/v1/commit", {"wait_ms": 0}),
    "mute": ("/v1/mute", {"pattern": "orders"}),
    "unmute": ("/v1/unmute", {"pattern": "orders"}),
    "retry": ("/v1/retry", {"pattern": "*"}),
    "reload": ("/v1/reload", None),
    "forecast": ("/v1/forecast?pattern=orders", None),
    "retention": ("/v1/retention", {"pattern": "orders", "dry_run": True}),
    "delete_records": ("/v1/delete-records", {"topic_partition": "orders-0", "offset": 5}),
}
"""A request of each verb: its target, and its body."""

_PAGES = ("/metrics", "/healthz", "/logs?q=a&sort=size&page=2", "/log?name=a-0", "/history?range=day&q=*")


class _Refused(Exception):
    """The server answered what is wrong, or hung up."""


def _requests() -> tuple[bytes, ...]:
    found = []
    for route in ROUTES:
        target, body = EXAMPLES[route.verb]
        target = target.format(job="0")  # there is none
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{route.method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        found.append(head.encode() + data)
    return tuple(found)


@cache
def _control() -> str:
    served = Served(Path(tempfile.mkdtemp()), limits=_LIMITS)
    served.parts.life.stopping.set()  # what would be waited for is not
    return str(served.path)


@cache
def _metrics() -> tuple[str, int]:
    pages = dict.fromkeys(
        (page.partition("?")[0] for page in _PAGES), lambda request: Answer(request.query.encode())
    )
    server = MetricsServer("127.0.0.1:0", pages, _LIMITS)
    server.start()
    host, _, port = server.address.rpartition(":")
    return host, int(port)


@cache
def _channel() -> tuple[str, int]:
    channel = Channel(lambda _: GO_ON)
    channel.__enter__()
    return channel.reporter.host, channel.reporter.port


@contextlib.contextmanager
def _connected(address: str | tuple[str, int]) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as connection:
        connection.settimeout(_ANSWER_S)
        connection.connect(address)
        yield connection


def _response(address: str | tuple[str, int], data: bytes) -> bytes:
    """What comes back; the request is at its end."""
    received = b""
    with _connected(address) as connection, contextlib.suppress(OSError):  # it may hang up in the middle
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while more := connection.recv(1 << 16):
            received += more
    return received


def _ask(server: str, data: bytes, _: Path) -> None:
    received = _response(_control() if server == "control" else _metrics(), data)
    if not received or (server == "metrics" and not received.startswith(b"HTTP/")):
        raise _Refused  # http.server answers what has no version as HTTP/0.9 was answered: without a head
    head, _, body = received.partition(b"\r\n\r\n")
    version, status, *_ = head.split(b"\r\n")[0].decode("latin-1").split(" ")
    assert version in ("HTTP/1.1", "HTTP/1.0"), received[:200]
    assert status != "500", received[:500]
    assert 200 <= int(status) < 600, received[:500]
    if server == "control" and b"application/json" in head:
        assert json.loads(body)
    if status not in _TAKEN:
        raise _Refused


def _report(data: bytes, _: Path) -> None:
    """A stranger gets a challenge, and nothing else."""
    assert len(_response(_channel(), data)) <= 16


def _target(server: str, valid: tuple[bytes, ...]) -> Target:
    return Target(
        lambda: valid,
        partial(_ask, server),
        partial(mutated, words=_WORDS),
        cost=10,
        refusals=(_Refused,),
    )


TARGETS = {
    "control request": _target("control", _requests()),
    "metrics request": _target(
        "metrics", tuple(f"GET {p} HTTP/1.1\r\nAccept: */*\r\n\r\n".encode() for p in _PAGES)
    ),
    "channel": Target(lambda: (bytes(16) + bytes(MESSAGE_BYTES),), _report, cost=10),
}
