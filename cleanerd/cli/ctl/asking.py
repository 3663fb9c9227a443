"""Requests of cleanerctl: made from the arguments of a command, and repeated while it waits.

`clean --wait`, `commit --wait` and `await` wait in slices of ten seconds, so that the daemon keeps no thread for a client
that has gone.
"""

import re
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from cleanerd.cli.arguments import Argument
from cleanerd.cli.ctl.client import FAILED, NO_SUCH_LOG, USAGE, Client, ControlError
from cleanerd.cli.ctl.verb import Reply, Verb
from cleanerd.daemon.api.endpoints import LOGS, Endpoint
from cleanerd.daemon.api.refusals import DEFAULT_WAIT_MS, MAX_WAIT_MS

_SLICE_S = 10.0


def ask(verb: Verb, client: Client, options: Namespace) -> Reply:
    """Make the requests of a verb, by default the first one whose path the arguments fill. Raises `ControlError`."""
    if verb.ask is not None:
        return verb.ask(client, options)
    parameters, wait_s = given(client, verb.arguments, options), verb.wait_s
    if verb.is_bounded:
        parameters["timeout_ms"] = stop_ms(options.timeout)
        wait_s = stop_ms(options.timeout) / 1000
    endpoint = next(one for one in verb.endpoints if one.in_path <= parameters.keys())
    answer = call(client, endpoint, parameters, wait_s)
    is_failure = verb.has_failed is not None and verb.has_failed(answer)
    return Reply(answer, verb.view, FAILED if is_failure else 0)


def given(client: Client, arguments: Sequence[Argument], options: Namespace) -> dict[str, object]:
    """The arguments that have a value, as parameters of a request.

    A topic with a single partition stands for that partition. Raises `ControlError` if the topic has none or several.
    """
    values = {one.dest: getattr(options, one.dest) for one in arguments}
    if "topic_partition" in values:
        values["topic_partition"] = _partition(client, values["topic_partition"])
    return {name: value for name, value in values.items() if value is not None}


def call(
    client: Client, endpoint: Endpoint, parameters: Mapping[str, object], wait_s: float = 0.0
) -> dict[str, Any]:
    """Make one request; `wait_s`: how much longer than usual the daemon may take. Raises `ControlError`."""
    path = endpoint.path.format_map({name: quote(str(value), safe="") for name, value in parameters.items()})
    rest = {name: value for name, value in parameters.items() if name not in endpoint.in_path}
    if endpoint.changes:
        return client.send(endpoint.method, path, rest, wait_s)
    return client.get(path, wait_s, **rest)


def _partition(client: Client, name: str) -> str:
    """The name of a partition: `name` itself, or the only partition of the topic with this name."""
    if re.fullmatch(r".+-\d+", name):
        return name
    rows = call(client, LOGS, {"pattern": name})["logs"]
    found = sorted({row["partition"] for row in rows if row["topic"] == name})
    if not found:
        raise ControlError(f"there is no topic {name}; `cleanerctl logs` lists what there is", NO_SUCH_LOG)
    if len(found) > 1:
        names = f"{name}-{found[0]} to {name}-{found[-1]}"
        raise ControlError(f"{name} has {len(found)} partitions: name one of {names}", USAGE)
    return f"{name}-{found[0]}"


def stop_ms(timeout_s: float | None) -> int:
    """How long one request waits for cleanings to stop: `--timeout`, within the limit of the API."""
    return DEFAULT_WAIT_MS if timeout_s is None else min(round(1000 * timeout_s), MAX_WAIT_MS)


class Deadline:
    """The end of `--timeout`, or never."""

    def __init__(self, timeout_s: float | None) -> None:
        self._end_s = None if timeout_s is None else time.monotonic() + timeout_s

    def _left_s(self) -> float:
        return _SLICE_S if self._end_s is None else self._end_s - time.monotonic()

    def is_over(self) -> bool:
        """Whether there is no time left."""
        return self._left_s() <= 0

    def call(
        self, client: Client, endpoint: Endpoint, parameters: Mapping[str, object], limit: str = "timeout_ms"
    ) -> dict[str, Any]:
        """Repeat a request until it is answered or the time is over; `limit` names the parameter that bounds one request."""
        while True:
            slice_ms = round(1000 * min(max(self._left_s(), 0.0), _SLICE_S))
            try:
                return call(client, endpoint, {**parameters, limit: slice_ms}, slice_ms / 1000)
            except ControlError as error:
                if error.code != "timeout" or self.is_over():
                    raise
