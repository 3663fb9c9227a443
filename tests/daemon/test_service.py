"""The control API on a real unix socket: every limit, and who may do what; every verb is in `cli/ctl/test_verbs.py`."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.processors import format_exc_info
from structlog.testing import capture_logs

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.control_socket import Peer, SocketUnusable, bind
from cleanerd.daemon.api.endpoints import Endpoint
from cleanerd.daemon.api.http import Answer, Request, RequestLimits
from cleanerd.daemon.api.openapi import document
from cleanerd.daemon.api.refusals import MAX_WAIT_MS
from cleanerd.daemon.api.routes import Route
from cleanerd.daemon.api.verbs import ROUTES, clean, pause
from cleanerd.daemon.values.models import ThrottleChange, ThrottleLimits
from tests.harness.daemon.clients import until
from tests.harness.daemon.served import Served

BEGUN = b"POST /v1/clean HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"
"""A request that does not come in whole."""


def bug(control: Control) -> None:
    """What nobody has thought of."""
    raise ZeroDivisionError("secret detail")


def page(request: Request) -> Answer:
    return Answer(f"for {request.headers['accept']}?{request.query}".encode(), content_type="text/plain")


class Api(Served):
    """A served daemon and a plain client."""

    def __init__(self, root: Path, run: Callable[[Control], object] = bug, **options: Any) -> None:
        """`run`: what the verb `own` does."""
        own = Route(Endpoint("POST", "/v1/own", "own"), run)
        super().__init__(root, own=[own], pages={"/metrics": page}, **options)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(5)
        connection.connect(str(self.path))
        return connection

    def raw(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        with self.connect() as connection:
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(request)
            return read_answer(connection)

    def ask(
        self, method: str, target: str, body: bytes = b"", headers: str = ""
    ) -> tuple[int, dict[str, str], bytes]:
        head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        return self.raw(head.encode() + body)

    def error(self, method: str, target: str, body: bytes = b"") -> tuple[int, str, str]:
        status, _, answer = self.ask(method, target, body)
        found = json.loads(answer)
        assert found["apiVersion"] == "cleanerd/v1"
        return status, found["error"]["code"], found["error"]["message"]


def read_answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65_536):
            received += data
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    assert int(headers["Content-Length"]) == len(body)
    return int(lines[0].split()[1]), headers, body


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    served = Api(tmp_path)
    yield served
    served.close()


def test_every_change_is_audited_with_credentials_and_outcome(api: Api) -> None:
    """Done, refused by the daemon, not understood; looking leaves no entry."""
    with capture_logs() as told:
        api.ask("POST", "/v1/clean", b'{"pattern": "orders-3", "force": true}')
        api.ask("POST", "/v1/clean", b'{"pattern": "nothing-here"}')
        api.ask("POST", "/v1/clean", b"{")
        api.ask("GET", "/v1/status")
    entries = [line for line in told if line["event"] == "control"]
    me = {"pid": os.getpid(), "uid": os.geteuid(), "gid": os.getegid()}
    assert all(me.items() <= entry.items() for entry in entries)
    done, refused, (code, wrong) = api.audit()
    assert done == ("ok", "clean pattern=orders-3 force")
    words = "clean pattern=nothing-here: no log matches nothing-here; `cleanerctl logs` lists them"
    assert refused == ("not_found", words)
    assert (code, str(wrong)[:7]) == ("invalid", "clean: ")
    assert [(entry["outcome"], entry["reason"]) for entry in entries] == api.audit()


def test_the_name_of_a_file_need_not_be_utf_8(api: Api) -> None:
    """Anybody may have made it: its log has a reason, the others their answers, the history its entries (rule D.17)."""
    with open(os.fsencode(api.a / "orders-3") + b"/5.\xff.log", "wb") as odd:
        odd.write(b"x")
    api.scan()
    for target in ("/v1/logs", "/v1/logs/orders-3", "/v1/logs/orders-3/explanation"):
        status, _, answer = api.ask("GET", target)
        assert (status, rb"5.\\udcff.log" in answer) == (200, True), target
    api.ask("POST", "/v1/clean", b'{"pattern": "orders-3"}')
    assert r"5.\udcff.log" in str(api.audit()[-1][1])


def test_errors_have_a_code_and_a_message(api: Api) -> None:
    assert api.error("GET", "/v1/jobs/j9")[:2] == (404, "not_found")
    (queued,) = clean.clean(api.control, "orders-0")
    pause.pause(api.control, "orders-3", "me")
    assert api.error("POST", "/v1/clean", b'{"pattern":"orders-3"}')[:2] == (409, "conflict")
    assert api.error("GET", f"/v1/jobs/{queued.id}/done?timeout_ms=0")[:2] == (504, "timeout")
    assert api.error("GET", "/v2/status")[:2] == (404, "no_such_path")
    status, headers, _ = api.ask("POST", "/v1/throttle")
    assert (status, headers["Allow"]) == (405, "GET, PUT")
    assert api.ask("DELETE", "/openapi.json")[0] == 405


@pytest.mark.parametrize(
    ("target", "body", "message"),
    [
        ("/v1/clean", b"{", "parameters: Invalid JSON"),
        ("/v1/clean", b"[1]", "parameters: "),
        ("/v1/clean", b"\xff", "parameters: Invalid JSON"),
        ("/v1/clean", b"", "pattern: Field required"),
        ("/v1/clean", b'{"pattern": "a", "forse": true}', "forse: Extra inputs"),
        ("/v1/clean", b'{"pattern": ""}', "pattern: "),
        ("/v1/clean", b"[" * 60_000, "parameters: Invalid JSON"),
        ("/v1/abort", b'{"pattern": "a", "timeout_ms": %d}' % (MAX_WAIT_MS + 1), "timeout_ms: "),
        ("/v1/delete-records", b'{"topic_partition": "orders", "offset": 1}', "topic_partition: not the"),
        ("/v1/delete-records", b'{"topic_partition": "orders-1", "offset": -1}', "offset: "),
        ("/v1/delete-records", b'{"topic_partition": "orders-1", "offset": 9223372036854775808}', "offset: "),
        ("/v1/logs?state=green", None, "state: "),
        ("/v1/logs?pattern=a&pattern=b", None, "query: a parameter is there twice"),
        ("/v1/logs?" + "&".join(f"a{i}=1" for i in range(17)), None, "query: "),
        ("/v1/logs?sort=up", None, "sort: Extra inputs"),
        ("/v1/logs/orders-3.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-delete", None, "topic_partition: not the name"),
    ],
)
def test_parameters_that_make_no_sense(api: Api, target: str, body: bytes | None, message: str) -> None:
    """400, naming the parameter; the daemon is not asked."""
    status, code, found = api.error("GET" if body is None else "POST", target, body or b"")
    assert (status, code) == (400, "invalid")
    assert found.startswith(message)


def test_a_bug_shows_nothing_of_the_inside(api: Api) -> None:
    """500 without a traceback; it is in the log, and audited."""
    with capture_logs([format_exc_info]) as told:
        status, code, message = api.error("POST", "/v1/own")
    assert (status, code) == (500, "internal")
    assert "secret" not in message
    (failed,) = (one for one in told if one["event"] == "request_failed")
    assert "secret detail" in failed["exception"]
    assert api.audit() == [("internal", "bug: ZeroDivisionError")]
    assert api.ask("GET", "/v1/status")[0] == 200


def test_requests_that_are_too_large(api: Api) -> None:
    """A body over 64 KiB is refused by its length, a head that never ends by its size."""
    assert api.error("POST", "/v1/clean", b" " * 65_537)[:2] == (413, "too_large")
    assert api.ask("POST", "/v1/retry", b'{"pattern": "*"}' + b" " * (65_536 - 16))[0] == 200
    assert api.raw(b"GET /" + b"a" * 100_000)[0] in {413, 414, 431}
    assert api.raw(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 50_000)[0] in {413, 431}


def test_requests_that_are_not_http(api: Api) -> None:
    """Answered in JSON with a status of the 400s, or 505."""
    for line in (b"\x16\x03\x01", b"GET", b"GET / HTTP/9.9", b"GET / FTP/1.0"):
        status, _, body = api.raw(line + b"\r\n\r\n")
        assert status in {400, 505}
        assert json.loads(body)["error"]["code"]
    assert api.ask("POST", "/v1/reload", headers="Transfer-Encoding: chunked\r\n")[0] == 411
    assert api.raw(b"POST /v1/reload HTTP/1.1\r\nContent-Length: -1\r\n\r\n")[0] == 400
    with api.connect():  # somebody who says nothing at all and goes
        pass
    assert api.ask("GET", "/v1/status")[0] == 200


@pytest.mark.fault("a client that is slow, or vanishes")
def test_slow_client_is_cut_off_in_total(tmp_path: Path) -> None:
    """One who drips a byte now and then gets 408 when the time for the whole request is over."""
    served = Api(tmp_path, limits=RequestLimits(request_s=0.3))
    with served.connect() as connection:
        stop = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not stop.wait(0.02):
                    connection.send(b"X")

        dripping = threading.Thread(target=drip)
        dripping.start()
        status, _, body = read_answer(connection)
        stop.set()
        dripping.join()
    assert (status, json.loads(body)["error"]["code"]) == (408, "request_timeout")
    assert served.raw(BEGUN)[0] == 408
    assert [outcome for outcome, _ in served.audit()] == ["unreadable"]
    served.close()


def test_more_connections_than_allowed_are_turned_away(tmp_path: Path) -> None:
    """503 for the one too many, at once, where all others have asked; a place is free again when another has gone."""
    served = Api(tmp_path, limits=RequestLimits(max_connections=2, request_s=5))
    first, second = served.connect(), served.connect()
    for connection in (first, second):
        connection.sendall(BEGUN)
    threading.Event().wait(0.2)
    assert served.error("GET", "/v1/status")[:2] == (503, "busy")
    first.close()
    until(lambda: served.ask("GET", "/v1/status")[0] == 200)
    second.close()
    served.close()


@pytest.mark.fault("a client that is slow, or vanishes")
def test_a_client_that_vanishes_costs_nothing(api: Api) -> None:
    """Before its request, in the middle, and before the answer: nothing is logged, and others are served."""
    request = b"POST /v1/clean HTTP/1.1\r\nContent-Length: 20\r\n\r\n" + b'{"pattern": "orders"}'
    with capture_logs() as told:
        for cut in [*range(0, len(request), 3), len(request)]:  # fewer than may wait to be accepted
            with api.connect() as connection:
                connection.sendall(request[:cut])
        assert api.ask("GET", "/v1/status")[0] == 200
    assert {event["event"] for event in told} <= {"answer_lost", "control"}


def test_other_pages_are_served_for_get(api: Api) -> None:
    status, headers, body = api.ask("GET", "/metrics?a=1", headers="Accept: text/x\r\n")
    assert (status, headers["Content-Type"], body) == (200, "text/plain", b"for text/x?a=1")
    assert api.ask("POST", "/metrics")[0] == 405


def test_others_may_look_but_not_change(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = Peer(4711, uid=12_345, gid=12_345)
    monkeypatch.setattr("cleanerd.daemon.api.control_server.peer_of", lambda _: stranger)
    with capture_logs() as told:
        assert api.error("POST", "/v1/reload")[:2] == (403, "forbidden")
    assert api.ask("GET", "/v1/status")[0] == 200
    (entry,) = told
    assert (entry["outcome"], entry["pid"], entry["uid"]) == ("forbidden", stranger.pid, stranger.uid)


def test_stale_socket_is_replaced(tmp_path: Path) -> None:
    """One that nobody answers on, as a killed daemon leaves it."""
    path = tmp_path / "new" / "control.sock"
    bind(str(path)).close()
    assert path.exists()
    served = Served(tmp_path, path)
    served.close()
    assert not path.exists()


def test_second_daemon_is_refused_with_the_pid_of_the_first(api: Api) -> None:
    with pytest.raises(SocketUnusable, match=f"process {os.getpid()} answers"):
        bind(str(api.path))
    assert api.ask("GET", "/v1/status")[0] == 200


def test_stopping_leaves_the_socket_of_a_successor(api: Api) -> None:
    api.path.unlink()
    successor = bind(str(api.path))
    api.server.stop(1.0)
    assert api.path.exists()
    successor.close()
    api.serve()


def test_stop_waits_for_a_request_in_progress(tmp_path: Path) -> None:
    """A request that has begun gets its answer; no new one is taken."""
    begun, may_end = threading.Event(), threading.Event()

    def slow(control: Control) -> bool:
        begun.set()
        return may_end.wait(5)

    api = Api(tmp_path, slow)
    with api.connect() as client:
        client.sendall(b"POST /v1/own HTTP/1.1\r\n\r\n")
        assert begun.wait(5)
        stopping = threading.Thread(target=api.server.stop, args=(5.0,))
        stopping.start()
        may_end.set()
        assert read_answer(client)[0] == 200
        stopping.join()
    assert not api.path.exists()
    api.close()


def test_openapi_document_is_whole(api: Api) -> None:
    """Every route is in it, every parameter of a path is declared, every reference leads somewhere, and it is served."""
    found = json.loads(api.ask("GET", "/openapi.json")[2])
    routes = (*ROUTES, *api.own)
    assert found == document(routes)
    assert (found["openapi"], set(found["info"])) == ("3.1.0", {"title", "version"})
    operations = [operation for path in found["paths"].values() for operation in path.values()]
    assert len(operations) == len(routes) == len({operation["operationId"] for operation in operations})
    for route in routes:
        operation = found["paths"][route.path][route.method.lower()]
        assert operation["summary"]
        in_path = [each for each in operation.get("parameters", ()) if each["in"] == "path"]
        assert [each["name"] for each in in_path] == re.findall(r"{(\w+)}", route.path)
        assert all(each["required"] and each["schema"] for each in in_path)
        assert ("requestBody" in operation) == route.changes
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        assert schema["required"] == ["apiVersion", route.key]
        assert "default" in operation["responses"]
    refs = re.findall(r'"\$ref": "([^"]*)"', json.dumps(found))
    assert set(refs) == {f"#/components/schemas/{name}" for name in found["components"]["schemas"]}


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(api: Api) -> None:
    """What the manual shows: curl --unix-socket, also with a body that is too large."""

    def curl(*arguments: str) -> tuple[int, object]:
        command = ["curl", "-sS", "-m", "10", "-w", "\n%{http_code}", "--unix-socket", api.path, *arguments]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        body, status = out.rsplit("\n", 1)
        return int(status), json.loads(body)

    assert curl("http://cleanerd/v1/logs/orders-3")[0] == 200
    assert curl("-X", "PUT", "-d", '{"read_bytes_per_s": null}', "http://cleanerd/v1/throttle")[0] == 200
    (large := api.path.parent / "large").write_bytes(b" " * 2_000_000)
    assert curl("-d", f"@{large}", "http://cleanerd/v1/retry")[0] == 413


def test_throttle_change_leaves_what_is_not_named() -> None:
    """Absent stays, null lifts, a number sets."""
    limits = ThrottleLimits(io_bytes_per_s=1, read_bytes_per_s=2)
    change = ThrottleChange.model_validate({"read_bytes_per_s": None, "write_bytes_per_s": 3})
    assert change.applied_to(limits) == ThrottleLimits(io_bytes_per_s=1, write_bytes_per_s=3)
    for wrong in (0, -1, "inf", "nan"):
        with pytest.raises(ValueError, match="io_bytes_per_s"):
            ThrottleChange.model_validate({"io_bytes_per_s": wrong})
