"""Wait until a log is cleaned up to an offset."""

from __future__ import annotations

from argparse import Namespace

from cleanerd.daemon.api.arguments import LOG, OFFSET
from cleanerd.daemon.api.asking import Deadline, given
from cleanerd.daemon.api.client import Client
from cleanerd.daemon.api.refusals import DEFAULT_WAIT_MS, Timeout, Unavailable
from cleanerd.daemon.api.verb import Endpoint, Reply, Verb, daemon


def await_cleaned(
    control: daemon.Control,
    topic_partition: daemon.Tp,
    offset: daemon.Offset,
    timeout_ms: daemon.WaitMs = DEFAULT_WAIT_MS,
) -> tuple[daemon.LogView, ...]:
    """The log, as soon as its first dirty offset has reached `offset` (Kafka's awaitCleaned)."""
    parts, deadline_s = control.parts, control.parts.clock.monotonic_s() + timeout_ms / 1000
    logs = control.of(topic_partition)
    while not all(_cleaned_up_to(control, log) >= offset for log in logs):
        left_s = deadline_s - parts.clock.monotonic_s()
        if left_s <= 0:
            raise Timeout(f"{topic_partition} is not cleaned up to offset {offset} after {timeout_ms} ms")
        if parts.life.stopping.is_set():
            raise Unavailable("the daemon is stopping")
        with parts.progressed:
            parts.progressed.wait(min(left_s, 1.0))
    return tuple(control.views.logs(logs))


def _cleaned_up_to(control: daemon.Control, log: daemon.LogId) -> int:
    known = control.parts.inventory.facts(log)
    return -1 if known is None or known.offsets.checkpoint is None else known.offsets.checkpoint


_AWAIT = Endpoint("GET", "/v1/logs/{topic_partition}/cleaned", "logs", await_cleaned)
_ARGUMENTS = (LOG, OFFSET)


def _ask(client: Client, options: Namespace) -> Reply:
    return Reply(Deadline(options.timeout).call(client, _AWAIT, given(client, _ARGUMENTS, options)))


VERB = Verb("await", __doc__, (_AWAIT,), _ARGUMENTS, ("await orders-3 150000 --timeout 10m",), ask=_ask)
