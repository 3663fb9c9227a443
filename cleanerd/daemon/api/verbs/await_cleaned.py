"""Wait until a log is cleaned up to an offset."""

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.parameters import Offset, Tp, WaitMs
from cleanerd.daemon.api.refusals import DEFAULT_WAIT_MS, Timeout, Unavailable
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import LogView


def await_cleaned(
    control: Control,
    topic_partition: Tp,
    offset: Offset,
    timeout_ms: WaitMs = DEFAULT_WAIT_MS,
) -> tuple[LogView, ...]:
    """The log, as soon as its first dirty offset has reached `offset` (Kafka's awaitCleaned)."""
    parts, deadline_s = control.parts, control.parts.clock.monotonic_s() + timeout_ms / 1000
    logs = control.of(topic_partition)
    while not all(_cleaned_up_to(control, log) >= offset for log in logs):
        left_s = deadline_s - parts.clock.monotonic_s()
        if left_s <= 0:
            raise Timeout(f"{topic_partition} is not cleaned up to offset {offset} after {timeout_ms} ms")
        if parts.life.stopping.is_set():
            raise Unavailable("the daemon is stopping")
        if parts.schedule.hurry(logs):
            parts.bells.work.ring()
        with parts.bells.progressed:
            parts.bells.progressed.wait(min(left_s, 1.0))
    return tuple(control.views.logs(logs))


def _cleaned_up_to(control: Control, log: LogId) -> int:
    known = control.parts.inventory.facts(log)
    return -1 if known is None or known.offsets.checkpoint is None else known.offsets.checkpoint
