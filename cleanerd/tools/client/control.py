"""How a writer keeps the cleaner away from a log while it truncates or deletes it (rules 2.7, 2.9).

A courtesy that avoids useless work, not what makes it safe: whatever is committed is compared with the log as it is,
with `.lock` held, and the writer holds `.lock` while it changes the log. So by default no daemon is asked (2.11).
"""

import contextlib
from typing import Protocol

from cleanerd.daemon.api import client as ctl
from cleanerd.errors import Retryable
from cleanerd.format.names import TopicPartition

HOLD_TTL_MS = 600_000
"""After this long the daemon lifts a hold by itself, so that a writer that died pauses no log for ever."""
_ANSWER_S = 10.0  # longer than it is asked to wait


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
        self._client = ctl.Client(socket_path, _ANSWER_S)
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
            answer = self._client.send("POST", "/v1/pause", request, timeout_ms / 1000)
        except ctl.NoDaemon:
            return None
        except ctl.ControlError as error:
            raise Retryable(f"{self._socket_path}: {error}") from error
        return str(answer["hold"]["id"])

    def resume(self, token: str) -> None:
        """Lift a hold; as `CleanerControl` says."""
        with contextlib.suppress(ctl.ControlError):  # its time to live ends it
            self._client.send("POST", "/v1/resume", {"selector": token})
