"""Clients of `PartitionStates` in threads of their own, and the logs that they are about."""

import threading
import time
from collections.abc import Callable

from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.errors import CleanerdError
from cleanerd.format.names import TopicPartition
from cleanerd.policy.lifecycle import ABORTED, IllegalTransition

PATIENCE_S = 10.0


def log_of(topic: str, partition: int = 0) -> LogId:
    """A log of the one directory of these tests."""
    return LogId("/data", TopicPartition(topic, partition))


LOG, OTHER, THIRD = log_of("orders", 3), log_of("orders", 4), log_of("users")


class Waiter:
    """A client in a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.error: Exception | None = None
        self.answer: object = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.answer = self._call()
        except (CleanerdError, IllegalTransition) as error:
            self.error = error

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def is_waiting(self) -> bool:
        """Still blocked a little later."""
        self._thread.join(0.02)
        return self._thread.is_alive()

    def result(self) -> Exception | None:
        """The error, or None when all is well; the call must be over soon."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.error


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread to get somewhere."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)


def waiting(
    states: PartitionStates, log: LogId = LOG, ask: Callable[[LogId], object] | None = None
) -> Waiter:
    """A client that has asked for abort-and-pause of a log in progress, or for what `ask` does, and waits."""
    client = Waiter(lambda: (ask or states.abort_and_pause)(log))
    until(lambda: states.state(log) == ABORTED and log in states._answers)
    assert client.is_alive()
    return client


def hold(hold_id: str, pattern: str, expires_ms: int | None = None) -> Hold:
    """A hold of somebody."""
    return Hold(hold_id, pattern, "uid 0", "maintenance", 0, expires_ms)
