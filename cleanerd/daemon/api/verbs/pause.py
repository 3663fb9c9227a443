"""Hold logs: no cleaning starts until the hold ends."""

from dataclasses import asdict

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.parameters import OwnerName, Pattern, ShortText, Ttl, WaitMs
from cleanerd.daemon.api.refusals import DEFAULT_WAIT_MS, Timeout, Unavailable
from cleanerd.daemon.store import HOLD
from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.values.models import HoldView


def pause(
    control: Control,
    pattern: Pattern,
    owner: OwnerName,
    reason: ShortText = "",
    ttl_ms: Ttl | None = None,
    timeout_ms: WaitMs = DEFAULT_WAIT_MS,
) -> HoldView:
    """Hold all logs that match `pattern` now or later, and answer when none of them is being cleaned any more.

    Kafka's "abort and pause" (2.1). A `Timeout` withdraws the hold.
    """
    parts, now_ms = control.parts, control.parts.clock.now_ms()
    hold = Hold.new(pattern, owner, reason, now_ms, ttl_ms)
    running = parts.states.hold(hold, timeout_ms / 1000)
    if running:
        parts.states.release(hold.id)
        parts.ownership.name_holds()  # another pause may have named it meanwhile
        names = ", ".join(sorted(map(str, running))[:10])
        raise Timeout(f"still being cleaned after {timeout_ms} ms: {names}; nothing is paused")
    if not parts.store.put(HOLD, hold.id, asdict(hold)):
        parts.states.release(hold.id)
        parts.store.delete(HOLD, hold.id)  # else it would be written once that works again
        parts.ownership.name_holds()
        raise Unavailable("the hold would not survive a restart: the state directory cannot be written")
    parts.ownership.name_holds()
    return control.views.hold(hold)
