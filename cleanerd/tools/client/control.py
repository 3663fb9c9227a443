"""How a writer keeps the cleaner away from a log while it truncates or deletes it (rules 2.7, 2.9).

A courtesy that avoids useless work, not what makes it safe: whatever is committed is compared with the log as it is,
with `.lock` held, and the writer holds `.lock` while it changes the log. So by default no daemon is asked (2.11).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from cleanerd.daemon.api import client as ctl
from cleanerd.errors import Retryable
from cleanerd.format.names import TopicPartition

HOLD_TTL_MS = 600_000
"""After this long the daemon lifts a hold by itself, so that a writer that died pauses no log for ever."""
TIMEOUT_MS = 30_000
_ANSWER_S = 10.0  # longer than it is asked to wait


class DaemonControl:
    """A running `cleanerd`, asked through its control socket. When nothing listens there, nothing cleans.

    `owner` is whose hold it is. A cleaning that is aborted has `timeout_ms` to stop.
    """

    def __init__(
        self,
        socket_path: str,
        *,
        owner: str = "cleanerd.tools.client",
        ttl_ms: int = HOLD_TTL_MS,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self._client = ctl.Client(socket_path, _ANSWER_S)
        self._socket_path = socket_path
        self._owner = owner
        self._ttl_ms = ttl_ms
        self._timeout_ms = timeout_ms

    @contextmanager
    def stopped(self, topic_partition: TopicPartition) -> Iterator[None]:
        """Abort a cleaning of the log; no other begins while the block runs.

        Raises Retryable when the cleaning has not stopped in time, or the request was refused: nothing is paused then.
        """
        hold = self._pause(topic_partition)
        try:
            yield
        finally:
            if hold is not None:
                with suppress(ctl.ControlError):  # its time to live ends it
                    self._client.send("POST", "/v1/resume", {"selector": hold})

    def _pause(self, topic_partition: TopicPartition) -> str | None:
        request = {
            "pattern": str(topic_partition),
            "owner": self._owner,
            "reason": "truncation or deletion",
            "ttl_ms": self._ttl_ms,
            "timeout_ms": self._timeout_ms,
        }
        try:
            answer = self._client.send("POST", "/v1/pause", request, self._timeout_ms / 1000)
        except ctl.NoDaemon:
            return None
        except ctl.ControlError as error:
            raise Retryable(f"{self._socket_path}: {error}") from error
        return str(answer["hold"]["id"])


def stopped(control: DaemonControl | None, topic_partition: TopicPartition) -> AbstractContextManager[None]:
    """As `DaemonControl.stopped`; None: no daemon is asked."""
    return nullcontext() if control is None else control.stopped(topic_partition)
