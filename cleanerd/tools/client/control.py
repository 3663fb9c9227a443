"""How a writer keeps the cleaner away from a log while it truncates or deletes it (rules 2.7, 2.9).

A courtesy that avoids useless work, not what makes it safe: whatever is committed is compared with the log as it is,
with `.lock` held, and the writer holds `.lock` while it changes the log. So by default no daemon is asked (2.11).
"""

import http.client
import json
import socket
from typing import Any, Protocol

from cleanerd.errors import Retryable
from cleanerd.format.names import TopicPartition

HOLD_TTL_MS = 600_000
"""After this long the daemon lifts a hold by itself, so that a writer that died pauses no log for ever."""
_ANSWER_SLACK_S = 10.0


class CleanerControl(Protocol):
    """What can stop the cleaning of a log."""

    def abort_and_pause(self, topic: str, partition: int, timeout_ms: int) -> str | None:
        """Abort a cleaning and prevent others, until `resume` of the token returned; None needs no `resume`.

        Raises Retryable when the cleaning has not stopped after `timeout_ms`, or the request was refused: nothing is
        paused then.
        """
        ...

    def resume(self, token: str) -> None:
        """Let the log be cleaned again. Never raises: what cannot be resumed ends by itself."""
        ...


class NoDaemon:
    """No cleaner runs, or none needs to be asked."""

    def abort_and_pause(self, topic: str, partition: int, timeout_ms: int) -> str | None:  # noqa: ARG002
        """Nothing to do."""
        return None

    def resume(self, token: str) -> None:
        """Nothing to do."""


class DaemonControl:
    """A running `cleanerd`, asked through its control socket. When nothing listens there, nothing cleans.

    `owner` is who the hold is said to belong to.
    """

    def __init__(
        self, socket_path: str, *, owner: str = "cleanerd.tools.client", ttl_ms: int = HOLD_TTL_MS
    ) -> None:
        self._socket_path = socket_path
        self._owner = owner
        self._ttl_ms = ttl_ms

    def abort_and_pause(self, topic: str, partition: int, timeout_ms: int) -> str | None:
        """Take a hold; as `CleanerControl` says."""
        request = {
            "pattern": str(TopicPartition(topic, partition)),
            "owner": self._owner,
            "reason": "truncation or deletion",
            "ttl_ms": self._ttl_ms,
            "timeout_ms": timeout_ms,
        }
        try:
            status, answer = self._post("/v1/pause", request, timeout_ms / 1000 + _ANSWER_SLACK_S)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except (OSError, http.client.HTTPException) as error:
            raise Retryable(f"{self._socket_path}: {error or type(error).__name__}") from error
        if status != 200:
            raise Retryable(f"{self._socket_path}: {status} {answer.get('error', {}).get('message', '')}")
        return str(answer["hold"]["id"])

    def resume(self, token: str) -> None:
        """Lift a hold; as `CleanerControl` says."""
        try:
            self._post("/v1/resume", {"selector": token}, _ANSWER_SLACK_S)
        except (OSError, http.client.HTTPException):
            return  # its time to live ends it

    def _post(self, path: str, body: dict[str, object], timeout_s: float) -> tuple[int, dict[str, Any]]:
        connection = _UnixConnection(self._socket_path, timeout_s)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, _document(response.read())
        finally:
            connection.close()


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, socket_path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._socket_path = socket_path

    def connect(self) -> None:
        """Connect. Raises OSError."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._socket_path)


def _document(content: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(content)
    except ValueError:
        raise http.client.HTTPException("the answer is not JSON") from None
    if not isinstance(parsed, dict):
        raise http.client.HTTPException("the answer is not a JSON object")
    return parsed
