"""`cleanerctl commit --wait` beside a daemon that commits by itself."""

import argparse
from collections.abc import Mapping
from typing import Any

import pytest

from cleanerd.cli.ctl.asking import ask
from cleanerd.cli.ctl.client import NO_SUCH_LOG, Client, ControlError
from cleanerd.cli.ctl.verbs import commits

WAITING = {
    "topic": "orders", "partition": 0, "log_dir": "/logs", "outcome": "waiting", "reason": "held", "lock_owner_pid": 7,
}  # fmt: skip


class Quick(Client):
    """A daemon that commits the only result between the first request and the second. `last`: what became of it."""

    def __init__(self, last: Mapping[str, Any] | None) -> None:
        super().__init__("nowhere")
        self._last = last
        self._requests = 0

    def send(self, method: str, path: str, body: Mapping[str, object], wait_s: float = 0.0) -> dict[str, Any]:
        """POST /v1/commit: only what is staged when it is asked is in the answer."""
        self._requests += 1
        assert self._requests <= 2, "it waits for what is done"
        return {"commits": [WAITING] if self._requests == 1 else []}

    def get(self, path: str, wait_s: float = 0.0, **query: object) -> dict[str, Any]:
        if self._last is None:
            raise ControlError("there is no log orders-0", NO_SUCH_LOG, "not_found")
        return {"logs": [{"log_dir": "/other", "last": None}, {"log_dir": "/logs", "last": self._last}]}


@pytest.mark.parametrize(
    ("last", "outcome"),
    [
        ({"outcome": "committed", "reason": "cleaned up to offset 9"}, "committed"),
        ({"outcome": "dropped", "reason": "segment 9 is gone"}, "dropped"),
        ({"outcome": "aborted", "reason": None}, "nothing"),
        (None, "nothing"),
    ],
)
def test_it_does_not_wait_for_what_the_daemon_has_done(last: Mapping[str, Any] | None, outcome: str) -> None:
    """Without a time limit it would keep a broker from starting for ever."""
    options = argparse.Namespace(pattern=None, wait=True, timeout=None)
    reply = ask(commits.VERB, Quick(last), options)
    (row,) = reply.document["commits"]
    assert (row["outcome"], row["lock_owner_pid"], reply.exit_code) == (outcome, None, 0)
