"""The control API: verbs over HTTP and JSON on a unix socket (`http`), within `RequestLimits`.

====================  ===================================================================================================
who                   may
====================  ===================================================================================================
connect               who the mode and group of the socket let in (control_socket.py)
change things         root, the daemon's user, members of the socket's group. No others can connect (mode 0660) unless
                      that mode is widened by hand; those may look (403)
====================  ===================================================================================================

A verb that waits takes a connection for `MAX_WAIT_MS` at most. An error is
`{"apiVersion": ..., "error": {"code", "message"}}`; details of internal errors are in the daemon's log only. Every request
that would change something is recorded, also if it is refused.
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn
from urllib.parse import parse_qsl, unquote

import structlog
from pydantic import BaseModel, ValidationError

from cleanerd import API_VERSION
from cleanerd.daemon.api import openapi
from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.control_socket import Listening, Peer, group_of, may_change, peer_of
from cleanerd.daemon.api.http import Answer, HttpServer, Page, Request, RequestLimits, UnreadableRequest
from cleanerd.daemon.api.refusals import Invalid, OperationError, Unavailable
from cleanerd.daemon.api.routes import Route
from cleanerd.daemon.store import HistoryUnreadable

_log = structlog.get_logger("cleanerd")
_MAX_QUERY_FIELDS = 16


class ControlServer(HttpServer):
    """Serves verbs."""

    def __init__(
        self,
        listening: Listening,
        control: Control,
        routes: Sequence[Route],
        *,
        pages: Mapping[str, Page] | None = None,
        limits: RequestLimits | None = None,
        own_uid: int,
    ) -> None:
        super().__init__(listening.socket, "control", limits or RequestLimits(), control.parts.clock)
        self._routes = routes
        self._listening = listening
        self._control = control
        self._pages: Mapping[str, Page] = {"/openapi.json": self._document, **(pages or {})}
        self._own_uid = own_uid

    def stop(self, drain_s: float = 0.0) -> None:
        """Stop accepting, wait up to `drain_s` for requests in progress, remove the socket."""
        super().stop(drain_s)
        self._listening.close()

    def answer(self, request: Request, began_s: float) -> Answer:
        """Answers and counts every complete request; an incomplete one is dropped."""
        verb, respond = self._routed(request)
        try:
            answer = respond()
        except OperationError as error:
            answer = self.error(error.status, error.code, str(error))
        except HistoryUnreadable as error:
            answer = self.error(Unavailable.status, Unavailable.code, str(error))
        except UnreadableRequest:
            raise
        except Exception:  # noqa: BLE001  # the boundary of a request
            _log.exception("request_failed", server="control", request=f"{request.method} {request.path}")
            answer = self.error(500, "internal", "internal error; see the daemon's log")
        self._control.parts.metrics.requested(verb, answer.status, self.clock.monotonic_s() - began_s)
        return answer

    def error(self, status: int, code: str, message: str) -> Answer:
        """An error as the API words it."""
        content = {"apiVersion": API_VERSION, "error": {"code": code, "message": message}}
        return Answer(json.dumps(content).encode() + b"\n", status)

    def _document(self, _: Request) -> Answer:
        return Answer(json.dumps(openapi.document(self._routes)).encode())

    def _routed(self, request: Request) -> tuple[str, Callable[[], Answer]]:
        """The name of the verb or page (`other` for an unknown path), and a function that makes the answer."""
        page = self._pages.get(request.path)
        if page is not None:
            respond = (lambda: page(request)) if request.method == "GET" else (lambda: self._takes(["GET"]))
            return request.path.removeprefix("/"), respond
        methods = []
        for route in self._routes:
            in_path = route.match(request.path)
            if in_path is not None and route.method == request.method:
                return route.verb, partial(self._run, route, in_path, request)
            if in_path is not None:
                methods.append(route.method)
        if methods:
            return "other", lambda: self._takes(methods)
        return "other", lambda: _refuse(404, "no_such_path", "no such path; GET /openapi.json lists all")

    def _takes(self, methods: list[str]) -> Answer:
        refusal = self.error(405, "method_not_allowed", f"this path takes {' and '.join(methods)}")
        return Answer(refusal.body, refusal.status, headers={"Allow": ", ".join(methods)})

    def _run(self, route: Route, in_path: dict[str, str], request: Request) -> Answer:
        if not route.changes:
            values = _query(request.query) | {name: unquote(value) for name, value in in_path.items()}
            return self._call(route, _parsed(lambda: route.parameters.model_validate(values)))
        return self._change(route, request)

    def _call(self, route: Route, parameters: BaseModel) -> Answer:
        """Call a route; raises `OperationError`."""
        head = f'{{"apiVersion":"{API_VERSION}","{route.key}":'.encode()
        return Answer(head + route.call(self._control, parameters) + b"}\n")

    def _change(self, route: Route, request: Request) -> Answer:
        """Call a route that may change something: refuses peers without permission, and records every request."""
        assert request.connection is not None
        peer, socket_gid = peer_of(request.connection), group_of(self._listening.socket)
        parameters: Mapping[str, Any] = {}
        outcome, problem = "ok", None
        try:
            if not may_change(peer, self._own_uid, socket_gid):
                whom = "ask root or a member of the socket's group"
                _refuse(403, "forbidden", f"uid {peer.uid} may read, but not change anything; {whom}")
            body = self._body(request) or b"{}"
            parsed = _parsed(lambda: route.parameters.model_validate_json(body, strict=True))
            parameters = parsed.model_dump(mode="json", exclude_unset=True)
            return self._call(route, parsed)
        except OperationError as error:
            outcome, problem = error.code, str(error)
            raise
        except UnreadableRequest:
            outcome, problem = "unreadable", "the request did not come in whole"
            raise
        except Exception as error:
            outcome, problem = "internal", type(error).__name__
            raise
        finally:
            self._audit(peer, _as_words(route.verb, parameters, problem), outcome)

    def _body(self, request: Request) -> bytes:
        if "transfer-encoding" in request.headers:
            _refuse(411, "length_required", "send the body with a Content-Length")
        length = request.headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()):
            raise Invalid("Content-Length is not a number")
        if int(length[:20]) > self.limits.max_body_bytes:
            _refuse(413, "too_large", f"the body may have {self.limits.max_body_bytes} bytes")
        body = request.body.read(int(length))
        if len(body) < int(length):
            raise UnreadableRequest(None)
        return body

    def _audit(self, peer: Peer, request: str, outcome: str) -> None:
        """Record a request in history and log: peer, verb, parameters, and the outcome (`ok` or the code of an error)."""
        record = self._control.parts.events.record
        try:
            record("control", outcome, request, pid=peer.pid, uid=peer.uid, gid=peer.gid)
        except Exception:  # noqa: BLE001  # the request is answered all the same
            _log.exception("audit_lost", entry=request)


def _as_words(verb: str, parameters: Mapping[str, Any], problem: str | None) -> str:
    """A request in one line: verb, parameters as words of a shell, message of the error."""
    words = [verb]
    for name, value in parameters.items():
        if value is True:
            words.append(name)
        elif value is not None and value is not False:
            words.append(f"{name}={shlex.quote(str(value))}")
    return " ".join(words) + (f": {problem}" if problem else "")


def _refuse(status: int, code: str, message: str) -> NoReturn:
    error = OperationError(message)
    error.status, error.code = status, code
    raise error


def _parsed(validate: Callable[[], BaseModel]) -> BaseModel:
    try:
        return validate()
    except ValidationError as error:
        problems = (
            f"{'.'.join(map(str, problem['loc'])) or 'parameters'}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)
        )
        raise Invalid("; ".join(problems)) from None


def _query(query: str) -> dict[str, str]:
    try:
        fields = parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_QUERY_FIELDS)
    except ValueError as error:
        raise Invalid(f"query: {error}") from None
    values = dict(fields)
    if len(values) < len(fields):
        raise Invalid("query: a parameter is there twice")
    return values
